"""Blocks, stacks and the patterns that name them: mixers made of mixers.

A pattern is a line of words, `"s4d*2 attention(window=64)"`: each word is a pre-norm residual block around that family, options
stand in brackets, `*2` repeats it. `module:Class` and `file.py:Class` may stand wherever a family's name may.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Self, cast

from torch import Tensor, nn

from conca.layers import families
from conca.layers.attention import Attention
from conca.layers.lstm import LSTM
from conca.layers.mixer import Mixer, Work
from conca.layers.norm import RMSNorm
from conca.layers.s4d import S4D
from conca.models.words import words
from conca.types import BadInput, S, State, nearest

__all__ = ["Block", "Stack", "family", "pattern"]


class Block(Mixer[S]):
    """A pre-norm residual block, x + dropout(mixer(norm(x))); its state is the mixer's.

    x may be wider than the parameters are: then the sum stays so wide, and the mixer reads what its own precision allows.

    Args:
        inner: the mixer.
        dropout: on what the mixer adds.
        eps: what the norm adds to the mean of squares.
    """

    ragged = resets = True

    def __init__(self, inner: Mixer[S], *, dropout: float = 0.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.d_model, self.timed, self.bounded = inner.d_model, inner.timed, inner.bounded
        self.norm = RMSNorm(inner.d_model, eps=eps)
        self.inner = inner
        self.dropout = nn.Dropout(dropout)
        example = next(inner.parameters(), None)
        if example is not None:
            self.norm.to(device=example.device)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """Around a timed mixer and around one that is not."""
        return cls(cast("Mixer[S]", S4D(4, d_state=4))), cls(cast("Mixer[S]", LSTM(3)))

    def init_state(self, batch: int) -> S:
        """That of the mixer."""
        return self.inner.init_state(batch)

    def canonical(self, state: S) -> State:
        """That of the mixer."""
        return self.inner.canonical(state)

    def step(self, x: Tensor, state: S, *, elapsed: Tensor | None = None) -> tuple[Tensor, S]:
        """One token: x (B, D)."""
        y, state = self.inner.step(self._read(x), state, elapsed=elapsed)
        return x + self.dropout(y), state

    def parallel(
        self, x: Tensor, state: S, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, S]:
        """All tokens."""
        y, state = self.inner(self._read(x), state, lengths=lengths, starts=starts, elapsed=elapsed)
        return x + self.dropout(y), state

    def _read(self, x: Tensor) -> Tensor:
        """What the mixer reads: in half precision, where its parameters are, though the sum is wider."""
        h: Tensor = self.norm(x)
        own = next((p.dtype for p in self.norm.parameters()), h.dtype)
        return h.to(own) if own.itemsize < h.dtype.itemsize and own.itemsize < 4 else h

    def work(self) -> Work:
        """That of the mixer and of the norm."""
        inner, width = self.inner.work(), self.d_model
        return Work(inner.multiply_adds + 2 * width, inner.bytes + width * self.norm.weight.element_size())


class Stack(Mixer[tuple[State, ...]]):
    """Mixers of one width in a row; the state is the tuple of theirs. Timed if any part is, bounded if all are.

    Raises:
        ValueError: for no parts, parts of different width, or parts that are no mixers.
    """

    ragged = resets = True

    def __init__(self, parts: Iterable[Mixer[Any]]) -> None:
        super().__init__()
        self.parts = cast("Sequence[Mixer[Any]]", nn.ModuleList(parts))
        for part in self.parts:
            if not isinstance(part, Mixer):
                raise ValueError(f"a stack is made of mixers, and {type(part).__name__} is none")
        widths = {part.d_model for part in self.parts}
        if len(widths) != 1:
            raise ValueError(f"a stack needs parts of one width, got {sorted(widths)}")
        self.d_model = widths.pop()
        self.timed = any(part.timed for part in self.parts)
        self.bounded = all(part.bounded for part in self.parts)

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """Hybrids: timed with attention, timed with LSTM, and a stack of one."""
        attention: Mixer[Any] = Attention(4, n_heads=2, window=3)
        return (
            cls([Block(S4D(4, d_state=2)), attention]),
            cls([Block(S4D(4, d_state=2)), Block(LSTM(4))]),
            cls([Attention(4, n_heads=1)]),
        )

    def init_state(self, batch: int) -> tuple[State, ...]:
        """Those of the parts."""
        return tuple(part.init_state(batch) for part in self.parts)

    def canonical(self, state: tuple[State, ...]) -> State:
        """Those of the parts."""
        return tuple(part.canonical(own) for part, own in zip(self.parts, state, strict=True))

    def step(
        self, x: Tensor, state: tuple[State, ...], *, elapsed: Tensor | None = None
    ) -> tuple[Tensor, tuple[State, ...]]:
        """One token: x (B, D)."""
        new: list[State] = []
        for part, own in zip(self.parts, state, strict=True):
            x, own = part.step(x, own, elapsed=elapsed if part.timed else None)
            new.append(own)
        return x, tuple(new)

    def parallel(
        self,
        x: Tensor,
        state: tuple[State, ...],
        *,
        lengths: Tensor | None,
        starts: Tensor | None,
        elapsed: Tensor | None,
    ) -> tuple[Tensor, tuple[State, ...]]:
        """All tokens, part after part; `elapsed` goes to the timed parts alone."""
        new: list[State] = []
        for part, own in zip(self.parts, state, strict=True):
            x, own = part(x, own, lengths=lengths, starts=starts, elapsed=elapsed if part.timed else None)
            new.append(own)
        return x, tuple(new)

    def work(self) -> Work:
        """The sum of the parts."""
        parts = [part.work() for part in self.parts]
        return Work(sum(w.multiply_adds for w in parts), sum(w.bytes for w in parts))


MOST = 500
"""Blocks that a pattern may ask for."""


def pattern(text: str, d_model: int, *, dropout: float = 0.0, eps: float = 1e-6) -> Stack:
    """The stack that a pattern names.

    Args:
        text: words such as `s4d`, `s4d*2`, `attention(window=64)`, `mine.py:MyLayer`.
        d_model: width of every block.
        dropout: on what each block adds.
        eps: what the norms of the blocks add to the mean of squares.

    Raises:
        BadInput: for text that is no pattern, an unknown family or option (the nearest known one is named).

    >>> pattern("s4d*2 attention(window=64)", 8).timed
    True
    """
    parts: list[Mixer[Any]] = []
    for name, options, count in words(text):
        if len(parts) + count > MOST:
            raise BadInput(f"the pattern {text!r} asks for more than {MOST} layers; ask for fewer")
        parts += [Block(_made(name, d_model, options), dropout=dropout, eps=eps) for _ in range(count)]
    if not parts:
        raise BadInput(f"the pattern {text!r} names no layer; families: {', '.join(families())}")
    return Stack(parts)


def family(name: str) -> type[Mixer[Any]]:
    """The class that a word names: a family (capitals and underscores do not matter), `module:Class` or `file.py:Class`.

    Raises:
        BadInput: if there is no such thing, or it is not a mixer.
    """
    if name.endswith(".py"):
        raise BadInput(f"{name}: say which class of the file, as in {name}:MyLayer")
    if ":" not in name:
        known = families()
        plain = name.lower().replace("_", "")
        if plain not in known:
            raise BadInput(f"unknown layer {name!r}; {nearest(name, known)}")
        return known[plain]
    place, _, attribute = name.rpartition(":")
    found = getattr(_module(place), attribute, None)
    if not (inspect.isclass(found) and issubclass(found, Mixer)):
        raise BadInput(f"{place} has no mixer named {attribute!r}")
    return found


def _module(place: str) -> Any:
    """A module by its name, or the file at a path, which can import what stands beside it."""
    path = Path(place if place.endswith(".py") else place.replace(".", "/") + ".py").absolute()
    if place.endswith(".py") and not path.is_file():
        raise BadInput(f"{place}: no such file")
    try:
        as_file = place.endswith(".py") or (
            path.is_file() and importlib.util.find_spec(place.partition(".")[0]) is None
        )
        return _from_file(path) if as_file else importlib.import_module(place)
    except Exception as error:  # whatever a user's file does while it is read
        raise BadInput(f"cannot import {place}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def _from_file(path: Path) -> Any:
    name = f"{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def _made(name: str, d_model: int, options: dict[str, Any]) -> Mixer[Any]:
    if "d_model" in options:
        raise BadInput(f"layer {name!r}: d_model is one for all layers; leave it out of the pattern")
    try:
        return family(name)(d_model, **options)
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError, AssertionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"layer {name!r}: {' '.join(str(error).split())}") from error
