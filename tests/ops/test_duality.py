"""The decaying memory of matrices: its bodies agree, on rows that end early and begin anew; derivatives; transforms; extreme decays."""

from itertools import product

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.kernels import pool
from conca.ops.duality import (
    _operation,
    _room,
    duality,
    duality_chunked,
    duality_quadratic,
    duality_recurrence,
    segment_sums,
)
from conca.types import BadInput

SHAPES = [
    (2, 5, 1, 1, 1, 3, 2),
    (1, 1, 1, 1, 1, 1, 1),
    (2, 70, 1, 2, 4, 17, 5),
    (1, 130, 1, 1, 5, 16, 33),
    (2, 45, 3, 1, 2, 9, 4),
    (1, 33, 2, 3, 3, 1, 18),
]
EMPTY = [
    (2, 0, 1, 1, 2, 3, 2),
    (0, 4, 2, 1, 2, 3, 2),
    (2, 3, 1, 2, 2, 0, 2),
    (1, 3, 1, 1, 2, 3, 0),
]
NAMES = ("q", "k", "v", "log_a", "S")


def example(B, T, R, G, H, K, V, dtype=torch.float64, *, grad=True):
    sizes = (B, T, R, G, K), (B, T, R, G, K), (B, T, R, H, V), (B, T, H), (B, H, K, V)
    args = [torch.randn(*size, dtype=dtype) for size in sizes]
    args[3] = -args[3].abs()
    return [t.requires_grad_(grad) for t in args]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("strict", "weighted"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("shape", SHAPES + EMPTY)
def test_bodies_agree(shape, ragged, strict, weighted, dtype, monkeypatch, agree):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(3)
    args, options = example(*shape, dtype), ragged(*shape[:2]) | {"strict": strict}
    if weighted:
        options["weight"] = torch.randn_like(args[3]).requires_grad_()
    weights = torch.randn_like(args[2]), torch.randn_like(args[4])

    def in_chunks_of_seven(*args, **options):
        return duality_chunked(*args, size=7, **options)

    bodies = duality_recurrence, duality, duality_chunked, in_chunks_of_seven, duality_quadratic
    agree(bodies, args, options, weights)


@pytest.mark.parametrize(
    ("ragged", "strict"), [((False, False), False), ((True, True), False), ((True, True), True)], indirect=["ragged"]
)
def test_first_and_second_derivatives(ragged, strict, body):
    args, options = example(2, 4, 2, 1, 2, 2, 3), ragged(2, 4) | {"strict": strict}
    args += [] if "lengths" in options else [torch.randn(2, 4, 2, requires_grad=True)]

    def door(*args):
        return duality(*args[:5], weight=args[5] if len(args) > 5 else None, **options)

    assert gradcheck(door, args, fast_mode=True)
    assert gradgradcheck(door, args, fast_mode=True)


def test_a_row_that_ends_early_is_a_shorter_row(body):
    q, k, v, log_a, S = example(3, 70, 1, 1, 2, 3, 2, grad=False)
    args, lengths = [q, k, v, log_a, torch.randn_like(log_a)], torch.tensor([0, 66, 13])
    padding = torch.arange(70) >= lengths[:, None]
    for t in args:
        t[padding] = torch.nan

    def both(q, k, v, log_a, weight, S, **options):
        return duality(q, k, v, log_a, S, weight=weight, **options)

    leaves = [t.clone().requires_grad_() for t in (*args, S)]
    y, last = both(*leaves, lengths=lengths)
    grads = torch.autograd.grad(y.sin().sum() + last.sin().sum(), leaves)
    for row, n in enumerate(lengths.tolist()):
        alone = [t[row : row + 1, :n].clone().requires_grad_() for t in args]
        alone.append(S[row : row + 1].clone().requires_grad_())
        want, state = both(*alone)
        assert_close(y[row, :n], want[0])
        assert_close(last[row], state[0])
        assert (y[row, n:] == 0).all()
        slopes = torch.autograd.grad(want.sin().sum() + state.sin().sum(), alone, materialize_grads=True)
        for got, slope in zip(grads[:5], slopes):
            assert_close(got[row, :n], slope[0])
            assert (got[row, n:] == 0).all()
        assert_close(grads[5][row], slopes[5][0])


def test_a_start_forgets_the_past(body):
    args = example(1, 70, 2, 1, 3, 5, 2, grad=False)
    starts = torch.zeros(1, 70, dtype=torch.bool)
    starts[0, 29] = starts[0, 64] = True
    y, last = duality(*args, starts=starts)
    S, parts = args[4], []
    for begin, end in ((0, 29), (29, 64), (64, 70)):
        part, S = duality(*(t[:, begin:end] for t in args[:4]), S if begin == 0 else torch.zeros_like(S))
        parts.append(part)
    assert_close(y, torch.cat(parts, 1))
    assert_close(last, S)
    again = duality(*args, starts=starts.long(), lengths=torch.tensor([70], dtype=torch.int32))
    assert_close(again, (y, last))


def test_a_warm_state_goes_on(body):
    args = example(2, 100, 1, 1, 4, 3, 5, grad=False)
    y, last = duality(*args)
    for cut in (0, 1, 63, 64, 65, 100):
        first, S = duality(*(t[:, :cut] for t in args[:4]), args[4])
        second, end = duality(*(t[:, cut:] for t in args[:4]), S)
        assert_close(torch.cat([first, second], 1), y)
        assert_close(end, last)


def test_without_decay_it_is_linear_attention(body):
    q, k, v, log_a, S = example(2, 70, 1, 1, 2, 5, 3, grad=False)
    y, last = duality(q, k, v, torch.zeros_like(log_a), torch.zeros_like(S))
    scores = (q[:, :, 0, 0] @ k[:, :, 0, 0].mT).tril()
    assert_close(y[:, :, 0], torch.einsum("bts,bshv->bthv", scores, v[:, :, 0]))
    assert_close(last, torch.einsum("bsk,bshv->bhkv", k[:, :, 0, 0], v[:, :, 0]))


def test_the_mask_is_made_of_products_of_decays():
    log_a = -torch.rand(2, 6)
    log_a[1, 3] = -torch.inf
    got = segment_sums(log_a).exp()
    for row, t, s in product(range(2), range(6), range(6)):
        assert_close(got[row, t, s], log_a[row, s + 1 : t + 1].exp().prod() if s <= t else torch.tensor(0.0))


def test_a_small_decay_after_a_large_one_is_kept():
    x = torch.full((64,), -1e-3, dtype=torch.float32)
    x[::7] = -16000.0
    exact = segment_sums(x.double()).exp()
    assert_close(segment_sums(x).double().exp(), exact, rtol=1e-6, atol=0)
    sums = x.cumsum(0)
    assert ((sums[:, None] - sums).double().exp().tril() - exact).abs().max() > 1e-3


@pytest.mark.parametrize("big", [16000.0, torch.inf])
def test_extreme_decays_in_single_precision(big, body, gradients):
    q, k, v, log_a, S = example(2, 150, 1, 1, 3, 4, 5, torch.float32, grad=False)
    log_a = torch.where(torch.rand_like(log_a) < 0.1, -big, -1e-5 * torch.rand_like(log_a))
    log_a[:, :, 1] = -1e-6
    leaves = [t.requires_grad_() for t in (q, k, v, log_a, S)]
    wide = [t.detach().double().requires_grad_() for t in leaves]
    weights = torch.randn_like(v), torch.randn_like(S)
    want = gradients(duality_recurrence, wide, {}, [w.double() for w in weights])
    found = gradients(duality, leaves, {}, weights)
    for got, wanted in zip(found, want):
        assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.detach().abs().max()))
    assert (found[5][log_a == -big] == 0).all()


def test_a_hundred_thousand_steps_in_single_precision(gradients):
    q, k, v, _, S = example(1, 100_000, 1, 1, 3, 2, 3, torch.float32, grad=False)
    log_a = -torch.tensor([1e-6, 1e-4, 0.1]) * torch.rand(1, 100_000, 3)
    args = [q, k, v, log_a.float(), S]
    weights = torch.randn_like(v), torch.randn_like(S)
    found = gradients(duality, [t.requires_grad_() for t in args], {}, weights)
    wide = [t.detach().double().requires_grad_() for t in args]
    want = gradients(duality, wide, {}, [w.double() for w in weights])
    for got, wanted in zip(found, want):
        scale = wanted.detach().abs().amax(tuple(range(wanted.ndim - 1)), keepdim=True)
        assert ((got.double() - wanted).abs() <= 2e-5 * scale + 1e-4 * wanted.abs()).all()


def test_decays_that_vanish_leave_no_noise_in_their_gradient():
    args = example(1, 64, 1, 1, 2, 8, 8, torch.float32, grad=False)
    args[3] = torch.full_like(args[3], -200.0).requires_grad_()
    (grad,) = torch.autograd.grad(duality(*args)[0].square().sum(), args[3])
    assert (grad == 0).all()


def test_what_is_kept_for_the_backward_pass_grows_with_time_alone():
    def kept(T):
        args, sizes = example(1, T, 1, 1, 8, 16, 16), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            duality(*args)
        return sum(sizes), sum(t.numel() for t in args)

    (short, _), (long, inputs) = kept(256), kept(512)
    assert long < 2 * short + 1
    assert long == inputs + 512 // 64 * 8 * 16 * 16


def test_transforms():
    q, k, v, log_a, S = args = example(2, 5, 1, 1, 2, 3, 2, grad=False)

    def loss(*args):
        return sum(out.square().sum() for out in duality(*args))

    def one(*args):
        return loss(*(t[None] for t in args))

    every = (0, 1, 2, 3, 4)
    want = torch.func.grad(loss, every)(*args)
    assert_close(torch.vmap(torch.func.grad(one, every))(*args), want)
    assert_close(torch.func.grad(lambda *a: torch.vmap(one)(*a).sum(), every)(*args), want)
    slow = torch.func.jacrev(lambda *a: duality_recurrence(*a)[0], every)(*args)
    assert_close(torch.func.jacrev(lambda *a: duality(*a)[0], every)(*args), slow)
    torch.func.grad(lambda v: torch.func.grad(loss, 2)(q, k, v, log_a, S).square().sum())(v)
    ends = torch.tensor([[1, 2], [3, 5]])
    got = torch.vmap(lambda n: duality(*args, lengths=n))(ends)
    assert_close(got, tuple(map(torch.stack, zip(*(duality(*args, lengths=n) for n in ends)))))


def test_the_inner_operations_pass_opcheck():
    q, k, v, log_a, S = args = example(2, 5, 1, 1, 2, 3, 2, grad=False)
    ends, fresh = torch.tensor([1, 3]), torch.rand(2, 5) < 0.5
    opcheck(_operation.forward, (*args, None, None, None, False, True))
    opcheck(_operation.forward, (q, k, v.mT.contiguous().mT, log_a, S, None, ends, fresh, True, False))
    saved = _operation.forward(*args, log_a.exp(), ends, fresh, False, True)[2]
    assert saved.shape == _room(*args, log_a.exp(), ends, fresh, False, True).shape
    opcheck(_operation.backward, (*args, log_a.exp(), ends, fresh, False, saved, v, S))


def test_compiled():
    args, ends = example(2, 5, 1, 1, 2, 3, 2), torch.tensor([3, 5])

    def loss(q, k, v, log_a, S):
        return sum(out.square().sum() for out in duality(q.sin(), k, v * 2, log_a, S, lengths=ends))

    want = torch.autograd.grad(loss(*args), args)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(*args), args), want)
    torch._dynamo.reset()


def test_awkward_memory(body, gradients):
    q, k, v, log_a, S = example(4, 60, 2, 2, 6, 8, 6, grad=False)
    q, k, v = q[::2, ::3, :, :1, 1::2], k[::2, 1::3, :, 1:, ::2], v[::2, ::3, :, 1:4, ::2]
    log_a, S = log_a[:1, ::3, ::2].expand(2, -1, -1), S[:1, ::2, :4, 3:].expand(2, -1, -1, -1)
    want = duality_recurrence(q, k, v, log_a, S)
    assert_close(duality(q, k, v, log_a, S), want)
    wide = torch.randn(2, 20, 10)
    inner = torch.split(wide, [6, 2, 2], -1)
    slices = inner[1].unflatten(-1, (1, 1, 2)), inner[2].unflatten(-1, (1, 1, 2)), inner[0].unflatten(-1, (1, 3, 2))
    assert_close(duality(*slices, log_a, S[:, :, :2, :2]), duality_recurrence(*slices, log_a, S[:, :, :2, :2]))
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v, log_a, S)]
    y, last = duality(*leaves)
    got = torch.autograd.grad((y, last), leaves, (torch.ones(()).expand_as(y), torch.ones(()).expand_as(last)))
    assert_close(got, gradients(duality_recurrence, leaves, {}, (torch.ones_like(y), torch.ones_like(last)))[2:])
    with torch.inference_mode():
        assert_close(duality(*(t.clone() for t in (q, k, v, log_a, S))), want)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_in_and_out_single_inside(half, body):
    q, k, v, log_a, S = example(2, 9, 1, 1, 2, 3, 2, torch.float32, grad=False)
    q, k, v = (t.to(half) for t in (q, k, v))
    y, last = duality(q, k, v, log_a, S)
    want, state = duality(q.float(), k.float(), v.float(), log_a, S)
    assert y.dtype == half
    assert last.dtype == torch.float32
    assert_close(y, want.to(half))
    assert_close(last, state)


def test_the_number_of_threads_changes_no_bit(monkeypatch, gradients):
    monkeypatch.setattr(pool, "SMALL", 0)
    args = example(2, 70, 1, 1, 9, 5, 3)
    weights = torch.randn_like(args[2]), torch.randn_like(args[4])
    want = gradients(duality, args, {}, weights)
    torch.set_num_threads(3)
    assert_close(gradients(duality, args, {}, weights), want, rtol=0, atol=0)


def test_what_is_not_finite_stays_in_its_head_and_row(body):
    args = example(2, 70, 1, 1, 3, 4, 2, grad=False)
    args[2][0, 30, 0, 1] = torch.nan
    y, last = duality(*args)
    assert y[0, 30:, 0, 1].isnan().all()
    assert last[0, 1].isnan().all()
    y[0, :, 0, 1] = 0
    assert y.isfinite().all()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("function", [duality, duality_recurrence])
def test_what_is_not_finite_passes_no_start(function, rank, weighted):
    starts = torch.zeros(2, 200, dtype=torch.bool)
    starts[0, [20, 64, 100, 101]] = True
    pieces = [(0, 20), (20, 64), (64, 100), (100, 101), (101, 200)]
    clean = example(2, 200, rank, 1, 3, 4, 5)
    grow = torch.randn_like(clean[2])

    def slopes(args):
        y, last = function(*args[:5], starts=starts, weight=args[5] if weighted else None)
        grads = torch.autograd.grad((y * grow).sum() + last.sum(), args[: 5 + weighted])
        return [t.detach() for t in (y, last, *grads)]

    clean.append(torch.rand(2, 200, 3, dtype=torch.float64, requires_grad=True))
    want = slopes(clean)
    for bad in pieces:
        args = [t.detach().clone() for t in clean]
        for t in (*args[:4], args[5]):
            t[0, bad[0] : bad[1]] = torch.nan
        if bad[0] == 0:
            args[4][0] = torch.nan
        got = slopes([t.requires_grad_() for t in args])
        for begin, end in pieces:
            if (begin, end) != bad:
                for i in (0, 2, 3, 4, 5, *[7] * weighted):
                    assert_close(got[i][0, begin:end], want[i][0, begin:end])
        for found, wanted in zip(got, want):
            assert_close(found[1], wanted[1])
        if bad[1] != 200:
            assert_close(got[1], want[1])
        if bad[0] != 0:
            assert_close(got[6], want[6])


@pytest.mark.parametrize("wrong", [*NAMES, "weight", "lengths", "starts"])
def test_shapes_that_do_not_fit(wrong):
    args = dict(zip(NAMES, example(2, 5, 1, 2, 4, 3, 2, grad=False)))
    args |= {"lengths": torch.tensor([1, 2]), "starts": torch.zeros(2, 5, dtype=torch.bool), "weight": args["log_a"]}
    args[wrong] = torch.ones(2, 7, dtype=args[wrong].dtype)
    with pytest.raises(BadInput, match="duality: "):
        duality(*(args.pop(k) for k in NAMES), **{k: args[k] for k in ("lengths", "starts", "weight")})


def test_no_rank():
    with pytest.raises(BadInput, match="no row in a step"):
        duality(*example(1, 2, 0, 1, 2, 3, 2, grad=False))


def test_groups_that_do_not_divide_the_heads():
    q, k, _, _, _ = example(1, 2, 1, 2, 2, 3, 2, grad=False)
    with pytest.raises(BadInput, match="2 groups of q and k do not divide 3 heads"):
        duality(q, k, torch.ones(1, 2, 1, 3, 2), torch.ones(1, 2, 3), torch.ones(1, 3, 3, 2))
