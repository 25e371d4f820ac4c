"""The short convolution: kernel and readable body agree on rows that end early and begin anew; derivatives; transforms; memory."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.ops.convolution import _short_conv, causal_convolution, short_conv
from conca.types import BadInput

SHAPES = [(2, 5, 3, 4), (1, 1, 1, 1), (3, 3, 17, 6), (2, 23, 16, 12), (2, 9, 5, 2)]
EMPTY = [(2, 0, 3, 4), (0, 4, 3, 2), (2, 3, 0, 2), (2, 0, 3, 1)]


def example(B, T, E, W, dtype=torch.float64, *, grad=True):
    sizes = (B, T, E), (E, W), (E,), (B, W - 1, E)
    return [torch.randn(*size, dtype=dtype).requires_grad_(grad) for size in sizes]


def by_hand(x, w, bias, tail, *, activation=True, lengths=None, starts=None):
    """One window after the other."""
    B, T, _ = x.shape
    W, rows, tails = w.shape[1], [], []
    for b in range(B):
        seen, n = list(tail[b]), T if lengths is None else int(lengths[b])
        row = []
        for t in range(n):
            if starts is not None and starts[b, t]:
                seen = [torch.zeros_like(x[b, t])] * (W - 1)
            seen = [*seen, x[b, t]]
            total = sum(w[:, k] * seen[-1 - k] for k in range(W)) + (0 if bias is None else bias)
            row.append(F.silu(total) if activation else total)
            seen = seen[1:]
        rows.append(torch.stack([*row, *[torch.zeros_like(x[b, 0])] * (T - n)]) if T else x[b])
        tails.append(torch.stack(seen) if seen else tail[b])
    return (torch.stack(rows), torch.stack(tails)) if B else (x.clone(), tail.clone())


@pytest.mark.parametrize("shape", SHAPES + EMPTY)
def test_bodies_are_one_window_after_the_other(shape, ragged, body, agree):
    args, options = example(*shape), ragged(*shape[:2])
    options["activation"] = shape[3] % 3 != 0
    if shape[3] == 2:
        args[2] = None
    weights = torch.randn_like(args[0]), torch.randn_like(args[3])
    agree([by_hand, short_conv], args, options, weights)


def test_without_activation_it_is_the_causal_convolution():
    args = example(2, 9, 5, 4, grad=False)
    assert_close(short_conv(*args, activation=False), causal_convolution(*args))


def test_derivatives_transforms_and_compilation(body):
    options = {"lengths": torch.tensor([3, 5]), "starts": torch.arange(10).view(2, 5) % 4 == 2}
    args = example(2, 5, 3, 3)
    assert gradcheck(lambda *a: short_conv(*a, **options), args, fast_mode=True)
    assert gradgradcheck(lambda *a: short_conv(*a, **options), args, fast_mode=True)
    assert gradgradcheck(lambda x, w, t: short_conv(x, w, None, t), [args[0], args[1], args[3]], fast_mode=True)

    def loss(x, w, bias, tail):
        return sum(out.square().sum() for out in short_conv(x.sin(), w * 2, bias, tail, **options))

    want = torch.autograd.grad(loss(*args), args)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(*args), args), want)
    torch._dynamo.reset()
    x, w, bias, tail = args = [t.detach() for t in args]
    assert_close(torch.func.grad(loss, (0, 1, 2, 3))(*args), want)

    def one(x, tail, n, fresh):
        found = short_conv(x.sin()[None], w * 2, bias, tail[None], lengths=n[None], starts=fresh[None])
        return sum(out.square().sum() for out in found)

    rows = torch.vmap(torch.func.grad(one, (0, 1)))(x, tail, options["lengths"], options["starts"])
    assert_close(rows, (want[0], want[3]))
    many = torch.stack([w, -w])
    each = [short_conv(x, w, bias, tail) for w in many]
    assert_close(torch.vmap(lambda w: short_conv(x, w, bias, tail))(many), tuple(map(torch.stack, zip(*each))))
    slow = torch.func.jacrev(lambda *a: by_hand(*a, **options)[0], (0, 1, 2, 3))(*args)
    assert_close(torch.func.jacrev(lambda *a: short_conv(*a, **options)[0], (0, 1, 2, 3))(*args), slow)


def test_the_inner_operations_pass_opcheck():
    x, w, bias, tail = example(2, 5, 3, 4, grad=False)
    ends, fresh = torch.tensor([1, 3]), torch.rand(2, 5) < 0.5
    opcheck(_short_conv.forward, (x.mT.contiguous().mT, w, bias, tail, None, None, True))
    opcheck(_short_conv.forward, (x, w, None, tail, ends, fresh, False))
    opcheck(_short_conv.backward, (x, w, None, tail, ends, fresh, True, x, tail))
    opcheck(_short_conv.backward, (x, w, bias, tail, None, None, True, x.mT.contiguous().mT, tail))


def test_what_stands_in_the_padding_or_before_a_start_does_no_harm(body):
    x, w, bias, tail = example(4, 40, 5, 4, grad=False)
    lengths, starts = torch.tensor([0, 33, 2, 40]), torch.zeros(4, 40, dtype=torch.bool)
    starts[3, 39] = starts[2, 20] = True
    x[torch.arange(40) >= lengths[:, None]] = torch.nan
    x[3, :39] = torch.nan
    leaves = [t.requires_grad_() for t in (x, w, bias, tail)]
    y, new = short_conv(*leaves, lengths=lengths, starts=starts)
    grads = torch.autograd.grad(y[:3].sum() + y[3, 39].sum() + new.sum(), leaves)
    assert (y[torch.arange(40) >= lengths[:, None]] == 0).all()
    assert torch.equal(new[0], tail[0]) and (new[3, :2] == 0).all() and torch.equal(new[3, 2], x[3, 39])
    assert_close(new[2], torch.cat([tail[2, 2:], x[2, :2]]))
    assert_close(y[1, :33], short_conv(x[1:2, :33], w, bias, tail[1:2])[0][0])
    assert (grads[0][torch.arange(40) >= lengths[:, None]] == 0).all()
    assert grads[0][:3].isfinite().all() and grads[0][3, 39].isfinite().all() and grads[3][:3].isfinite().all()


def test_a_warm_tail_goes_on():
    x, w, bias, tail = example(2, 70, 4, 5, grad=False)
    y, last = short_conv(x, w, bias, tail)
    for cut in (0, 1, 3, 32, 33, 70):
        first, between = short_conv(x[:, :cut], w, bias, tail)
        second, end = short_conv(x[:, cut:], w, bias, between)
        assert_close((torch.cat([first, second], 1), end), (y, last))


def test_a_slice_is_read_where_it_lies(monkeypatch):
    wide = torch.randn(2, 50, 90)
    _, w, bias, tail = example(2, 50, 35, 4, grad=False)
    x = wide[:, :, 20:55]
    want = by_hand(x, w, bias, tail)
    monkeypatch.setattr(
        torch.Tensor, "contiguous", lambda t, **_: t if t.is_contiguous() or t.shape != x.shape else 1 / 0
    )
    assert_close(short_conv(x, w, bias, tail), want)
    monkeypatch.undo()
    awkward = wide.mT.contiguous().mT[:, ::2, 1:71:2], w, bias, tail[:1].expand(2, -1, -1)
    assert_close(short_conv(*awkward), by_hand(*awkward))
    assert_close(
        short_conv(x[:, :1].expand(2, 9, -1), w, bias, tail), by_hand(x[:, :1].expand(2, 9, -1), w, bias, tail)
    )
    leaves = [t.clone().requires_grad_() for t in (x, w, bias, tail)]
    y, new = short_conv(*leaves)
    spread = torch.ones(()).expand_as(y)
    torch.autograd.grad((y, new), leaves, (spread, torch.ones(()).expand_as(new)))
    with torch.inference_mode():
        assert_close(short_conv(x.clone(), w, bias, tail), want)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_in_and_out_single_inside(half):
    x, w, bias, tail = example(2, 9, 5, 4, torch.float32, grad=False)
    y, new = short_conv(x.to(half), w, bias, tail)
    want, last = short_conv(x.to(half).float(), w, bias, tail)
    assert y.dtype == half and new.dtype == torch.float32
    assert_close((y, new), (want.to(half), last))
    ends = torch.tensor([4, 9], dtype=torch.int32)
    starts = torch.zeros(2, 9, dtype=torch.int64)
    starts[:, 2] = 1
    got = short_conv(x.to(half), w.to(half), bias.to(half), tail.to(half), lengths=ends, starts=starts)
    assert all(t.dtype == half for t in got)


def test_what_is_not_finite_stays_in_its_channel_and_row_and_extremes_are_exact():
    x, w, bias, tail = example(2, 40, 19, 3, torch.float32, grad=False)
    x[0, 30, 2], x[1, 5, 4], w[4] = torch.nan, 1e30, 1.0
    x.requires_grad_()
    y, _ = short_conv(x, w, bias, tail)
    assert y[0, 30:33, 2].isnan().all() and y.isnan().sum() == 3
    assert y[1, 5, 4] == 1e30
    x = torch.tensor([-1e30, -90.0, 0.0, 90.0], requires_grad=True)
    y, _ = short_conv(x.float().view(1, 4, 1), torch.ones(1, 1), None, torch.zeros(1, 0, 1))
    assert_close(torch.autograd.grad(y.sum(), x)[0], torch.tensor([0.0, 0.0, 0.5, 1.0]))


@pytest.mark.parametrize("wrong", ["x", "w", "bias", "tail", "lengths", "starts"])
def test_shapes_that_do_not_fit(wrong):
    args = dict(zip(("x", "w", "bias", "tail"), example(2, 5, 3, 4, grad=False)))
    options = {"lengths": torch.tensor([1, 2]), "starts": torch.zeros(2, 5, dtype=torch.bool)}
    (args if wrong in args else options)[wrong] = torch.ones(2, 7)
    with pytest.raises(BadInput, match="short_conv: "):
        short_conv(*args.values(), **options)
