"""What landscapes become when they are composed: sums, mixtures, landscapes under conditions, landscapes partly known.

Nobody builds these by name: `Energy` and `Score` do, by `+`, `-`, `*`, `on`, `at` and `given`; `mixture` is a
function. Each makes its slope of the slopes of its parts, by their `evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from conca.energy.energy import Energy, Score, one_each
from conca.types import BadInput

__all__ = [
    "Bound",
    "BoundScore",
    "Given",
    "GivenScore",
    "Mixture",
    "ScoreSum",
    "Sum",
    "bind",
    "combine",
    "given",
    "hold",
    "mixture",
]


def hold(module: nn.Module, name: str, value: Tensor) -> None:
    """Keep `value` in `module`: a Parameter as a parameter, any other tensor as a buffer."""
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
        return
    if value.is_inference():  # autograd refuses to save such a tensor, and slopes are needed under inference_mode too
        with torch.inference_mode(False):
            value = value.clone()
    module.register_buffer(name, value)


class _Composed(Energy):
    """An energy whose slope is made of those of its parts."""

    def _derive(self, x: Tensor, **conditions: Any) -> tuple[Tensor, Tensor]:
        return (cast(_Composed, self.on(**conditions)) if conditions else self)._from_parts(x)

    def _from_parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class _WeightedSum(Score):
    """Weights and terms; a weight is a number, or a tensor of shape () or (B,)."""

    def __init__(self, terms: Sequence[tuple[float | Tensor, Score]]) -> None:
        super().__init__()
        self.terms = nn.ModuleList(term for _, term in terms)
        self.shape = _shape(self.parts())
        self._weights: list[float | str] = []
        for i, (weight, _) in enumerate(terms):
            if isinstance(weight, Tensor):
                hold(self, f"weight_{i}", weight)
                self._weights.append(f"weight_{i}")
            elif math.isfinite(weight):
                self._weights.append(float(weight))
            else:
                raise BadInput(f"a weight of an energy must be finite, not {weight}")

    def weights(self) -> tuple[float | Tensor, ...]:
        """One per term."""
        return tuple(cast(Tensor, getattr(self, w)) if isinstance(w, str) else w for w in self._weights)

    def parts(self) -> tuple[Score, ...]:
        return tuple(cast(Iterable[Score], self.terms))

    def _weigh(self, x: Tensor, scores: Iterable[Tensor]) -> Tensor:
        total = torch.zeros_like(x)
        for weight, score in zip(self.weights(), scores):
            total = total + (_lift(weight, x) * score).to(x.dtype)
        return _release(self, x, total)

    def _bind(self, values: dict[str, Any]) -> Score:
        return combine(list(zip(self.weights(), _bind_parts(self.parts(), values))))

    def extra_repr(self) -> str:
        return "weights=" + ", ".join("tensor" if isinstance(w, str) else f"{w:g}" for w in self._weights)


class ScoreSum(_WeightedSum):
    """A weighted sum in which at least one term knows only its slope; made by `+`, `-` and `*`."""

    def score(self, x: Tensor, /) -> Tensor:
        x = self.clamp(x)
        return self._weigh(x, [term.evaluate(x)[1] for term in self.parts()])


class Sum(_WeightedSum, _Composed):
    """A weighted sum of energies, a product of experts; made by `+`, `-` and `*`."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.clamp(x)
        return self._total(cast(Energy, term)(x) for term in self.parts())

    def _total(self, energies: Iterable[Tensor]) -> Tensor:
        weighed = [_fitting(weight, energy) * energy for weight, energy in zip(self.weights(), energies)]
        return torch.stack(weighed).sum(0) if len(weighed) > 1 else weighed[0]

    def _from_parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.clamp(x)
        energies, scores = _ask(self.parts(), x)
        return one_each(self, x, self._total(energies)), self._weigh(x, scores)


class Mixture(_Composed):
    """A sum of densities, E = -log sum_i w_i exp(-E_i); made by `mixture`."""

    weights: Tensor | tuple[float, ...]

    def __init__(self, parts: Sequence[Energy], weights: Sequence[float] | Tensor | None = None) -> None:
        super().__init__()
        if not parts or not all(isinstance(part, Energy) for part in parts):
            raise TypeError(
                "a mixture is made of one energy or more; an object that knows only a slope cannot be mixed"
            )
        self.terms = nn.ModuleList(parts)
        self.shape = _shape(self.parts())
        if not isinstance(weights, Tensor):
            weights = (1.0,) * len(parts) if weights is None else tuple(float(weight) for weight in weights)
        seen = weights if isinstance(weights, Tensor) else torch.tensor(weights, dtype=torch.float64)
        if seen.shape != (len(parts),) or not bool((seen > 0).all() & seen.isfinite().all()):
            raise BadInput(f"a mixture of {len(parts)} energies needs {len(parts)} positive weights")
        if isinstance(weights, Tensor):
            hold(self, "weights", weights)
        else:
            self.weights = weights  # as numbers, so that no precision is lost whatever the dtype of x

    def parts(self) -> tuple[Score, ...]:
        return tuple(cast(Iterable[Score], self.terms))

    def forward(self, x: Tensor) -> Tensor:
        x = self.clamp(x)
        return -torch.logsumexp(self._logs([cast(Energy, term)(x) for term in self.parts()]), dim=0)

    def _logs(self, energies: list[Tensor]) -> Tensor:
        """log(w_i) - E_i, shape (parts, B)."""
        stacked = torch.stack(energies)
        if isinstance(self.weights, Tensor):
            logs = self.weights.to(stacked.dtype).log()
        else:
            logs = stacked.new_tensor([math.log(weight) for weight in self.weights])
        return logs.unsqueeze(-1) - stacked

    def _from_parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.clamp(x)
        energies, scores = _ask(self.parts(), x)
        logs = self._logs(energies)
        total = sum(_lift(share, x) * score for share, score in zip(torch.softmax(logs, 0), scores))
        return -torch.logsumexp(logs, dim=0), _release(self, x, cast(Tensor, total).to(x.dtype))

    def _bind(self, values: dict[str, Any]) -> Score:
        return Mixture(cast(list[Energy], _bind_parts(self.parts(), values)), self.weights)


def mixture(*energies: Energy, weights: Sequence[float] | Tensor | None = None) -> Energy:
    """The energy whose density is the weighted sum of the densities exp(-E_i): E = -log sum_i w_i exp(-E_i).

    The densities are taken as they are; where they are normalised (`Gaussian`), weights that sum to 1 are mixing
    proportions.

    Args:
        energies: one or more, all reading x of one shape.
        weights: positive, one per energy; 1 each by default. Numbers are kept as numbers, a tensor as a tensor.

    Raises:
        TypeError: where something is not an Energy.
        BadInput: where the weights are not as many as the energies, or not positive.
    """
    return Mixture(energies, weights)


class BoundScore(Score):
    """A score under conditions; made by `on`."""

    def __init__(self, inner: Score, values: dict[str, Any]) -> None:
        super().__init__()
        self.inner = inner
        self.shape = inner.shape
        self._constants: dict[str, Any] = {}
        self._held: list[str] = []
        for name, value in values.items():
            if isinstance(value, Tensor):
                hold(self, f"on_{name}", value)
                self._held.append(name)
            else:
                self._constants[name] = value

    def values(self) -> dict[str, Any]:
        """The bound conditions, by name."""
        return self._constants | {name: getattr(self, f"on_{name}") for name in self._held}

    def parts(self) -> tuple[Score, ...]:
        return (self.inner,)

    def conditions(self) -> frozenset[str]:
        return self.inner.conditions() - self.values().keys()

    def _names_bound(self) -> frozenset[str]:
        return self.inner._names_bound() | self.values().keys()

    def score(self, x: Tensor, /) -> Tensor:
        return self.inner.evaluate(x, **self.values())[1]

    def _bind(self, values: dict[str, Any]) -> Score:
        return type(self)(self.inner, self.values() | values)


class Bound(BoundScore, _Composed):
    """An energy under conditions; made by `on`."""

    inner: Energy
    score = Energy.score

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, **self.values())

    def _from_parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.evaluate(x, **self.values())


class GivenScore(Score):
    """A score whose known coordinates are held; made by `given`."""

    known: Tensor
    mask: Tensor

    def __init__(self, inner: Score, known: Tensor, mask: Tensor) -> None:
        super().__init__()
        if mask.dtype != torch.bool:
            raise BadInput(f"the mask of what is known must be bool, not {mask.dtype}")
        try:
            seen = torch.where(mask, known, torch.zeros((), dtype=known.dtype, device=known.device))
        except RuntimeError as error:
            raise BadInput(f"mask {tuple(mask.shape)} and known {tuple(known.shape)} do not broadcast") from error
        if not bool(seen.isfinite().all()):
            raise BadInput("what is known must be finite wherever the mask is True")
        self.inner = inner
        self.shape = inner.shape
        hold(self, "known", known)
        hold(self, "mask", mask)

    def parts(self) -> tuple[Score, ...]:
        return (self.inner,)

    def clamp(self, x: Tensor) -> Tensor:
        x = self.inner.clamp(x)
        try:
            clamped = torch.where(self.mask, self.known.to(x.dtype), x)
        except RuntimeError:
            clamped = self.known
        if clamped.shape != x.shape:
            shapes = f"known {tuple(self.known.shape)} and mask {tuple(self.mask.shape)}"
            raise BadInput(f"{shapes} do not broadcast to {tuple(x.shape)}")
        return clamped

    def score(self, x: Tensor, /) -> Tensor:
        x = self.clamp(x)
        return _release(self, x, self.inner.evaluate(x)[1])

    def _bind(self, values: dict[str, Any]) -> Score:
        return type(self)(self.inner.on(**values), self.known, self.mask)


class Given(GivenScore, _Composed):
    """An energy whose known coordinates are held; made by `given`."""

    inner: Energy
    score = Energy.score

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.clamp(x))

    def _from_parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.clamp(x)
        energy, score = self.inner.evaluate(x)
        return energy, _release(self, x, score)


def combine(terms: Sequence[tuple[float | Tensor, Score]]) -> Score:
    """The weighted sum: an `Energy` where every term is one, else a `Score`."""
    return Sum(terms) if all(isinstance(term, Energy) for _, term in terms) else ScoreSum(terms)


def bind(landscape: Score, values: dict[str, Any]) -> Score:
    """A plain landscape under conditions."""
    return (Bound if isinstance(landscape, Energy) else BoundScore)(landscape, values)


def given(landscape: Score, known: Tensor, mask: Tensor) -> Score:
    """A landscape whose coordinates under `mask` are held at `known`."""
    return (Given if isinstance(landscape, Energy) else GivenScore)(landscape, known, mask)


def _ask(parts: Iterable[Score], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The energies and the slopes of parts that are all energies."""
    asked = [cast(Energy, part).evaluate(x) for part in parts]
    return [energy for energy, _ in asked], [score for _, score in asked]


def _fitting(weight: float | Tensor, energy: Tensor) -> float | Tensor:
    """The weight; raises BadInput where it is neither one number nor one per row."""
    if isinstance(weight, Tensor) and weight.shape not in ((), energy.shape):
        rows = f"({len(energy)},)"
        raise BadInput(f"a weight is one number, or one per row, {rows}, not of shape {tuple(weight.shape)}")
    return weight


def _lift(weight: float | Tensor, x: Tensor) -> float | Tensor:
    """A number, or one per row, ready to be multiplied with what is shaped like x."""
    if not isinstance(weight, Tensor):
        return weight
    return weight.reshape(weight.shape + (1,) * (x.dim() - weight.dim()))


def _release(landscape: Score, x: Tensor, score: Tensor) -> Tensor:
    """The slope, but 0 where a coordinate is known."""
    return torch.where(landscape.free(x), score, 0)


def _bind_parts(parts: Iterable[Score], values: dict[str, Any]) -> list[Score]:
    return [part.on(**{k: v for k, v in values.items() if k in part.conditions()}) for part in parts]


def _shape(parts: Iterable[Score]) -> tuple[int, ...] | None:
    return next((part.shape for part in parts if part.shape is not None), None)
