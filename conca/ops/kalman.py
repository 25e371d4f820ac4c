"""The Kalman filter: what a linear-Gaussian model believes of its state, how likely it finds a series, what it foretells.

    x_{t+1} = T x_t + c_{t+1} + eta,  eta ~ N(0, Q)          y_t = Z x_t + d_t + eps,  eps ~ N(0, H)

A state of belief is the mean and covariance of x at the sample to come, before that is seen and before c enters. Missing entries
of y are NaN: what is there of a sample counts, the rest brings nothing. Covariances are updated in Joseph's form, which keeps them
symmetric and positive, and are no longer updated where they have settled (constant model, complete samples).
(Kalman 1960; Bucy and Joseph 1968; conventions as in Durbin and Koopman 2012.)

N states, O outputs: what is observed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from conca.ops.kalman_likelihood import sample_likelihoods
from conca.ops.kalman_pass import GaussianModel, KalmanState, forward_pass, symmetric
from conca.ops.linear_system import applied, over_time
from conca.types import BadInput

__all__ = [
    "Filtered",
    "Forecast",
    "GaussianModel",
    "KalmanState",
    "KalmanUpdate",
    "kalman_filter",
    "kalman_forecast",
    "kalman_step",
    "log_likelihood",
]


class KalmanUpdate(NamedTuple):
    """What one sample has taught."""

    mean_BN: Tensor
    """Of the state, given this sample and those before."""
    covariance_BNN: Tensor
    innovation_BO: Tensor
    """Observed less expected; 0 where missing."""
    log_likelihood_B: Tensor


class Filtered(NamedTuple):
    """A series read from front to back; 0 past the length of a row."""

    predicted_mean_BTN: Tensor
    """Of the state at t, given the samples before t."""
    predicted_covariance_BTNN: Tensor
    mean_BTN: Tensor
    """Of the state at t, given the samples up to t."""
    covariance_BTNN: Tensor
    innovation_BTO: Tensor
    """Observed less expected; 0 where missing."""
    log_likelihood_BT: Tensor
    state: KalmanState
    """After the last valid sample: one may go on from here."""


class Forecast(NamedTuple):
    """Observations to come, as normal distributions."""

    mean_BTO: Tensor
    covariance_BTOO: Tensor

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds (B, T, O), between which each number falls with probability `level`.

        Raises:
            BadInput: for a level that is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise BadInput(f"the level of an interval must lie between 0 and 1, got {level}")
        variance = self.covariance_BTOO.diagonal(dim1=-2, dim2=-1)
        half = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=variance.dtype)) * variance.sqrt()
        return self.mean_BTO - half, self.mean_BTO + half


def kalman_filter(
    y: Tensor, model: GaussianModel, state: KalmanState, *, lengths: Tensor | None = None, time: int = 0
) -> Filtered:
    """Read the series y (B, T, O) from `state` on.

    Args:
        y: observations; NaN where missing, single entries too.
        lengths: (B,) integers. Rows are right-padded; the padding may hold anything.
        time: number of the first sample, where the model varies.

    Raises:
        BadInput: for shapes that do not fit, and for a sample that the model leaves no room to differ from its prediction.
    """
    found, last = forward_pass(y, model, state, lengths, time)
    B, T, O = y.shape  # noqa: E741
    N = state.mean_BN.shape[1]
    past = None if lengths is None else torch.arange(T, device=y.device) >= lengths[:, None]

    def stacked(parts: list[Tensor], *size: int) -> Tensor:
        if not parts:
            return y.new_zeros(B, T, *size)
        whole = torch.stack([part.expand(B, *size) for part in parts], 1)
        return whole if past is None else whole.masked_fill(past[(...,) + (None,) * len(size)], 0)

    return Filtered(
        stacked(found.predicted, N),
        stacked(found.predicted_covariance, N, N),
        stacked(found.mean, N),
        stacked(found.covariance, N, N),
        stacked(found.innovation, O),
        stacked(found.log_likelihood),
        last,
    )


def kalman_step(
    y: Tensor, model: GaussianModel, state: KalmanState, *, time: int = 0
) -> tuple[KalmanUpdate, KalmanState]:
    """One sample y (B, O) of every row: what it teaches, and what is believed of the next one. Raises as `kalman_filter`."""
    found, last = forward_pass(y[:, None], model, state, None, time)
    covariance = found.covariance[0].expand(len(y), -1, -1)
    likelihood = found.log_likelihood[0].expand(len(y))
    return KalmanUpdate(found.mean[0], covariance, found.innovation[0], likelihood), last


def log_likelihood(
    y: Tensor,
    model: GaussianModel,
    state: KalmanState,
    *,
    lengths: Tensor | None = None,
    burn: int = 0,
    time: int = 0,
) -> Tensor:
    """log p(y) of each row, (B,): the sum over what was observed, without the first `burn` samples.

    Where nothing is known of the first state, its covariance is taken very large and as many samples are left out as there are
    states: their density says more of that covariance than of the model. Raises as `kalman_filter`.
    """
    return sample_likelihoods(y, model, state, lengths, time)[:, burn:].sum(1)


def kalman_forecast(model: GaussianModel, state: KalmanState, steps: int, *, time: int = 0) -> Forecast:
    """The next `steps` observations, as seen from `state`, their noise included.

    Args:
        time: number of the first of them, where the model varies.

    Raises:
        BadInput: where a time axis of the model ends too early, and for a negative number of steps.
    """
    if steps < 0:
        raise BadInput(f"forecast: steps must be at least 0, got {steps}")
    mean, covariance = state
    transitions, designs, noises, errors = (over_time(m, 2, steps, time) for m in model[:4])
    drives, offsets = (None if m is None else over_time(m, 1, steps, time) for m in (model.drive, model.offset))
    means, spreads = [mean.new_zeros(len(mean), 0, model.design.shape[-2])], []
    for t in range(steps):
        mean = mean if drives is None else mean + drives[t]
        seen = applied(designs[t], mean)
        means.append((seen if offsets is None else seen + offsets[t])[:, None])
        spreads.append(symmetric(designs[t] @ covariance @ designs[t].mT + errors[t]))
        mean = applied(transitions[t], mean)
        covariance = symmetric(transitions[t] @ covariance @ transitions[t].mT + noises[t])
    size = model.design.shape[-2]
    spread = torch.stack(spreads, 1) if spreads else mean.new_zeros(len(mean), 0, size, size)
    return Forecast(torch.cat(means, 1), spread)
