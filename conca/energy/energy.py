"""The second contract: a landscape. An `Energy` gives one number per sample, a `Score` knows only the way down.

Landscapes add (a product of experts), scale, mix, take conditions and hold known coordinates fixed:

    E1 + E2, sum([E1, E2, E3])   exp(-E) multiplies (a product of experts: Hinton 2002)
    w * E, E / T, E1 - w * E2    inverse temperature, temperature, negation (Du, Li & Mordatch 2020)
    mixture(E1, E2)              exp(-E) adds
    E.on(y=...), E.at(t)         conditions are bound, never passed along
    E.given(known, mask)         what is known does not move

Tensors that a landscape is given (weights, conditions, known values) are held: a `nn.Parameter` stays one and is
trained, any other tensor becomes a buffer; both move with the module and are in its `state_dict`. Numbers are kept as
they are.

What is composed asks its parts for their slopes (`evaluate`), so that a part which gives its own keeps it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar, cast, overload

import torch
from torch import Tensor, nn
from torch.autograd import Function

from conca.types import BadInput, nearest

__all__ = ["Energy", "Score", "fits", "one_each", "point", "squares"]


class Score(nn.Module):
    """A landscape of which only the slope is known (a diffusion network): write `score`.

    It adds, scales, takes conditions and holds known coordinates like an energy; samplers that compare energies
    refuse it.

    Attributes:
        shape: the shape of one point without the batch axis, or None where any will do.
    """

    shape: tuple[int, ...] | None = None
    __array_ufunc__: ClassVar[None] = None  # so that numpy's numbers leave `w * E` to us
    _reads: ClassVar[str] = "score"

    def score(self, x: Tensor, /) -> Tensor:
        """The way down, -dE/dx: shape (B, ...) in, the same shape out."""
        raise NotImplementedError(f"{type(self).__name__} must define score(x)")

    def evaluate(self, x: Tensor, **conditions: Any) -> tuple[Tensor | None, Tensor]:
        """(energy (B,) or None where unknown, score (B, ...)); raises BadInput where the score is not like x.

        Conditions come from `on` alone; they are handed to `score`.
        """
        score = self.score(point(self, x), **conditions)
        if score.shape != x.shape or score.dtype != x.dtype:
            raise BadInput(f"{type(self).__name__}.score must give {_look(x)} like its input, not {_look(score)}")
        return None, score

    def parts(self) -> tuple[Score, ...]:
        """The landscapes that this one is made of, over the same x; a plain one has none."""
        return ()

    def clamp(self, x: Tensor) -> Tensor:
        """`x` with every known coordinate put in its place: shape (B, ...) in and out, `x` unchanged.

        Every kernel and every start calls it; a composite applies the clamps of its parts.
        """
        for part in self.parts():
            x = part.clamp(x)
        return x

    def free(self, x: Tensor) -> Tensor:
        """Bool, shape of `x`: the coordinates that `clamp` leaves alone."""
        return self.clamp(torch.zeros_like(x)) != self.clamp(torch.ones_like(x))

    def conditions(self) -> frozenset[str]:
        """Names that `on` can bind: the further arguments of `forward` (of `score`, where only a slope is known)."""
        if self.parts():
            return frozenset().union(*(part.conditions() for part in self.parts()))
        after_x = list(inspect.signature(getattr(self, self._reads)).parameters.values())[1:]
        return frozenset(p.name for p in after_x if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))

    def _names_bound(self) -> frozenset[str]:
        """Names that `on` has bound, here or in a part."""
        return frozenset().union(*(part._names_bound() for part in self.parts()))

    def on(self, **values: Any) -> Score:
        """This landscape under conditions, e.g. `E.on(y=labels)`; a composite hands each to the parts that read it.

        Raises BadInput for a condition that nothing here reads, and for one that is bound already: nothing is bound
        twice, so bind anew on the landscape that this one was made from.
        """
        known = self.conditions()
        if unknown := sorted(values.keys() - known):
            if unknown[0] in self._names_bound():
                raise BadInput(
                    f"'{unknown[0]}' is bound already in this {type(self).__name__}; "
                    f"call on({unknown[0]}=...) on the landscape that it was made from"
                )
            hint = nearest(unknown[0], known) if known else "it takes no conditions"
            raise BadInput(f"{type(self).__name__} has no condition '{unknown[0]}'; {hint}")
        return self._bind(values)

    def at(self, t: float | Tensor) -> Score:
        """This landscape at level `t` of its path (noise level, temperature): `on(t=t)`."""
        return self.on(t=t)

    def given(self, known: Tensor, mask: Tensor) -> Score:
        """This landscape with the coordinates under `mask` held at `known`; see `Energy.given`."""
        from conca.energy import compose

        return compose.given(self, known, mask)

    def _bind(self, values: dict[str, Any]) -> Score:
        from conca.energy import compose

        return compose.bind(self, values)

    def __add__(self, other: Score) -> Score:
        return _combine([(1.0, self), (1.0, other)]) if isinstance(other, Score) else NotImplemented

    def __radd__(self, other: int) -> Score:
        return self if isinstance(other, int) and other == 0 else NotImplemented  # the 0 that sum() starts from

    def __sub__(self, other: Score) -> Score:
        return _combine([(1.0, self), (-1.0, other)]) if isinstance(other, Score) else NotImplemented

    def __mul__(self, weight: float | Tensor) -> Score:
        return _combine([(weight, self)]) if isinstance(weight, (Real, Tensor)) else NotImplemented

    def __rmul__(self, weight: float | Tensor) -> Score:
        return self * weight

    def __truediv__(self, temperature: float | Tensor) -> Score:
        if isinstance(temperature, (float, Real)) and float(temperature) == 0:
            raise BadInput("a temperature must not be 0; a landscape is divided by a positive one")
        # numpy's own reciprocal would be rounded to numpy's own precision
        return self * (1.0 / (float(temperature) if isinstance(temperature, (float, Real)) else temperature))

    def __neg__(self) -> Score:
        return self * -1.0


class Energy(Score):
    """A landscape: write `forward(x) -> energy`, one number per sample.

    `forward` takes x of shape (B, ...) and gives shape (B,). Low is plausible: the density is proportional to
    exp(-E). Rows never interact. Further arguments of `forward` are conditions, bound by `on`. Set `shape` to the
    shape of one point, so that the laws of `conca.laws` know what to draw.

    The slope is found by autograd. An energy that autograd cannot follow back to x (a table, numpy, a simulator) gives
    its own: `score(x) -> -dE/dx`, with the conditions of `forward` as further arguments. So does one that is flat
    (a constant, a wall): `torch.zeros_like(x)`. Without it BadInput is raised, since a chain would stand still.
    Whoever writes an energy around others asks for `part.evaluate(x)[0]`, which autograd can follow in any case.

    Calling it raises BadInput where `forward` gives anything but shape (B,).
    """

    _reads: ClassVar[str] = "forward"

    @classmethod
    def samples(cls) -> tuple[Energy, ...]:
        """Small instances that reach every branch, for laws and tests; none unless the class says so."""
        return ()

    def __call__(self, x: Tensor, **conditions: Any) -> Tensor:
        return one_each(self, x, super().__call__(_batched(self, x), **conditions))

    def score(self, x: Tensor, /) -> Tensor:
        """-dE/dx, shape (B, ...), under no_grad and inference_mode too.

        With gradients on it is differentiable, with respect to x and to the parameters (energies are trained through
        it). Raises BadInput where x is not floating point, and where autograd finds no way from E to x.
        """
        if type(self).score is Energy.score:
            return self.evaluate(x)[1]
        return self._derive(point(self, x))[1]  # a score of its own asks, through super()

    def evaluate(self, x: Tensor, **conditions: Any) -> tuple[Tensor, Tensor]:
        """(energy (B,), score (B, ...)) for the price of one; who knows the slope overrides `score` or this.

        With gradients on, both are differentiable; the energy leads back to x by the score, also where that is its own.
        """
        point(self, x)
        if type(self).score is Energy.score:
            return self._derive(x, **conditions)
        score = super().evaluate(x, **conditions)[1]
        if not torch.is_grad_enabled():
            return self(x, **conditions), score
        energy: Tensor = _Sloped.apply(x, self(x.detach(), **conditions), score)  # type: ignore[no-untyped-call]
        return energy, score

    def _derive(self, x: Tensor, **conditions: Any) -> tuple[Tensor, Tensor]:
        """Energy and slope by autograd; what is composed asks its parts instead."""
        keep = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            if keep and x.requires_grad:
                z = x.view_as(x)  # a node of its own: a condition that happens to be the same x is not differentiated
            else:
                z = x.clone() if x.is_inference() else x.detach()
                try:
                    z.requires_grad_()
                except RuntimeError:  # inside vmap and the other transforms of torch.func, which forbid it
                    energy, score = torch.func.vjp(lambda z: self._derive(z, **conditions), x)[0]
                    return (energy, score) if keep else (energy.detach(), score.detach())
            energy = self(z, **conditions)
            slope = None
            if energy.requires_grad:
                (slope,) = torch.autograd.grad(energy.sum(), z, create_graph=keep, allow_unused=True)
            if slope is None:
                slope = _nothing(self, z)
            return (energy, -slope) if keep else (energy.detach(), -slope.detach())

    def on(self, **values: Any) -> Energy:
        """This energy under conditions, e.g. `E.on(y=labels)`; a composite hands each to the parts that read it.

        Raises BadInput for a condition that nothing here reads.
        """
        return cast(Energy, super().on(**values))

    def at(self, t: float | Tensor) -> Energy:
        """This energy at level `t` of its path (noise level, temperature): `on(t=t)`."""
        return self.on(t=t)

    def given(self, known: Tensor, mask: Tensor) -> Energy:
        """This energy with the coordinates under `mask` held at `known`: completion, conditioning, inpainting.

        Args:
            known: broadcasts to x, (B, ...) or the shape of one point; finite under the mask, anything elsewhere.
            mask: bool, broadcasts to x; True where known.

        Raises BadInput where the mask is not bool, something known is not finite, or the shapes do not broadcast to x.
        """
        return cast(Energy, super().given(known, mask))

    @overload
    def __add__(self, other: Energy) -> Energy: ...
    @overload
    def __add__(self, other: Score) -> Score: ...
    def __add__(self, other: Score) -> Score:
        return super().__add__(other)

    def __radd__(self, other: int) -> Energy:
        return cast(Energy, super().__radd__(other))

    @overload
    def __sub__(self, other: Energy) -> Energy: ...
    @overload
    def __sub__(self, other: Score) -> Score: ...
    def __sub__(self, other: Score) -> Score:
        return super().__sub__(other)

    def __mul__(self, weight: float | Tensor) -> Energy:
        return cast(Energy, super().__mul__(weight))

    def __rmul__(self, weight: float | Tensor) -> Energy:
        return self * weight

    def __truediv__(self, temperature: float | Tensor) -> Energy:
        return cast(Energy, super().__truediv__(temperature))

    def __neg__(self) -> Energy:
        return self * -1.0


def _combine(terms: Sequence[tuple[float | Tensor, Score]]) -> Score:
    from conca.energy import compose  # composites are landscapes themselves, so each file needs the other

    return compose.combine(terms)


class _Sloped(Function):
    """The energy as it is, whose derivative in x is minus the score that it comes with."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, energy: Tensor, score: Tensor) -> Tensor:
        return energy.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (score,) = ctx.saved_tensors
        return -grad.reshape(-1, *[1] * (score.dim() - 1)).to(score.dtype) * score, grad, None


def _nothing(energy: Energy, x: Tensor) -> Tensor:
    """The slope of an energy that autograd cannot follow back to x: known only where x has no coordinates."""
    if x.numel() == 0:
        return torch.zeros_like(x)
    raise BadInput(
        f"autograd cannot follow {type(energy).__name__}.forward back to x: give it its own score(x) -> -dE/dx "
        "(where the energy is flat, torch.zeros_like(x))"
    )


def one_each(energy: Energy, x: Tensor, value: object) -> Tensor:
    """The `value` of an energy; raises BadInput where it is not one number per row of x."""
    if isinstance(value, Tensor) and value.shape == x.shape[:1]:
        return value
    found = _look(value) if isinstance(value, Tensor) else type(value).__name__
    raise BadInput(f"{type(energy).__name__}.forward must give one number per sample, shape ({len(x)},), not {found}")


def fits(landscape: Score, x: Tensor, point: Tensor) -> None:
    """Raise BadInput where `x`, (B, ...), is not a batch of what `landscape` holds, a `point` of shape (...)."""
    name = type(landscape).__name__
    if x.dim() == 0 or x.shape[1:] != point.shape:
        shape = ", ".join(["B", *map(str, point.shape)])
        raise BadInput(f"this {name} reads x of shape ({shape}), not {tuple(x.shape)}")
    if x.dtype != point.dtype:
        raise BadInput(f"this {name} is of {point.dtype}, x of {x.dtype}: use x.to({point.dtype}), or .to() on both")


def squares(x: Tensor) -> Tensor:
    """Sum of squares of each row, (B, ...) to (B,); a product, which is quicker than a sum over few columns."""
    flat = x.unsqueeze(-1).flatten(1).square()
    return flat @ flat.new_ones(flat.shape[1])


def _look(x: Tensor) -> str:
    return f"shape {tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}"


def _batched(landscape: Score, x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() == 0:
        raise BadInput(f"{type(landscape).__name__} reads a tensor whose first axis is the batch, not {x!r}")
    return x


def point(landscape: Score, x: Tensor) -> Tensor:
    """`x` itself; raises BadInput where it is no batch of floating-point numbers."""
    if not _batched(landscape, x).is_floating_point():
        raise BadInput(f"{type(landscape).__name__} has a slope at floating-point x alone, not at {_look(x)}")
    return x
