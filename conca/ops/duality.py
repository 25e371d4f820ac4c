"""State-space duality: S_t = a_t S_{t-1} + sum_r k_{t,r} v_{t,r}^T, y_{t,r} = S_t^T q_{t,r}, a decaying memory of matrices.

The door `duality`, for Mamba-2, Mamba-3 and every linear attention whose decay is a number per head and step. Its readable bodies
are in `conca.ops.duality_bodies`: the recurrence (the definition), the chunked matrix form and the masked attention that it is.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from conca.ops.doors import has_kernel
from conca.ops.duality_bodies import (
    CHUNK,
    aligned,
    duality_chunked,
    duality_quadratic,
    duality_recurrence,
    segment_sums,
    steps_of,
)
from conca.ops.operation import Operation

__all__ = ["CHUNK", "duality", "duality_chunked", "duality_quadratic", "duality_recurrence", "segment_sums"]

Maybe = Tensor | None


def duality(
    q_BTRGK: Tensor,
    k_BTRGK: Tensor,
    v_BTRHV: Tensor,
    log_a_BTH: Tensor,
    S_BHKV: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
    strict: bool = False,
    weight: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """Outputs y (B, T, R, H, V) of a decaying memory of matrices, and the state (B, H, K, V) after the last step.

    q, k (B, T, R, G, K), v (B, T, R, H, V), log_a (B, T, H), S (B, H, K, V), all real. G divides H: head h reads group h * G // H.
    Each of the R rows of a step sees all rows of it; with `strict` only what was written before it, y_{t,r} = a_t S_{t-1}^T q_{t,r}.
    weight (B, T, H) multiplies the values of a step, S_t = a_t S_{t-1} + weight_t sum_r k_{t,r} v_{t,r}^T, without a tensor of them.
    y has the dtype of v, the state float32 or that of the widest argument.
    lengths (B,) integers: past the length of a row y is 0 and the state stays what it was after the last valid token; what stands
    there may be anything, NaN too, and gets gradient 0. starts (B, T) bool: the state is set to 0 before that step.
    What is not finite (and not padding) reaches all of its chunk in its row and head, but passes no start in the kernels.
    Decays may be 0 (log_a minus infinity). Raises BadInput where the shapes do not fit.
    """
    dtype = v_BTRHV.dtype
    args = aligned(q_BTRGK, k_BTRGK, v_BTRHV, log_a_BTH, S_BHKV, weight, lengths, starts)
    if v_BTRHV.numel() == 0 or q_BTRGK.numel() == 0 or not has_kernel("duality", v_BTRHV.device.type):
        y, last = _plain(*args, strict)
    else:
        y, last = cast(tuple[Tensor, Tensor], _operation(*args, strict))
    return y.to(dtype) if dtype.is_floating_point else y, last


def _plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor,
    S: Tensor,
    weight: Maybe,
    lengths: Maybe,
    starts: Maybe,
    strict: bool,
) -> tuple[Tensor, Tensor]:
    return duality_chunked(q, k, v, log_a, S, lengths=lengths, starts=starts, strict=strict, weight=weight)


def _room(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor,
    S: Tensor,
    weight: Maybe,
    lengths: Maybe,
    starts: Maybe,
    strict: bool,
    save: bool,
) -> Tensor:
    """(B, 0), or for each row the states before its chunks, both axes in blocks of 64 bytes."""
    (B, T, R), block = v.shape[:3], 64 // v.element_size()
    K, V = (-(-size // block) * block for size in S.shape[2:])
    size = -(-T // steps_of(T, R)) * S.shape[1] * K * V if save else 0
    return v.new_empty(B, size)


_operation = Operation(
    "duality",
    _plain,
    inputs="Tensor q, Tensor k, Tensor v, Tensor log_a, Tensor S, Tensor? weight",
    options="Tensor? lengths, Tensor? starts, bool strict",
    outputs=("v", "S"),
    room=_room,
)
