"""Rotations: pairings, positions, and angles that are sums, by kernel and by scan."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.kernels import angles, pool
from conca.ops.rotation import _operation, rotate, summed_angles, summed_angles_plain, turned
from conca.types import BadInput


@pytest.mark.parametrize(("N", "S"), [(8, 4), (8, 2), (9, 4), (6, 0), (1, 0)])
def test_pairs_are_complex_numbers(N, S):
    x, angle = torch.randn(3, 2, N), torch.randn(3, 1, S)
    whole = torch.polar(torch.ones(()), angle)
    halves, neighbours = turned(x, angle, "halves"), turned(x, angle, "neighbours")
    expected = whole * torch.complex(x[..., :S], x[..., N // 2 : N // 2 + S])
    assert_close(halves[..., :S], expected.real)
    assert_close(halves[..., N // 2 : N // 2 + S], expected.imag)
    assert_close(halves[..., S : N // 2], x[..., S : N // 2])
    assert_close(halves[..., N // 2 + S :], x[..., N // 2 + S :])
    expected = whole * torch.view_as_complex(x[..., : 2 * S].unflatten(-1, (S, 2)).contiguous())
    assert_close(neighbours[..., : 2 * S], torch.view_as_real(expected).flatten(-2))
    assert_close(neighbours[..., 2 * S :], x[..., 2 * S :])


def test_positions_turn_the_halves():
    x = torch.randn(2, 5, 3, 6)
    rate = torch.tensor([1, 100 ** (-1 / 3), 100 ** (-2 / 3)])
    at = torch.randint(0, 99, (2, 5))
    assert_close(rotate(x, at, 100.0), turned(x, (at[..., None] * rate)[:, :, None], "halves"))


def test_what_does_not_fit_is_refused():
    with pytest.raises(BadInput, match="did you mean 'halves'"):
        turned(torch.zeros(2), torch.zeros(1), "half")
    with pytest.raises(BadInput, match="2 angles for 1 pairs"):
        turned(torch.zeros(3), torch.zeros(2), "halves")
    with pytest.raises(BadInput, match="summed_angles: "):
        summed_angles(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4), torch.zeros(1, 4, 3))
    args = torch.zeros(1, 2, 3), torch.zeros(1, 2, 4), torch.zeros(1, 3, 4)
    with pytest.raises(BadInput, match=r"lengths has shape \(2,\), not \(1,\)"):
        summed_angles(*args, lengths=torch.ones(2, dtype=torch.int64))
    with pytest.raises(BadInput, match=r"starts has shape \(1, 1\), not \(1, 2\)"):
        summed_angles(*args, starts=torch.ones(1, 1, dtype=torch.bool))


def example(B, T, H, S, dtype=torch.float64):
    dt, rate = torch.rand(B, T, H, dtype=dtype), 3 * torch.randn(B, T, S, dtype=dtype)
    return tuple(t.requires_grad_() for t in (dt, rate, 6 * torch.rand(B, H, S, dtype=torch.float64)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 9, 3, 4), (3, 70, 9, 5), (3, 1, 1, 1), (3, 20, 24, 32)])
def test_kernel_and_scan_agree(shape, dtype, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    args, T = example(*shape, dtype=dtype), shape[1]
    lengths = torch.tensor([T, 0, (T + 1) // 2])
    starts = torch.rand(3, T) < 0.3  # in the padding too
    close = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    for options in ((None, None), (lengths, None), (None, starts), (lengths, starts)):
        want = summed_angles_plain(*args, *options)
        g = tuple(torch.randn_like(t) for t in want)
        grads = torch.autograd.grad(want, args, g)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            got = summed_angles(*args, lengths=options[0], starts=options[1])
            assert_close(got, want, **close)
            assert_close(torch.autograd.grad(got, args, g), grads, **close)


def test_derivatives_and_transforms():
    args = example(2, 3, 2, 2)
    assert gradcheck(summed_angles, args)
    assert gradgradcheck(summed_angles, args)
    dt, rate, angle = (t.detach() for t in args)
    opcheck(_operation.forward, (dt, rate, angle, None, torch.rand(2, 3) < 0.5))
    opcheck(_operation.backward, (dt, rate, angle, torch.tensor([3, 1]), None, torch.rand(2, 3, 2, 2), angle))
    many = torch.stack([dt, 2 * dt])
    each = [summed_angles(d, rate, angle)[0] for d in many]
    assert_close(torch.vmap(lambda d: summed_angles(d, rate, angle)[0])(many), torch.stack(each))


def test_a_hundred_thousand_steps_in_float32():
    """Steps of a third of what moves a float32 angle of 6: the sum of all is right, in one pass and in two."""
    T = 100_000
    dt, rate = torch.full((1, T, 1), 1e-3), torch.full((1, T, 1), 8e-5)
    dt, rate, begin = dt.float(), rate.float(), torch.full((1, 1, 1), 6.0)
    step = dt[0, 0, 0].double() * rate[0, 0, 0].double()
    exact = (6 + step * torch.arange(1, T + 1)).remainder(2 * math.pi).view(1, T, 1, 1)
    angle, last = summed_angles(dt, rate, begin)
    assert (angle - exact).abs().max() < 3e-7
    assert (last - exact[:, -1]).abs().max() < 1e-10
    _, half = summed_angles(dt[:, :30_000], rate[:, :30_000], begin)
    assert_close(summed_angles(dt[:, 30_000:], rate[:, 30_000:], half)[1], last, rtol=0, atol=1e-10)


def test_warm_leaves_nothing_to_compile():
    angles.warm()
    assert len(angles.forward_tasks.signatures) >= 2
    assert len(angles.backward_tasks.signatures) >= 2
