"""Seeded faults: energies and kernels that break one law each, most of them after faults that users have reported elsewhere."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from torch import nn

from conca.energy import HMC, MALA, ULA, DoubleWell, Energy, Gaussian, Hopfield
from conca.energy.compose import Given, Sum
from conca.energy.hmc import Rolling
from conca.energy.langevin import Descent, Place, WeighedPlace


class Bowl(Energy):
    """A sound toy: E = stiffness |x|^2 / 2 + |x|^4 / 40."""

    shape = (2,)

    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor(0.8))

    @classmethod
    def samples(cls):
        return (cls(),)

    def forward(self, x):
        square = x.square().sum(1)
        return 0.5 * self.stiffness * square + square.square() / 40


class Network(Bowl):
    """A sound energy of a network with spectral norm and dropout, and a condition that it can do without."""

    def __init__(self, norm=None):
        super().__init__()
        torch.manual_seed(0)
        first = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 8))
        self.net = nn.Sequential(first, norm or nn.LayerNorm(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x, t=1.0):
        return t * self.net(x)[:, 0] + 0.5 * x.square().sum(1)


class BatchMean(Bowl):
    """Energies are centred over the batch."""

    def forward(self, x):
        energy = super().forward(x)
        return energy - energy.mean()


class BatchNorm(Network):
    """Batch norm: sound in eval mode, and in training mode every row feels all others."""

    def __init__(self):
        super().__init__(nn.BatchNorm1d(8))


class OneNumber(Bowl):
    """The energies are summed over the batch."""

    def forward(self, x):
        return super().forward(x).sum()


class Column(Bowl):
    """A network's last axis is left in place."""

    def forward(self, x):
        return super().forward(x)[:, None]


class WorstRow(Bowl):
    """Needs at least one row."""

    def forward(self, x):
        return super().forward(x) + 0.0 * x.amax()


class Uphill(Bowl):
    """A slope with the wrong sign."""

    def score(self, x):
        return (self.stiffness + x.square().sum(1, keepdim=True) / 10) * x


class HalfSeen(Bowl):
    """Part of the energy is detached from x."""

    def forward(self, x):
        return super().forward(x) + x.detach().sum(1) * x.sum(1)


class NeedsGradients(Bowl):
    """Its own slope by autograd, which nobody switched on."""

    def score(self, x):
        z = x.detach().requires_grad_()
        return -torch.autograd.grad(self(z).sum(), z, create_graph=True)[0]


class WritesToX(Bowl):
    """Its own slope, written over x and taken back, not quite."""

    def score(self, x):
        with torch.no_grad():
            x.add_(1e-3)
        return -(self.stiffness + x.square().sum(1, keepdim=True) / 10) * x


class LeavesGradients(Bowl):
    """Its own slope by backward(), which fills the parameters too."""

    def score(self, x):
        with torch.inference_mode(False), torch.enable_grad():
            z = x.clone().detach().requires_grad_()
            self(z).sum().backward()
        return -z.grad


class DetachedSlope(Bowl):
    """Its own slope, cut off from the parameters."""

    def score(self, x):
        return -((self.stiffness + x.square().sum(1, keepdim=True) / 10) * x).detach()


class OneDerivative(Bowl):
    """A body whose backward cannot be differentiated."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.square().sum(1)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return 2 * g[:, None] * ctx.saved_tensors[0]

    def forward(self, x):
        return self.stiffness * self.Square.apply(x)


class Averages(Bowl):
    """A sum that is a mean."""

    def __add__(self, other):
        return Sum([(0.5, self), (0.5, other)])


class LosesWeight(Bowl):
    """A weight that is forgotten."""

    def __mul__(self, weight):
        return Sum([(1.0, self)])

    __rmul__ = __mul__


class HighestOfAll(Energy):
    """In place of a mixture: the energy of the mean."""

    def __init__(self, *parts, weights=None):
        super().__init__()
        self.inside = nn.ModuleList(parts)

    def parts(self):
        return tuple(self.inside)

    def forward(self, x):
        return torch.stack([part(self.clamp(x)) for part in self.inside]).mean(0)


class ClampsOnlyInChains(Bowl):
    """Holds its first coordinate, and has a slope there."""

    def clamp(self, x):
        return torch.cat([torch.full_like(x[:, :1], 0.5), x[:, 1:]], 1)


class OpenGiven(Bowl):
    """What is known is not put in its place by the chain."""

    class Open(Given):
        def clamp(self, x):
            return x

        def forward(self, x):
            return self.inner(Given.clamp(self, x))

    def given(self, known, mask):
        return self.Open(self, known, mask)


class ReadsThePlace(Bowl):
    """What is known holds in the chain, and the energy reads what x has in its place."""

    class Reads(Given):
        def forward(self, x):
            return self.inner(x)

    def given(self, known, mask):
        return self.Reads(self, known, mask)


class Counts(Bowl):
    """Another function at every call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls / 100)


class AlwaysInTraining(Bowl):
    """Pays no attention to eval()."""

    def __init__(self):
        super().__init__()
        self.inside = Network()

    def train(self, mode=True):
        return super().train(True)


class LeftBehind(Bowl):
    """A tensor that is no buffer does not follow `.to`."""

    def __init__(self):
        super().__init__()
        self.weight = torch.ones(2, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x) + (x * self.weight).sum(1)


class HalfPrecision(Bowl):
    """Rounds on the way in float32."""

    def forward(self, x):
        return super().forward(x.bfloat16().to(x.dtype) if x.dtype == torch.float32 else x)


class Overshoots(Hopfield):
    """An update three times too long."""

    @classmethod
    def samples(cls):
        return (cls(torch.eye(3), 4.0),)

    def step(self, x):
        return x + 3 * (super().step(x) - x)


class GivesUp(Overshoots):
    """Retrieval that stops before it has settled."""

    step = Hopfield.step

    def retrieve(self, probe, steps=100, tol=1e-6):
        return self.step(probe)


@contextmanager
def _with(target, replacement):
    with mock.patch(target, replacement):
        yield


def mixed_by_the_mean():
    """The library's own mixture, replaced."""
    return _with("conca.laws.energies.mixture", HighestOfAll)


def not_restored():
    """The library's own chain, without its clearing up."""
    return _with("conca.energy.chain.undisturbed", lambda *_: nullcontext())


ENERGY_FAULTS = {
    "rows apart": [BatchMean, BatchNorm, OneNumber, Column, WorstRow],
    "slope": [Uphill, HalfSeen],
    "slope without gradients": [NeedsGradients, WritesToX, LeavesGradients],
    "slope differentiable": [DetachedSlope, OneDerivative],
    "sums multiply": [Averages, LosesWeight],
    "mixtures add": [(Bowl, mixed_by_the_mean)],
    "known stays": [ClampsOnlyInChains, OpenGiven, ReadsThePlace],
    "no trace": [Counts, AlwaysInTraining, (Network, not_restored)],
    "moves": [LeftBehind, HalfPrecision],
    "update never raises": [Overshoots, GivesUp],
}
"""By law: energy classes, or pairs of a sound class and a fault of the library's own."""


class GlobalNoise(ULA):
    """Noise from the global random state."""

    def step(self, energy, state, generator):
        return super().step(energy, state, torch.default_generator)


class Remembers(ULA):
    """A memory in the kernel instead of in the state."""

    calls = [0]

    def step(self, energy, state, generator):
        self.calls[0] += 1
        place, info = super().step(energy, state, generator)
        return place._replace(x=place.x + 0.01 * self.calls[0]), info


class InPlace(ULA):
    """The old state is overwritten."""

    def step(self, energy, state, generator):
        place, info = super().step(energy, state, generator)
        state.x.copy_(place.x)
        return place, info


class TogetherOrNot(MALA):
    """One decision for all rows."""

    def log_acceptance(self, energy, here, there):
        return super().log_acceptance(energy, here, there).mean().expand(len(here.x))


class ReportsTheProposal(MALA):
    """The energy reported is that of a place that may have been rejected."""

    def step(self, energy, state, generator):
        place, info = super().step(energy, state, generator)
        return place, {**info, "energy": info["energy"] + (~info["accepted"]) * 0.5}


class ReportsTheMean(ULA):
    """One number for the whole batch."""

    def step(self, energy, state, generator):
        place, info = super().step(energy, state, generator)
        return place, {"energy": info["energy"].mean()}


class Unclamped(ULA):
    """Never asks what is known."""

    def step(self, energy, state, generator):
        x = state.x + self.size * state.score + (2 * self.size) ** 0.5 * torch.randn(state.x.shape, generator=generator)
        return Place(x, *energy.evaluate(x)), {}


class NeedsARow(ULA):
    """Scales its step by the largest slope of the batch."""

    def step(self, energy, state, generator):
        state.score.abs().max()
        return super().step(energy, state, generator)


class Silent(ULA):
    """What is not finite is replaced."""

    def step(self, energy, state, generator):
        place, _ = super().step(energy, state, generator)
        x = energy.clamp(place.x.nan_to_num(0.0).clamp(-10, 10))
        return Place(x, *energy.evaluate(x)), {}


class ClaimsToBeExact(ULA):
    """Unadjusted, under the name of an exact kernel."""

    exact = True

    @classmethod
    def samples(cls):
        return (cls(0.1),)


class HalfTheNoise(MALA):
    """The noise is that of another temperature: it is scaled by the step, not by its root."""

    def step(self, energy, state, generator):
        x = energy.clamp(
            state.x + self.size * state.score + self.size * torch.randn(state.x.shape, generator=generator)
        )
        there = WeighedPlace(x, *energy.evaluate(x))
        accepted = torch.rand(len(x), generator=generator).log() < self.log_acceptance(energy, state, there)
        return WeighedPlace(
            *(torch.where(accepted.view(-1, 1) if a.dim() > 1 else accepted, a, b) for a, b in zip(there, state))
        ), {}


class CountsWhatIsClamped(MALA):
    """Coordinates that cannot move count in the proposal one way."""

    def log_acceptance(self, energy, here, there):
        held = ~energy.free(here.x)
        return super().log_acceptance(energy, here, there) + 0.5 * held.sum(1)


class Metropolis(MALA):
    """The proposal is taken for a symmetric one."""

    @classmethod
    def samples(cls):
        return (cls(0.05),)

    def log_acceptance(self, energy, here, there):
        return here.energy - there.energy


class AcceptsNaN(MALA):
    """The comparison the other way round, which NaN passes."""

    def step(self, energy, state, generator):
        noise = torch.randn(state.x.shape, generator=generator)
        x = energy.clamp(state.x + self.size * state.score + (2 * self.size) ** 0.5 * noise)
        there = WeighedPlace(x, *energy.evaluate(x))
        rejected = torch.rand(len(x), generator=generator).log() >= self.log_acceptance(energy, state, there)
        return WeighedPlace(
            *(torch.where(rejected.view(-1, 1) if a.dim() > 1 else rejected, b, a) for a, b in zip(there, state))
        ), {}


class TakesAnySlope(MALA):
    """An unknown energy counts as none."""

    def init(self, energy, x):
        return self.weighed(energy, x)

    def weighed(self, energy, x):
        value, score = energy.evaluate(x)
        return WeighedPlace(x, torch.zeros(len(x)) if value is None else value, score)

    def step(self, energy, state, generator):
        place, info = Descent(self.size).step(energy, Place(*state), generator)
        return self.weighed(energy, place.x), info


class WrongTemperature(MALA):
    """2 in place of 4 in the density of the proposal."""

    def log_acceptance(self, energy, here, there):
        ratio = super().log_acceptance(energy, here, there)
        return 2 * ratio - (here.energy - there.energy)


class FallsBack(ULA):
    """Without a generator, the global random state."""

    def step(self, energy, state, generator):
        return super().step(energy, state, generator or torch.default_generator)


class EndsWithAWholeKick(HMC):
    """The last half step of the momentum is a whole one."""

    def roll(self, energy, start):
        place, momentum = super().roll(energy, start)
        return Rolling(place, momentum + self.size / 2 * place.score)


class Tires(ULA):
    """Steps grow shorter by a count that no state holds."""

    taken = [0]

    def step(self, energy, state, generator):
        self.taken[0] += 1
        return ULA(self.size / self.taken[0]).step(energy, state, generator)


KERNEL_FAULTS = {
    "same generator, same chain": [GlobalNoise],
    "pure": [Remembers, InPlace],
    "rows apart": [TogetherOrNot],
    "report is true": [ReportsTheProposal, ReportsTheMean],
    "known stays": [Unclamped],
    "nothing to do": [NeedsARow],
    "divergence is loud": [Silent],
    "Gaussian stays": [ClaimsToBeExact, HalfTheNoise, Metropolis],
    "conditional stays": [ClaimsToBeExact, CountsWhatIsClamped],
    "double well stays": [Metropolis, WrongTemperature],
    "NaN is rejected": [AcceptsNaN],
    "slope alone": [TakesAnySlope],
    "detailed balance": [Metropolis, WrongTemperature, CountsWhatIsClamped],
    "leapfrog reversible": [EndsWithAWholeKick],
    "goes on": [Tires],
    "generator asked for": [FallsBack],
}
"""By law: kernel classes."""

SOUND = [
    Bowl(),
    Network(),
    Network().on(t=2.0),
    Bowl().given(torch.zeros(2), torch.tensor([True, False])),
    DoubleWell(3.0),
    Gaussian(torch.zeros(2), torch.eye(2)) / 2,
]
