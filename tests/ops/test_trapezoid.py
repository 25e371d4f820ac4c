"""The trapezoidal recurrence: duality over what comes a step late is the definition."""

import pytest
import torch
from torch.testing import assert_close

from conca.ops.trapezoid import taken, trapezoid, trapezoid_recurrence


def example(B, T, R, H, K, V):
    q, k, v = (torch.randn(B, T, R, H, size) for size in (K, K, V))
    decay, late, now = torch.randn(B, T, H), torch.rand(B, T, H), torch.rand(B, T, H)
    return q, k, v, -decay.exp(), late, now, torch.randn(B, H, K, V), torch.randn(B, R, H, K), torch.randn(B, R, H, V)


def fast(q, k, v, log_a, late, now, *before, **options):
    """The whole outputs, from what `trapezoid` gives and what a step gives to itself."""
    keys = k * taken(now, late, **options)[:, :, None, :, None]
    y, S = trapezoid(q, keys, v, log_a, late, *before, **options)
    return y + torch.einsum("bth,btrhk,btshk,btshv->btrhv", now, q, k, v), S


@pytest.mark.parametrize("shape", [(2, 1, 1, 1, 3, 2), (2, 9, 1, 3, 4, 5), (1, 70, 3, 2, 2, 3), (1, 129, 1, 2, 3, 2)])
def test_it_is_its_definition_and_so_are_its_gradients(shape):
    args = tuple(t.requires_grad_() for t in example(*shape))
    got, want = fast(*args), trapezoid_recurrence(*args)
    assert_close(got, want)
    g = tuple(torch.randn_like(t) for t in want)
    assert_close(torch.autograd.grad(got, args, g), torch.autograd.grad(want, args, g), atol=1e-9, rtol=1e-8)


def test_rows_end_and_begin_where_they_are_told():
    args = example(3, 12, 2, 2, 3, 2)
    *sequences, S, k, v = args
    starts, lengths = torch.zeros(3, 12, dtype=torch.bool), torch.tensor([12, 0, 7])
    starts[0, 4] = starts[0, 5] = starts[2, 0] = True
    y, last = fast(*args, lengths=lengths, starts=starts)
    nothing = [torch.zeros_like(t[:1]) for t in (S, k, v)]
    for row, begin, end in ((0, 0, 4), (0, 4, 5), (0, 5, 12), (2, 0, 7)):
        before = [t[row : row + 1] for t in (S, k, v)] if (row, begin) == (0, 0) else nothing
        expected, state = trapezoid_recurrence(*(t[row : row + 1, begin:end] for t in sequences), *before)
        assert_close(y[row : row + 1, begin:end], expected)
        if end == lengths[row]:
            assert_close(last[row : row + 1], state)
    assert torch.equal(last[1], S[1])
