"""What the contract itself promises: checks, spellings, precision, padding, states on disk, compilation."""

import itertools
import re
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from conca.layers import families, states
from conca.layers.attention import Attention
from conca.layers.lstm import LSTM
from conca.layers.mixer import Mixer, Output
from conca.layers.rows import left_to_right, right_to_left
from conca.layers.s4d import S4D
from conca.layers.states import leaves
from conca.types import BadInput


def small():
    return S4D(4, d_state=4)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.zeros(2, 3),), {}, r"expected x of shape \(batch, time, 4\), got \(2, 3\)"),
        ((torch.zeros(2, 3, 5),), {}, r"got \(2, 3, 5\)"),
        ((torch.zeros(2, 3, 4, dtype=torch.long),), {}, "floating-point"),
        ((torch.zeros(2, 3, 4),), {"lengths": torch.tensor([1])}, r"lengths of shape \(2,\)"),
        ((torch.zeros(2, 3, 4),), {"lengths": torch.tensor([1, 4])}, "from 0 to 3"),
        ((torch.zeros(2, 3, 4),), {"lengths": torch.tensor([1, -1])}, "from 0 to 3"),
        ((torch.zeros(2, 3, 4),), {"lengths": torch.tensor([1.0, 2.0])}, "integers"),
        ((torch.zeros(2, 3, 4),), {"starts": torch.zeros(2, 3)}, "bool"),
        ((torch.zeros(2, 3, 4),), {"starts": torch.zeros(2, 2, dtype=torch.bool)}, "starts of shape"),
        ((torch.zeros(2, 3, 4),), {"elapsed": torch.ones(3, 2)}, "elapsed of shape"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, options, message):
    for form in (small(), small().recurrent, small().chunked):
        with pytest.raises(ValueError, match=message):
            form(*arguments, **options)


@pytest.mark.parametrize(
    ("x", "state", "elapsed", "message"),
    [
        (torch.zeros(2, 3, 4), 2, None, r"expected x of shape \(batch, 4\)"),
        (torch.zeros(2, 5), 2, None, r"got \(2, 5\)"),
        (torch.zeros(2, 4), 1, None, "the state has 1 rows, x has 2"),
        (torch.zeros(2, 4), 2, torch.ones(2, 1), r"expected elapsed of shape \(2,\)"),
    ],
)
def test_a_step_is_checked_too(x, state, elapsed, message):
    with pytest.raises(ValueError, match=message):
        small().step(x, small().init_state(state), elapsed=elapsed)
    with pytest.raises(ValueError, match="does not understand elapsed"):
        LSTM(4).step(torch.zeros(2, 4), LSTM(4).init_state(2), elapsed=torch.ones(2))
    with pytest.raises(ValueError, match=r"state of shape \(batch, 4, 2, 2\)"):
        small().step(torch.zeros(2, 4), S4D(4, d_state=2).init_state(2))


def test_what_is_no_tensor_is_named():
    with pytest.raises(ValueError, match="lengths must be a tensor, got list"):
        small()(torch.zeros(2, 3, 4), lengths=[1, 2])


@pytest.mark.parametrize("name", families())
def test_a_state_from_inference_goes_on_in_training(name):
    layer = families()[name].samples()[0]
    x = torch.randn(2, 5, layer.d_model)
    with torch.inference_mode():
        _, state = layer(x)
    y, _ = layer(x, state)
    y.sum().backward()
    layer.step(x[:, 0], state)[0].sum().backward()
    torch.testing.assert_close(y, layer(x, layer(x)[1])[0])


@pytest.mark.parametrize("name", families())
def test_half_precision_from_the_beginning(name):
    cls = families()[name]
    layer = cls(4, dtype=torch.bfloat16)
    y, state = layer(torch.randn(2, 3, 4, dtype=torch.bfloat16))
    y, _ = layer.step(torch.randn(2, 4, dtype=torch.bfloat16), state)
    assert y.dtype == torch.bfloat16


def test_a_pruned_layer_moves():
    layer = prune.l1_unstructured(small(), "b", 0.5).double()
    layer(torch.randn(2, 3, 4))
    weight_norm(small(), "c").to(torch.float64)(torch.randn(2, 3, 4))


@pytest.mark.parametrize("name", [name for name, family in families().items() if family.resets])
def test_a_packed_sequence_does_not_feel_the_nan_of_another(name):
    starts = torch.zeros(2, 150, dtype=torch.bool)
    starts[0, [20, 64, 130]] = True
    for mixer in families()[name].samples():
        x = torch.randn(2, 150, mixer.d_model)
        poisoned = x.clone()
        poisoned[0, 30:50] = torch.nan
        times = [{}, {"elapsed": torch.ones(2, 150)}] if mixer.timed else [{}]
        with torch.no_grad():
            for form, options in itertools.product((mixer, mixer.recurrent), times):
                want, last = form(x, starts=starts, **options)
                got, end = form(poisoned, starts=starts, **options)
                got[0, 20:64] = want[0, 20:64]
                torch.testing.assert_close(got, want)
                torch.testing.assert_close(list(leaves(end)), list(leaves(last)))


@pytest.mark.parametrize("name", [name for name, family in families().items() if family.resets])
def test_a_start_at_the_first_token_forgets_a_state_of_nan_for_gradients_too(name):
    starts = torch.zeros(2, 5, dtype=torch.bool)
    starts[:, 0] = True
    for mixer in families()[name].samples():
        x = torch.randn(2, 5, mixer.d_model, requires_grad=True)
        found = []
        for value in (0.0, torch.nan):
            state = states.tree_map(lambda t, value=value: torch.full_like(t, value), mixer.init_state(2))
            y, last = mixer(x, state, starts=starts)
            loss = y.sin().sum() + sum(t.sin().sum() for t in leaves(last))
            found.append(torch.autograd.grad(loss, [x, *mixer.parameters()], allow_unused=True))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32])
@pytest.mark.parametrize("name", ["attention", "mamba", "mamba3", "s4d"])
def test_lengths_may_be_of_any_integers(name, kind):
    layer, x, lengths = families()[name](4), torch.randn(3, 150, 4), torch.tensor([100, 0, 127])
    want, last = layer(x, lengths=lengths)
    for form in (layer, layer.recurrent, layer.chunked):
        y, state = form(x, lengths=lengths.to(kind))
        torch.testing.assert_close((y, list(leaves(state))), (want, list(leaves(last))))
    with pytest.raises(ValueError, match="lengths must be integers"):
        layer(x, lengths=lengths > 0)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4)])
def test_nothing_can_be_differentiated(shape):
    for form in (small(), small().recurrent, small().chunked):
        x = torch.zeros(shape, requires_grad=True)
        form(x)[0].sum().backward()
        assert x.grad.shape == shape


def test_lengths_under_vmap():
    layer, x = families()["mamba"](4), torch.randn(3, 2, 7, 4)
    lengths = torch.tensor([[1, 7], [0, 3], [5, 2]])
    got = torch.vmap(lambda x, n: layer(x, lengths=n)[0])(x, lengths)
    torch.testing.assert_close(got, torch.stack([layer(x[i], lengths=lengths[i])[0] for i in range(3)]))


def test_a_state_of_another_kind_or_place_is_refused():
    layer, x = small(), torch.zeros(2, 3, 4)
    _, state = layer(x)
    for wrong, message in (
        (tuple(state), "expected the state to be a S4DState, got tuple"),
        (state[0], "expected the state to be a S4DState, got Tensor"),
        (type(state)(state[0].to("meta")), "the state is on meta, x on cpu"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(x, wrong)
        with pytest.raises(ValueError, match=message):
            layer.step(x[:, 0], wrong)


@pytest.mark.parametrize("name", ["s4", "s4d", "s5", "lssl", "hippo"])
def test_a_state_of_another_precision_is_brought_to_the_layers_own(name):
    layer = families()[name](4, d_state=4, dtype=torch.float32)
    x = torch.randn(2, 5, 4, dtype=torch.float32)
    _, state = layer(x)
    for dtype in (torch.float64, torch.bfloat16):
        other = states.tree_map(lambda leaf, dtype=dtype: leaf.to(dtype), state)
        assert {leaf.dtype for leaf in leaves(layer(x, other)[1])} == {torch.float32}
        assert {leaf.dtype for leaf in leaves(layer.step(x[:, 0], other)[1])} == {torch.float32}


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(families().keys() - {"attention"}))  # the size of whose cache is a number in it
def test_shapes_are_found_without_memory(name):
    layer = families()[name](4, device="meta")
    y, state = layer(torch.empty(2, 5, 4, device="meta"))
    y, _ = layer.step(y[:, 0], layer(y, state)[1])
    assert y.is_meta and y.shape == (2, 4)


def test_negative_time_is_refused():
    x = torch.zeros(1, 2, 4)
    with pytest.raises(ValueError, match="must not be negative"):
        small()(x, elapsed=torch.tensor([[1.0, -1.0]]))
    small()(x, elapsed=torch.tensor([[1.0, -1.0]]), lengths=torch.tensor([1]))  # in the padding
    small()(x, elapsed=torch.tensor([[1.0, -1.0]]), starts=torch.tensor([[False, True]]))


@pytest.mark.parametrize(
    ("name", "value"), [("d_state", 4.0), ("d_state", True), ("d_state", None), ("d_model", 0), ("d_model", -1)]
)
def test_sizes_are_whole_numbers(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number from 1 on, got {value}"):
        S4D(**{"d_model": 4, name: value})
    if name == "d_model":
        with pytest.raises(ValueError, match="d_model must be a whole number"):
            S4D(value)


def test_a_state_of_other_rows_is_refused():
    with pytest.raises(ValueError, match="the state has 3 rows, x has 2"):
        small()(torch.zeros(2, 3, 4), small().init_state(3))


def test_elapsed_is_refused_where_it_means_nothing():
    with pytest.raises(ValueError, match="LSTM does not understand elapsed"):
        LSTM(4)(torch.zeros(1, 2, 4), elapsed=torch.ones(1, 2))


def test_forms_that_belong_to_the_contract_cannot_be_written():
    for name in ("forward", "recurrent", "chunked"):
        with pytest.raises(TypeError, match=f"Mine.{name}"):
            type("Mine", (Mixer,), {name: lambda self: None})


@pytest.mark.parametrize(
    ("cls", "foreign", "ours"),
    [
        (S4D, "hidden_size", "d_model"),
        (S4D, "ssm_state_size", "d_state"),
        (S4D, "d_stat", "d_state"),
        (Attention, "num_heads", "n_heads"),
        (Attention, "head_dim", "d_head"),
        (Attention, "sliding_window", "window"),
        (LSTM, "input_size", "d_model"),
        (families()["mamba2"], "num_heads", "d_head"),
        (families()["mamba3"], "n_heads", "d_head"),
    ],
)
def test_foreign_spellings_name_ours(cls, foreign, ours):
    with pytest.raises(TypeError, match=f"no option '{foreign}'.*'{ours}'"):
        cls(**{foreign: 4})


@pytest.mark.parametrize(
    ("name", "foreign", "ours"),
    [
        ("mamba", "dt_min", "steps={'dt': ...}"),
        ("mamba2", "dt_limit", "decay={'limit': ...}"),
        ("mamba2", "dt_min", "decay={'dt': ...}"),
        ("mamba2", "norm_before_gate", "gate={'norm_first': ...}"),
        ("mamba3", "pairing", "rotation={'pairing': ...}"),
        ("mamba3", "activation", "decay={'activation': ...}"),
        ("s4d", "dt_min", "'dt'"),
    ],
)
def test_options_that_stand_in_a_group_are_found(name, foreign, ours):
    with pytest.raises(TypeError, match=re.escape(f"has no option '{foreign}'; conca says {ours}")):
        families()[name](4, **{foreign: 4})


@pytest.mark.parametrize("name", families())
def test_recurrences_stay_wide_in_half_precision(name):
    for wide in families()[name].samples():
        before = {k: p.detach().clone() for k, p in wide.float().named_parameters()}
        wide.bfloat16()
        x = torch.randn(2, 3, wide.d_model, dtype=torch.bfloat16)
        y, _ = wide(x)
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        for key, role in wide.roles().items():
            if role.float32:
                assert wide.get_parameter(key).dtype == torch.float32
                assert torch.equal(wide.get_parameter(key), before[key])
        wide.bfloat16()  # gradients of kept parameters stay wide too
        for key, role in wide.roles().items():
            parameter = wide.get_parameter(key)
            if role.float32 and parameter.grad is not None:
                assert parameter.grad.dtype == torch.float32


@pytest.mark.parametrize("name", families())
def test_autocast_leaves_states_wide(name):
    layer = families()[name].samples()[0].float()
    x = torch.randn(2, 5, layer.d_model, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = layer(x)
        _, state = layer.step(x[:, 0].to(y.dtype), state)
    assert all(leaf.dtype in (torch.float32, torch.float64, torch.long) for leaf in leaves(state))


def fused(name):
    """PyTorch's own recurrent code, which torch.compile does not trace."""
    return any(isinstance(part, nn.RNNBase) for part in families()[name].samples()[0].modules())


@pytest.mark.parametrize("name", [n for n in families() if not fused(n)])
def test_forward_compiles_without_a_break(name):
    torch._dynamo.reset()
    layer = families()[name].samples()[0]
    x = torch.randn(2, 9, layer.d_model, requires_grad=True)
    compiled = torch.compile(lambda x, state: layer(x, state), fullgraph=True, backend="aot_eager")
    y, _ = compiled(x, layer.init_state(2))
    (got,) = torch.autograd.grad(y.sin().sum(), x)
    y_eager, _ = layer(x)
    torch.testing.assert_close(y, y_eager)
    torch.testing.assert_close(got, torch.autograd.grad(y_eager.sin().sum(), x)[0])


def test_output_gives_the_output_alone():
    net = nn.Sequential(nn.Linear(3, 4), Output(small()), nn.Linear(4, 1))
    assert net(torch.randn(2, 5, 3)).shape == (2, 5, 1)


def test_left_padding_becomes_right_padding_and_back():
    lengths = torch.tensor([4, 2, 0])
    right = torch.arange(12.0).view(3, 4, 1) + 1
    right[1, 2:], right[2] = 0, 0
    left = right_to_left(right, lengths)
    assert left[1, :, 0].tolist() == [0, 0, 5, 6]
    assert torch.equal(left_to_right(left, lengths), right)
    layer = small()
    x = torch.randn(3, 4, 4)
    x[1, :2], x[2] = torch.nan, torch.nan
    _, state = layer(left_to_right(x, lengths), lengths=lengths)
    torch.testing.assert_close(state.h_BDN2[1], layer(x[1:2, 2:])[1].h_BDN2[0])


def test_states_on_disk_are_whole_or_refused(tmp_path):
    layer, path = small(), tmp_path / "state"
    states.save(layer(torch.randn(2, 3, 4))[1], path)
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    with pytest.raises(BadInput, match="another mixer"):
        states.load(path, LSTM(4).init_state(2))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(BadInput, match="not a readable state"):
        states.load(path, layer.init_state(2))
    with pytest.raises(BadInput, match="not a readable state"):
        states.load(tmp_path / "missing", layer.init_state(2))


def test_rows_of_unequal_capacity_are_merged():
    layer = Attention(4, n_heads=1)
    x = torch.randn(2, 6, 4)
    _, long = layer(x)
    _, short = layer(x[:, :2])
    merged = states.where(torch.tensor([True, False]), long, short)
    assert merged.fill_B.tolist() == [6, 2]
    y, _ = layer(x[:, :1], merged)
    torch.testing.assert_close(y[0], layer(x[:, :1], long)[0][0])
    torch.testing.assert_close(y[1], layer(x[:, :1], short)[0][1])
    beams = states.take(long, torch.tensor([1, 1, 0]))
    assert torch.equal(
        states.put(beams, torch.tensor([0]), states.take(long, torch.tensor([0]))).k_BCHK[0], long.k_BCHK[0]
    )


@pytest.mark.parametrize("name", families())
def test_two_threads_share_a_layer(name):
    layer = families()[name].samples()[0].eval()
    x = torch.randn(2, 40, layer.d_model)
    expected = layer(x)[0].detach()
    results: list[torch.Tensor] = []

    def run() -> None:
        with torch.no_grad():
            for _ in range(5):
                results.append(layer.recurrent(x)[0])
                results.append(layer(x)[0])

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    for y in results:
        torch.testing.assert_close(y, expected)


def test_finding_the_families_draws_nothing():
    """A first look at the layers inside a seeded region must not move what is drawn there."""
    program = (
        "import torch; torch.manual_seed(0); before = torch.get_rng_state()\n"
        "from conca.layers import families; families()\n"
        "assert torch.equal(before, torch.get_rng_state())"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
