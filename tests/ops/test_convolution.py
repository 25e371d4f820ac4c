"""The causal convolution: against PyTorch's, three bodies, the tail that is remembered."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from conca.ops.convolution import causal_convolution, causal_convolution_fft, causal_convolution_step
from conca.types import BadInput

BODIES = [causal_convolution, causal_convolution_fft]
SHAPES = [(2, 7, 3, 4), (1, 1, 1, 1), (2, 3, 5, 9), (3, 17, 2, 17), (2, 5, 3, 1)]


def example(B, T, D, W):
    return torch.randn(B, T, D), torch.randn(D, W), torch.randn(D), torch.randn(B, W - 1, D)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_convolution_of_pytorch(shape, body):
    x, w, bias, tail = example(*shape)
    line = torch.cat([tail, x], 1)
    want = F.conv1d(line.mT, w.flip(1)[:, None], bias, groups=shape[2]).mT
    y, new = body(x, w, bias, tail)
    assert_close(y, want)
    assert_close(new, line[:, shape[1] :])
    assert_close(body(x, w, None, tail)[0], want - bias)


@pytest.mark.parametrize("shape", SHAPES)
def test_step_by_step(shape):
    x, w, bias, tail = example(*shape)
    y, end = causal_convolution(x, w, bias, tail)
    for t in range(shape[1]):
        one, tail = causal_convolution_step(x[:, t], w, bias, tail)
        assert_close(one, y[:, t])
    assert_close(tail, end)


@pytest.mark.parametrize("body", BODIES)
def test_derivatives(body):
    args = [t.requires_grad_() for t in example(2, 4, 2, 3)]
    assert gradcheck(body, args)
    assert gradgradcheck(body, args)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", [(2, 0, 3, 4), (0, 3, 2, 2), (2, 3, 0, 4)])
def test_empty(body, shape):
    x, w, bias, tail = example(*shape)
    y, new = body(x, w, bias, tail)
    assert y.shape == x.shape
    assert new.shape == tail.shape


def test_a_tail_is_a_copy():
    x, w, bias, tail = example(1, 4, 2, 3)
    _, new = causal_convolution(x, w, bias, tail)
    assert new.untyped_storage().nbytes() == new.numel() * new.element_size()
    _, new = causal_convolution(x[:, :0], w, bias, tail)
    new += 1
    assert not torch.equal(new, tail)


def test_shapes_that_do_not_fit():
    x, w, bias, tail = example(2, 4, 3, 4)
    for args in ((x, w[:2], bias, tail), (x, w, bias, tail[:, 1:]), (x[0], w, bias, tail), (x, w[:, :0], bias, tail)):
        with pytest.raises(BadInput, match="causal convolution: "):
            causal_convolution(*args)
