"""Decoding in one piece: the numbers and states of the layers' own steps, old states stay valid, and no change of the model is missed."""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import conca  # noqa: F401  (registers the kernels)
from conca.infer.decoder import Decoder
from conca.kernels import pool
from conca.layers.mamba import Mamba
from conca.layers.mamba2 import Mamba2
from conca.layers.norm import RMSNorm
from conca.layers.quantised import narrowed
from conca.layers.states import leaves, tree_map
from conca.layers.tied_embedding import TiedEmbedding
from conca.models.stack import Block, Stack, pattern
from conca.ops import bodies
from conca.types import BadInput

WORDS = "mamba*2 mamba2(d_head=4) mamba(d_conv=1,d_state=3,expand=1,bias=True) mamba2(n_groups=2,d_head=6,d_state=5)"


def model(words=WORDS, dtype=torch.float64, **ends):
    torch.set_default_dtype(dtype)
    parts = {"embedding": nn.Embedding(11, 12), "norm": RMSNorm(12, eps=1e-5), "head": nn.Linear(12, 11)} | ends
    return Decoder(pattern(words, 12).eval(), **parts)


def own(decoder, x, state):
    """The same by the layers themselves."""
    x = x if x.is_floating_point() else decoder.embedding(x)
    y, state = decoder.mixer.step(x, state)
    y = y if decoder.norm is None else decoder.norm(y)
    return (y if decoder.head is None else decoder.head(y)), state


def warm(decoder, batch=1):
    return tree_map(torch.randn_like, decoder.init_state(batch))


def agrees(decoder, x=None, state=None, *, by_program=True):
    """The step gives what the layers give, and runs as a program, or not."""
    x = torch.randint(11, (1,)) if x is None else x
    state = warm(decoder, len(x)) if state is None else state
    with torch.no_grad(), bodies.watched() as used:
        y, new = decoder.step(x, state)
    with torch.no_grad():
        want, after = own(decoder, x, state)
    assert ("program" in used) is by_program
    assert type(new) is type(after)
    for got, wanted in zip((y, *leaves(new)), (want, *leaves(after)), strict=True):
        assert got.dtype == wanted.dtype
        assert_close(got, wanted)
    return new


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_step_of_the_layers(dtype, threads, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(threads)
    decoder = model(dtype=dtype)
    for batch in (1, 3):
        state = warm(decoder, batch)
        for _ in range(3):
            state = agrees(decoder, torch.randint(11, (batch,)), state)
        agrees(decoder, torch.randn(batch, 12))


@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
def test_narrow_weights(kind):
    decoder = model()
    narrowed(decoder.mixer, kind)
    decoder.head = narrowed(decoder.head, kind)
    agrees(decoder)


def test_with_and_without_its_ends():
    for ends in ({"head": None}, {"norm": None}, {"norm": None, "head": None}, {"head": nn.Linear(12, 3, bias=False)}):
        agrees(model("mamba", **ends), torch.randn(2, 12))
    for mixer in (Mamba(12), Mamba2(12, d_head=4, gate={"norm": False}), Block(Mamba2(12, gate={"norm_first": True}))):
        agrees(Decoder(mixer.eval(), head=nn.Linear(12, 4)), torch.randn(1, 12))
    assert model(head=None, norm=None).init_state(2)[0].h_BEN.shape == (2, 24, 16)
    with pytest.raises(BadInput, match="no embedding"):
        Decoder(Mamba(4)).step(torch.tensor([1]), Mamba(4).init_state(1))


def test_a_table_of_tokens_is_its_own_head():
    tokens = TiedEmbedding(11, 12)
    for layers in ("mamba", "lstm"):
        decoder = Decoder(pattern(layers, 12).eval(), embedding=tokens, norm=RMSNorm(12), head=tokens)
        state = warm(decoder)
        with torch.no_grad():
            logits, _ = decoder.step(torch.tensor([3]), state)
            y, _ = decoder.mixer.step(tokens(torch.tensor([3])), state)
            assert_close(logits, tokens.logits(decoder.norm(y)))


def test_layers_that_are_not_known_run_between_those_that_are():
    agrees(model("lstm mamba s4d mamba2(d_head=4)*2"))
    decoder = model("mamba attention(n_heads=2,window=3)")
    agrees(decoder, state=decoder.init_state(1))
    agrees(model("mamba(hold='zoh')"), by_program=False)
    agrees(Decoder(Stack([Mamba(5), Block(Mamba(5))]).eval()), torch.randn(1, 5))


def test_old_states_stay_valid_and_nothing_is_shared():
    decoder = model()
    x, state = torch.randint(11, (2,)), warm(decoder, 2)
    with torch.no_grad():
        kept = tree_map(torch.clone, state)
        y, new = decoder.step(x, state)
        first = y.clone(), tree_map(torch.clone, new)
        for _ in range(3):
            decoder.step(x, new)
        decoder.step(x, state)
        assert_close((y, new), first, rtol=0, atol=0)
        assert_close(state, kept, rtol=0, atol=0)
    given = {leaf.data_ptr() for leaf in leaves(state) if leaf.numel()}
    assert not given & {leaf.data_ptr() for leaf in leaves(new)}


def test_states_go_between_it_and_the_model():
    decoder = model()
    x = torch.randn(2, 6, 12)
    with torch.no_grad():
        _, state = decoder.mixer(x[:, :4])
        agrees(decoder, x[:, 4], state)
        _, state = decoder.step(x[:, 4], state)
        y, _ = decoder.mixer(x[:, 5:], state)
        assert_close(y, decoder.mixer(x)[0][:, 5:])
        strided = tree_map(lambda t: t.unsqueeze(-1).expand(*t.shape, 2).clone()[..., 0], state)
        agrees(decoder, x[:, 5], strided)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.mixer.parts[1].inner.A_log.add_(0.3),
        lambda d: d.mixer.parts[1].inner.conv.weight.mul_(0.5),
        lambda d: d.mixer.load_state_dict(copy.deepcopy(pattern(WORDS, 12)).state_dict()),
        lambda d: setattr(d.head, "weight", nn.Parameter(torch.randn(11, 12))),
        lambda d: setattr(d, "head", nn.Linear(12, 3)),
        lambda d: setattr(d, "norm", None),
        lambda d: setattr(d.mixer.parts[0].norm, "weight", nn.Parameter(torch.rand(12))),
        lambda d: setattr(d.mixer.parts[2].inner.out_proj.weight, "data", torch.randn(12, 24)),
        lambda d: (
            setattr(d.mixer.parts[0].inner, "D", None)
            or setattr(d.mixer.parts[0].inner, "D", nn.Parameter(torch.rand(24)))
        ),
    ],
    ids=["in place", "convolution", "loaded", "replaced", "head", "no norm", "norm", "data", "taken away"],
)
def test_changed_weights_are_seen(change):
    decoder = model()
    agrees(decoder)
    with torch.no_grad():
        change(decoder)
    agrees(decoder)


def doubling(module, x, y):
    return 2 * y


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 3 * self.inner(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.in_proj.register_forward_hook(doubling),
        lambda m: setattr(m, "out_proj", Wrapper(m.out_proj)),
        lambda m: setattr(m.x_proj, "forward", lambda x: nn.functional.linear(2 * x, m.x_proj.weight)),
        lambda m: nn.utils.parametrizations.weight_norm(m.dt_proj),
        lambda m: setattr(m, "step", lambda x, state, elapsed=None: (x, state)),
    ],
    ids=["hook", "wrapper", "instance", "parametrised", "step"],
)
def test_whoever_watches_or_replaces_a_part_is_heard(change):
    decoder = model()
    agrees(decoder)
    change(decoder.mixer.parts[1].inner)
    agrees(decoder)


def test_hooks_on_norms_and_head_are_heard():
    decoder = model("mamba")
    agrees(decoder)
    handle = decoder.mixer.parts[0].norm.register_forward_hook(doubling)
    agrees(decoder, by_program=False)
    handle.remove()
    handle = decoder.norm.register_forward_hook(doubling)
    agrees(decoder)
    handle.remove()
    agrees(decoder)
    handle = decoder.head.register_forward_hook(doubling)
    agrees(decoder)
    handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, y: None)
    agrees(decoder, by_program=False)
    handle.remove()
    agrees(decoder)


def test_where_it_is_of_no_use_the_layers_run():
    decoder = model()
    agrees(decoder)
    x, state = torch.randint(11, (1,)), warm(decoder)
    with bodies.watched() as seen:
        y, _ = decoder.step(x, state)
        assert y.requires_grad
        with torch.no_grad():
            decoder.step(torch.randint(11, (9,)), decoder.init_state(9))
            with bodies.plain_bodies():
                decoder.step(x, state)
            with torch.autocast("cpu", torch.bfloat16):
                decoder.step(x, state)
            with pytest.raises(ValueError, match="the state has 2 rows"):
                decoder.step(x, decoder.init_state(2))
            with pytest.raises(ValueError, match="the state is on meta"):
                decoder.step(x, tree_map(lambda t: t.to("meta"), state))
            with pytest.raises(ValueError, match="expected the state to be"):
                decoder.step(x, 5)
    assert "program" not in seen
    decoder.mixer.parts[0].dropout.p = 0.5
    decoder.mixer.train()
    torch.manual_seed(1)
    with torch.no_grad():
        got = decoder.step(x, state)[0]
        torch.manual_seed(1)
        assert_close(got, own(decoder, x, state)[0])


def test_half_precision_runs_by_the_layers():
    decoder = model(dtype=torch.float32)
    for module in (decoder.mixer, decoder.norm, decoder.head, decoder.embedding):
        module.bfloat16()
    with torch.no_grad():
        y, _ = decoder.step(torch.tensor([3]), decoder.init_state(1))
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()
    assert_close(y, own(decoder, torch.tensor([3]), decoder.init_state(1))[0])


def test_inference_mode():
    decoder = model()
    with torch.inference_mode():
        agrees(decoder)
        other = model("mamba mamba2")
        agrees(other, by_program=False)  # PyTorch does not count changes of its weights
    agrees(other, by_program=False)


def test_what_is_traced_is_written_down():
    decoder = model("mamba mamba2(d_head=4)", embedding=None, norm=None, head=None)
    state, x = warm(decoder), torch.randn(2, 1, 12)
    flat, spec = torch.utils._pytree.tree_flatten(state)

    def step(x, *flat):
        return decoder.step(x, torch.utils._pytree.tree_unflatten(flat, spec))[0]

    with torch.no_grad():
        graph = make_fx(step)(x[0], *flat)
        assert_close(graph(x[1], *flat), decoder.mixer.step(x[1], state)[0])


def test_extremes():
    decoder = model("mamba mamba2(d_head=4)", norm=None, head=None)
    with torch.no_grad():
        for part in decoder.mixer.parts:
            part.inner.dt_bias.copy_(torch.linspace(-40, 60, len(part.inner.dt_bias)))
            part.inner.A_log.copy_(torch.linspace(-8, 8, part.inner.A_log.numel()).view_as(part.inner.A_log))
    agrees(decoder, 30 * torch.randn(2, 12))
    with torch.no_grad():
        y, _ = decoder.step(torch.full((1, 12), torch.nan), decoder.init_state(1))
    assert y.isnan().all()


def test_squares_that_are_infinite_give_what_the_norms_give():
    decoder = model("mamba mamba2(d_head=4)", dtype=torch.float32, embedding=None)
    with torch.no_grad():
        y, _ = decoder.step(torch.full((1, 12), 1e25), decoder.init_state(1))
        want, _ = own(decoder, torch.full((1, 12), 1e25), decoder.init_state(1))
    assert_close(y, want)
    assert y.isfinite().all()


def test_nothing_is_kept_of_a_model_that_is_gone():
    decoder = model("mamba")
    agrees(decoder)
    watch = weakref.ref(decoder.mixer.parts[0].inner.in_proj.weight)
    program = weakref.ref(decoder._plan.pieces[0].program)
    del decoder
    assert program() is None
    assert watch() is None


def test_options_that_change_and_weights_whose_changes_are_not_counted():
    net, x = pattern("mamba mamba2(d_state=8)", 16).eval(), torch.randn(1, 16)
    decoder = Decoder(net)
    with torch.no_grad():
        state = decoder.init_state(1)
        decoder.step(x, state)
        for change in ("net.parts[0].norm.eps = 0.5", "net.parts[1].inner.conv.activation = False"):
            exec(change, {"net": net})
            assert_close(decoder.step(x, state)[0], net.step(x, state)[0])
    with torch.inference_mode():
        net = pattern("mamba", 16).eval()
        decoder = Decoder(net)
        decoder.step(x, state[:1])
        for p in net.parameters():
            p.mul_(1.5)
        assert_close(decoder.step(x, state[:1])[0], net.step(x, state[:1])[0])
