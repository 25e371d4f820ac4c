"""The selective scan: bodies and door agree, also with grouped and constant B and C, gate, both holds, rows that end or begin anew."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.kernels import pool
from conca.ops.selective_scan import (
    _operation,
    selective_scan,
    selective_scan_chunked,
    selective_scan_recurrence,
)
from conca.ops.selective_scan_bodies import aligned
from conca.types import BadInput

NAMES = ("x", "dt", "A", "B", "C", "h", "D_E", "z_BTE", "bias_E")
pytestmark = pytest.mark.usefixtures("body")


def example(B, T, E, N, kind="shared", dtype=torch.float64, *, extras=True, grad=True):
    """Arguments by name; kinds: shared, constant, a number of groups, or one for B and one for C."""

    def r(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    def selected(kind):
        shapes = {"shared": (B, T, N), "constant": (E, N)}
        return r(*shapes.get(kind, (B, T, kind, N)))

    kinds = kind if isinstance(kind, tuple) else (kind, kind)
    args = {
        "x": r(B, T, E),
        "dt": r(B, T, E) - 1,
        "A": -torch.rand(E, N) * 3 - 0.1,
        "B": selected(kinds[0]),
        "C": selected(kinds[1]),
    }
    args["h"] = r(B, E, N)
    if extras:
        args |= {"D_E": r(E), "z_BTE": r(B, T, E), "bias_E": r(E)}
    return {k: t.to(dtype).requires_grad_(grad) for k, t in args.items()}


def run(function, args, **options):
    six = [args[k] for k in NAMES[:6]]
    return function(*six, **{k: t for k, t in args.items() if k in NAMES[6:]}, softplus=True, **options)


def gradients(function, args, weights, **options):
    results = run(function, args, **options)
    loss = sum((r * w).sum() for r, w in zip(results, weights))
    return *results, *torch.autograd.grad(loss, list(args.values()), materialize_grads=True)


def ragged(B, T):
    return {"lengths": torch.randint(0, T + 1, (B,)), "starts": torch.rand(B, T) < 0.2}


def compare(args, dtype=torch.float64, **options):
    weights = torch.randn_like(args["x"]), torch.randn_like(args["h"])
    want = gradients(selective_scan_recurrence, args, weights, **options)
    for form in (selective_scan, selective_scan_chunked):
        for name, got, wanted in zip(("y", "last", *args), gradients(form, args, weights, **options), want):
            scale = max(float(wanted.detach().abs().max()), 1.0) if wanted.numel() else 1.0
            close = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-5 * scale}
            assert_close(got, wanted, msg=lambda m, name=name, form=form: f"{form.__name__}, {name}: {m}", **close)


SHAPES = [(2, 5, 3, 2), (1, 1, 1, 1), (2, 65, 33, 3), (1, 130, 40, 1), (3, 7, 16, 5)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("hold", ["euler", "zoh"])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 0, 3, 2), (0, 4, 3, 2), (2, 3, 4, 0)])
def test_bodies_agree(shape, hold, dtype):
    compare(example(*shape, dtype=dtype), dtype, hold=hold)
    compare(example(*shape, dtype=dtype, extras=False), dtype, hold=hold, **ragged(*shape[:2]))


@pytest.mark.parametrize("hold", ["euler", "zoh"])
@pytest.mark.parametrize("kind", [2, "constant", ("shared", "constant"), (3, "shared"), 1, 6])
def test_grouped_and_constant(kind, hold):
    for width in (6, 96):
        compare(example(2, 70, width, 2, kind), hold=hold, **ragged(2, 70))
    compare(example(2, 7, 6, 2, kind, extras=False), hold=hold, **ragged(2, 7))


def test_many_tasks_and_threads(monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    args = example(2, 80, 300, 2)
    torch.set_num_threads(1)
    alone = gradients(selective_scan, args, (args["x"].detach(), args["h"].detach()))
    torch.set_num_threads(3)
    for got, want in zip(gradients(selective_scan, args, (args["x"].detach(), args["h"].detach())), alone):
        assert torch.equal(got, want)
    torch.set_num_threads(1)
    compare(args)


@pytest.mark.parametrize("hold", ["euler", "zoh"])
def test_first_and_second_derivatives(hold):
    args = example(2, 4, 3, 2)
    options = ragged(2, 4)

    def door(*tensors):
        return run(selective_scan, dict(zip(args, tensors)), hold=hold, **options)

    assert gradcheck(door, list(args.values()), fast_mode=True)
    assert gradgradcheck(door, list(args.values()), fast_mode=True)


def test_some_arguments_missing_and_twice():
    args = example(2, 4, 3, 2, extras=False) | {"D_E": torch.randn(3, requires_grad=True)}

    def door(*tensors):
        return run(selective_scan, dict(zip(args, tensors)))

    assert gradgradcheck(door, list(args.values()), fast_mode=True)


def test_padding_may_hold_anything_and_gets_no_gradient():
    args = example(3, 70, 5, 2, grad=False)
    lengths = torch.tensor([0, 66, 13])
    beyond = torch.arange(70) >= lengths[:, None]
    for name in ("x", "dt", "B", "C", "z_BTE"):
        args[name][beyond] = torch.nan
        args[name].requires_grad_()
    y, last = run(selective_scan, args, lengths=lengths)
    grads = torch.autograd.grad(y.sum() + last.sum(), [args[n] for n in ("x", "dt", "B", "C", "z_BTE")])
    for g in grads:
        assert g.isfinite().all()
        assert (g[beyond] == 0).all()
    for row, n in enumerate(lengths.tolist()):
        one = {k: t if k in ("A", "D_E", "bias_E") else t[row : row + 1] for k, t in args.items()}
        one |= {k: one[k][:, :n] for k in ("x", "dt", "B", "C", "z_BTE")}
        alone, state = run(selective_scan, one)
        assert_close(y[row, :n], alone[0])
        assert_close(last[row], state[0])
        assert (y[row, n:] == 0).all()


def test_a_warm_state_goes_on():
    args = example(2, 100, 4, 3, grad=False)
    y, last = run(selective_scan, args)
    for cut in (0, 1, 63, 64, 65, 100):
        parts, h = [], args["h"]
        for piece in (slice(0, cut), slice(cut, 100)):
            part, h = run(
                selective_scan, args | {k: args[k][:, piece] for k in ("x", "dt", "B", "C", "z_BTE")} | {"h": h}
            )
            parts.append(part)
        assert_close(torch.cat(parts, 1), y)
        assert_close(h, last)


def test_the_two_holds_meet_where_steps_are_short():
    args = example(1, 50, 4, 3, grad=False, extras=False)
    args["dt"] = args["dt"] - 12
    assert_close(run(selective_scan, args, hold="zoh"), run(selective_scan, args), rtol=1e-4, atol=1e-7)
    still = args | {"A": torch.zeros(4, 3)}
    assert_close(run(selective_scan, still, hold="zoh"), run(selective_scan, still))


def test_zero_order_hold_near_no_decay():
    """d sum(y) / dA has a limit as A goes to 0, and so has its derivative."""
    ones = torch.ones(1, 3, 1)

    def total(A):
        y, _ = selective_scan(ones, 0.1 * ones, A, ones, ones, torch.zeros(1, 1, 1), hold="zoh")
        return y.sum()

    def slopes(value):
        A = torch.full((1, 1), value, requires_grad=True)
        (first,) = torch.autograd.grad(total(A), A, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), A)
        return float(first.detach()), float(second.detach())

    for value in (0.0, -1e-12, -1e-9, -1e-6):
        assert slopes(value) == pytest.approx((0.07, 0.012), rel=1e-5)


def test_constant_b_and_c_are_a_diagonal_state_space():
    from conca.ops.diagonal import diagonal_ssm

    args = example(2, 20, 4, 3, "constant", grad=False, extras=False)
    step = torch.full_like(args["x"], 0.1)
    y, last = selective_scan(args["x"], step, *(args[k] for k in "ABC"), args["h"], hold="zoh")
    a = (0.1 * args["A"]).exp()
    want = diagonal_ssm(args["x"], a, (a - 1) / args["A"] * args["B"], args["C"], args["h"])
    assert_close((y, last), (want[0], want[1].real))


@pytest.mark.parametrize("hold", ["euler", "zoh"])
def test_extremes_in_single_precision(hold):
    torch.manual_seed(1)
    T = 3000
    dt = 10 ** torch.empty(1, T, 16).uniform_(-6, 3)
    args = [
        torch.randn(1, T, 16),
        dt,
        -torch.arange(1.0, 17).expand(16, 16),
        torch.randn(1, T, 16),
        torch.randn(1, T, 16),
    ]
    args = [t.float().requires_grad_() for t in (*args, torch.randn(1, 16, 16))]
    y, last = selective_scan(*args, hold=hold)
    grads = torch.autograd.grad(y.square().mean() + last.square().mean(), args)
    assert all(t.isfinite().all() for t in (y, last, *grads))
    want = selective_scan_recurrence(*(t.detach().double() for t in args), hold=hold)
    for got, wanted in zip((y, last), want):
        assert (got - wanted).abs().max() < 1e-5 * wanted.abs().max()


def test_half_precision_is_computed_in_single():
    args = example(1, 9, 4, 3, grad=False)
    half = {k: t.bfloat16() for k, t in args.items()}
    y, last = run(selective_scan, half)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    want = run(selective_scan, {k: t.float() for k, t in half.items()})
    assert_close(y, want[0].bfloat16())
    assert torch.equal(last, want[1])


def test_strided_views_and_transforms():
    args = example(2, 6, 8, 3, grad=False)
    wide = torch.randn(2, 6, 40)
    views = args | {"x": wide[..., 3:11], "z_BTE": wide[..., 11:19], "B": wide[..., 20:23], "C": wide[..., 30:33]}
    apart = {k: t.clone() for k, t in views.items()}
    assert_close(run(selective_scan, views), run(selective_scan_recurrence, apart))

    def loss(x, A):
        return sum(out.square().sum() for out in run(selective_scan, args | {"x": x, "A": A}))

    want = torch.func.grad(loss, (0, 1))(args["x"], args["A"])
    rate = torch.stack([args["A"], args["A"] / 2])
    both = torch.vmap(torch.func.grad(loss, 1), (None, 0))(args["x"], rate)
    assert_close(both[0], want[1])

    def one(x, h, dt, b, c, z):
        fed = args | {"x": x[None], "h": h[None], "dt": dt[None], "B": b[None], "C": c[None], "z_BTE": z[None]}
        return sum(out.square().sum() for out in run(selective_scan, fed))

    rows = [args[k] for k in ("x", "h", "dt", "B", "C", "z_BTE")]
    assert_close(torch.vmap(torch.func.grad(one))(*rows), want[0])
    torch.func.grad(lambda x: torch.func.grad(loss)(x, args["A"]).square().sum())(args["x"])


def test_inner_operations_and_compiled(body):
    args, options = example(2, 5, 3, 2), ragged(2, 5)

    def loss(*tensors):
        doubled = dict(zip(args, (tensors[0].sin(), *tensors[1:])))
        return sum(out.square().sum() for out in run(selective_scan, doubled, **options))

    tensors = list(args.values())
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(*tensors), tensors), torch.autograd.grad(loss(*tensors), tensors))
    torch._dynamo.reset()
    if body == "kernel":
        flat = aligned(*(t.detach() for t in tensors), options["lengths"], options["starts"], True, "euler")
        opcheck(_operation.forward, (*flat, True))
        few = flat._replace(D=None, z=None, bias=None, lengths=None, starts=None)
        saved = _operation.forward(*few, True)[2]
        opcheck(_operation.backward, (*few, saved, flat.x, flat.h))


def test_what_does_not_fit():
    args = example(2, 5, 4, 2, grad=False)
    for name, wrong in (
        ("B", torch.ones(2, 5, 3, 2)),
        ("h", torch.ones(2, 4, 3)),
        ("A", torch.ones(3, 2)),
        ("D_E", torch.ones(3)),
    ):
        with pytest.raises(BadInput, match="selective_scan: "):
            run(selective_scan, args | {name: wrong})
    with pytest.raises(BadInput, match="did you mean 'zoh'"):
        run(selective_scan, args, hold="zho")


def test_warm_leaves_nothing_to_compile():
    from conca.kernels import selective_scan as kernels

    kernels.warm()
    assert len(kernels.forward_tasks.signatures) >= 2
