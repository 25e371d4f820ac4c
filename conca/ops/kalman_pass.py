"""The loop of the Kalman filter: one pass over the samples, and all that filter, likelihood and smoother need of it.

    F = Z P Z' + H,  K = P Z' F^-1,  P+ = (1 - K Z) P (1 - K Z)' + K H K',  P' = T P+ T' + Q        Joseph's form

A covariance has one row (R = 1) as long as all rows of the batch share it: it does not depend on what is observed, only on what is
missing. A missing entry is one that the design does not see: its row of Z is 0, its innovation 0, its variance 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from conca.ops.linear_system import applied, over_time
from conca.types import BadInput

__all__ = ["GaussianModel", "KalmanState", "Pass", "forward_pass"]

STILL = 2e-15
"""A covariance has settled when a step changes it by less, relative to its variances."""


class GaussianModel(NamedTuple):
    """A linear-Gaussian model. Each tensor is constant, or has time, or batch and time (1 for constant), in front."""

    transition: Tensor
    """T (N, N): from one sample to the next."""
    design: Tensor
    """Z (O, N): how the state is observed."""
    state_noise: Tensor
    """Q (N, N), covariance of what disturbs the state; may be singular (R Q R')."""
    observation_noise: Tensor
    """H (O, O), covariance of what disturbs the observation; may be singular or 0."""
    drive: Tensor | None = None
    """c (N), added to the state as a sample arrives (what a known input does)."""
    offset: Tensor | None = None
    """d (O), added to the observation."""


class KalmanState(NamedTuple):
    """What is believed of the state at the sample to come, before that is seen and before c enters."""

    mean_BN: Tensor
    covariance_BNN: Tensor


@dataclass
class Pass:
    """What the filter has found, sample by sample."""

    predicted: list[Tensor] = field(default_factory=list)
    predicted_covariance: list[Tensor] = field(default_factory=list)
    mean: list[Tensor] = field(default_factory=list)
    covariance: list[Tensor] = field(default_factory=list)
    innovation: list[Tensor] = field(default_factory=list)
    log_likelihood: list[Tensor] = field(default_factory=list)
    pull: list[Tensor] = field(default_factory=list)
    """Z' F^-1 (R, N, O)."""
    left: list[Tensor] = field(default_factory=list)
    """1 - K Z (R, N, N): what of a deviation is still there after the sample."""
    impossible: list[Tensor] = field(default_factory=list)
    """Whether F was singular."""

    def add(self, before: Tensor, covariance: Tensor, after: Tensor, innovation: Tensor, update: Update) -> None:
        """One sample."""
        square = (applied(update.precision, innovation) * innovation).sum(-1)
        self.predicted.append(before)
        self.predicted_covariance.append(covariance)
        self.mean.append(after)
        self.covariance.append(update.covariance)
        self.innovation.append(innovation)
        self.log_likelihood.append(-0.5 * (update.cost + square))
        self.pull.append(update.pull)
        self.left.append(update.left)
        self.impossible.append(update.impossible)


class Update(NamedTuple):
    """What a sample does, whatever it says."""

    gain: Tensor
    """K (R, N, O)."""
    pull: Tensor
    left: Tensor
    covariance: Tensor
    """P+ (R, N, N)."""
    precision: Tensor
    """F^-1 (R, O, O)."""
    cost: Tensor
    """log det F, and log 2 pi for each entry that is there: (R) or (B)."""
    impossible: Tensor


def forward_pass(
    y_BTO: Tensor, model: GaussianModel, state: KalmanState, lengths: Tensor | None, time: int
) -> tuple[Pass, KalmanState]:
    """All samples of `y_BTO` in turn, from `state` on; the state after the last valid one. For arguments see `kalman_filter`."""
    check(y_BTO, model, state, lengths)
    B, T = y_BTO.shape[:2]
    transitions, designs, noises, errors = (over_time(m, 2, T, time) for m in model[:4])
    drives = None if model.drive is None else over_time(model.drive, 1, T, time)
    live_BT, seen_BTO, y_BTO = there(y_BTO, model.offset, lengths, time)
    kinds = patterns(live_BT, seen_BTO)
    constant = all(m.dim() == 2 for m in model[:4])
    found, mean, covariance = Pass(), state.mean_BN, symmetric(shared(state.covariance_BNN))
    ys = y_BTO.unbind(1)
    t = 0
    while t < T:
        before = mean if drives is None else mean + drives[t]
        seen = seen_BTO[:1, t] if kinds.alike[t] else seen_BTO[:, t]
        design, error = (designs[t], errors[t]) if kinds.full[t] else masked(designs[t], errors[t], seen)
        count = seen.shape[-1] if kinds.full[t] else seen.sum(-1).to(covariance.dtype)
        update = updated(covariance, design, error, count)
        innovation = ys[t] - applied(design, before)
        after = before + applied(update.gain, innovation)
        found.add(before, covariance, after, innovation, update)
        ahead = applied(transitions[t], after)
        new = symmetric(transitions[t] @ update.covariance @ transitions[t].mT + noises[t])
        if not kinds.live[t]:
            live = live_BT[:, t, None]
            ahead, new = torch.where(live, ahead, mean), torch.where(live[..., None], new, covariance)
        rest = kinds.run[t] - 1 if constant and t % 4 == 3 else 0
        settled = rest > 0 and still(covariance, new)
        mean, covariance = ahead, new
        t += 1
        if settled:
            part = y_BTO[:, t : t + rest]
            mean = coast(found, part, model, mean, covariance, None if drives is None else drives[t : t + rest])
            t += rest
    refuse(found, time)
    return found, KalmanState(mean.expand(B, -1), covariance.expand(B, -1, -1).contiguous())


def coast(
    found: Pass,
    y_BTO: Tensor,
    model: GaussianModel,
    mean: Tensor,
    covariance: Tensor,
    drives: tuple[Tensor, ...] | None,
) -> Tensor:
    """The samples over which the covariance stands still, complete ones: gain and all that follows from it is one for all."""
    T, count = model.transition, y_BTO.shape[1]
    update = updated(covariance, model.design, model.observation_noise, y_BTO.shape[-1])
    onward = (T @ update.left)[0]
    pushes = applied((T @ update.gain)[0], y_BTO)
    known = None if drives is None else torch.stack([drive.expand_as(mean) for drive in drives], 1)
    if known is not None:
        pushes = pushes + applied(onward, known)
    means = []
    for push in pushes.unbind(1):
        means.append(mean)
        mean = torch.addmm(push, mean, onward.mT)
    before = torch.stack(means, 1) if known is None else torch.stack(means, 1) + known
    innovation = y_BTO - applied(model.design, before)
    after = before + applied(update.gain[0], innovation)
    square = (applied(update.precision[0], innovation) * innovation).sum(-1)
    found.predicted.extend(before.unbind(1))
    found.mean.extend(after.unbind(1))
    found.innovation.extend(innovation.unbind(1))
    found.log_likelihood.extend((-0.5 * (update.cost + square)).unbind(1))
    for kept, value in (
        (found.predicted_covariance, covariance),
        (found.covariance, update.covariance),
        (found.pull, update.pull),
        (found.left, update.left),
        (found.impossible, update.impossible),
    ):
        kept.extend([value] * count)
    return mean


def updated(covariance: Tensor, design: Tensor, error: Tensor, count: Tensor | int) -> Update:
    """Gain, and what follows from it, for `count` entries that are there."""
    size = covariance.shape[-1]
    spread = design @ covariance @ design.mT + error
    if spread.shape[-1] == 1:
        precision, cost, impossible = 1 / spread, spread.log().flatten(1).sum(1), (spread <= 0).flatten()
    else:
        factor, info = torch.linalg.cholesky_ex(symmetric(spread))
        one = torch.eye(spread.shape[-1], dtype=spread.dtype, device=spread.device)
        precision, impossible = torch.cholesky_solve(one.expand_as(factor), factor), info > 0
        cost = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    pull = design.mT @ precision
    gain = covariance @ pull
    left = torch.eye(size, dtype=covariance.dtype, device=covariance.device) - gain @ design
    after = symmetric(left @ covariance @ left.mT + gain @ error @ gain.mT)
    return Update(gain, pull, left, after, precision, cost + count * math.log(2 * math.pi), impossible)


def masked(design: Tensor, error: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Z and H of samples of which only the entries `seen` (R, O) are there: the others are noise of variance 1 by themselves."""
    here = seen.to(design.dtype)
    alone = torch.diag_embed(1 - here)
    return design * here[..., None], error * here[..., None] * here[..., None, :] + alone


def there(y_BTO: Tensor, offset: Tensor | None, lengths: Tensor | None, time: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which samples are no padding (B, T), which entries are there (B, T, O), and those less the offset, 0 elsewhere."""
    B, T = y_BTO.shape[:2]
    live = torch.ones(B, T, dtype=torch.bool, device=y_BTO.device)
    if lengths is not None:
        live = torch.arange(T, device=y_BTO.device) < lengths[:, None]
    seen = ~y_BTO.isnan() & live[..., None]
    if offset is not None and T:
        offset = offset if offset.dim() == 1 else torch.stack(over_time(offset, 1, T, time), -2)
        y_BTO = y_BTO - offset
    return live, seen, torch.where(seen, y_BTO, 0)


class Patterns(NamedTuple):
    """What the loop has to know of what is there, sample by sample."""

    alike: list[bool]
    """The same entries are there in all rows."""
    full: list[bool]
    """Every entry is there in every row."""
    live: list[bool]
    """No row has ended."""
    run: list[int]
    """How many samples from here on are full."""


def patterns(live_BT: Tensor, seen_BTO: Tensor) -> Patterns:
    """What of a batch is missing, in Python's numbers: asked once, not at every sample."""
    if not len(seen_BTO):
        yes = [True] * live_BT.shape[1]
        return Patterns(yes, yes, yes, list(range(len(yes), 0, -1)))
    alike = (seen_BTO == seen_BTO[:1]).all(-1).all(0).tolist()
    full = seen_BTO.all(-1).all(0).tolist()
    run: list[int] = []
    for complete in reversed(full):
        run.append((run[-1] if run else 0) + 1 if complete else 0)
    return Patterns(alike, full, live_BT.all(0).tolist(), run[::-1])


def shared(covariance_BNN: Tensor) -> Tensor:
    """One row, where all are equal and no gradient tells them apart."""
    if not len(covariance_BNN):
        return covariance_BNN
    expanded = covariance_BNN.stride(0) == 0
    alike = expanded or (not covariance_BNN.requires_grad and bool((covariance_BNN == covariance_BNN[:1]).all()))
    return covariance_BNN[:1] if alike else covariance_BNN


def still(old: Tensor, new: Tensor) -> bool:
    """Whether a covariance that all rows share has settled, every entry measured by the deviations it lies between."""
    if len(new) != 1 or old.shape != new.shape:
        return False
    old, new = old.detach(), new.detach()
    deviation = new.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    return bool(((new - old).abs() <= STILL * deviation[..., None] * deviation[..., None, :]).all())


def symmetric(matrix: Tensor) -> Tensor:
    """The mean of a matrix and its transpose: rounding cannot make it lopsided."""
    return 0.5 * (matrix + matrix.mT)


def refuse(found: Pass, time: int) -> None:
    """Raises BadInput if an observation was predicted with a singular covariance."""
    parts = [part.any() for part in dict.fromkeys(found.impossible)]
    if parts and bool(torch.stack(parts).any()):
        first = next(t for t, part in enumerate(found.impossible) if bool(part.any()))
        raise impossible(time + first)


def impossible(sample: int) -> BadInput:
    """What is raised where an observation has no density."""
    return BadInput(
        f"Kalman filter: sample {sample} is predicted without any room for error (a singular covariance), so its density does not "
        "exist; give observation noise, or state noise that reaches every observed number"
    )


def check(y_BTO: Tensor, model: GaussianModel, state: KalmanState, lengths: Tensor | None) -> None:
    """Raises BadInput for shapes that do not fit."""
    N, O = model.transition.shape[-1], model.design.shape[-2]  # noqa: E741
    if y_BTO.dim() != 3 or y_BTO.shape[2] != O:
        raise BadInput(f"Kalman filter: expected y of shape (batch, time, {O}), got {tuple(y_BTO.shape)}")
    wanted = {"transition": (N, N), "design": (O, N), "state_noise": (N, N), "observation_noise": (O, O)}
    for name, shape in wanted.items():
        value = getattr(model, name)
        if value.shape[-2:] != shape or value.dim() > 4:
            raise BadInput(f"Kalman filter: {name} has shape {tuple(value.shape)}, expected {shape}")
    shapes = (len(y_BTO), N), (len(y_BTO), N, N)
    if tuple(part.shape for part in state) != shapes:
        raise BadInput(
            f"Kalman filter: expected a state of shapes {shapes[0]} and {shapes[1]}, got "
            f"{' and '.join(str(tuple(part.shape)) for part in state)}"
        )
    B, T = y_BTO.shape[:2]
    if lengths is None:
        return
    if lengths.shape != (B,) or lengths.is_floating_point() or bool(((lengths < 0) | (lengths > T)).any()):
        raise BadInput(f"Kalman filter: lengths must be {B} integers from 0 to {T}, got {lengths.tolist()}")
