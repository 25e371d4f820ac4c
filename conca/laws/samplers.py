"""What every sampler kernel must obey, and the runner that says how each law came out: `check_kernel`.

A law is a function of one kernel that raises AssertionError where it is broken, and DoesNotApply where it says
nothing. Laws of equilibrium are for kernels that say `exact = True`: many chains are started in a density that is
known, and must stay in it. A moment may differ from its true value by five standard errors, which are those of
independent chains.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import conca.energy
from conca.energy import MALA, Chains, Divergence, DoubleWell, Energy, Gaussian, Hopfield, Kernel, Score, sample
from conca.energy.hmc import Rolling
from conca.energy.langevin import WeighedPlace
from conca.laws.compare import identical, same
from conca.laws.outcome import DoesNotApply, Verdict, judge
from conca.types import BadInput

__all__ = ["KERNEL_LAWS", "check_kernel", "kernels"]

Guest = Kernel[Any, Any]
CHAINS, STEPS, SIGMAS = 50_000, 20, 5.0
MEAN = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
COVARIANCE = torch.tensor([[2.0, 0.8, 0.3], [0.8, 1.0, 0.2], [0.3, 0.2, 0.5]], dtype=torch.float64)
FIRST = torch.tensor([True, False, False])


def kernels() -> dict[str, Any]:
    """Every kernel of the room `energy` that offers samples, by name, found by walking."""
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(conca.energy.__path__, "conca.energy."):
        for name, value in vars(import_module(module.name)).items():
            if isinstance(value, type) and all(hasattr(value, part) for part in ("init", "step", "samples")):
                found[name.lower()] = value
    return dict(sorted(found.items()))


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(mean: Tensor, covariance: Tensor, count: int) -> Tensor:
    noise = torch.randn(count, len(mean), generator=_seeded(7), dtype=torch.float64)
    factor: Tensor = torch.linalg.cholesky(covariance)
    return mean + noise @ factor.mT


def _landscape(kernel: Guest) -> Energy:
    """A bowl with valleys in it; the bowl alone for a kernel that must know more than energy and slope."""
    bowl = Gaussian(MEAN, COVARIANCE)
    valleys = bowl + Hopfield(torch.eye(3, dtype=torch.float64), 4.0)
    return valleys if _walks(kernel, valleys) else bowl


def _walks(kernel: Guest, energy: Energy) -> bool:
    try:
        kernel.init(energy, torch.zeros(2, 3, dtype=torch.float64))
    except TypeError:
        return False
    return True


def _any(kernel: Guest) -> None:
    if not _walks(kernel, DoubleWell()):
        raise DoesNotApply("it walks no landscape of which only energy and slope are known")


def _exact(kernel: Guest) -> None:
    if not getattr(kernel, "exact", False):
        raise DoesNotApply("it does not claim to leave exp(-E) as it is (exact = True)")


class _Slope(Score):
    """Knows the way down to 0, and no energy."""

    def score(self, x: Tensor, /) -> Tensor:
        return -x


class _Wall(Energy):
    """A bowl that is not a number beyond |x| = 1."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.abs() <= 1, 0.5 * x.square(), float("nan")).sum(1)


class _Cliff(Energy):
    """Falls ever faster on both sides of 0: whoever follows it leaves the finite numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return -x.square().square().sum(1)


def same_generator_same_chain(kernel: Guest) -> None:
    """A chain is a function of start, landscape and generator; the global random state has no part in it."""
    chains = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            chains.append(sample(_landscape(kernel), kernel, _normal(MEAN, COVARIANCE, 5), 7, generator=_seeded()))
    (x, info), (again, info_again) = chains
    identical(x, again, "a chain run again")
    assert info.keys() == info_again.keys(), "a chain run again reports other things"
    for name in info:
        identical(info[name], info_again[name], f"{name} of a chain run again")


def pure(kernel: Guest) -> None:
    """`step` changes neither its state nor the start, keeps nothing aside, and answers alike when asked again."""
    energy, start = _landscape(kernel), _normal(MEAN, COVARIANCE, 5)
    before = start.clone()
    with torch.no_grad():
        state = kernel.init(energy, start)
        kept = [t.clone() for t in state if isinstance(t, Tensor)]
        (first, _), (second, _) = (kernel.step(energy, state, _seeded(3)) for _ in range(2))
        identical(first.x, second.x, "a step taken again")
        third = kernel.step(energy, second, _seeded(4))[0]
        identical(kernel.step(energy, first, _seeded(4))[0].x, third.x, "a second step taken again")
        identical(tuple(t for t in state if isinstance(t, Tensor)), tuple(kept), "the state before a step")
    identical(start, before, "the start")


def rows_apart(kernel: Guest) -> None:
    """A chain does not feel the chains beside it: not their places, not whether they are accepted."""
    start = _normal(MEAN, COVARIANCE, 6)
    for far in (1.0, 2.0):
        other = start.clone()
        other[2] = far
        (x, info), (moved, info_moved) = (
            sample(_landscape(kernel), kernel, s, 30, generator=_seeded()) for s in (start, other)
        )
        rest = torch.arange(6) != 2
        same(moved[:, rest], x[:, rest], "chains beside another one")
        for name in info:
            same(info_moved[name][:, rest], info[name][:, rest], f"{name} of chains beside another one")


def report_is_true(kernel: Guest) -> None:
    """Entries of `info` have shape (B,), energy and slope are those of the place reached, events are shares."""
    energy = _landscape(kernel)
    chain, info = sample(energy, kernel, _normal(MEAN, COVARIANCE, 5), 12, 3, generator=_seeded())
    assert chain.shape == (4, 5, 3), f"12 steps, thinned by 3, give {tuple(chain.shape)}"
    for name, value in info.items():
        assert value.shape == (4, 5), f"{name} has shape {tuple(value.shape)}, not {(4, 5)}"
    for x, k in zip(chain, range(4)):
        if "energy" in info:
            same(info["energy"][k], energy(x), "the energy reported")
        if "slope" in info:
            same(info["slope"][k], energy.score(x).norm(dim=1), "the slope reported")
    if "accepted" in info:
        assert bool(((info["accepted"] >= 0) & (info["accepted"] <= 1)).all()), "a share of acceptance beyond 0 and 1"


def known_stays(kernel: Guest) -> None:
    """What is known does not move, neither at the start nor at any step; what is free does."""
    known = torch.tensor([0.7, float("nan"), float("nan")], dtype=torch.float64)
    start = _normal(MEAN, COVARIANCE, 5)
    start[:, 0] = float("nan")
    energy = Gaussian(MEAN, COVARIANCE)
    for what, held in (("given", energy.given(known, FIRST)), ("sum", energy.given(known, FIRST) + DoubleWell(0.5))):
        if not _walks(kernel, held):
            continue
        chain, _ = sample(held, kernel, start, 30, generator=_seeded())
        assert bool((chain[..., 0] == 0.7).all()), f"{what}: a known coordinate moved"
        assert bool((chain[-1, :, 1:] != start[:, 1:]).any()), f"{what}: no free coordinate moved"


def nothing_to_do(kernel: Guest) -> None:
    """No steps and no chains are no error."""
    none, info = sample(_landscape(kernel), kernel, _normal(MEAN, COVARIANCE, 5), 0, generator=_seeded())
    assert none.shape == (0, 5, 3) and not info, "no steps"
    chain, _ = sample(_landscape(kernel), kernel, torch.zeros(0, 3, dtype=torch.float64), 4, 2, generator=_seeded())
    assert chain.shape == (2, 0, 3), "no chains"


def divergence_is_loud(kernel: Guest) -> None:
    """On a landscape that falls without end a chain raises Divergence; an exact one may stay, finite, where it is."""
    _any(kernel)
    if getattr(kernel, "bounds", None) is not None:
        raise DoesNotApply("it keeps chains within bounds")
    start = torch.full((3, 2), 2.0, dtype=torch.float64)
    try:
        chain, _ = sample(_Cliff(), kernel, start, 400, generator=_seeded())
    except Divergence as error:
        assert error.step > 0 and error.rows > 0, f"{error!r} does not say where"
        return
    assert bool(chain.isfinite().all()), "a chain came back that is not finite"
    assert getattr(kernel, "weighs", getattr(kernel, "exact", False)), (
        "a chain came back that had to leave the finite numbers"
    )


def moments_stay(
    energy: Energy, kernel: Guest, start: Tensor, true: Callable[[Tensor], Tensor], expected: Tensor
) -> None:
    """Raise where chains begun in equilibrium end with a mean five standard errors from what is expected."""
    noise = true(start).std(0) / len(start) ** 0.5
    end = sample(energy, kernel, start, STEPS, STEPS, generator=_seeded())[0][0]
    off = (true(end).mean(0) - expected).abs() / noise
    assert bool((off < SIGMAS).all()), f"a moment left equilibrium by {off.max().item():.1f} standard errors"
    assert bool((end != start).any(-1).double().mean() > 0.01), "the chains do not move; take a smaller step"


def _first_and_second(x: Tensor) -> Tensor:
    pairs = torch.triu_indices(x.shape[1], x.shape[1])
    return torch.cat([x, x[:, pairs[0]] * x[:, pairs[1]]], 1)


def _moments(mean: Tensor, covariance: Tensor) -> Tensor:
    pairs = torch.triu_indices(len(mean), len(mean))
    return torch.cat([mean, (covariance + mean[:, None] * mean)[pairs[0], pairs[1]]])


def gaussian_stays(kernel: Guest) -> None:
    """Chains begun in a Gaussian stay in it: means and covariances."""
    _exact(kernel)
    start = _normal(MEAN, COVARIANCE, CHAINS)
    moments_stay(Gaussian(MEAN, COVARIANCE), kernel, start, _first_and_second, _moments(MEAN, COVARIANCE))


def conditional_stays(kernel: Guest) -> None:
    """Chains begun in a conditional of a Gaussian stay in it, under `given`, alone and as part of a product."""
    _exact(kernel)
    gaussian, other = Gaussian(MEAN, COVARIANCE), Gaussian(torch.ones_like(MEAN), 2 * COVARIANCE.diagonal().diag())
    for what in ("given", "sum"):
        precision = gaussian.precision + (other.precision if what == "sum" else 0)
        pull = gaussian.precision @ MEAN + (other.precision @ other.mean if what == "sum" else 0)
        held = gaussian.given(0.7 * torch.ones_like(MEAN), FIRST)
        covariance = precision[1:, 1:].inverse()
        mean = covariance @ (pull[1:] - precision[1:, 0] * 0.7)
        free = _normal(mean, covariance, CHAINS)
        start = torch.cat([torch.full((CHAINS, 1), 0.7, dtype=torch.float64), free], 1)
        energy = held + other if what == "sum" else held
        if not _walks(kernel, energy):
            continue
        moments_stay(energy, kernel, start, lambda x: _first_and_second(x[:, 1:]), _moments(mean, covariance))


def _tabulated(energy: Energy, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Quadrature in one coordinate: grid (n, 1), its probabilities (n,), and independent draws (CHAINS, 1)."""
    edges = torch.linspace(low, high, 20_001, dtype=torch.float64)
    grid = ((edges[1:] + edges[:-1]) / 2)[:, None]
    probability = torch.softmax(-energy(grid), 0)
    cell = torch.multinomial(probability, CHAINS, replacement=True, generator=_seeded(7))
    inside = torch.rand(CHAINS, 1, generator=_seeded(8), dtype=torch.float64) - 0.5
    return grid, probability, grid[cell] + inside * (edges[1] - edges[0])


def double_well_stays(kernel: Guest) -> None:
    """Chains begun in a double well stay in it: first, second and fourth moment, against quadrature."""
    _exact(kernel)
    _any(kernel)
    energy = DoubleWell(2.0)
    grid, probability, start = _tabulated(energy, -3, 3)

    def powers(x: Tensor) -> Tensor:
        return torch.cat([x, x.square(), x.square().square()], 1)

    moments_stay(energy, kernel, start, powers, probability @ powers(grid))


def nan_is_rejected(kernel: Guest) -> None:
    """Where the energy is not a number nobody goes, and inside the rest chains stay in equilibrium."""
    _exact(kernel)
    _any(kernel)
    grid, probability, start = _tabulated(_Wall(), -1, 1)
    moments_stay(_Wall(), kernel, start, torch.square, probability @ grid.square())


def slope_alone(kernel: Guest) -> None:
    """A kernel that compares energies (exact, or `weighs`) refuses what knows only its slope, with a TypeError; others walk it."""
    weighs = getattr(kernel, "weighs", getattr(kernel, "exact", False))
    start = torch.ones(3, 2, dtype=torch.float64)
    try:
        chain, _ = sample(_Slope(), kernel, start, 3, generator=_seeded())
    except TypeError as error:
        assert weighs, f"a slope should be enough: {error}"
        return
    assert not weighs, "an exact kernel walked a landscape without knowing its energy"
    assert bool(chain.isfinite().all()), "a chain came back that is not finite"


def detailed_balance(kernel: Guest) -> None:
    """For two points p(x) q(x, y) a(x, y) = p(y) q(y, x) a(y, x), with q written out anew; also under `given`."""
    if not isinstance(kernel, MALA):
        raise DoesNotApply("its proposal is not known here")
    whole = _landscape(kernel)
    for energy, free in ((whole, slice(0, None)), (whole.given(MEAN, FIRST), slice(1, None))):
        points = energy.clamp(_normal(MEAN, COVARIANCE, 8))
        x, y = points[:4], points[4:]

        def flow(here: Tensor, there: Tensor, energy: Energy = energy, free: slice = free) -> Tensor:
            move = (there - here - kernel.size * whole.score(here))[:, free]
            places = (WeighedPlace(p, energy(p), energy.score(p)) for p in (here, there))
            accepted = kernel.log_acceptance(energy, *places).clamp(max=0)
            return -whole(here) - move.square().sum(1) / (4 * kernel.size) + accepted

        same(flow(x, y), flow(y, x), "flow there and back")


def leapfrog_is_reversible(kernel: Guest) -> None:
    """Rolled on, turned and rolled again, a chain is where it was, with its momentum turned; also under `given`."""
    if not hasattr(kernel, "roll"):
        raise DoesNotApply("it rolls nowhere")
    whole = _landscape(kernel)
    for energy in (whole, whole.given(MEAN, FIRST)):
        x = energy.clamp(_normal(MEAN, COVARIANCE, 6))
        momentum = torch.randn(x.shape, generator=_seeded(3), dtype=x.dtype) * energy.free(x)
        with torch.no_grad():
            place, there = kernel.roll(energy, Rolling(kernel.init(energy, x), momentum))
            back, turned = kernel.roll(energy, Rolling(place, -there))
        assert bool((place.x != x).any()), "nothing moved"
        same(back.x, x, "a roll there and back")
        same(-turned, momentum, "the momentum there and back")


def goes_on(kernel: Guest) -> None:
    """Cut, kept and taken up by others, chains are where one run leads, bit for bit, with the same reports."""
    energy, start = _landscape(kernel), _normal(MEAN, COVARIANCE, 4)
    whole, info = sample(energy, kernel, start, 6, 2, generator=_seeded())
    first, second = (Chains(energy, kernel, x, generator=_seeded(s)) for x, s in ((start, 0), (start + 1, 9)))
    early, _ = first.run(2, 2)
    second.load_state_dict(first.state_dict())
    first.run(3)
    late, reported = second.run(4, 2)
    identical(torch.cat([early, late]), whole, "a chain in pieces")
    for name in info:
        identical(reported[name], info[name][1:], f"{name} of a chain in pieces")


def generator_is_asked_for(kernel: Guest) -> None:
    """Without a generator a kernel either draws nothing, and is the same every time, or says clearly what it needs."""
    start, chains = _normal(MEAN, COVARIANCE, 5), []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            try:
                chains.append(sample(_landscape(kernel), kernel, start, 3)[0])
            except BadInput as error:
                assert "generator" in str(error), f"{error} does not say that a generator is missing"
                return
    identical(chains[1], chains[0], "a chain without a generator, run again")


KERNEL_LAWS: dict[str, Callable[[Guest], None]] = {
    "same generator, same chain": same_generator_same_chain,
    "pure": pure,
    "rows apart": rows_apart,
    "report is true": report_is_true,
    "known stays": known_stays,
    "nothing to do": nothing_to_do,
    "divergence is loud": divergence_is_loud,
    "Gaussian stays": gaussian_stays,
    "conditional stays": conditional_stays,
    "double well stays": double_well_stays,
    "NaN is rejected": nan_is_rejected,
    "slope alone": slope_alone,
    "detailed balance": detailed_balance,
    "leapfrog reversible": leapfrog_is_reversible,
    "goes on": goes_on,
    "generator asked for": generator_is_asked_for,
}
"""The laws of a sampler kernel by name, each a function that raises AssertionError."""


def check_kernel(target: Any, laws: tuple[str, ...] | None = None) -> Iterator[Verdict]:
    """Run the laws on the samples of a kernel class, or on one kernel.

    Args:
        target: a class that offers `samples()`, or a kernel; its steps should suit a Gaussian of variance about 1.
        laws: names from `KERNEL_LAWS`; None runs all.

    Yields:
        One verdict per sample and law, as they come.
    """
    found = isinstance(target, type)
    name = (target if found else type(target)).__name__.lower()
    for number, kernel in enumerate(target.samples() if found else (target,)):
        for law in laws or tuple(KERNEL_LAWS):
            yield judge(name, number, law, KERNEL_LAWS[law], kernel)
