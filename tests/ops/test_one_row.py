"""Products with few rows: kernel and plain body agree at any size, precision and kind of weights, and the door knows when not to open."""

import pytest
import torch
from torch.testing import assert_close

import conca  # noqa: F401  (registers the kernels)
from conca.kernels import pool
from conca.ops import bodies
from conca.ops.one_row import FEW, one_row, one_row_plain, quantised_rows
from conca.types import BadInput

KINDS = ["same", "bfloat16", "int8"]


def problem(B, rows, K, kind, dtype=torch.float64):
    x, w, bias, scale = (
        torch.randn(B, K, dtype=dtype),
        torch.randn(rows, K, dtype=dtype),
        torch.randn(rows, dtype=dtype),
        None,
    )
    if kind == "bfloat16":
        w = w.bfloat16()
    if kind == "int8":
        w, scale = quantised_rows(w)
    return x, w, bias, scale


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_and_plain_agree(dtype, kind, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(3)
    for B, rows, K in (
        (1, 1, 1),
        (1, 33, 7),
        (2, 16, 16),
        (FEW, 7, 48),
        (3, 17, 63),
        (1, 50, 64),
        (1, 5, 130),
        (2, 35, 777),
    ):
        x, w, bias, scale = problem(B, rows, K, kind, dtype)
        for given in ((x, w, bias, scale), (x, w, None, scale), (x, w, bias, None)):
            with bodies.watched() as seen:
                got = one_row(*given)
            want = one_row_plain(*(t.double() if t is not None and t.dtype == torch.float32 else t for t in given))
            assert seen == {"one_row"}
            assert got.dtype == dtype
            size = float((x.abs().double() @ w.abs().double().T).max() * (1 if given[3] is None else scale.max()))
            assert_close(got.double(), want, rtol=0, atol=size * (1e-6 if dtype == torch.float32 else 1e-14))


def test_a_row_is_the_same_alone_and_with_any_number_of_threads(monkeypatch):
    x, w, bias, scale = problem(5, 100, 37, "int8", torch.float32)
    together = one_row(x, w, bias, scale)
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(2)
    for b in range(5):
        assert torch.equal(one_row(x[b : b + 1], w, bias, scale)[0], together[b])


def test_weights_with_the_negative_bit():
    x, w = torch.randn(1, 6), torch.randn(5, 6, dtype=torch.complex128).conj().imag
    assert w.is_neg()
    assert_close(one_row(x, w), x @ w.T)


def test_what_is_not_finite_stays_so():
    x, w, *_ = problem(1, 20, 40, "same")
    w[3, 39], w[4, 0], w[5, 17] = torch.nan, torch.inf, -torch.inf
    x[0, 0] = 1.0
    got = one_row(x, w)
    assert got[0, 3].isnan()
    assert got[0, 4] == torch.inf
    assert got[0, 5].isinf()
    assert got.isfinite().sum() == 17


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w: (x.requires_grad_(), w),
        lambda x, w: (x, w.requires_grad_()),
        lambda x, w: (x.repeat(FEW, 1), w),
        lambda x, w: (x[:0], w),
        lambda x, w: (x, w[:0]),
        lambda x, w: (x[:, :0], w[:, :0]),
        lambda x, w: (x, w.T.contiguous().T),
        lambda x, w: (x.to("meta"), w.to("meta")),
    ],
    ids=[
        "x wants a gradient",
        "w wants one",
        "many rows",
        "no rows",
        "no outputs",
        "no inputs",
        "strided",
        "no memory",
    ],
)
def test_the_plain_body_runs_where_the_kernel_does_not(change):
    x, w, bias, _ = problem(2, 6, 5, "same")
    x, w = change(x, w)
    with bodies.watched() as seen:
        got = one_row(x, w, None if len(w) != 6 else bias.to(x.device))
    assert not seen
    assert got.shape == (len(x), len(w))


def test_gradients_and_transforms_go_through_the_plain_body():
    x, w, bias, _ = problem(3, 4, 5, "same")
    assert torch.autograd.gradcheck(
        lambda *a: one_row(*a), (x.requires_grad_(), w.requires_grad_(), bias.requires_grad_())
    )
    x, w = x.detach(), w.detach()
    assert_close(torch.func.vmap(lambda row: one_row(row[None], w)[0])(x), x @ w.T)
    assert_close(torch.func.jacrev(lambda row: one_row(row[None], w)[0])(x[0]), w)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_raised_inside(dtype):
    x, w, bias, _ = problem(1, 30, 400, "bfloat16")
    got = one_row(x.to(dtype), w, bias.to(dtype))
    want = one_row_plain(x.to(dtype).double(), w, bias.to(dtype).double())
    assert got.dtype == dtype
    assert_close(got.double(), want, rtol=0.01, atol=0.01)
    assert one_row_plain(x.to(dtype), w, bias.to(dtype)).dtype == dtype


def test_weights_in_int8():
    w = torch.randn(5, 40)
    w[2], w[3] = 0.0, w[3] * 1e-30
    q, scale = quantised_rows(w)
    assert q.dtype == torch.int8
    assert (q.abs().amax(1) == torch.tensor([127, 127, 0, 127, 127])).all()
    assert ((q * scale[:, None] - w).abs() <= scale[:, None] / 2 * (1 + 1e-9)).all()
    assert quantised_rows(w[:, :0])[0].shape == (5, 0)
    assert quantised_rows(w.bfloat16())[1].dtype == torch.float32


def test_bad_input():
    x, w, bias, _ = problem(2, 6, 5, "same")
    for given in ((x, w[:, :4]), (x[0], w), (x, w[0]), (x, w, bias[:3]), (x, w, None, bias[:3])):
        with pytest.raises(BadInput, match=r"one_row: expected x \(B, K\)"):
            one_row(*given)
    w[0, 0] = torch.nan
    with pytest.raises(BadInput, match="not finite"):
        quantised_rows(w)


def test_without_numba_the_plain_body_runs():
    given = problem(1, 9, 20, "int8")
    with bodies.plain_bodies(), bodies.watched() as seen:
        got = one_row(*given)
    assert not seen
    assert torch.equal(got, one_row_plain(*given))
