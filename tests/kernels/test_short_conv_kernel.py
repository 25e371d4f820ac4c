"""The kernel of the short convolution against the readable body: pieces, tiles and chunks, both precisions, any number of threads."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from conca.kernels import pool, short_conv
from conca.ops.convolution import short_conv_plain

SHAPES = [(1, 1, 1, 1), (6, 3, 5, 6), (2, 150, 33, 3), (1, 290, 16, 40), (3, 140, 130, 4), (2, 128, 24, 4)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("lengths", "starts"), [*product([False, True], [False, True])])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_and_readable_body_agree(shape, lengths, starts, dtype, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    B, T, E, W = shape
    x, w, bias, tail, g, gnew = (
        torch.randn(*size, dtype=dtype)
        for size in ((B, T, 2 * E), (E, W), (E,), (B, W - 1, E), (B, T, E), (B, W - 1, E))
    )
    x, bias = x[..., E // 2 : E // 2 + E], None if W == 3 else bias
    ends = torch.randint(0, T + 1, (B,)) if lengths else None
    args = x, w, bias, tail, ends, torch.rand(B, T) < T**-0.5 if starts else None, W != 40
    found, inputs = torch.func.vjp(
        lambda *t: short_conv_plain(*t[:2], t[2] if bias is not None else None, t[3], *args[4:]),
        *(torch.zeros(0, dtype=dtype) if t is None else t for t in args[:4]),
    )
    want = *found, *inputs((g, gnew))
    for threads, wide in ((1, 96), (1, 1), (3, 2)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(short_conv, "WIDE", wide)
        dx, dw, dbias, dtail = short_conv.backward(*args, g, gnew)
        dbias = want[4] if dbias is None else dbias.sum(0)
        for one, other in zip((*short_conv.forward(*args), dx, dw.sum(0), dbias, dtail), want, strict=True):
            scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
            assert_close(one, other, rtol=0, atol=scale * (1e-12 if dtype == torch.float64 else 3e-6))


def test_no_number_depends_on_the_threads_or_on_other_rows(monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    x, w, tail = torch.randn(3, 300, 40), torch.randn(40, 4), torch.randn(3, 3, 40)
    options = None, None, True
    once = *short_conv.forward(x, w, None, tail, *options), *short_conv.backward(x, w, None, tail, *options, x, tail)
    torch.set_num_threads(3)
    again = *short_conv.forward(x, w, None, tail, *options), *short_conv.backward(x, w, None, tail, *options, x, tail)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(once, again))
    alone = short_conv.forward(x[1:2], w, None, tail[1:2], *options)
    assert torch.equal(alone[0][0], once[0][1]) and torch.equal(alone[1][0], once[1][1])
