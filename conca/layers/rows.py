"""Rows of unequal content: right-padded, left-padded and packed, brought to rows that a mixer can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from conca.layers.states import put, take
from conca.types import S

if TYPE_CHECKING:
    from conca.layers.mixer import Mixer

__all__ = ["inside", "left_to_right", "right_to_left", "segments", "stairs"]


def inside(x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """Which positions of right-padded rows are valid: bool (B, T)."""
    return torch.arange(x_BTD.shape[1], device=x_BTD.device) < lengths_B[:, None]


def left_to_right(x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """Left-padded rows (the last `lengths` positions are valid) as right-padded ones; the padding becomes 0."""
    return _rolled(x_BTD, lengths_B, x_BTD.shape[1] - lengths_B, inside(x_BTD, lengths_B))


def right_to_left(x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """The inverse of `left_to_right`: right-padded rows as left-padded ones; the padding becomes 0."""
    valid = torch.arange(x_BTD.shape[1], device=x_BTD.device) >= x_BTD.shape[1] - lengths_B[:, None]
    return _rolled(x_BTD, lengths_B, lengths_B - x_BTD.shape[1], valid)


def _rolled(x_BTD: Tensor, lengths_B: Tensor, shift_B: Tensor, valid_BT: Tensor) -> Tensor:
    if x_BTD.shape[:1] != lengths_B.shape:
        raise ValueError(f"expected one length per row, got {tuple(lengths_B.shape)} for {x_BTD.shape[0]} rows")
    if x_BTD.numel() == 0:
        return x_BTD.clone()
    T = x_BTD.shape[1]
    source = (torch.arange(T, device=x_BTD.device) + shift_B[:, None]).clamp(0, T - 1)
    rows = torch.arange(len(x_BTD), device=x_BTD.device)[:, None]
    return x_BTD[rows, source].masked_fill(~valid_BT.view(*valid_BT.shape, *[1] * (x_BTD.dim() - 2)), 0)


def stairs(
    mixer: Mixer[S], x_BTD: Tensor, state: S, lengths_B: Tensor, starts_BT: Tensor | None, elapsed_BT: Tensor | None
) -> tuple[Tensor, S]:
    """Right-padded rows for a family that does not read `lengths`: all rows to the shortest end, the rest onward."""
    y, begin = torch.zeros_like(x_BTD), 0
    for end in sorted(set(lengths_B.tolist()) - {0}):
        rows = (lengths_B >= end).nonzero()[:, 0]
        cut = (rows, slice(begin, end))
        part, new = mixer.parallel(
            x_BTD[cut],
            take(state, rows),
            lengths=None,
            starts=None if starts_BT is None else starts_BT[cut],
            elapsed=None if elapsed_BT is None else elapsed_BT[cut],
        )
        state = put(state, rows, new)
        y = y.to(part.dtype).index_put((rows[:, None], torch.arange(begin, end, device=x_BTD.device)), part)
        begin = end
    return y, state


def segments(
    mixer: Mixer[S], x_BTD: Tensor, state: S, lengths_B: Tensor | None, starts_BT: Tensor, elapsed_BT: Tensor | None
) -> tuple[Tensor, S]:
    """Packed rows for a family that does not read `starts`: each sequence in a row of its own, packed again after."""
    B, T = starts_BT.shape
    device = x_BTD.device
    if lengths_B is None:
        lengths_B = torch.full((B,), T, device=device)
    row_R, begin_R = starts_BT.nonzero(as_tuple=True)
    first_B = torch.where(starts_BT.any(1), starts_BT.int().argmax(1), lengths_B)
    y, state = mixer(x_BTD, state, lengths=first_B, elapsed=elapsed_BT)
    if len(row_R) == 0:
        return y, state
    last_R = torch.cat([row_R[1:] != row_R[:-1], row_R.new_ones(1, dtype=torch.bool)])
    end_R = torch.where(last_R, lengths_B[row_R], begin_R.roll(-1))
    at_RT = begin_R[:, None] + torch.arange(int((end_R - begin_R).max()), device=device)
    live_RT = at_RT < end_R[:, None]
    cells: Any = (row_R[:, None], at_RT.clamp(max=T - 1))
    part, new = mixer(
        x_BTD[cells],
        mixer.init_state(len(row_R)),
        lengths=end_R - begin_R,
        elapsed=None if elapsed_BT is None else elapsed_BT[cells],
    )
    y = y.index_put((row_R[:, None].expand_as(at_RT)[live_RT], at_RT[live_RT]), part[live_RT])
    return y, put(state, row_R[last_R], take(new, last_R.nonzero()[:, 0]))
