"""What a system with noise is made of, looked at before it is used: variances, covariances, what is known of the first state."""

from __future__ import annotations

import torch
from torch import Tensor

from conca.ops.kalman import KalmanState
from conca.types import BadInput

__all__ = ["covariance_checked", "logarithms", "observations", "state_of", "tensors_only", "vector_checked"]


def tensors_only(**parts: object) -> None:
    """Raise BadInput for what is neither a tensor nor None."""
    for name, value in parts.items():
        if value is not None and not isinstance(value, Tensor):
            raise BadInput(f"GaussianSystem: {name} must be a tensor, got {type(value).__name__}")


def vector_checked(value: Tensor | None, size: int, name: str, what: str) -> None:
    """Raise BadInput unless it is None or `size` finite numbers."""
    if value is None:
        return
    if value.shape != (size,) or not bool(value.detach().isfinite().all()):
        raise BadInput(
            f"GaussianSystem: {name} must be {size} finite numbers, one for each {what}, got shape {tuple(value.shape)}"
        )


def covariance_checked(value: Tensor | None, size: int, name: str) -> None:
    """Raise BadInput unless it is None or a covariance (size, size)."""
    if value is None:
        return
    value = value.detach()
    if value.shape != (size, size):
        raise BadInput(f"GaussianSystem: {name} has shape {tuple(value.shape)}, expected {(size, size)}")
    if not bool(value.isfinite().all()) or not torch.allclose(value, value.mT):
        raise BadInput(f"GaussianSystem: {name} must be finite and symmetric")
    if size and not positive(torch.linalg.eigvalsh(value)):
        raise BadInput(f"GaussianSystem: {name} has a negative variance along one of its axes, so it is no covariance")


def positive(variances: Tensor) -> bool:
    """Whether none is negative by more than rounding."""
    return bool(variances.min() >= -1e-12 * variances.abs().max())


def logarithms(noise: Tensor, like: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The logarithms of variances (K,), or those of the principal axes of a covariance (K, K), and the axes."""
    noise = noise.detach().to(like)
    if not bool(noise.isfinite().all()):
        raise BadInput(f"GaussianSystem: {name} holds a number that is not finite")
    if noise.dim() == 1:
        variances, axes = noise, torch.eye(len(noise), dtype=like.dtype, device=like.device)
    elif noise.dim() == 2 and noise.shape[0] == noise.shape[1] and torch.allclose(noise, noise.mT):
        variances, axes = torch.linalg.eigh(noise)
        variances = torch.where(variances.abs() < 1e-14 * variances.abs().max(), 0, variances)
    else:
        raise BadInput(f"GaussianSystem: {name} must be variances or a symmetric matrix, got {tuple(noise.shape)}")
    if bool((variances < 0).any()):
        raise BadInput(f"GaussianSystem: {name} has a negative variance, so it is no covariance")
    return variances.log(), axes


def observations(y: Tensor, lengths: Tensor | None, design: Tensor) -> Tensor:
    """y (B, T, O) in the precision of `design` (O, N).

    Raises:
        BadInput: for what is no tensor or elsewhere, shapes that do not fit, lengths that cannot be, and an infinite y.
    """
    tensors_only(y=y, lengths=lengths)
    if y.dim() != 3 or y.shape[2] != len(design):
        raise BadInput(f"GaussianSystem: expected y of shape (batch, time, {len(design)}), got {tuple(y.shape)}")
    if y.device != design.device:
        raise BadInput(f"GaussianSystem: y is on {y.device}, the system on {design.device}")
    B, T = y.shape[:2]
    wild = y.detach().isinf()
    if lengths is not None:
        if lengths.shape != (B,) or lengths.is_floating_point() or bool(((lengths < 0) | (lengths > T)).any()):
            raise BadInput(f"GaussianSystem: lengths must be {B} integers from 0 to {T}, got {lengths.tolist()}")
        wild = wild & (torch.arange(T, device=y.device) < lengths[:, None])[..., None]
    if bool(wild.any()):
        row, sample, _ = wild.nonzero()[0].tolist()
        raise BadInput(f"GaussianSystem: y is infinite in row {row} at sample {sample}; NaN stands for what is missing")
    return y.to(design.dtype)


def state_of(state: KalmanState, like: Tensor) -> KalmanState:
    """A state in the precision of `like`, that can be part of a graph. Raises BadInput for what is no state, or elsewhere."""
    if not isinstance(state, KalmanState):
        raise BadInput(f"GaussianSystem: expected the state to be a KalmanState, got {type(state).__name__}")
    for part in state:
        if part.device != like.device:
            raise BadInput(f"GaussianSystem: the state is on {part.device}, the system on {like.device}")
    closed = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    parts = (part.to(like.dtype) for part in state)
    return KalmanState(*(part.clone() if closed and part.is_inference() else part for part in parts))
