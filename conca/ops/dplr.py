"""A state space with feedback of low rank: h_t = a h_{t-1} - sum_r p_r s_r + b u_t, s_r = Re(sum_n q_r h_{t-1}), y_t = Re(sum_n c h_t).

One step is a diagonal matrix plus one of low rank (DPLR), with N complex modes for every channel of u; any generalised bilinear
transform of a continuous system of that kind has this form (`dplr_generalised_bilinear`), which is why one token costs O(N R).

The door `dplr_ssm`. Its readable bodies are in `conca.ops.dplr_bodies`: the recurrence (the definition), the chunked matrix form
(what runs where there is no kernel, and gives the second derivative) and the convolution.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conca.ops.diagonal import CHUNK, diagonal_ssm
from conca.ops.discretise import generalised_bilinear
from conca.ops.doors import has_kernel
from conca.ops.dplr_bodies import aligned_dplr, dplr_ssm_chunked, dplr_ssm_convolution, dplr_ssm_recurrence, dplr_step
from conca.ops.operation import Operation

__all__ = [
    "CHUNK",
    "dplr_generalised_bilinear",
    "dplr_ssm",
    "dplr_ssm_chunked",
    "dplr_ssm_convolution",
    "dplr_ssm_recurrence",
    "dplr_step",
]

Four = tuple[Tensor, Tensor, Tensor, Tensor]
Maybe = Tensor | None


def dplr_generalised_bilinear(
    eigenvalues_DN: Tensor, p_RDN: Tensor, q_RDN: Tensor, b_DN: Tensor, step: Tensor, alpha: float = 0.5
) -> Four:
    """The factors (a, p, q, b) of one step of length `step` of h' = eigenvalues h - sum_r p_r Re(sum_n q_r h) + b u.

    Exactly (1 - alpha step A)^-1 (1 + (1 - alpha) step A) and (1 - alpha step A)^-1 step b for the whole A, by the identity of Woodbury:
    with d = 1 / (1 - alpha step eigenvalues) and w = (1 + alpha step Re(q d p))^-1 of size R, the feedback is p -> step d p w, q -> q d.
    `step` broadcasts against the eigenvalues. alpha 1/2: bilinear, as in S4 (Gu, Goel and Re 2022). Raises BadInput for alpha outside
    0..1.
    """
    a, b = generalised_bilinear(eigenvalues_DN, step, alpha)
    d = 1 / (1 - alpha * step * eigenvalues_DN)
    p, q, b = step * d * p_RDN, d * q_RDN, b * b_DN
    gain_DRR = alpha * torch.einsum("rdn,sdn->drs", q_RDN, p).real
    through = alpha * torch.einsum("rdn,dn->rd", q_RDN, b).real
    eye = torch.eye(len(p), dtype=gain_DRR.dtype, device=gain_DRR.device)
    p = torch.einsum("rdn,drs->sdn", p, torch.linalg.inv(eye + gain_DRR).to(p.dtype))
    return a, p, q, b - (p * through[..., None]).sum(0)


def dplr_ssm(
    u_BTD: Tensor,
    a_DN: Tensor,
    p_RDN: Tensor,
    q_RDN: Tensor,
    b_DN: Tensor,
    c_DN: Tensor,
    h_BDN: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """Outputs y (B, T, D) from the state h (B, D, N), and the state after the last step.

    u real (B, T, D); a, b, c (D, N), p, q (R, D, N) and h complex (real ones are taken as complex); R may be 0. y has the dtype of u;
    the state is complex64, or complex128 where any argument is of double precision; half precisions are computed in float32.
    lengths (B,) integers: past the length of a row y is 0 and the state stays what it was after the last valid token; u there may
    be anything, NaN too, and gets gradient 0. starts (B, T) bool: the state is set to 0 before that step.
    Raises BadInput where the shapes do not fit. For the backward pass the kernel keeps its inputs, the feedback, and every 64th state.
    """
    dtype = u_BTD.dtype
    u, a, p, q, b, c, h, lengths, starts = aligned_dplr(u_BTD, a_DN, p_RDN, q_RDN, b_DN, c_DN, h_BDN, lengths, starts)
    if len(p) == 0:
        y, last = diagonal_ssm(u, a, b, c, h, lengths=lengths, starts=starts)
    elif u.numel() == 0 or a.numel() == 0 or not has_kernel("dplr_ssm", u.device.type):
        y, last = dplr_ssm_chunked(u, a, p, q, b, c, h, lengths=lengths, starts=starts)
    else:
        y, last = _operation(u, a, p, q, b, c, h, lengths, starts)
    return y.to(dtype) if dtype.is_floating_point else y, last


def _plain(*args: Any) -> tuple[Tensor, Tensor]:
    return dplr_ssm_chunked(*args[:7], lengths=args[7], starts=args[8])


def _room(*args: Any) -> Tensor:
    """(B, 0), or for each row and channel a complex number per chunk and mode, and one number per step and feedback."""
    u, p, lengths, save = args[0], args[2], args[7], args[9]
    (B, T, D), (R, _, N) = u.shape, p.shape
    block = 64 // u.element_size()
    size = (-(-T // CHUNK) * 2 * N + T * R) * (-(-D // block) * block) if save else 0
    saved: Tensor = u.new_empty(B, size) if lengths is None else u.new_zeros(B, size)
    return saved


_operation = Operation(
    "dplr_ssm",
    _plain,
    inputs="Tensor u, Tensor a, Tensor p, Tensor q, Tensor b, Tensor c, Tensor h",
    options="Tensor? lengths, Tensor? starts",
    shared=("a", "p", "q", "b", "c"),
    outputs=("u", "h"),
    room=_room,
)
