"""What every energy must obey, and the runner that says how each law came out: `check_energy`.

A law is a function of one energy that raises AssertionError where it is broken, and DoesNotApply where it says
nothing. It works on a copy in float64 on the CPU, at points of `energy.shape` (three coordinates where that is None).
"""

from __future__ import annotations

import copy
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor

import conca.energy
from conca.energy import Descent, DoubleWell, Energy, Kernel, Score, descent, mala, mixture, sample, ula
from conca.energy.chain import Info, undisturbed
from conca.energy.langevin import Place
from conca.laws.compare import identical, same
from conca.laws.outcome import DoesNotApply, Verdict, judge

__all__ = ["ENERGY_LAWS", "check_energy", "composites", "energies"]

BATCH = 5


def energies() -> dict[str, type[Energy]]:
    """Every energy of the room `energy` that offers samples, by name, found by walking."""
    found: dict[str, type[Energy]] = {}
    for module in pkgutil.iter_modules(conca.energy.__path__, "conca.energy."):
        for name, value in vars(import_module(module.name)).items():
            if isinstance(value, type) and issubclass(value, Energy) and value.samples():
                found[name.lower()] = value
    return dict(sorted(found.items()))


def composites(energy: Energy) -> dict[str, Energy]:
    """What the algebra makes of an energy: laws must hold for these too."""
    shape = _shape(energy)
    well = DoubleWell(0.5, shape=shape)
    mask = torch.arange(max(1, torch.Size(shape).numel())).remainder(2).eq(0).reshape(shape)
    known = torch.full(shape, 0.3)
    return {
        "sum": cast(Energy, sum([energy, well, energy])),
        "difference": energy - 0.5 * well,
        "weighted by a tensor": energy * torch.tensor(0.5),
        "mixture": mixture(energy, well, weights=[0.5, 2.0]),
        "given": energy.given(known, mask),
        "sum with a given part": energy.given(known, mask) + well,
        "mixture with a given part": mixture(well, energy.given(known, mask)),
    }


def _shape(energy: Energy) -> tuple[int, ...]:
    return (3,) if energy.shape is None else energy.shape


def _settled(energy: Energy) -> Energy:
    return copy.deepcopy(energy).to("cpu", torch.float64).eval()


def _points(energy: Energy, batch: int = BATCH, seed: int = 0) -> Tensor:
    return torch.randn(batch, *_shape(energy), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _well(energy: Energy) -> Energy:
    return DoubleWell(0.7, shape=_shape(energy))


def rows_apart(energy: Energy) -> None:
    """One number per row, and no row feels another: alone, among NaN, in training mode, in an empty batch."""
    energy = _settled(energy)
    x = _points(energy)
    whole, slope = energy(x), energy.score(x)
    for i in range(BATCH):
        row = slice(i, i + 1)
        same(energy(x[row]), whole[row], f"row {i} alone and in a batch")
        same(energy.score(x[row]), slope[row], f"slope of row {i} alone and in a batch")
        others = torch.full_like(x, float("nan"))
        others[row] = x[row]
        same(energy(others)[row], whole[row], f"row {i} among rows of NaN")
        same(energy.score(others)[row], slope[row], f"slope of row {i} among rows of NaN")
    same(energy(x[:0]), whole[:0], "an empty batch")
    same(energy.score(x[:0]), slope[:0], "slope of an empty batch")
    for i in range(BATCH):
        others = _points(energy, seed=1)
        others[i] = x[i]
        kept, changed = _in_training(energy, x), _in_training(energy, others)
        same(changed[i], kept[i], f"in training mode, row {i} beside other rows")


def _in_training(energy: Energy, x: Tensor) -> Tensor:
    with undisturbed(energy), torch.no_grad():
        torch.manual_seed(0)
        return energy.train()(x)


def slope_is_finite_differences(energy: Energy) -> None:
    """score = -dE/dx, against central differences along twelve directions."""
    energy = _settled(energy)
    x, step = _points(energy), 1e-5
    score = energy.score(x)
    for seed in range(2, 14):
        along = _points(energy, seed=seed)
        numeric = (energy(x - step * along) - energy(x + step * along)) / (2 * step)
        exact = (score * along).unsqueeze(-1).flatten(1).sum(1)
        same(exact, numeric, "slope against finite differences", tolerance=1e-6)


def slope_without_gradients(energy: Energy) -> None:
    """The score is the same with gradients on or off, and under inference_mode; x stays as it is."""
    energy = _settled(energy)
    x = _points(energy)
    before, asked = x.clone(), [p.requires_grad for p in energy.parameters()]
    expected = energy.score(x).detach()
    with torch.no_grad():
        quiet = energy.score(x)
        same(quiet, expected, "under no_grad")
        assert not quiet.requires_grad, "under no_grad the score still asks for gradients"
    with torch.inference_mode():
        same(energy.score(x), expected, "under inference_mode")
        same(energy.score(x.clone()), expected, "under inference_mode, at a tensor made there")
    same(energy.score(x.clone().requires_grad_()).detach(), expected, "at an x that asks for gradients")
    identical(x, before, "x was written to")
    assert [p.requires_grad for p in energy.parameters()] == asked, "requires_grad of a parameter changed"
    assert all(p.grad is None for p in energy.parameters()), "a gradient was left in a parameter"


def slope_is_differentiable(energy: Energy) -> None:
    """With gradients on, the score is differentiated in x and in every parameter, against central differences."""
    energy = _settled(energy)
    weight, step = _points(energy, seed=3), 1e-5
    x = _points(energy).requires_grad_()
    wanted = {"x": x} | {name: p for name, p in energy.named_parameters() if p.requires_grad}

    def seen() -> Tensor:
        return (energy.score(x) * weight).sum()

    total = seen() + 0.0 * x.sum()  # so that a flat slope has a derivative too
    found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True, materialize_grads=True)
    for (name, tensor), gradient in zip(wanted.items(), found):
        along = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2), dtype=tensor.dtype)
        with torch.no_grad():
            kept = tensor.clone()
            above = (tensor.copy_(kept + step * along), seen())[1]
            below = (tensor.copy_(kept - step * along), seen())[1]
            tensor.copy_(kept)
        same(
            (gradient * along).sum(), (above - below) / (2 * step), f"derivative of the slope in {name}", tolerance=1e-5
        )


def sums_multiply_densities(energy: Energy) -> None:
    """exp(-(a E + b F)) is the normalised product of the powers of the densities, at 400 points that both may reach."""
    energy = _settled(energy)
    other, x = _well(energy), energy.clamp(_points(energy, 400))
    p, q = torch.softmax(-energy(x), 0), torch.softmax(-other(x), 0)
    half = torch.tensor(0.5, dtype=torch.float64)
    for what, made, product in (
        ("E + F", energy + other, p * q),
        ("sum([E, F, F])", sum([energy, other, other]), p * q * q),
        ("2 E", 2 * energy, p * p),
        ("E / 2", energy / 2, p.sqrt()),
        ("F - E / 2", other - energy * half, q / p.sqrt()),
    ):
        assert isinstance(made, Energy), f"{what} is no energy"
        same(torch.softmax(-made(x), 0), product / product.sum(), what)
    down = energy.score(x) + torch.where(energy.free(x), other.score(x), 0)
    same((energy + other).score(x), down, "slope of E + F")


def mixtures_add_densities(energy: Energy) -> None:
    """exp(-mixture(E, F)) = exp(-E) + exp(-F), with weights too."""
    energy = _settled(energy)
    other, x = _well(energy), energy.clamp(_points(energy, 400))
    e, f = energy(x), other(x)
    same(mixture(energy, other)(x), -torch.logaddexp(-e, -f), "mixture")
    weights = torch.tensor([0.25, 3.0], dtype=torch.float64)
    weighted = -torch.logaddexp(weights[0].log() - e, weights[1].log() - f)
    same(mixture(energy, other, weights=weights)(x), weighted, "weighted mixture")


def known_stays(energy: Energy) -> None:
    """What is known does not move, alone or composed, and what x has in its place is not read."""
    energy = _settled(energy)
    x = _points(energy)
    same(energy(energy.clamp(x)), energy(x), "the energy of what its own clamp moved")
    assert not energy.score(x)[~energy.free(x)].any(), "the slope moves a coordinate that the clamp holds"
    flat = torch.arange(x[0].numel()).remainder(2).eq(0).reshape(x.shape[1:]) & energy.free(x)[0]
    known = torch.where(flat, energy.clamp(_points(energy, seed=1))[0], float("nan"))
    place, filled = flat.expand_as(x), torch.where(flat, known, x)
    nothing = torch.where(flat, float("nan"), x)
    held = energy.given(known, flat)
    slow: tuple[Kernel[Energy, Any], ...] = (descent(1e-3), ula(1e-3), mala(1e-3))
    same(held(nothing), energy(filled), "an energy given known coordinates")
    same(held.score(nothing), torch.where(flat, 0, energy.score(filled)), "slope of an energy given known coordinates")
    for what, made in (
        ("given", held),
        ("sum", held + energy),
        ("weighted", 0.5 * held),
        ("mixture", mixture(energy, held)),
    ):
        for kernel in slow:
            chain, _ = sample(made, kernel, nothing, 3, generator=torch.Generator().manual_seed(0))
            for moved in chain:
                identical(moved[place], filled[place], f"{what} under {kernel}: what is known")


class _OnPurpose(Exception):
    """A chain ends by an error, to see that it cleans up after itself."""


class _Fails(Descent):
    """A kernel that fails at its first step."""

    def step(self, energy: Score, state: Place, generator: torch.Generator | None, /) -> tuple[Place, Info]:
        raise _OnPurpose


class _Watched(Energy):
    """An energy that complains where a chain looks at it in training mode."""

    def __init__(self, inner: Energy) -> None:
        super().__init__()
        self.inner = inner

    def parts(self) -> tuple[Score, ...]:
        return (self.inner,)

    def forward(self, x: Tensor) -> Tensor:
        assert not any(part.training for part in self.modules()), "a chain saw the energy in training mode"
        return self.inner(x)

    def score(self, x: Tensor, /) -> Tensor:
        return self.inner.score(x)


def chain_leaves_no_trace(energy: Energy) -> None:
    """A chain sees one fixed function; modes, buffers, parameters and the random state are as before it."""
    energy = _settled(energy)
    x = _points(energy)
    identical(energy(x), energy(x), "the energy, asked twice")
    watched = _Watched(energy).train()
    next(iter(energy.modules())).training = False  # a mode of its own, which has to come back
    modes = [part.training for part in watched.modules()]
    before = copy.deepcopy(watched.state_dict())
    asked = [p.requires_grad for p in watched.parameters()]
    random = torch.get_rng_state()
    for kernel in (descent(1e-3), _Fails(1e-3)):
        with suppress(_OnPurpose):
            sample(watched, kernel, x, 3)
        assert [part.training for part in watched.modules()] == modes, "modes are not as before the chain"
        assert [p.requires_grad for p in watched.parameters()] == asked, "requires_grad of a parameter changed"
        for name, value in watched.state_dict().items():
            identical(value, before[name], f"after a chain, {name}")
    identical(torch.get_rng_state(), random, "the global random state")


def moves_with_the_module(energy: Energy) -> None:
    """All tensors follow `.to`, bound weights and known values too, and float32 gives what float64 does."""
    exact = _settled(energy)
    x = _points(exact)
    weight, mask = torch.tensor(0.5, dtype=torch.float64), torch.zeros(_shape(exact), dtype=torch.bool)
    for what, made in (("energy", exact), ("composite", (exact * weight).given(torch.zeros_like(x[0]), mask))):
        single = copy.deepcopy(made).to(torch.float32)
        value, slope = single(x.float()), single.score(x.float())
        assert value.dtype == slope.dtype == torch.float32, f"{what} in float32 gives {value.dtype}, {slope.dtype}"
        limit = 2e-4
        same(value.double(), made(x), f"{what} in float32", tolerance=limit)
        same(slope.double(), made.score(x), f"slope of the {what} in float32", tolerance=limit)
        stays = [n for n, t in single.state_dict().items() if t.is_floating_point() and t.dtype != torch.float32]
        assert not stays, f"{what}: {stays} did not move"


def update_never_raises(energy: Energy) -> None:
    """A memory's own update, `step`, never raises its energy, and what `retrieve` gives is where it rests."""
    memory: Any = _settled(energy)
    if not hasattr(memory, "step") or not hasattr(memory, "retrieve"):
        raise DoesNotApply("it has no update of its own (step and retrieve)")
    for size in (0.1, 1.0, 10.0):
        x = size * _points(memory, 50)
        for _ in range(10):
            new = memory.step(x)
            rise = (memory(new) - memory(x)).max().item()
            assert rise <= 1e-9 * (1 + memory(x).abs().max().item()), f"an update raised the energy by {rise:.1e}"
            x = new
    rest = memory.retrieve(_points(memory), 2000, 1e-9)
    same(memory.step(rest), rest, "an update of what was retrieved", tolerance=1e-6)


ENERGY_LAWS: dict[str, Callable[[Energy], None]] = {
    "rows apart": rows_apart,
    "slope": slope_is_finite_differences,
    "slope without gradients": slope_without_gradients,
    "slope differentiable": slope_is_differentiable,
    "sums multiply": sums_multiply_densities,
    "mixtures add": mixtures_add_densities,
    "known stays": known_stays,
    "no trace": chain_leaves_no_trace,
    "moves": moves_with_the_module,
    "update never raises": update_never_raises,
}
"""The laws of an energy by name, each a function that raises AssertionError."""


def check_energy(
    target: type[Energy] | Energy, laws: tuple[str, ...] | None = None, *, shape: tuple[int, ...] | None = None
) -> Iterator[Verdict]:
    """Run the laws on the samples of an energy class, or on one energy (they work on copies of it).

    Args:
        target: a class that offers `samples()`, or an energy.
        laws: names from `ENERGY_LAWS`; None runs all.
        shape: the shape of one point, where the energy does not say it itself.

    Yields:
        One verdict per sample and law, as they come.
    """
    if isinstance(target, Energy):
        name, samples = type(target).__name__.lower(), [copy.deepcopy(target)]
    else:
        name, samples = target.__name__.lower(), list(target.samples())
    for number, energy in enumerate(samples):
        energy.shape = shape or energy.shape
        for law in laws or tuple(ENERGY_LAWS):
            yield judge(name, number, law, ENERGY_LAWS[law], energy)
