"""The exponential-trapezoidal recurrence: a matrix memory that takes in each pair of key and value twice, once now and once a step later.

    S_t = a_t (S_{t-1} + late_t sum_r k_{t-1,r} v_{t-1,r}^T) + now_t sum_r k_{t,r} v_{t,r}^T,     y_{t,r} = S_t^T q_{t,r}

Lahoti et al., Mamba-3: Improved Sequence Modeling using State Space Principles, 2026, with a = exp(A dt), late = (1 - lambda) dt,
now = lambda dt. With S'_t = S_t + late_{t+1} sum_r k_{t,r} v_{t,r}^T and taken_t = now_t + late_{t+1} there is one input a step,

    S'_t = a_t S'_{t-1} + taken_t sum_r k_{t,r} v_{t,r}^T
    y_{t,r} = (a_t S'_{t-1})^T q_{t,r} + now_t sum_s (q_{t,r} . k_{t,s}) v_{t,s}

so it is `conca.ops.duality`, read strictly, and what a step gives to itself. (Published code reads with taken_t and then subtracts
late_{t+1} times the same: there an output feels the input after it, by rounding.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from conca.ops.duality import duality

__all__ = ["last_of", "taken", "trapezoid", "trapezoid_recurrence"]

Pair = tuple[Tensor, Tensor]
Maybe = Tensor | None


def trapezoid(
    q_BTRHK: Tensor,
    k_BTRHK: Tensor,
    v_BTRHV: Tensor,
    log_a_BTH: Tensor,
    late_BTH: Tensor,
    S_BHKV: Tensor,
    k_BRHK: Tensor,
    v_BRHV: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> Pair:
    """What the outputs y (B, T, R, H, V) have of the steps before them, and S after the last step; T > 0.

    k are keys times `taken` of the same lengths and starts; S, k (B, R, H, K) and v (B, R, H, V) are the state, and the key and the
    value of the step before, these not scaled. What a step gives to its own output is added by the caller, who may have the
    products of its queries and keys for less.
    lengths (B,): past the length of a row y is 0 and S stays what it was. starts (B, T) bool: before that step S is 0, and there was
    no key and no value. Raises BadInput for shapes that do not fit.
    """
    late_BH = late_BTH[:, 0] if lengths is None else torch.where(lengths[:, None] > 0, late_BTH[:, 0], 0)
    S = S_BHKV + torch.einsum("bh,brhk,brhv->bhkv", late_BH, k_BRHK, v_BRHV)
    return duality(q_BTRHK, k_BTRHK, v_BTRHV, log_a_BTH, S, lengths=lengths, starts=starts, strict=True)


def taken(now_BTH: Tensor, late_BTH: Tensor, *, lengths: Maybe = None, starts: Maybe = None) -> Tensor:
    """now_t + late_{t+1} (B, T, H): what of a step is in the memory once the next one begins; of the last step of a row, and before
    a start, now_t."""
    later = torch.cat([late_BTH[:, 1:], torch.zeros_like(late_BTH[:, :1])], 1)
    if starts is not None:
        later = later.masked_fill(torch.cat([starts[:, 1:], starts[:, :1]], 1)[..., None], 0)
    if lengths is not None:
        steps = torch.arange(late_BTH.shape[1], device=late_BTH.device)
        later = later.masked_fill((steps >= lengths[:, None] - 1)[..., None], 0)
    return now_BTH + later


def trapezoid_recurrence(
    q_BTRHK: Tensor,
    k_BTRHK: Tensor,
    v_BTRHV: Tensor,
    log_a_BTH: Tensor,
    late_BTH: Tensor,
    now_BTH: Tensor,
    S_BHKV: Tensor,
    k_BRHK: Tensor,
    v_BRHV: Tensor,
) -> Pair:
    """The recurrence step by step, of keys that are not scaled: whole outputs, and S after the last step."""
    outputs, S, k, v = [], S_BHKV, k_BRHK, v_BRHV
    for t in range(q_BTRHK.shape[1]):
        a, late, now = (u[:, t, :, None, None] for u in (log_a_BTH.exp(), late_BTH, now_BTH))
        old = torch.einsum("brhk,brhv->bhkv", k, v)
        k, v = k_BTRHK[:, t], v_BTRHV[:, t]
        S = a * (S + late * old) + now * torch.einsum("brhk,brhv->bhkv", k, v)
        outputs.append(torch.einsum("brhk,bhkv->brhv", q_BTRHK[:, t], S))
    return torch.stack(outputs, 1), S


def last_of(x_BT: Tensor, before_B: Tensor, lengths: Maybe = None) -> Tensor:
    """The last valid step (B, ...) of x (B, T, ...), and what was before it (B, ...) for a row of no steps."""
    if lengths is None:
        return x_BT[:, -1].clone()
    found = x_BT[torch.arange(len(x_BT), device=x_BT.device), (lengths - 1).clamp(min=0)]
    return torch.where((lengths > 0).view(-1, *[1] * (found.dim() - 1)), found, before_B)
