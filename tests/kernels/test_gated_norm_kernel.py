"""The kernel of the gated norm against the readable body: pieces, groups of any width, both precisions, any number of threads."""

import pytest
import torch
from torch.testing import assert_close

from conca.kernels import gated_norm, pool
from conca.ops.gated_norm import gated_rms_norm_plain

SHAPES = [((1, 1, 1), 1), ((1, 513, 34), 2), ((2, 257, 40), 8), ((2, 3, 102), 3)]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_kernel_and_readable_body_agree(shape, groups, dtype, norm_first, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    B, T, E = shape
    x, g = torch.randn(B, T, E, dtype=dtype), torch.randn(B, T, E, dtype=dtype)
    z, weight = torch.randn(B, T, 3 * E, dtype=dtype)[..., 1 : E + 1], 1 + torch.rand(E, dtype=dtype)
    options = 1e-3, groups, norm_first
    found, inputs = torch.func.vjp(lambda *t: gated_rms_norm_plain(*t, *options), x, z, weight)
    close = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 5e-5, "atol": 5e-5}
    for threads in (1, 3):
        torch.set_num_threads(threads)
        assert_close(gated_norm.forward(x, z, weight, *options), found, **close)
        dx, dz, dweight = gated_norm.backward(x, z, weight, *options, g)
        assert_close((dx, dz, dweight.sum(0)), inputs(g), **close)
