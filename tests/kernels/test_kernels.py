"""Kernels against the recurrence: every precision, odd sizes, several threads, nothing written outside, work that goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from conca.kernels import diagonal, pool
from conca.kernels import scan as scans
from conca.kernels.views import array, rows
from conca.ops.diagonal import CHUNK, diagonal_ssm, diagonal_ssm_chunked, diagonal_ssm_recurrence
from conca.ops.scan import scan, scan_recurrence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = str(Path(__file__).parent)
REAL = [torch.float32, torch.float64]
DTYPES = [*REAL, torch.complex64, torch.complex128]
TIMES = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1]


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(request.param)


def near(got, want):
    scale = float(want.abs().max()) if want.numel() else 1.0
    tight = want.dtype in (torch.float64, torch.complex128)
    assert_close(got, want, rtol=1e-9 if tight else 1e-4, atol=(1e-10 if tight else 1e-5) * max(scale, 1.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("E", [1, 7, 8, 15, 16, 17, 31, 33, 64, 65, 130])
def test_scan(E, dtype):
    for B, T in ((1, 1), (1, 9), (3, 2), (5, 17)):
        a, x = torch.randn(B, T, E, dtype=dtype) * 0.7, torch.randn(B, T, E, dtype=dtype)
        h, g = torch.randn(B, E, dtype=dtype), torch.randn(B, T, E, dtype=dtype)
        ends, fresh = torch.arange(B) * T // max(B - 1, 1), torch.rand(B, T) < 0.2
        for factors, *ragged in ((a, None, None), (a, ends, fresh), (a[:, 0], None, None), (a[:, 0], ends, fresh)):
            leaves = [t.clone().requires_grad_() for t in (factors, x, h)]
            steps = leaves[0] if factors is a else leaves[0][:, None]
            want = scan_recurrence(steps, *leaves[1:], lengths=ragged[0], starts=ragged[1])
            near(scans.forward(factors, x, h, *ragged), want.detach())
            grads = torch.autograd.grad(want, leaves, g)
            for got, wanted in zip(scans.backward(factors, h, want, g, *ragged), grads):
                near(got, wanted)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("T", TIMES)
@pytest.mark.parametrize(("D", "N"), [(1, 1), (7, 3), (8, 2), (16, 1), (17, 2), (33, 5)])
def test_diagonal(D, N, T, dtype):
    modes, B = torch.promote_types(dtype, torch.complex64), 2
    u, gy = torch.randn(B, T, D, dtype=dtype), torch.randn(B, T, D, dtype=dtype)
    a = torch.polar(torch.rand(D, N, dtype=dtype), torch.randn(D, N, dtype=dtype))
    b, c = torch.randn(2, D, N, dtype=modes)
    h, gh = torch.randn(2, B, D, N, dtype=modes)
    lengths, starts = torch.tensor([T // 2, T]), torch.rand(B, T) < 0.1
    starts[1, min(T, CHUNK) - 1 :: CHUNK] = starts[0, ::CHUNK] = True
    for options in ({}, {"lengths": lengths}, {"starts": starts}, {"lengths": lengths, "starts": starts}):
        leaves = [t.clone().requires_grad_() for t in (u, a, b, c, h)]
        want = diagonal_ssm_recurrence(*leaves, **options)
        ends, fresh = options.get("lengths"), options.get("starts")
        saved = u.new_full((B, -(-T // CHUNK) * N * 2 * (D + -D % 16)), torch.nan)
        y, last = diagonal.forward(u, a, b, c, h, ends, fresh, saved)
        near(y, want[0].detach())
        near(last, want[1].detach())
        grads = torch.autograd.grad(want, leaves, (gy, gh))
        du, *by_row, dh = diagonal.backward(u, a, b, c, h, ends, fresh, saved, gy, gh)
        for got, wanted in zip((du, *(g.sum(0) for g in by_row), dh), grads):
            near(got, wanted)


def test_a_start_at_every_step():
    u, a = torch.randn(2, 150, 9), torch.rand(9, 2).to(torch.complex128)
    starts, h = torch.ones(2, 150, dtype=torch.bool), torch.zeros(2, 9, 2, dtype=torch.complex128)
    y, last = diagonal_ssm(u, a, a, a, h, starts=starts)
    assert_close(y, u * (a * a).sum(1).real)
    assert_close(last, a * u[:, -1, :, None])


@pytest.mark.parametrize("ends", [[-3, 500], [0, 0]])
def test_lengths_outside_are_held_within(ends):
    u, a = torch.randn(2, 10, 3), torch.rand(3, 2).to(torch.complex128)
    h, ends = torch.randn(2, 3, 2, dtype=torch.complex128), torch.tensor(ends)
    got = diagonal_ssm(u, a, a, a, h, lengths=ends)
    assert_close(got, diagonal_ssm_chunked(u, a, a, a, h, lengths=ends))


def test_one_row_does_not_depend_on_the_others_or_on_the_number_of_threads():
    u, a = torch.randn(5, 200, 40, dtype=torch.float32), torch.rand(40, 3).to(torch.complex64)
    h = torch.zeros(5, 40, 3, dtype=torch.complex64)
    y, last = diagonal_ssm(u, a, a, a, h)
    torch.set_num_threads(2)
    for row in range(5):
        alone, end = diagonal_ssm(u[row : row + 1], a, a, a, h[:1])
        assert torch.equal(alone[0], y[row])
        assert torch.equal(end[0], last[row])
    x = torch.randn(5, 100, 70, dtype=torch.complex64)
    states = scan(x, x, x[:, 0])
    assert torch.equal(scan(x[:1], x[:1], x[:1, 0])[0], states[0])


def test_nothing_is_copied_that_need_not_be():
    x = torch.randn(4, 6, 10)[:, 1:4, 2:9]
    view = rows(x)
    assert view.flat.ctypes.data == x.data_ptr()
    assert (view.row, view.time, view.flat.size) == (60, 10, 3 * 60 + 2 * 10 + 7)
    pair = rows(torch.randn(3, 1, 4, dtype=torch.complex64).expand(3, 5, 4))
    assert (pair.row, pair.time, pair.flat.size) == (8, 0, 3 * 8)
    assert array(x[:, :, ::2]).flags.c_contiguous


def test_memory_of_training_is_linear_in_time_and_free_of_states():
    def kept(T, N):
        u, a = torch.zeros(1, T, 4, dtype=torch.float32, requires_grad=True), torch.zeros(4, N, dtype=torch.complex64)
        total = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: total.append(t.nbytes) or t, lambda t: t):
            diagonal_ssm(u, a, a, a, torch.zeros(1, 4, N, dtype=torch.complex64))
        return sum(total)

    T = 64 * CHUNK
    per_step = (kept(2 * T, 32) - kept(T, 32)) / T
    assert per_step == 4 * (4 + 2 * 32 * 16 / CHUNK)
    assert kept(4 * T, 32) - kept(2 * T, 32) == 2 * T * per_step


CHECKED = """
import numpy as np, pytest
from conca.kernels import lanes
from conca.kernels.compiled import compiled

@compiled
def peek(x, i):
    return lanes.get(lanes.load(x, i), 0)

assert peek(np.ones(20), 12) == 1
for i in (13, -1):
    with pytest.raises(IndexError):
        peek(np.ones(20), i)
"""


def test_a_place_outside_is_refused_where_bounds_are_checked():
    if torch.get_num_threads() != 1:  # once is enough; that all kernels obey is what .ci/run runs this folder again for
        return
    env = os.environ | {"NUMBA_BOUNDSCHECK": "1"}
    done = subprocess.run([sys.executable, "-c", CHECKED], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_scan_may_write_over_its_input():
    a, x, h = (torch.randn(*size, dtype=torch.complex64) / 2 for size in ((2, 3), (2, 70, 3), (2, 3)))
    lengths, starts = torch.tensor([70, 50]), torch.zeros(2, 70, dtype=torch.bool)
    starts[0, 20] = True
    for ends, fresh in ((None, None), (lengths, starts)):
        states = scans.forward(a, x, h, ends, fresh)
        room = x.clone()
        assert scans.forward(a, room, h, ends, fresh, inplace=True) is room and torch.equal(room, states)
        da, dx, dh = scans.backward(a, h, states, x, ends, fresh)
        room = x.clone()
        found = scans.backward(a, h, states, room, ends, fresh, inplace=True)
        assert found[1] is room and all(map(torch.equal, found, (da, dx, dh)))
