"""(y + c x) silu(z): kernel and plain body agree; derivatives; slices of a wider tensor."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.kernels import gated_skip as kernel
from conca.kernels import pool
from conca.ops.gated_skip import _operation, gated_skip, gated_skip_plain
from conca.types import BadInput


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("B", "T", "H", "P"), [(2, 9, 3, 4), (1, 70, 2, 33), (3, 1, 1, 1), (1, 5, 4, 16)])
def test_kernel_and_plain_body_agree(B, T, H, P, dtype, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    E = H * P
    wide, y, c = (torch.randn(B, T, size, dtype=dtype, requires_grad=True) for size in (2 * E + 3, E, H))
    args = y, wide[..., 1 : 1 + E], c, wide[..., 2 + E : 2 + 2 * E]
    want, g = gated_skip_plain(*args), torch.randn(B, E, T, dtype=dtype).mT
    close = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    grads = torch.autograd.grad(want, (wide, y, c), g, retain_graph=True)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        got = gated_skip(*args)
        assert_close(got, want, **close)
        assert_close(torch.autograd.grad(got, (wide, y, c), g, retain_graph=True), grads, **close)


def test_derivatives_and_transforms():
    args = tuple(torch.randn(2, 3, size, requires_grad=True) for size in (4, 4, 2, 4))
    assert gradcheck(gated_skip, args)
    assert gradgradcheck(gated_skip, args)
    y, x, c, z = plain = tuple(t.detach() for t in args)
    opcheck(_operation.forward, plain)
    opcheck(_operation.backward, (*plain, y))
    many = torch.stack([x, 2 * x])
    got = torch.vmap(lambda x: gated_skip(y, x, c, z))(many)
    assert_close(got, torch.stack([gated_skip(y, x, c, z) for x in many]))


def test_far_gates_are_shut_or_open_and_what_does_not_fit_is_refused():
    y, c = torch.ones(1, 1, 4), torch.zeros(1, 1, 2)
    z = torch.tensor([-1e4, -200, 0, 1e4]).view(1, 1, 4)
    assert_close(gated_skip(y, y, c, z), torch.relu(z))
    for wrong in ((y, y[:, :, :3], c, z), (y, y, c.repeat(1, 1, 3), z), (y, y, c[0], z)):
        with pytest.raises(BadInput, match="gated_skip: "):
            gated_skip(*wrong)


def test_warm_leaves_nothing_to_compile():
    kernel.warm()
    assert len(kernel.forward_tasks.signatures) >= 2
    assert len(kernel.backward_tasks.signatures) >= 2
