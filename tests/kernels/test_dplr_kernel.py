"""The kernel with feedback against the recurrence: every precision, odd sizes, several ranks and threads, rows that end and begin."""

import pytest
import torch
from torch.testing import assert_close

from conca.kernels import dplr, pool
from conca.ops.dplr import CHUNK, dplr_ssm, dplr_ssm_recurrence

TIMES = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1]


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(request.param)


def near(got, want):
    scale = max(float(want.abs().max()), 1.0)
    tight = want.dtype in (torch.float64, torch.complex128)
    assert_close(got, want, rtol=1e-9 if tight else 1e-4, atol=(1e-10 if tight else 1e-5) * scale)


def system(D, N, R, dtype):
    modes = torch.promote_types(dtype, torch.complex64)
    a = torch.polar(0.9 * torch.rand(D, N, dtype=dtype), torch.randn(D, N, dtype=dtype))
    p, q = torch.randn(2, R, D, N, dtype=modes)
    b, c = torch.randn(2, D, N, dtype=modes)
    return a, 0.1 / (N * R) * p, q, b, c


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("T", TIMES)
@pytest.mark.parametrize(("D", "N", "R"), [(1, 1, 1), (7, 3, 2), (8, 2, 1), (16, 1, 3), (17, 2, 1), (33, 5, 2)])
def test_dplr(D, N, R, T, dtype):
    B, factors = 2, system(D, N, R, dtype)
    u, gy = torch.randn(2, B, T, D, dtype=dtype)
    h, gh = torch.randn(2, B, D, N, dtype=factors[0].dtype)
    lengths, starts = torch.tensor([T // 2, T]), torch.rand(B, T) < 0.1
    starts[1, min(T, CHUNK) - 1 :: CHUNK] = starts[0, ::CHUNK] = True
    for options in ({}, {"lengths": lengths}, {"starts": starts}, {"lengths": lengths, "starts": starts}):
        leaves = [t.clone().requires_grad_() for t in (u, *factors, h)]
        want = dplr_ssm_recurrence(*leaves, **options)
        ends, fresh = options.get("lengths"), options.get("starts")
        room = (-(-T // CHUNK) * 2 * N + T * R) * (D + -D % (64 // u.element_size()))
        saved = u.new_full((B, room), torch.nan)
        y, last = dplr.forward(u, *factors, h, ends, fresh, saved)
        near(y, want[0].detach())
        near(last, want[1].detach())
        grads = torch.autograd.grad(want, leaves, (gy, gh))
        du, *by_row, dh = dplr.backward(u, *factors, h, ends, fresh, saved, gy, gh)
        for got, wanted in zip((du, *(g.sum(0) for g in by_row), dh), grads, strict=True):
            near(got, wanted)


def test_dplr_with_a_start_at_every_step():
    u, (a, p, q, b, c) = torch.randn(2, 150, 9), system(9, 2, 2, torch.float64)
    starts, h = torch.ones(2, 150, dtype=torch.bool), torch.randn(2, 9, 2, dtype=torch.complex128)
    y, last = dplr_ssm(u, a, p, q, b, c, h, starts=starts)
    assert_close(y, u * (b * c).sum(1).real)
    assert_close(last, b * u[:, -1, :, None])


def test_dplr_rows_do_not_depend_on_the_others_or_on_the_number_of_threads():
    u, factors = torch.randn(5, 200, 40, dtype=torch.float32), system(40, 3, 1, torch.float32)
    h = torch.randn(5, 40, 3, dtype=torch.complex64)
    y, last = dplr_ssm(u, *factors, h)
    torch.set_num_threads(2)
    for row in range(5):
        alone, end = dplr_ssm(u[row : row + 1], *factors, h[row : row + 1])
        assert torch.equal(alone[0], y[row])
        assert torch.equal(end[0], last[row])


def test_dplr_keeps_for_training_what_is_linear_in_time_and_free_of_states():
    def kept(T, N):
        u, total = torch.zeros(1, T, 4, dtype=torch.float32, requires_grad=True), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: total.append(t.nbytes) or t, lambda t: t):
            dplr_ssm(u, *system(4, N, 1, torch.float32), torch.zeros(1, 4, N, dtype=torch.complex64))
        return sum(total)

    T = 16 * CHUNK
    per_step = (kept(2 * T, 32) - kept(T, 32)) / T
    assert per_step == 4 * (4 + 16 + 2 * 32 * 16 / CHUNK)
    assert kept(4 * T, 32) - kept(2 * T, 32) == 2 * T * per_step
