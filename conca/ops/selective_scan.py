"""The selective scan: h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t, y_t = sum_n C_t h_t, with N states for every channel of x.

Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, 2023, section 3. How long a step lasts (dt), what is
written (B) and what is read (C) depend on the input; the rates A do not. The door `selective_scan`; its readable bodies are in
`conca.ops.selective_scan_bodies`: the recurrence (the definition) and a scan within chunks (what runs where there is no kernel, and
gives the second derivative). For the backward pass the kernel keeps its inputs and every 64th state, and computes the others anew.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from conca.ops.doors import has_kernel
from conca.ops.operation import Operation
from conca.ops.selective_scan_bodies import CHUNK, HOLDS, Arguments, aligned, plain_chunked, plain_recurrence

__all__ = ["CHUNK", "HOLDS", "selective_scan", "selective_scan_chunked", "selective_scan_recurrence", "selective_step"]

Maybe = Tensor | None
Two = tuple[Tensor, Tensor]


def selective_scan(
    x_BTE: Tensor,
    dt_BTE: Tensor,
    A_EN: Tensor,
    B: Tensor,
    C: Tensor,
    h_BEN: Tensor,
    *,
    D_E: Maybe = None,
    z_BTE: Maybe = None,
    bias_E: Maybe = None,
    softplus: bool = False,
    hold: str = "euler",
    lengths: Maybe = None,
    starts: Maybe = None,
) -> Two:
    """Outputs y (B, T, E) from the state h (B, E, N), and the state after the last step.

    Args:
        x_BTE: the input.
        dt_BTE: lengths of the steps; with `bias_E` this is added, with `softplus` log(1 + exp(.)) is taken then.
        A_EN: rates of the states, negative where they decay.
        B, C: (B, T, N) shared by all channels, (B, T, G, N) each by E / G neighbours, or (E, N), constant in time.
        h_BEN: the state before the first step.
        D_E: adds D x to y. z_BTE: then multiplies y by silu(z).
        hold: "euler" weighs B by dt, as published weights want it; "zoh", zero-order hold, by (exp(dt A) - 1) / A, as the paper says.
        lengths: (B,) integers. Past the length of a row y is 0 and the state stays what it was after the last valid token; what stands
            there may be anything, NaN too, and gets gradient 0.
        starts: (B, T) bool: the state is set to 0 before that step.

    Returns:
        y in the type of x, and the state in float32, or float64 where any argument is; half precisions are computed in float32.

    Raises:
        BadInput: where the shapes do not fit, and for an unknown hold.
    """
    args = aligned(x_BTE, dt_BTE, A_EN, B, C, h_BEN, D_E, z_BTE, bias_E, lengths, starts, softplus, hold)
    empty = args.x.numel() == 0 or args.A.numel() == 0
    run = plain_chunked if empty or not has_kernel("selective_scan", x_BTE.device.type) else _operation
    return _typed(run(*args), x_BTE)


def selective_step(
    x_BE: Tensor,
    dt_BE: Tensor,
    A_EN: Tensor,
    B_BN: Tensor,
    C_BN: Tensor,
    h_BEN: Tensor,
    *,
    D_E: Maybe = None,
    z_BE: Maybe = None,
    bias_E: Maybe = None,
    softplus: bool = False,
    hold: str = "euler",
) -> Two:
    """One step of `selective_scan`, by PyTorch: y (B, E) and the next state."""
    z = None if z_BE is None else z_BE[:, None]
    args = aligned(
        x_BE[:, None], dt_BE[:, None], A_EN, B_BN[:, None], C_BN[:, None], h_BEN, D_E, z, bias_E, None, None, softplus, hold
    )  # fmt: skip
    y, last = _typed(plain_recurrence(*args), x_BE)
    return y[:, 0], last


def selective_scan_recurrence(*args: Any, **options: Any) -> Two:
    """`selective_scan` as it is defined, one step after another; its signature."""
    return _typed(plain_recurrence(*_given(*args, **options)), args[0])


def selective_scan_chunked(*args: Any, **options: Any) -> Two:
    """`selective_scan` by a scan within chunks; its signature."""
    return _typed(plain_chunked(*_given(*args, **options)), args[0])


def _given(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, *, D_E: Maybe = None, z_BTE: Maybe = None,
    bias_E: Maybe = None, softplus: bool = False, hold: str = "euler", lengths: Maybe = None, starts: Maybe = None,
) -> Arguments:  # fmt: skip
    return aligned(x, dt, A, B, C, h, D_E, z_BTE, bias_E, lengths, starts, softplus, hold)


def _typed(results: Two, x: Tensor) -> Two:
    y, last = results
    return (y.to(x.dtype) if x.is_floating_point() else y), last


def _room(*args: Any) -> Tensor:
    """(B, 0), or for each row the states before each chunk, channels in blocks of 64 bytes."""
    x: Tensor = args[0]
    (B, T, E), N = x.shape, args[2].shape[1]
    block = 64 // x.element_size()
    size = -(-T // CHUNK) * N * (-(-E // block) * block) if args[-1] else 0
    return x.new_empty(B, size) if args[9] is None else x.new_zeros(B, size)


_operation = Operation(
    "selective_scan",
    plain_chunked,
    inputs="Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h, Tensor? D, Tensor? z, Tensor? bias",
    options="Tensor? lengths, Tensor? starts, bool softplus, bool zoh",
    shared=("A", "D", "bias"),
    outputs=("x", "h"),
    room=_room,
)
