"""The kernel of products with few rows, at sizes around a vector, in each kind of weights, with a tail that must not be overrun."""

import pytest
import torch
from torch.testing import assert_close

from conca.kernels import one_row, pool
from conca.kernels.lanes import BYTES
from conca.ops.one_row import one_row_plain, quantised_rows

LANES = BYTES // 4


@pytest.mark.parametrize("kind", ["same", "bfloat16", "int8"])
@pytest.mark.parametrize("K", [1, LANES - 1, LANES, LANES + 1, 4 * LANES, 5 * LANES + 3])
def test_it_agrees_with_the_plain_body(K, kind, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(2)
    for B, rows in ((1, 1), (2, LANES), (3, 2 * LANES + 1)):
        x, w, bias, scale = (torch.randn(*size, dtype=torch.float32) for size in ((B, K), (rows, K), (rows,), (rows,)))
        if kind == "int8":
            w, scale = quantised_rows(w)
        w = w.bfloat16() if kind == "bfloat16" else w
        for given in ((x, w, bias, scale), (x, w, None, scale), (x, w, bias, None), (x, w, None, None)):
            want = one_row_plain(*(t.double() if t is not None and t.dtype != torch.int8 else t for t in given))
            size = 1e-6 * K * float(w.double().abs().max() * x.abs().max())
            assert_close(one_row.forward(*given).double(), want, rtol=1e-6, atol=size)
