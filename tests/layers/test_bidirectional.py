"""Bidirectional layers: every sequence turned round within itself, whatever stands beside, behind or between."""

from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

import conca
from conca.layers import families
from conca.layers.bidirectional import Bidirectional, BidirectionalBlock, mirrored
from conca.layers.lstm import LSTM
from conca.layers.s4d import S4D
from conca.models.stack import pattern

LENGTHS = torch.tensor([7, 0, 1, 4, 2])


def timed(d_model=4):
    return S4D(d_model, d_state=4)


def hybrid():
    return pattern("s4d(d_state=4) attention(n_heads=2,window=3) lstm", d_model=4)


MAKERS = {name: lambda cls=cls: cls.samples()[0] for name, cls in families().items()} | {"hybrid": hybrid}


def by_hand(layer, x, elapsed=None):
    """One sequence (1, T, D) read from both ends, each way by its definition, one step after another."""
    if x.shape[1] == 0:
        return x
    there = back = {}
    if elapsed is not None:
        gaps = elapsed[:, 1:]
        one = torch.ones(len(x), 1)
        there = {"elapsed": torch.cat([one, gaps], 1)}
        back = {"elapsed": torch.cat([one, gaps.flip(1)], 1)}
    y = layer.ahead.recurrent(x, **(there if layer.ahead.timed else {}))[0]
    z = layer.back.recurrent(x.flip(1), **(back if layer.back.timed else {}))[0].flip(1)
    return y + z if layer.merge == "sum" else layer.out(torch.cat([y, z], -1))


def poisoned(x, lengths):
    return x.masked_fill((torch.arange(x.shape[1]) >= lengths[:, None])[..., None], torch.nan)


@pytest.mark.parametrize("merge", ["cat", "sum"])
@pytest.mark.parametrize("name", MAKERS)
def test_padded_rows_give_what_each_gives_alone(name, merge):
    layer = Bidirectional.of(MAKERS[name], merge=merge)
    x = poisoned(torch.randn(5, 7, layer.d_model), LENGTHS).requires_grad_()
    y = layer(x, lengths=LENGTHS)
    weight = torch.randn_like(y)
    (slope,) = torch.autograd.grad((y.sin() * weight).sum(), x)
    for row, n in enumerate(LENGTHS.tolist()):
        alone = x[row : row + 1, :n].detach().requires_grad_()
        expected = by_hand(layer, alone)
        assert_close(y[row, :n], expected[0], rtol=1e-9, atol=1e-9)
        assert (y[row, n:] == 0).all()
        assert (slope[row, n:] == 0).all()
        if n:
            (wanted,) = torch.autograd.grad((expected.sin() * weight[row : row + 1, :n]).sum(), alone)
            assert_close(slope[row, :n], wanted[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("T", [0, 1, 2, 7, 131])
def test_whole_rows_of_every_length(T):
    layer = Bidirectional.of(timed)
    x = torch.randn(3, T, 4)
    assert_close(layer(x), by_hand(layer, x))
    assert layer(x[:0]).shape == (0, T, 4)


@pytest.mark.parametrize("with_times", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_packed_sequences_give_what_they_give_apart(name, with_times):
    layer = Bidirectional.of(MAKERS[name])
    if with_times and not layer.timed:
        with pytest.raises(ValueError, match="neither direction understands elapsed"):
            layer(torch.randn(1, 3, layer.d_model), elapsed=torch.ones(1, 3))
        return
    x, lengths = torch.randn(3, 9, layer.d_model), torch.tensor([9, 8, 5])
    starts = torch.zeros(3, 9, dtype=torch.bool)
    starts[0, [0, 1, 4]] = starts[1, [5, 7]] = starts[2, [2, 6]] = True  # the last one stands in the padding
    elapsed = 3 * torch.rand(3, 9) if with_times else None
    x = poisoned(x, lengths)
    y = layer(x, lengths=lengths, starts=starts, elapsed=elapsed)
    cuts = [[0, 1, 4, 9], [0, 5, 7, 8], [0, 2, 5]]
    for row, places in enumerate(cuts):
        for begin, end in pairwise(places):
            piece = (slice(row, row + 1), slice(begin, end))
            expected = by_hand(layer, x[piece], None if elapsed is None else elapsed[piece])
            assert_close(y[piece], expected, rtol=1e-9, atol=1e-9)
        assert (y[row, places[-1] :] == 0).all()


def test_gaps_lie_between_samples_and_gradients_pass_to_them():
    layer = Bidirectional(timed(), timed(), merge="sum")
    x, lengths = torch.randn(5, 7, 4), LENGTHS
    elapsed = (3 * torch.rand(5, 7)).requires_grad_()
    y = layer(poisoned(x, lengths), lengths=lengths, elapsed=elapsed)
    y.square().sum().backward()
    for row, n in enumerate(lengths.tolist()):
        own = elapsed[row : row + 1, :n].detach().requires_grad_()
        expected = by_hand(layer, x[row : row + 1, :n], own)
        assert_close(y[row, :n], expected[0])
        assert (elapsed.grad[row, n:] == 0).all()
        assert (elapsed.grad[row, :1] == 0).all(), "nothing lies before the first sample"
        if n > 1:
            assert_close(elapsed.grad[row, :n], torch.autograd.grad(expected.square().sum(), own)[0][0])


@pytest.mark.parametrize("name", MAKERS)
def test_time_turned_round_and_mixers_swapped_turn_the_output_round(name):
    one, two = MAKERS[name](), MAKERS[name]()
    layer, swapped = Bidirectional(one, two), Bidirectional(two, one)
    with torch.no_grad():
        swapped.out.weight.copy_(layer.out.weight.roll(layer.d_model, 1))
        swapped.out.bias.copy_(layer.out.bias)
    x = torch.randn(2, 7, layer.d_model)
    assert_close(swapped(x.flip(1)).flip(1), layer(x))
    if layer.timed:
        gaps = 3 * torch.rand(2, 6)
        there = torch.cat([torch.full((2, 1), 5.0), gaps], 1)
        back = torch.cat([torch.full((2, 1), 9.0), gaps.flip(1)], 1)
        assert_close(swapped(x.flip(1), elapsed=back).flip(1), layer(x, elapsed=there))


def test_only_the_timed_direction_gets_the_times():
    x, elapsed = torch.randn(2, 7, 4), 3 * torch.rand(2, 7)
    for layer in (Bidirectional(timed(), LSTM(4)), Bidirectional(LSTM(4), timed())):
        assert layer.timed
        assert_close(layer(x, elapsed=elapsed), by_hand(layer, x, elapsed))


def test_every_output_sees_the_whole_sequence_and_no_other():
    layer = Bidirectional.of(timed)
    x = torch.randn(2, 7, 4, requires_grad=True)
    starts = torch.zeros(2, 7, dtype=torch.bool)
    starts[0, 3] = True
    for t in range(7):
        (seen,) = torch.autograd.grad(layer(x, starts=starts)[0, t].sum(), x)
        touched = seen.abs().amax((0, 2)) > 0
        assert touched.tolist() == [(s < 3) == (t < 3) for s in range(7)]
        assert (seen[1] == 0).all()


def test_turning_round_twice_changes_nothing():
    starts = torch.rand(5, 7) < 0.4
    begins, ends, mirror = mirrored(torch.zeros(5, 7, 1), LENGTHS, starts)
    at = torch.arange(7).expand(5, 7)
    assert torch.equal(mirror.gather(1, mirror), at)
    assert torch.equal(begins.gather(1, mirror), ends)
    live = at < LENGTHS[:, None]
    assert torch.equal(mirror[~live], at[~live])
    assert int(begins.sum()) == int(ends.sum()) == int((starts & live)[:, 1:].sum() + (LENGTHS > 0).sum())


def test_an_encoder_of_blocks_does_not_see_the_padding():
    encoder = [BidirectionalBlock(Bidirectional.of(maker)) for maker in (timed, hybrid, lambda: LSTM(4))]

    def encoded(x, **options):
        for block in encoder:
            x = block(x, **options)
        return x

    x, elapsed = poisoned(torch.randn(5, 7, 4), LENGTHS).requires_grad_(), 3 * torch.rand(5, 7)
    y = encoded(x, lengths=LENGTHS, elapsed=elapsed)
    y.square().sum().backward()
    assert torch.isfinite(x.grad).all()
    for block in encoder:
        assert all(torch.isfinite(p.grad).all() and (p.grad != 0).any() for p in block.parameters())
    for row, n in enumerate(LENGTHS.tolist()):
        assert_close(y[row, :n], encoded(x[row : row + 1, :n], elapsed=elapsed[row : row + 1, :n])[0])
        assert (y[row, n:] == 0).all()
    first = encoder[0]
    x = torch.randn(1, 3, 4)
    assert_close(first(x), x + first.inner(first.norm(x)))
    assert (BidirectionalBlock(first.inner, dropout=1.0)(x) == x).all()


def test_forward_compiles_without_a_break():
    layer = Bidirectional.of(timed)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, lengths: layer(x, lengths=lengths), fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 7, 4)
    assert_close(compiled(x, LENGTHS), layer(x, lengths=LENGTHS))
    torch._dynamo.reset()


def test_parameters_and_half_precision():
    layer = conca.Bidirectional.of(lambda: pattern("s4d*2", d_model=6)).bfloat16()
    assert layer(torch.randn(2, 3, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert layer.out.weight.shape == (6, 12)
    assert Bidirectional(timed(), timed(), bias=False).out.bias is None
    assert Bidirectional(timed(), timed(), merge="sum").out is None
    both = timed()
    assert len(list(Bidirectional(both, both, merge="sum").parameters())) == len(list(both.parameters()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bidirectional(timed(4), timed(5)), "one width, got 4 and 5"),
        (lambda: Bidirectional(timed(), torch.nn.Identity()), "Identity is none"),
        (lambda: Bidirectional.of(timed, merge="concat"), "unknown merge 'concat'; did you mean 'cat'"),
        (lambda: Bidirectional.of(timed)(torch.zeros(2, 3)), r"\(batch, time, 4\), got \(2, 3\)"),
        (lambda: Bidirectional.of(timed)(torch.zeros(2, 3, 4), lengths=torch.tensor([4, 1])), "from 0 to 3"),
        (lambda: Bidirectional.of(timed)(torch.zeros(2, 3, 4), lengths=torch.tensor([1])), "lengths of shape"),
        (lambda: Bidirectional.of(timed)(torch.zeros(2, 3, 4), starts=torch.zeros(2, 3)), "bool"),
        (lambda: Bidirectional.of(timed)(torch.zeros(2, 3, 4), elapsed=torch.ones(3, 2)), "elapsed of shape"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_does_not_fit_is_said_at_once():
    layer = Bidirectional(S4D(4, d_state=4), S4D(4, d_state=4))
    with pytest.raises(ValueError, match="lengths must be a tensor, got list"):
        layer(torch.zeros(2, 3, 4), lengths=[1, 2])
    with pytest.raises(ValueError, match="takes a Bidirectional, and S4D is none"):
        BidirectionalBlock(S4D(4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_map_is_of_the_type_of_the_layers(dtype):
    layer = Bidirectional.of(lambda: S4D(4, d_state=4, dtype=dtype))
    assert layer.out.weight.dtype == dtype
    assert layer(torch.zeros(1, 3, 4, dtype=dtype)).dtype == dtype
