"""A linear system with noise on both lines: filtered, smoothed, foretold, and fitted by the likelihood of what was observed.

    x_{t+1} = a x_t + b u_{t+1} + r eta,  y_t = C x_t + D u_t + offset + eps         eta ~ N(0, state noise), eps ~ N(0, observation noise)

The noise of the state enters like an input, through a matrix R that the transform of the system makes discrete: it is held over a
step. Variances are trained as logarithms. (Kalman 1960; Harvey 1989; Durbin and Koopman 2012.)

N states, M inputs, O outputs: what is observed. Use float64: where nothing is known of the first state, its variance is a million
times that of the noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from conca.layers.kalman_checks import (
    covariance_checked,
    logarithms,
    observations,
    state_of,
    tensors_only,
    vector_checked,
)
from conca.layers.kalman_fit import Fit, maximise, shift
from conca.layers.kalman_start import FAR, WIDE, follows, unknown_start
from conca.layers.linear_system import LinearSystem
from conca.ops import kalman as ops
from conca.ops.kalman import Filtered, Forecast, GaussianModel, KalmanState, KalmanUpdate
from conca.ops.kalman_smoother import Smoothed, kalman_smoother
from conca.ops.linear_system import applied, discretised
from conca.types import BadInput

__all__ = ["GaussianSystem"]


class GaussianSystem(nn.Module):
    """A linear system, disturbed and seen through noise.

    A weight that does not change, looked at five times through noise of variance 4, once in vain:

    >>> still = LinearSystem.discrete(torch.eye(1).double(), torch.zeros(1, 0).double())
    >>> scales = GaussianSystem(still, state_noise=torch.zeros(1), observation_noise=torch.tensor([4.0]))
    >>> y = torch.tensor([70.0, 73.0, float("nan"), 69.0, 72.0])[None, :, None]
    >>> after = scales.filter(y).state
    >>> round(after.mean_BN.item(), 2), round(after.covariance_BNN.item(), 2)
    (71.0, 1.0)

    Args:
        system: what moves the state and reads it; its matrices must be constant. Those that are parameters are fitted too.
        state_noise: K variances (K,), or a covariance (K, K) of which the variances of its principal axes are trained. A variance of
            0 stays 0.
        observation_noise: the same for the O outputs.
        noise_input: R (N, K), how the noise enters; without it each state has a noise of its own.
        offset: (O,), added to the outputs. A `nn.Parameter` is trained, as are those below.
        mean, covariance: (N,) and (N, N) of the state at the first sample, before its input; without covariance nothing is known.
        diffuse: the variance that then stands for it, around `mean` or 0; it must be large against the data, and not 1e10 times as
            large: digits would be lost. None finds both in the series, so that its level and its unit do not matter
            (`init_state`).
        tied: (K,) integers: noises with the same number share one variance, and `state_noise` has one entry for each number.
        names: what `variances` calls the variances: those of the observation, then those of the state.

    Raises:
        BadInput: for a system that varies in time, shapes that do not fit, noise that is no covariance, a `diffuse` that is not
            above 0.
    """

    offset: Tensor | None
    mean: Tensor | None
    covariance: Tensor | None
    tied: Tensor
    noise_input: Tensor
    observation_axes: Tensor
    start_mean: Tensor
    """(N,), around which states those of the series lay that were fitted; NaN before."""
    start_variance: Tensor
    """And the variance that stood for knowing nothing of them,"""
    start_apart: Tensor
    """and the largest square of a row's distance from `start_mean`."""

    def __init__(
        self,
        system: LinearSystem,
        *,
        state_noise: Tensor,
        observation_noise: Tensor,
        noise_input: Tensor | None = None,
        offset: Tensor | None = None,
        mean: Tensor | None = None,
        covariance: Tensor | None = None,
        tied: Tensor | None = None,
        diffuse: float | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        if not isinstance(system, LinearSystem):
            raise BadInput(f"GaussianSystem: system must be a LinearSystem, got {type(system).__name__}")
        tensors_only(state_noise=state_noise, observation_noise=observation_noise, noise_input=noise_input)
        tensors_only(offset=offset, mean=mean, covariance=covariance, tied=tied)
        if diffuse is not None and not 0 < diffuse < math.inf:
            raise BadInput(
                f"GaussianSystem: diffuse is a variance above 0, or None to find it in the series, got {diffuse}"
            )
        if system.varying():
            raise BadInput(
                f"GaussianSystem: {', '.join(system.varying())} vary in time; use conca.ops.kalman, whose models may vary"
            )
        self.system, self.diffuse = system, diffuse
        log_state, axes = logarithms(state_noise, system.A, "state_noise")
        log_observation, observation_axes = logarithms(observation_noise, system.A, "observation_noise")
        tied = torch.arange(len(log_state), device=system.A.device) if tied is None else tied
        if tied.dim() != 1 or tied.is_floating_point() or tied.dtype == torch.bool:
            raise BadInput(
                f"GaussianSystem: tied must be a list of integers (K,), got {tied.dtype} {tuple(tied.shape)}"
            )
        if noise_input is None:
            noise_input = torch.eye(system.n_states, dtype=system.A.dtype, device=system.A.device)
        N, O = system.n_states, system.n_outputs  # noqa: E741
        if noise_input.shape != (N, len(tied)) or (len(axes) != len(tied) and state_noise.dim() == 2):
            raise BadInput(
                f"GaussianSystem: {len(tied)} noises enter {N} states through noise_input of shape "
                f"{tuple(noise_input.shape)}, expected {(N, len(tied))}; without it there is one noise for each state"
            )
        if tied.numel() and not 0 <= int(tied.min()) <= int(tied.max()) < len(log_state):
            raise BadInput(
                f"GaussianSystem: tied numbers {len(log_state)} variances, so it must hold 0 to {len(log_state) - 1}"
            )
        if len(observation_axes) != O:
            raise BadInput(f"GaussianSystem: observation_noise has {len(observation_axes)} entries for {O} outputs")
        self.log_state_noise, self.log_observation_noise = nn.Parameter(log_state), nn.Parameter(log_observation)
        if state_noise.dim() == 2:
            noise_input = noise_input @ axes
        vector_checked(offset, O, "offset", "output")
        vector_checked(mean, N, "mean", "state")
        covariance_checked(covariance, N, "covariance")
        names = tuple(names) or (
            *(f"observation {i}" for i in range(O)),
            *(f"state {i}" for i in range(len(log_state))),
        )
        if len(set(names)) != O + len(log_state) or len(names) != O + len(log_state):
            raise BadInput(
                f"GaussianSystem: names must be {O + len(log_state)} different ones, of {O} variances of the observation and "
                f"{len(log_state)} of the state, got {names}"
            )
        self.names = names
        for name, shape in {"start_mean": (N,), "start_variance": (), "start_apart": ()}.items():
            self.register_buffer(name, torch.full(shape, math.nan, dtype=system.A.dtype, device=system.A.device))
        buffers = {"tied": tied, "noise_input": noise_input, "observation_axes": observation_axes}
        for name, value in {**buffers, "offset": offset, "mean": mean, "covariance": covariance}.items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value if value is None or name == "tied" else value.to(system.A.dtype))

    def init_state(
        self, batch: int, y: Tensor | None = None, *, u: Tensor | None = None, lengths: Tensor | None = None
    ) -> KalmanState:
        """What is believed of the first state of `batch` series: mean (B, N), covariance (B, N, N).

        Where nothing is known and `diffuse` is None, this is what `filter` begins from, too. The mean is the state from which
        the model without noise best explains the beginning of a row (`mean`, if given); the variance is a million times what noise does
        over a few samples of y. After a `fit`, the variance is that of the fit.

        Args:
            y, u, lengths: the series to come, as in `filter`, from which to find them. Without y: what the last fit found, over all
                its rows; before any, 1e6 around 0.
        """
        like, size = self.system.A, self.system.n_states
        if y is not None:
            y = observations(y, lengths, self.system.C)
        covariance = self.covariance
        if covariance is None:
            if self.diffuse is None:
                return self._unknown(batch, y, u, lengths, fitting=False)[0]
            covariance = self.diffuse * torch.eye(size, dtype=like.dtype, device=like.device)
        mean = torch.zeros(size, dtype=like.dtype, device=like.device) if self.mean is None else self.mean
        return KalmanState(mean.expand(batch, -1), covariance.expand(batch, -1, -1))

    def model(self, u: Tensor | None = None) -> GaussianModel:
        """The matrices of the filter; with inputs u (B, T, M) also what these add."""
        system, inputs = self.system, self.system.n_inputs
        if system.transform is None:
            a, b, r = system.A, system.B, self.noise_input
        else:
            both = torch.cat([system.B, self.noise_input], 1)
            a, joint = discretised(system.A, both, system.dt, system.transform, system.alpha)
            b, r = joint[:, :inputs], joint[:, inputs:]
        state_noise = (r * self.log_state_noise.exp()[self.tied]) @ r.mT
        axes = self.observation_axes
        observation_noise = (axes * self.log_observation_noise.exp()) @ axes.mT
        drive, offset = None, self.offset
        if u is not None:
            u = u.to(a.dtype)
            drive = applied(b, u)
            if system.D is not None:
                direct = applied(system.D, u)
                offset = direct if offset is None else direct + offset
        return GaussianModel(a, system.C, state_noise, observation_noise, drive, offset)

    def filter(
        self, y: Tensor, state: KalmanState | None = None, *, u: Tensor | None = None, lengths: Tensor | None = None
    ) -> Filtered:
        """Read y (B, T, O) from `state` on.

        Args:
            y: observations; NaN where missing.
            state: what was read before; None is `init_state(B, y)`.
            u: known inputs (B, T, M); None is none.
            lengths: (B,): rows are right-padded.

        Raises:
            BadInput: for shapes that do not fit, an infinite y, and where an observation has no room for error.
        """
        y, model, state = self._ready(y, state, u, lengths)
        return ops.kalman_filter(y, model, state, lengths=lengths)

    def smooth(
        self, y: Tensor, state: KalmanState | None = None, *, u: Tensor | None = None, lengths: Tensor | None = None
    ) -> Smoothed:
        """The state at each sample, given all samples. Arguments and errors as in `filter`."""
        y, model, state = self._ready(y, state, u, lengths)
        return kalman_smoother(y, model, state, lengths=lengths)

    def log_likelihood(
        self,
        y: Tensor,
        state: KalmanState | None = None,
        *,
        u: Tensor | None = None,
        lengths: Tensor | None = None,
        burn: int | None = None,
    ) -> Tensor:
        """log p(y) of each row, (B,). Arguments and errors as in `filter`.

        Args:
            burn: how many first samples are left out; None is as many as there are states where nothing is known of the first
                one, else 0. Samples are counted, seen or not: of a row that begins with missing ones more must be left out,
                or what is counted of it depends on how wide nothing is taken.
        """
        if burn is None:
            burn = self.system.n_states if state is None and self.covariance is None else 0
        if burn < 0:
            raise BadInput(f"log_likelihood: burn is how many first samples are left out, at least 0, got {burn}")
        y, model, state = self._ready(y, state, u, lengths)
        return ops.log_likelihood(y, model, state, lengths=lengths, burn=burn)

    def step(self, y: Tensor, state: KalmanState, u: Tensor | None = None) -> tuple[KalmanUpdate, KalmanState]:
        """One sample: y (B, O), known inputs u (B, M); what it teaches, and the state to go on from. Errors as in `filter`."""
        tensors_only(y=y, u=u)
        y_BTO, model, state = self._ready(y[:, None], state, None if u is None else u[:, None], None)
        return ops.kalman_step(y_BTO[:, 0], model, state)

    def forecast(self, state: KalmanState, steps: int, *, u: Tensor | None = None) -> Forecast:
        """The next `steps` observations as normal distributions; `interval(level)` of it gives bounds.

        Args:
            u: the inputs to come (B, steps, M); None is none.
        """
        if u is not None and u.shape[1:] != (steps, self.system.n_inputs):
            raise BadInput(
                f"forecast: expected u of shape (batch, {steps}, {self.system.n_inputs}), got {tuple(u.shape)}"
            )
        return ops.kalman_forecast(self.model(u), state_of(state, self.system.A), steps)

    def fit(
        self,
        y: Tensor,
        *,
        u: Tensor | None = None,
        lengths: Tensor | None = None,
        steps: int = 200,
        starts: tuple[float, ...] = (1.0, 1e-2, 1e-4),
        tolerance: float = 1e-4,
    ) -> Fit:
        """Maximise the likelihood of y (B, T, O) over all parameters that want a gradient, by L-BFGS.

        Args:
            u, lengths: as in `filter`.
            steps: of the optimiser, at most.
            starts: factors on the variances of the state, against those that stand there now, from which short runs begin; all
                variances are brought to the scale of y first. The best run goes on to the end.
            tolerance: what the slope of the log-likelihood against the parameters (variances as logarithms) is brought below; so much
                is lost where a variance wants to be 0. Up to ten times it counts as converged, where rounding allows no less.

        Returns:
            The log-likelihood, the steps taken, and whether it converged; if not, a warning says so too.

        Raises:
            BadInput: for shapes that do not fit, an infinite y, one with nothing to fit (too few numbers, or none that deviates from
                what the model without noise can follow), and where no start has a likelihood.
        """
        if not all(start > 0 and math.isfinite(start) for start in starts):
            raise BadInput(f"fit: starts are factors on variances, above 0, got {starts}")
        y = observations(y, lengths, self.system.C)
        unknown = self.covariance is None
        burn = self.system.n_states if unknown else 0
        seen = ~y.isnan()
        if lengths is not None:
            seen = seen & (torch.arange(y.shape[1], device=y.device) < lengths[:, None])[..., None]
        count = int(seen[:, burn:].sum())
        noises = self.log_state_noise, self.log_observation_noise
        if (
            unknown
            and count
            and all(noise.requires_grad for noise in noises)
            and follows(y, self._fixed(u, y), lengths)
        ):
            raise BadInput(
                "fit: the model follows y exactly, without noise (as a level follows a constant, a trend a line), so its variances go "
                "to 0 and its likelihood has no largest value; there is nothing to fit"
            )
        first, width = None, 0.0
        if unknown and self.diffuse is None:
            first, width = self._unknown(len(y), y, u, lengths, fitting=True)

        def likelihood() -> Tensor:
            return self.log_likelihood(y, first, u=u, lengths=lengths, burn=burn).sum()

        learnt = [p for p in self.parameters() if p.requires_grad]
        if first is not None and all(noise.requires_grad for noise in noises):
            largest = float(torch.cat(noises).detach().max().exp())  # far from the scale of y nothing could be computed
            shift(noises, width / WIDE / largest if largest > 0 else 1.0)
        fit = maximise(learnt, noises, likelihood, count, steps, starts, tolerance)
        if first is not None:
            self.start_mean.copy_(first.mean_BN.mean(0))
            self.start_apart.copy_((first.mean_BN - self.start_mean).square().max())
            self.start_variance.fill_(width)
        return fit

    def variances(self) -> dict[str, float]:
        """The variances by name: of the observations, then of the noises of the state."""
        values = torch.cat([self.log_observation_noise, self.log_state_noise]).detach().exp().tolist()
        return dict(zip(self.names, values))

    def _ready(
        self, y: Tensor, state: KalmanState | None, u: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, GaussianModel, KalmanState]:
        """Observations, model and state, as the filter takes them."""
        y = observations(y, lengths, self.system.C)
        model = self.model(self._inputs(u, y))
        first = self.init_state(len(y), y, u=u, lengths=lengths) if state is None else state_of(state, self.system.A)
        return y, model, first

    def _fixed(self, u: Tensor | None, y: Tensor) -> GaussianModel:
        """The model as it stands."""
        with torch.no_grad():
            return self.model(self._inputs(u, y))

    def _unknown(
        self, batch: int, y: Tensor | None, u: Tensor | None, lengths: Tensor | None, *, fitting: bool
    ) -> tuple[KalmanState, float]:
        """The first state of which nothing is known, and its variance: wide against y, before a fit against the noise, too."""
        like, size = self.system.A, self.system.n_states
        fitted = not fitting and bool(self.start_variance.isfinite())
        width, mean = float(self.start_variance) if fitted else WIDE, like.new_zeros(size).detach()
        spread = torch.eye(size, dtype=like.dtype, device=like.device)
        if y is not None and size:
            model = self._fixed(u, y)
            found = unknown_start(y, model, lengths)
            mean, spread = found.mean_BN, found.spread_BNN
            square = found.square if fitting else max(found.square, found.noise)
            width = width if fitted or not square > 0 else WIDE * square
            if self.mean is not None and len(y):
                width = max(width, FAR * float((mean - self.mean.detach()).square().max()))
        elif fitted:
            mean, width = self.start_mean, max(width, FAR * float(self.start_apart))
        mean = (mean if self.mean is None else self.mean).expand(batch, -1)
        return KalmanState(mean, (width * spread).expand(batch, -1, -1)), width

    def _inputs(self, u: Tensor | None, y: Tensor) -> Tensor | None:
        wanted = (*y.shape[:2], self.system.n_inputs)
        tensors_only(u=u)
        if u is not None and u.shape != wanted:
            raise BadInput(f"GaussianSystem: expected u of shape {wanted}, got {tuple(u.shape)}")
        return u
