"""What the tests of operations share: with kernels and without, rows that end early or begin anew, and bodies that agree."""

from contextlib import nullcontext
from itertools import product

import pytest
import torch
from torch.testing import assert_close

from conca.ops.bodies import plain_bodies


@pytest.fixture(params=["kernel", "plain"])
def body(request):
    """Which body runs."""
    with plain_bodies() if request.param == "plain" else nullcontext():
        yield request.param


@pytest.fixture(params=product([False, True], [False, True]))
def ragged(request):
    """Draws lengths of rows, starts in them, both or neither, as options for B rows of T steps."""

    def drawn(B, T):
        options = {"lengths": torch.randint(0, T + 1, (B,)), "starts": torch.rand(B, T) < 0.2}
        return {name: t for (name, t), wanted in zip(options.items(), request.param) if wanted}

    return drawn


def slopes(function, args, options, weights):
    results = function(*args, **options)
    loss = sum((out * weight).real.sum() for out, weight in zip(results, weights))
    leaves = [t for t in (*args, *options.values()) if isinstance(t, torch.Tensor) and t.requires_grad]
    return *results, *torch.autograd.grad(loss, leaves, materialize_grads=True)


@pytest.fixture
def gradients():
    """The outputs of a function of `args` and `options`, and the gradients of their weighted sum to whatever wants one."""
    return slopes


@pytest.fixture
def agree():
    """Asserts that bodies give the outputs and the gradients of the first of them."""

    def near(functions, args, options, weights):
        want, *others = (slopes(function, args, options, weights) for function in functions)
        for found in others:
            for got, wanted in zip(found, want, strict=True):
                scale = max(float(wanted.detach().abs().max()), 1.0) if wanted.numel() else 1.0
                tight = wanted.dtype in (torch.float64, torch.complex128)
                assert_close(got, wanted, rtol=1e-9 if tight else 1e-4, atol=1e-9 if tight else 2e-5 * scale)

    return near
