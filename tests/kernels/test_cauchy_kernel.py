"""The Cauchy kernels against the definition: both precisions, odd sizes, several threads, nothing written outside."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from conca.kernels import cauchy, lanes, pool
from conca.kernels.compiled import compiled
from conca.ops.bodies import watched
from conca.ops.cauchy import cauchy_definition, low_rank_cauchy

ROOT = Path(__file__).resolve().parents[2]
PRECISIONS = [torch.float32, torch.float64]


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(request.param)


def near(got, want):
    scale = max(float(want.abs().max()), 1.0)
    tight = want.dtype == torch.complex128
    assert_close(got, want, rtol=1e-9 if tight else 1e-4, atol=(1e-10 if tight else 1e-5) * scale)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("J", [1, 4, 7, 8, 9, 15, 16, 17, 127, 130, 300])
@pytest.mark.parametrize(
    ("V", "M", "rank"), [(1, 1, 0), (2, 1, 0), (5, 1, 0), (2, 2, 1), (2, 4, 1), (3, 3, 2), (5, 4, 3)]
)
def test_both_kernels(V, M, rank, J, dtype):
    """J below, at and above the lanes, the tile and the piece."""
    D, N, modes = 3, 3, torch.promote_types(dtype, torch.complex64)
    v = torch.randn(D, V, M, N, dtype=modes)
    w = torch.complex(-torch.rand(D, N) - 0.2, torch.randn(D, N)).to(modes)
    angle = torch.linspace(0, torch.pi / 2, J, dtype=dtype)
    g = torch.randn(D, V - rank, M - rank, J, dtype=modes)
    leaves = [t.clone().requires_grad_() for t in (v, w)]
    want = cauchy_definition(*leaves, angle.sin(), angle.cos(), rank=rank)
    near(cauchy.forward(v, w, angle.sin(), angle.cos(), rank), want.detach())
    slopes = torch.autograd.grad(want, leaves, g)
    for got, wanted in zip(cauchy.backward(v, w, angle.sin(), angle.cos(), g, rank), slopes):
        near(got, wanted)


def test_the_door_takes_the_kernels():
    v, w = torch.randn(2, 1, 1, 3, dtype=torch.complex128).requires_grad_(), -torch.ones(2, 3)
    with watched() as seen:
        low_rank_cauchy(v, w, torch.ones(4)).abs().sum().backward()
    assert {"cauchy", "cauchy_backward"} <= seen


def test_warm_compiles_them():
    cauchy.warm()
    for kernel in (cauchy.forward_tasks, cauchy.backward_tasks):
        assert len(kernel.signatures) >= 2


@compiled
def zipped(x, y, out):
    lanes.store(out, 0, lanes.zip_low(lanes.load(x, 0), lanes.load(y, 0)))
    lanes.store(out, lanes.width(out), lanes.zip_high(lanes.load(x, 0), lanes.load(y, 0)))


@compiled
def unzipped(z, x, y):
    low, high = lanes.load(z, 0), lanes.load(z, lanes.width(z))
    lanes.store(x, 0, lanes.evens(low, high))
    lanes.store(y, 0, lanes.odds(low, high))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lanes_as_pairs_and_back(dtype):
    size = 64 // np.dtype(dtype).itemsize
    x, y, z = np.arange(size, dtype=dtype), -np.arange(size, dtype=dtype) - 1, np.empty(2 * size, dtype)
    zipped(x, y, z)
    assert (z == np.stack([x, y], 1).reshape(-1)).all()
    back = np.empty_like(x), np.empty_like(y)
    unzipped(z, *back)
    assert (back[0] == x).all()
    assert (back[1] == y).all()
