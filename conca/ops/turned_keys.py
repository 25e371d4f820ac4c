"""Queries and keys of all heads from those of a few groups: a bias for each head and rank, then a rotation by the angles of the head.

    q_{h,r} = turn(q_{g,r} + q_bias_{h,r}, angle_h),   k_{h,r} = weight_h turn(k_{g,r} + k_bias_{h,r}, angle_h),   g = h * G // H

Products of queries and keys that are turned by the same angles do not need the rotation; `own_products` has them from the parts. On a
processor the rotation of every head costs as much as it moves memory, so that all of it is one pass each way.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from conca.ops.doors import has_kernel
from conca.ops.operation import Operation
from conca.ops.rotation import Pairing, turned
from conca.types import BadInput

__all__ = ["own_products", "turned_keys", "turned_keys_plain"]

Pair = tuple[Tensor, Tensor]


def turned_keys(
    q_BTRGN: Tensor,
    k_BTRGN: Tensor,
    q_bias_HRN: Tensor,
    k_bias_HRN: Tensor,
    angle_BTHS: Tensor,
    weight_BTH: Tensor,
    pairing: Pairing,
) -> Pair:
    """Queries and keys (B, T, R, H, N) from those of groups (B, T, R, G, N), biases (H, R, N), angles (B, T, H, S), S <= N / 2, and
    weights (B, T, H) of the keys.

    All of one type, float32 or wider; the angles are of a few turns. `pairing` is that of `conca.ops.rotation.turned`. Raises
    BadInput for shapes that do not fit.
    """
    args = q_BTRGN, k_BTRGN, q_bias_HRN, k_bias_HRN, angle_BTHS, weight_BTH
    _fitting(*args)
    fast = angle_BTHS.numel() and has_kernel("turned_keys", q_BTRGN.device.type)
    return cast(Pair, (_operation if fast else turned_keys_plain)(*args, pairing))


def turned_keys_plain(
    q_RGN: Tensor,
    k_RGN: Tensor,
    q_bias_HRN: Tensor,
    k_bias_HRN: Tensor,
    angle_HS: Tensor,
    weight_H: Tensor | None,
    pairing: Pairing,
) -> Pair:
    """`turned_keys` as it is written, with any leading axes in place of (B, T); no weight is one of 1."""
    base, bias = torch.stack([q_RGN, k_RGN], -4), torch.stack([q_bias_HRN, k_bias_HRN]).transpose(1, 2)
    biased = base.repeat_interleave(len(q_bias_HRN) // q_RGN.shape[-2], -2) + bias
    q, k = turned(biased, angle_HS[..., None, None, :, :], pairing).unbind(-4)
    return q, k if weight_H is None else k * weight_H[..., None, :, None]


def own_products(q_RGN: Tensor, k_RGN: Tensor, q_bias_HRN: Tensor, k_bias_HRN: Tensor) -> Tensor:
    """(q_{g,r} + bias_{h,r}) . (k_{g,s} + bias_{h,s}) for queries and keys (..., R, G, N) of a token: (..., H, R, R).

    Of small products over groups, without a tensor of all heads and channels.
    """
    G = q_RGN.shape[-2]
    q_bias, k_bias = (bias.reshape(G, -1, *bias.shape[1:]) for bias in (q_bias_HRN, k_bias_HRN))
    shared = torch.einsum("...rgn,...sgn->...grs", q_RGN, k_RGN)[..., :, None, :, :]
    left = torch.einsum("...rgn,gjsn->...gjrs", q_RGN, k_bias)
    right = torch.einsum("...sgn,gjrn->...gjrs", k_RGN, q_bias)
    both = torch.einsum("gjrn,gjsn->gjrs", q_bias, k_bias)
    return (shared + left + right + both).flatten(-4, -3)


def _fitting(q: Tensor, k: Tensor, q_bias: Tensor, k_bias: Tensor, angle: Tensor, weight: Tensor) -> None:
    """Raises BadInput for shapes that do not fit."""
    if (q.ndim, q_bias.ndim, angle.ndim) != (5, 3, 4):
        axes = q.ndim, q_bias.ndim, angle.ndim
        raise BadInput(f"turned_keys: q, bias and angle have {axes} axes, not (5, 3, 4)")
    (B, T, R, G, N), (H, S) = q.shape, angle.shape[2:]
    fits = k.shape == q.shape and q_bias.shape == k_bias.shape == (H, R, N) and weight.shape == (B, T, H)
    if not fits or angle.shape[:2] != (B, T) or G < 1 or H % G or 2 * S > N:
        shapes = ", ".join(str(tuple(t.shape)) for t in (q, k, q_bias, k_bias, angle, weight))
        raise BadInput(f"turned_keys: q, k, biases, angles and weights of shapes {shapes} do not fit each other")


def _like(q: Tensor, k: Tensor, q_bias: Tensor, k_bias: Tensor, angle: Tensor, weight: Tensor, pairing: str) -> Tensor:
    B, T, R, _, N = q.shape
    return q.new_empty(B, T, R, len(q_bias), N)


_operation = Operation(
    "turned_keys",
    turned_keys_plain,
    inputs="Tensor q, Tensor k, Tensor q_bias, Tensor k_bias, Tensor angle, Tensor weight",
    options="str pairing",
    shared=("q_bias", "k_bias"),
    outputs=(_like, _like),
)
