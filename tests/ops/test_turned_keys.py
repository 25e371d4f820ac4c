"""Queries and keys of all heads: kernel and plain body agree; derivatives; products that need no rotation."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.testing import assert_close

from conca.kernels import pool
from conca.kernels import turned_keys as kernel
from conca.ops.turned_keys import _operation, own_products, turned_keys, turned_keys_plain
from conca.types import BadInput

SHAPES = [  # B, T, R, G, H, N, S
    (2, 5, 1, 1, 3, 8, 2),
    (1, 70, 2, 2, 4, 33, 16),
    (2, 67, 1, 3, 3, 20, 10),
    (1, 2, 4, 1, 2, 37, 17),
    (1, 3, 1, 1, 2, 64, 16),
    (1, 1, 1, 1, 1, 2, 1),
]


def example(B, T, R, G, H, N, S, dtype=torch.float64):
    shapes = (B, T, R, G, N), (B, T, R, G, N), (H, R, N), (H, R, N), (B, T, H, S), (B, T, H)
    *args, angle, weight = (torch.randn(shape, dtype=dtype) for shape in shapes)
    return tuple(t.requires_grad_() for t in (*args, 7 * angle.tanh(), weight))


@pytest.mark.parametrize("pairing", ["neighbours", "halves"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_and_plain_body_agree(shape, dtype, pairing, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    args = example(*shape, dtype=dtype)
    want = turned_keys_plain(*args, pairing)
    g = tuple(torch.randn(t.mT.shape, dtype=dtype).mT for t in want)
    close = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    grads = torch.autograd.grad(want, args, g)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        got = turned_keys(*args, pairing)
        assert_close(got, want, **close)
        assert_close(torch.autograd.grad(got, args, g), grads, **close)


@pytest.mark.parametrize("pairing", ["neighbours", "halves"])
def test_derivatives_and_transforms(pairing):
    args = example(1, 2, 1, 1, 2, 4, 1)

    def keys(*args):
        return turned_keys(*args, pairing)

    assert gradcheck(keys, args)
    assert gradgradcheck(keys, args)
    plain = tuple(t.detach() for t in args)
    opcheck(_operation.forward, (*plain, pairing))
    opcheck(_operation.backward, (*plain, pairing, *keys(*plain)))
    q, *rest = plain
    many = torch.stack([q, 2 * q])
    assert_close(torch.vmap(lambda q: keys(q, *rest)[0])(many), torch.stack([keys(q, *rest)[0] for q in many]))


def test_nothing_to_turn_and_nothing_at_all():
    q, k, q_bias, k_bias, angle, weight = example(2, 3, 1, 2, 4, 5, 0)
    got, _ = turned_keys(q, k, q_bias, k_bias, angle, weight, "halves")
    assert_close(got, q.repeat_interleave(2, 3) + q_bias.transpose(0, 1))
    assert turned_keys(*(t[:0] for t in (q, k)), q_bias, k_bias, angle[:0], weight[:0], "halves")[1].shape == (
        0,
        3,
        1,
        4,
        5,
    )


def test_products_of_a_step_need_no_rotation():
    *args, weight = example(2, 3, 3, 2, 4, 6, 3)
    q, k = turned_keys(*args, torch.ones_like(weight), "neighbours")
    assert_close(own_products(*args[:4]), torch.einsum("btrhn,btshn->bthrs", q, k))


def test_what_does_not_fit_is_refused():
    q, k, q_bias, k_bias, angle, weight = example(2, 3, 1, 2, 4, 6, 3)
    for wrong in (
        (q[0], k, q_bias, k_bias, angle, weight),
        (q, k[:1], q_bias, k_bias, angle, weight),
        (q, k, q_bias[:3], k_bias[:3], angle[:, :, :3], weight[:, :, :3]),
        (q, k, q_bias, k_bias, angle[:, :2], weight),
        (q, k, q_bias, k_bias, angle.repeat(1, 1, 1, 2), weight),
        (q, k, q_bias, k_bias, angle, weight[:, :, :1]),
    ):
        with pytest.raises(BadInput, match="turned_keys: "):
            turned_keys(*wrong, "halves")


def test_warm_leaves_nothing_to_compile():
    kernel.warm()
    assert len(kernel.forward_tasks.signatures) >= 2
    assert len(kernel.backward_tasks.signatures) >= 2
