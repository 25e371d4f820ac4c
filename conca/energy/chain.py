"""The one loop: `sample` walks a landscape with a kernel.

Retrieval, completion, generation and planning are this loop under different clamps and kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Generic, Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from conca.energy.energy import Score
from conca.layers import states
from conca.types import BadInput, State

__all__ = ["Chains", "Divergence", "Info", "Kernel", "OnChain", "sample", "undisturbed"]

Info: TypeAlias = Mapping[str, Tensor]
"""What a kernel reports of a step, each (B,): a bool is an event, anything else is measured at the new x."""


class OnChain(Protocol):
    """The state of a kernel: a NamedTuple of tensors, batch on axis 0, with the place `x`."""

    @property
    def x(self) -> Tensor: ...


E = TypeVar("E", bound=Score)
E_contra = TypeVar("E_contra", bound=Score, contravariant=True)
K = TypeVar("K", bound=OnChain)


class Kernel(Protocol[E_contra, K]):
    """One way to move: a pure pair of functions; the object itself is frozen.

    Every random number comes from `generator`, every new place has been through `energy.clamp`, and a row never looks
    at another. A kernel that leaves exp(-E) exactly as it is says `exact = True`, one that compares energies without
    that `weighs = True`; the laws of samplers read it.
    """

    def init(self, energy: E_contra, x: Tensor, /) -> K:
        """The state at the start `x`, shape (B, ...), already clamped."""
        ...

    def step(self, energy: E_contra, state: K, generator: torch.Generator | None, /) -> tuple[K, Info]:
        """The next state, and what is to be reported of the step ("energy" and "slope" are watched for divergence)."""
        ...


class Divergence(ArithmeticError):
    """A chain, or a training, left the finite numbers or the limit that was set.

    Attributes:
        step: of the chain, counted from 1; 0 in a loss.
        energy: the largest |E| over the rows, in a chain one step before where that is known; NaN where only a slope is known.
        slope: the largest norm of the slope, likewise.
        rows: how many rows did, of `batch`.
    """

    def __init__(self, step: int, energy: float, slope: float, rows: int, batch: int, training: bool = False) -> None:
        super().__init__(step, energy, slope, rows, batch, training)  # all of them, so that it can be pickled
        self.step, self.energy, self.slope, self.rows, self.batch = step, energy, slope, rows, batch
        self.training = training

    def __str__(self) -> str:
        if self.training:
            return (
                f"the training diverged: {self.rows} of {self.batch} energies are not finite, or beyond the limit; |E| is up "
                f"to {self.energy:.3g}. Take a lower rate, squares of the energies (l2), more steps of the chains, or spectral norm"
            )
        return (
            f"{self.rows} of {self.batch} chains left the finite numbers at step {self.step}; one step before, "
            f"|E| was up to {self.energy:.3g} and the slope up to {self.slope:.3g}. "
            "Take a smaller step, or a kernel that rejects (mala)"
        )


def sample(
    energy: E, kernel: Kernel[E, K], x: Tensor, steps: int, thin: int = 1, *, generator: torch.Generator | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Walk `steps` steps from `x`, all rows at once and apart, without gradients.

    The chain sees one fixed function: the landscape is put in eval mode, and when the chain ends, also by an error,
    modes, buffers and the global random state are as they were. That is not for two threads at a time on one
    landscape in training mode.

    Args:
        energy: an `Energy`, or a `Score` where the kernel is content with a slope.
        kernel: `descent(...)`, `ula(...)`, `mala(...)` or your own `Kernel`.
        x: the start, shape (B, ...), floating point and finite; B may be 0. `energy.clamp` is applied first; `x` is
        not changed.
        steps: 0 or more. Steps after the last multiple of `thin` would be seen by nobody and are not run.
        thin: every thin-th place is kept.
        generator: on the device of x; only a kernel that draws nothing can do without.

    Returns:
        The places kept, shape (steps // thin, B, ...), the start not among them; and a dict of what the kernel
        reports, each of shape (steps // thin, B): measurements (energy, slope) are those at the place kept, events
        (accepted) are the share of the `thin` steps that led there. The dict is empty where nothing is kept.

    Raises:
        Divergence: where a place, an energy or a slope stops being finite. Nothing is replaced by another value.
        BadInput: for a kernel, start, steps, thin or generator that cannot be used, or where parts of the landscape claim to
            know different values of one coordinate.
        TypeError: where the kernel needs an energy and is given a slope.
    """
    _check(energy, kernel, x)
    _check_run(x, steps, thin, generator)
    return Chains(energy, kernel, x, generator=generator).run(steps, thin)


class Chains(Generic[E, K]):
    """Chains that are walked in pieces, kept on disk, and gone on with bit for bit: what `sample` walks in one go.

    >>> import torch
    >>> from conca.energy import DoubleWell, ula
    >>> chains = Chains(DoubleWell(), ula(0.05), torch.ones(4, 1), generator=torch.Generator().manual_seed(0))
    >>> first, info = chains.run(100, thin=100)
    >>> kept = chains.state_dict()  # or chains.save("chains.safetensors")
    >>> there, _ = chains.run(50, thin=50)
    >>> chains.load_state_dict(kept)
    >>> torch.equal(chains.run(50, thin=50)[0], there)
    True

    Arguments and errors are those of `sample`.

    Attributes:
        state: of the kernel; `state.x` is where the chains are, (B, ...).
        steps: taken so far.
    """

    def __init__(self, energy: E, kernel: Kernel[E, K], x: Tensor, *, generator: torch.Generator | None = None) -> None:
        _check(energy, kernel, x)
        _check_run(x, 0, 1, generator)
        self.energy, self.kernel, self.generator, self.steps = energy, kernel, generator, 0
        with self._still(x):
            start = energy.clamp(x.detach().clone())
            if not bool(start.isfinite().all()):
                raise BadInput("the start of a chain must be finite")
            _agree(energy, start)
            self.state: K = kernel.init(energy, start)

    @contextmanager
    def _still(self, x: Tensor) -> Iterator[None]:
        """No gradients, and a landscape that is one fixed function."""
        with torch.no_grad(), undisturbed(self.energy, x):
            if any(module.training for module in self.energy.modules()):
                self.energy.eval()
            yield

    def run(self, steps: int, thin: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
        """Walk on; returns and raises what `sample` does. After an error the chains are where the last good step led."""
        _check_run(self.state.x, steps, thin, self.generator)
        kept, x = steps // thin, self.state.x
        chain = x.new_empty((kept, *x.shape))
        infos: list[Info] = []
        last: Info = {}
        with self._still(x):
            for k in range(kept):
                events: dict[str, Tensor] = {}
                for _ in range(thin):
                    state, info = self.kernel.step(self.energy, self.state, self.generator)
                    _watch(self.steps + 1, self.energy, chain, state.x, info, last)
                    self.state, self.steps, last = state, self.steps + 1, info
                    for name in (name for name, value in info.items() if value.dtype == torch.bool):
                        events[name] = events.get(name, 0) + info[name].to(torch.get_default_dtype()) / thin
                chain[k] = self.state.x
                infos.append({**last, **events})
        return chain, {name: torch.stack([info[name] for info in infos]) for name in (infos[0] if infos else ())}

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors by name: the state of the kernel, that of the generator, and the steps taken."""
        found = {name: leaf.clone() for name, leaf in states.named(cast(State, self.state), "state")}
        found["steps"] = torch.tensor(self.steps)
        if self.generator is not None:
            found["generator"] = self.generator.get_state()
        return found

    def load_state_dict(self, found: Mapping[str, Tensor]) -> None:
        """Go on from there. Raises BadInput, and changes nothing, unless it is of the same kernel and of chains like these."""
        own = self.state_dict()
        if own.keys() != found.keys():
            theirs, ours = (", ".join(sorted(names)) for names in (found, own))
            raise BadInput(f"these are other chains: they hold {theirs}; expected {ours}")
        for name, tensor in own.items():
            if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
                has, needs = (f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (found[name], tensor))
                raise BadInput(f"these are other chains: '{name}' is {has}, expected {needs}")
        copied = {name: tensor.clone() for name, tensor in found.items()}
        self.state, self.steps = states.filled(self.state, copied, "state"), int(found["steps"])
        if self.generator is not None:
            self.generator.set_state(found["generator"].cpu())

    def save(self, path: str | Path) -> None:
        """Write `state_dict` to a file of safetensors, whole or not at all. Raises BadInput where it cannot be written."""
        states.save_named(self.state_dict(), path)

    def load(self, path: str | Path) -> None:
        """Go on from what `save` wrote. Raises BadInput, and changes nothing, where it is missing, broken, or of other chains."""
        self.load_state_dict(states.load_named(path))


def _check(energy: object, kernel: object, x: object) -> None:
    if not isinstance(energy, Score):
        raise TypeError(f"sample walks an Energy or a Score, not a {type(energy).__name__}")
    methods = (getattr(kernel, name, None) for name in ("init", "step"))
    if isinstance(kernel, type) or not all(callable(method) for method in methods):
        name = getattr(kernel, "__name__", None)
        advice = f"call it first: {name}(...)" if name else "such as descent(0.1), ula(0.1) or mala(0.1)"
        raise BadInput(f"the kernel must be an object with init and step, not {name or repr(kernel)}; {advice}")
    if not isinstance(x, Tensor) or x.dim() == 0 or not x.is_floating_point():
        found = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise BadInput(f"a chain starts at floating-point x of shape (B, ...), not at {found}")


def _check_run(x: Tensor, steps: object, thin: object, generator: object) -> None:
    if not isinstance(steps, (int, Integral)) or not isinstance(thin, (int, Integral)) or steps is True or thin is True:
        raise BadInput(f"steps and thin must be whole numbers, not {steps!r} and {thin!r}; use int(...)")
    if steps < 0 or thin < 1:
        raise BadInput(f"steps must be 0 or more and thin 1 or more, not {steps} and {thin}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise BadInput(
            f"the generator must be a torch.Generator, not {generator!r}: "
            f"pass generator=torch.Generator('{x.device.type}').manual_seed(seed)"
        )
    if generator is not None and generator.device.type != x.device.type:
        raise BadInput(
            f"x is on {x.device}, the generator on {generator.device}; make it with torch.Generator('{x.device.type}')"
        )


def _agree(landscape: Score, x: Tensor) -> None:
    """Raise where a part would move what another part holds."""
    for part in landscape.parts():
        if not torch.equal(part.clamp(x), x):
            raise BadInput(
                f"parts of this {type(landscape).__name__} claim to know different values of the same coordinate"
            )
        _agree(part, x)


def _watch(step: int, energy: Score, chain: Tensor, x: Tensor, info: Info, last: Info) -> None:
    """Raise where the new place cannot be gone on from."""
    if x.shape != chain.shape[1:] or x.dtype != chain.dtype:
        change = f"{tuple(chain.shape[1:])} {chain.dtype} into {tuple(x.shape)} {x.dtype}"
        raise BadInput(f"a step on {type(energy).__name__} turned x from {change}")
    watched = [info[name] for name in ("energy", "slope") if name in info]
    if math.isfinite(sum(float(t.sum()) for t in (x, *watched))):  # no number is lost in a sum, and a sum is quick
        return
    fine = x.isfinite().unsqueeze(-1).flatten(1).all(1)
    for value in watched:
        fine = fine & value.isfinite()
    if not bool(fine.all()):
        before = last or info
        worst = {n: before[n].abs().max().item() if n in before else float("nan") for n in ("energy", "slope")}
        raise Divergence(step, worst["energy"], worst["slope"], int((~fine).sum()), len(fine))


@contextmanager
def undisturbed(module: nn.Module, *tensors: Tensor) -> Iterator[None]:
    """Afterwards, also after an error, modes, buffers and the global random state are as before.

    Random state: of the CPU, and of the CUDA devices of `tensors`. A buffer that did not change is not written, so that
    graphs which hold it stay valid.
    """
    modes = [(part, part.training) for part in module.modules()]
    held = [
        (part, name, buffer, buffer.clone(), -1 if buffer.is_inference() else buffer._version)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    devices = sorted({t.device.index or 0 for t in tensors if t.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for part, training in modes:
            if part.training != training:
                part.training = training
        for part, name, buffer, copy, version in held:
            if not buffer.is_inference() and buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(copy)
            if part._buffers.get(name) is not buffer:
                setattr(part, name, buffer)
