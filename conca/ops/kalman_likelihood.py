"""The log-likelihood of each sample of a Kalman filter, by the loop of `kalman_pass` or, where it may, by a kernel.

A kernel serves constant models in double precision that see one number a sample: those that are fitted most, over long series. Its
derivative is a kernel too; a derivative of that derivative goes through the plain loop.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from conca.ops import bodies
from conca.ops.doors import apply, has_kernel, opened, transformed
from conca.ops.kalman_pass import GaussianModel, KalmanState, check, forward_pass, impossible, symmetric
from conca.ops.linear_system import over_time

__all__ = ["sample_likelihoods"]


def sample_likelihoods(
    y_BTO: Tensor, model: GaussianModel, state: KalmanState, lengths: Tensor | None, time: int
) -> Tensor:
    """log p of each sample given those before it, (B, T), 0 where it is missing. For arguments and errors see `kalman_filter`."""
    check(y_BTO, model, state, lengths)
    if served(y_BTO, model, state):
        return by_kernel(y_BTO, model, state, lengths, time)
    found, _ = forward_pass(y_BTO, model, state, lengths, time)
    parts = [part.expand(len(y_BTO)) for part in found.log_likelihood]
    return torch.stack(parts, 1) if parts else y_BTO.new_zeros(y_BTO.shape[:2])


def served(y_BTO: Tensor, model: GaussianModel, state: KalmanState) -> bool:
    """Whether the kernel computes this."""
    tensors = y_BTO, *(part for part in model if part is not None), *state
    return (
        model.design.shape[-2] == 1
        and y_BTO.numel() > 0
        and y_BTO.dtype == torch.float64
        and all(t.dtype == y_BTO.dtype and t.device == y_BTO.device for t in tensors)
        and all(matrix.dim() == 2 for matrix in model[:4])
        and not transformed()
        and has_kernel("kalman_likelihood", y_BTO.device.type)
    )


def by_kernel(y_BTO: Tensor, model: GaussianModel, state: KalmanState, lengths: Tensor | None, time: int) -> Tensor:
    """`sample_likelihoods` of what is served."""
    T, y_BT = y_BTO.shape[1], y_BTO[..., 0]
    drive, offset = (None if part is None else spread(part, T, time) for part in (model.drive, model.offset))
    if offset is not None:
        y_BT = y_BT - offset[..., 0]
    if lengths is not None:
        y_BT = torch.where(torch.arange(T, device=y_BT.device) < lengths[:, None], y_BT, torch.nan)
    driven = y_BT.new_zeros(1, 0, model.transition.shape[-1]) if drive is None else drive
    mean, covariance = state.mean_BN, symmetric(state.covariance_BNN)
    matrices = model.transition, model.design[0], model.state_noise, model.observation_noise[0]
    parts = (y_BT, *matrices, driven, mean, covariance)
    if opened(*parts):
        likelihood, _, _, faults = apply(_Likelihood, *parts)
    else:
        likelihood, _, _, faults = bodies.required("kalman_likelihood", y_BT.device.type)(*parts, False)
    if bool((faults >= 0).any()):
        raise impossible(time + int(faults[faults >= 0].min()))
    return cast(Tensor, likelihood)


def spread(vector: Tensor, length: int, time: int) -> Tensor:
    """What is added at each sample, (1 or B, T, N)."""
    if vector.dim() == 1:
        return vector.expand(1, length, -1)
    whole = torch.stack(over_time(vector, 1, length, time), -2)
    return whole if whole.dim() == 3 else whole[None]


class _Likelihood(Function):
    @staticmethod
    def forward(*parts: Tensor) -> tuple[Tensor, ...]:
        return cast("tuple[Tensor, ...]", bodies.required("kalman_likelihood", parts[0].device.type)(*parts, True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, means, spreads, faults = output
        ctx.mark_non_differentiable(means, spreads, faults)
        ctx.save_for_backward(*inputs, means, spreads)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        *parts, means, spreads = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_gradient(g, parts, ctx.needs_input_grad)
        body = bodies.required("kalman_likelihood_backward", g.device.type)
        return cast("tuple[Tensor | None, ...]", body(g, *parts[:6], means, spreads, ctx.needs_input_grad[1]))


def plain_gradient(g: Tensor, parts: list[Tensor], needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """The gradient through the plain loop, which is differentiable itself."""
    y, T, z, Q, h, c, mean, covariance = parts
    model = GaussianModel(T, z[None], Q, h[None], c if c.shape[1] else None)
    found, _ = forward_pass(y[..., None], model, KalmanState(mean, covariance), None, 0)
    likelihood = torch.stack([part.expand(len(y)) for part in found.log_likelihood], 1)
    wanted = [part for part, need in zip(parts, needed) if need]
    found_gradients = iter(torch.autograd.grad(likelihood, wanted, g, create_graph=True, allow_unused=True))
    return tuple(next(found_gradients) if need else None for need in needed)
