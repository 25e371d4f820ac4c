"""Rotations: pairs of channels turned by an angle, which grows with the position or is summed from what is read.

Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021: the angle of pair i at position t is
t * base ** (-2 i / K), computed in float64. Lahoti et al., Mamba-3, 2026: the angle is a sum of rates that depend on the input.

Two pairings are in use: "neighbours", channels 2i and 2i + 1, and "halves", channels i and i + K/2. Of an odd width the last channel is
left alone, and so is every pair beyond the angles that are given.
"""

from __future__ import annotations

import math
from typing import Literal, cast

import torch
from torch import Tensor

from conca.ops.doors import has_kernel, rows_fit
from conca.ops.operation import Operation
from conca.ops.scan import scan
from conca.types import BadInput, nearest

__all__ = ["PAIRINGS", "TURN", "Pairing", "finest", "rotate", "summed_angles", "summed_angles_plain", "turned"]

Maybe = Tensor | None
Pair = tuple[Tensor, Tensor]
Pairing = Literal["neighbours", "halves"]
PAIRINGS: tuple[Pairing, ...] = ("neighbours", "halves")
TURN = 2 * math.pi


def finest(t: Tensor) -> Tensor:
    """In float64, or the best that the device has ("mps" has float32)."""
    return t.to(torch.float32 if t.device.type == "mps" else torch.float64)


def rotate(x_BTHK: Tensor, at_BT: Tensor, base: float = 10000.0) -> Tensor:
    """x (B, T, H, K) turned to its positions `at` (B, T), integers or reals; halves are paired."""
    half = x_BTHK.shape[-1] // 2
    rate = base ** (-torch.arange(half, dtype=torch.float64, device=x_BTHK.device) / max(half, 1))
    angle = at_BT[..., None].double() * rate
    return turned(x_BTHK, angle[..., None, :], "halves")


def turned(x_K: Tensor, angle_S: Tensor, pairing: Pairing) -> Tensor:
    """x (..., K) with its first S pairs turned by angles (..., S) that broadcast against it; S is at most K / 2.

    Cosine and sine are those of the angles in their own precision. Raises BadInput for an unknown pairing and for too many angles.
    """
    S, half = angle_S.shape[-1], x_K.shape[-1] // 2
    if pairing not in PAIRINGS or half < S:
        wrong = nearest(pairing, PAIRINGS) if pairing not in PAIRINGS else f"{S} angles for {half} pairs"
        raise BadInput(f"turned: pairing {pairing!r}: {wrong}")
    cos, sin = (f(angle_S).to(x_K.dtype) for f in (torch.cos, torch.sin))
    if pairing == "neighbours":
        a, b, rest = x_K[..., : 2 * S : 2], x_K[..., 1 : 2 * S : 2], x_K[..., 2 * S :]
        pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        return torch.cat([pairs, rest.expand(*pairs.shape[:-1], -1)], -1)
    a, b = x_K[..., :S], x_K[..., half : half + S]
    parts = a * cos - b * sin, x_K[..., S:half], a * sin + b * cos, x_K[..., half + S :]
    return torch.cat([part.expand(*parts[0].shape[:-1], -1) for part in parts], -1)


def summed_angles(
    dt_BTH: Tensor, rate_BTS: Tensor, angle_BHS: Tensor, *, lengths: Maybe = None, starts: Maybe = None
) -> Pair:
    """The angle of every head after every step, angle_t = angle_{t-1} + dt_t rate_t within 0 and 2 pi, and the last one.

    dt (B, T, H) and rate (B, T, S), of which the angles (B, T, H, S) have the type; angle (B, H, S) is the one before, and that which
    is returned beside them the one after, both float64. The sum is taken in float64: after 100,000 steps of up to a radian it is
    right to 1e-10, where float32 would round small steps away. A start makes the angle before that step 0; past the length of a
    row it stays. Gradients are those of the sum. Raises BadInput for shapes that do not fit.
    """
    (B, T, H), S = dt_BTH.shape, rate_BTS.shape[-1]
    if rate_BTS.shape != (B, T, S) or angle_BHS.shape != (B, H, S):
        shapes = ", ".join(str(tuple(t.shape)) for t in (dt_BTH, rate_BTS, angle_BHS))
        raise BadInput(f"summed_angles: dt, rate and angle of shapes {shapes} do not fit each other")
    rows_fit("summed_angles", (B, T), lengths, starts)
    fast = dt_BTH.numel() and S and has_kernel("summed_angles", dt_BTH.device.type)
    body = _operation if fast else summed_angles_plain
    return cast(Pair, body(dt_BTH, rate_BTS, finest(angle_BHS), lengths, starts))


def summed_angles_plain(dt_BTH: Tensor, rate_BTS: Tensor, angle_BHS: Tensor, lengths: Maybe, starts: Maybe) -> Pair:
    """`summed_angles` as a scan, T > 0."""
    steps = finest(dt_BTH)[..., None] * finest(rate_BTS)[..., None, :]
    angle = scan(steps.new_ones(()), steps, finest(angle_BHS), lengths=lengths, starts=starts).remainder(TURN)
    return angle.to(dt_BTH.dtype), angle[:, -1].clone()


def _like(dt: Tensor, rate: Tensor, angle: Tensor, lengths: Maybe, starts: Maybe) -> Tensor:
    return dt.new_empty(*dt.shape, rate.shape[-1])


_operation = Operation(
    "summed_angles",
    summed_angles_plain,
    inputs="Tensor dt, Tensor rate, Tensor angle",
    options="Tensor? lengths, Tensor? starts",
    outputs=(_like, "angle"),
)
