"""The head's cross entropy: agrees with PyTorch's in every convention; derivatives, transforms; never all logits at once."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.kernels import cross_entropy as kernel
from conca.kernels import pool
from conca.ops import cross_entropy
from conca.ops.bodies import plain_bodies
from conca.ops.cross_entropy import linear_cross_entropy
from conca.types import BadInput


def example(B=7, D=5, V=37, dtype=torch.float64):
    x, w = torch.randn(B, D, dtype=dtype), torch.randn(V, D, dtype=dtype)
    target = torch.randint(V, (B,))
    target[1::3] = -100
    return x.requires_grad_(), w.requires_grad_(), target


def theirs(x, w, target, **options):
    return F.cross_entropy(F.linear(x, w), target, **options)


@pytest.fixture
def pieces(monkeypatch):
    """Pieces of few rows, and threads for the smallest work."""
    monkeypatch.setattr(pool, "SMALL", 0)
    monkeypatch.setattr(cross_entropy, "PIECE", 3 * 37)
    monkeypatch.setattr(cross_entropy, "ROWS", 1)
    torch.set_num_threads(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 37), (3, 4, 16), (5, 3, 15), (2, 1, 33)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_kernel_and_pytorch_agree(shape, dtype, reduction, pieces):
    x, w, target = example(*shape, dtype=dtype)
    want = theirs(x, w, target, reduction=reduction)
    got = linear_cross_entropy(x, w, target, reduction=reduction)
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-6}
    assert_close(got, want, **close)
    assert_close(linear_cross_entropy(x.detach(), w.detach(), target, reduction=reduction), want.detach(), **close)
    g = torch.randn_like(want)
    assert_close(grad(got, (x, w), g), grad(want, (x, w), g), **close)


def test_the_body_of_other_devices_agrees(monkeypatch, pieces):
    x, w, target = example()
    want = linear_cross_entropy(x, w, target)
    monkeypatch.setattr(cross_entropy.bodies, "kernel", lambda *_: None)
    got = linear_cross_entropy(x, w, target)
    assert_close(got, want)
    assert_close(grad(got, (x, w)), grad(want, (x, w)))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_first_and_second_derivatives(reduction):
    x, w, target = example(4, 3, 5)

    def loss(x, w):
        return linear_cross_entropy(x, w, target, reduction=reduction)

    assert gradcheck(loss, (x, w))
    assert gradgradcheck(loss, (x, w))
    assert gradgradcheck(lambda x: loss(x, w.detach()), x)
    assert gradgradcheck(lambda w: loss(x.detach(), w), w)


def test_transforms_and_compiled():
    x, w, target = example(4, 3, 5)
    want = grad(theirs(x.sin(), w, target), (x, w))

    def loss(x, w, reduction="mean"):
        return linear_cross_entropy(x.sin(), w, target, reduction=reduction).mean()

    x1, w1 = x.detach(), w.detach()
    assert_close(torch.func.grad(loss, (0, 1))(x1, w1), want)
    slow = torch.func.jacrev(torch.func.grad(lambda x: theirs(x.sin(), w1, target)))(x1)
    assert_close(torch.func.jacrev(torch.func.grad(loss))(x1, w1), slow)
    many = torch.func.vmap(torch.func.grad(loss, 1), (None, 0))(x1, torch.stack([w1, 2 * w1]))
    assert_close(many[0], want[1])
    assert_close(many[1], torch.func.grad(loss, 1)(x1, 2 * w1))
    for reduction in ("mean", "none"):
        fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
        assert_close(grad(fast(x, w, reduction), (x, w)), grad(loss(x, w, reduction), (x, w)))
        torch._dynamo.reset()
    for wanted in ((True, True), (False, True), (False, False)):
        opcheck(cross_entropy._pieces, (x1, w1, target, torch.rand(4), -100, *wanted))


def test_gradients_are_given_away_once_and_made_again():
    x, w, target = example()
    want = grad(theirs(x, w, target), (x, w))
    loss = linear_cross_entropy(x, w, target)
    made = loss.grad_fn.made[1].data_ptr()
    loss.backward(retain_graph=True)
    assert w.grad.data_ptr() == made, "no copy"
    w.grad.mul_(5)
    x.grad = w.grad = None
    loss.backward(torch.tensor(3.0))
    assert_close((x.grad, w.grad), tuple(3 * g for g in want))
    x.grad = w.grad = None
    (linear_cross_entropy(x, w, target) / 4).backward()
    assert_close((x.grad, w.grad), tuple(g / 4 for g in want))


def test_what_is_frozen_costs_nothing(monkeypatch):
    x, w, target = example()
    want, seen = grad(theirs(x, w, target), (x, w)), []

    def watched(*args):
        seen.append(args[5:])
        return run(*args)

    run = cross_entropy._pieces
    monkeypatch.setattr(cross_entropy, "_pieces", watched)
    assert_close(grad(linear_cross_entropy(x, w.detach(), target), x)[0], want[0])
    assert_close(grad(linear_cross_entropy(x.detach(), w, target), w)[0], want[1])
    rows = linear_cross_entropy(x, w.detach(), target, reduction="none")
    rows.sum().backward()
    with torch.no_grad():
        linear_cross_entropy(x, w, target)
    assert seen == [(True, False), (False, True), (False, False), (True, False), (False, False)]


@pytest.fixture
def poisoned():
    """Memory that nobody has written holds NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_conventions_of_pytorch(poisoned):
    x, w, target = example()
    nobody = torch.full_like(target, -100)
    for options in ({"reduction": "mean"}, {"reduction": "sum"}, {"reduction": "none"}):
        got, want = linear_cross_entropy(x, w, nobody, **options), theirs(x, w, nobody, **options)
        assert_close(got, want, equal_nan=True)
        assert_close(grad(got.sum(), (x, w)), grad(want.sum(), (x, w)))
        for end in (0, 1):
            few = x[:end], w, target[:end]
            assert_close(linear_cross_entropy(*few, **options), theirs(*few, **options), equal_nan=True)
    assert_close(
        linear_cross_entropy(x, w, target.clamp(min=0), ignore=0), theirs(x, w, target.clamp(min=0), ignore_index=0)
    )
    for label in (37, -1):
        target[2] = label
        for body in (linear_cross_entropy, theirs):
            with pytest.raises(IndexError):
                body(x, w, target)
    wide = linear_cross_entropy(x[:6].view(2, 3, 5), w, torch.ones(2, 3, dtype=torch.int64), reduction="none")
    assert_close(wide.flatten(), theirs(x[:6], w, torch.ones(6, dtype=torch.int64), reduction="none"))


def test_extremes_stay_finite_and_ignored_rows_may_hold_anything():
    x, w, target = example(dtype=torch.float32)
    with torch.no_grad():
        w[-1] = 10 * x[0]  # the largest logit stands beyond the last whole vector
    got = linear_cross_entropy(1e4 * x, w, target)
    assert_close(got, theirs(1e4 * x.double(), w.double(), target).float())
    assert all(g.isfinite().all() for g in grad(got, (x, w)))
    want = grad(linear_cross_entropy(x, w, target), (x, w))
    poisoned = torch.where((target == -100)[:, None], torch.nan, x.detach()).requires_grad_()
    assert_close(grad(linear_cross_entropy(poisoned, w, target), (poisoned, w)), want)
    with plain_bodies():
        assert_close(grad(linear_cross_entropy(poisoned, w, target), (poisoned, w)), want)
    with torch.no_grad():
        poisoned[0] = torch.nan
    rows = linear_cross_entropy(poisoned, w, target, reduction="none")
    assert rows.isnan().tolist() == [True] + [False] * 6


def test_half_precisions_and_autocast():
    x, w, target = example(dtype=torch.bfloat16)
    got = linear_cross_entropy(x, w, target)
    want = theirs(x.float(), w.float(), target)
    assert got.dtype == torch.float32
    assert_close(got, want)
    gx, gw = grad(got, (x, w))
    assert gx.dtype == gw.dtype == torch.bfloat16
    assert_close((gx, gw), grad(want, (x, w)))
    x, w, target = example(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(
            linear_cross_entropy(x.bfloat16(), w, target),
            theirs(x.bfloat16().float(), w, target).float(),
            rtol=1e-2,
            atol=1e-2,
        )


def test_bad_input_is_named():
    x, w, target = example()
    for args in ((x, w[:, 1:], target), (x, w, target[1:]), (x, w, target.int()), (x, w[:0], target)):
        with pytest.raises(BadInput, match="linear_cross_entropy: "):
            linear_cross_entropy(*args)
    with pytest.raises(BadInput, match="did you mean 'mean'"):
        linear_cross_entropy(x, w, target, reduction="means")


def test_a_piece_of_the_logits_at_a_time():
    x, w = (t.detach().requires_grad_() for t in example(600, 2, 40_000, torch.float32)[:2])
    target = torch.randint(40_000, (600,))
    with torch.profiler.profile(profile_memory=True) as profile:
        linear_cross_entropy(x, w, target).backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest <= 4 * 1.2 * cross_entropy.PIECE


def test_warm_leaves_nothing_to_compile():
    kernel.warm()
    assert len(kernel.row_tasks.signatures) >= 2
