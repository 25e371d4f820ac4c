"""A classifier's network: a stack reads a sequence, and the mean of what it says over all steps so far says the class.

    h_t, state = stack(W (x_t - mean) / scale, state)                      or, of symbols, stack(embedding of x_t, state)
    logits_t = head(1/t sum_{s <= t} norm(h_s))

So there is an answer after every step, and reading step by step gives what reading at once gives. Where both directions are read,
there is an answer for whole sequences alone. The mean over time as the summary of a sequence: Gu, Goel and Re, Efficiently Modeling
Long Sequences with Structured State Spaces, 2022, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from conca.layers.norm import RMSNorm
from conca.models.description import Description
from conca.models.encoder import Encoder
from conca.models.stack import Stack, pattern
from conca.types import BadInput, State

__all__ = ["ClassifyNetwork", "ClassifyNetworkConfig", "ClassifyState", "rescaled"]


@dataclass(frozen=True)
class ClassifyNetworkConfig(Description):
    """What a network is made of.

    channels       numbers in a step
    symbols        size of the vocabulary where steps are symbols; 0: they are numbers
    classes        how many
    layers         pattern of the stack, such as "s4d*4"
    d_model        its width
    dropout        on what a block adds
    bidirectional  whether every block reads backward too
    """

    channels: int
    symbols: int
    classes: int
    layers: str
    d_model: int
    dropout: float = 0.0
    bidirectional: bool = False


class ClassifyState(NamedTuple):
    """What has been read: the state of the layers, the sum of what they said, and over how many steps."""

    stack: tuple[State, ...]
    sum_BD: Tensor
    count_B: Tensor


class ClassifyNetwork(nn.Module):
    """Logits of classes, of whole sequences or after every step; state goes in and comes out.

    Steps are numbers, x (B, T, C), as they were measured (`mean` and `scale`, buffers, bring them to size; what is missing, NaN,
    counts as the mean), or symbols, x (B, T) of integers.

    Args:
        config: see `ClassifyNetworkConfig`.

    Raises:
        BadInput: for a pattern that cannot be built.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, config: ClassifyNetworkConfig) -> None:
        super().__init__()
        self.config = config
        width = config.d_model
        self.enter = nn.Embedding(config.symbols, width) if config.symbols else nn.Linear(config.channels, width)
        options: dict[str, Any] = {"dropout": config.dropout}
        self.encoder = Encoder(config.layers, width, **options) if config.bidirectional else None
        self.stack = None if config.bidirectional else pattern(config.layers, width, **options)
        self.norm = RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, config.classes)
        self.register_buffer("mean", torch.zeros(config.channels, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(config.channels, dtype=torch.float64))
        if any(p.is_meta for p in self.parameters()):
            raise BadInput(f"layers {config.layers!r}: the parameters are nowhere; name another device, or none")
        self.to("cpu", torch.float32)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """As of any module, but what brings numbers to size stays in double precision, wherever it goes."""
        before = self.mean, self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.mean, self.scale = (old.to(new.device) for old, new in zip(before, (self.mean, self.scale), strict=True))
        return self

    @property
    def bounded(self) -> bool:
        """Whether the state does not grow."""
        return self.stack is not None and self.stack.bounded

    def init_state(self, batch: int) -> ClassifyState:
        """The state of `batch` sequences of which nothing has been read. Raises BadInput where both directions are read."""
        empty = self.head.weight.new_zeros(batch, self.config.d_model)
        return ClassifyState(self.causal.init_state(batch), empty, empty.new_zeros(batch, dtype=torch.int64))

    @property
    def causal(self) -> Stack:
        """The layers that go step by step. Raises BadInput where both directions are read."""
        return self._whole() if self.stack is None else self.stack

    def _whole(self) -> NoReturn:
        raise BadInput(
            "a bidirectional classifier reads whole sequences, and has no answer after a step; fit a causal one"
        )

    def entered(self, x: Tensor) -> Tensor:
        """What the layers read, (..., D): of numbers (..., C) or symbols (...).

        Numbers are brought to size in double precision: what is far from zero and varies little keeps its digits.
        """
        if self.config.symbols:
            found: Tensor = self.enter(x)
        else:
            sized = ((x.double() - self.mean) / self.scale).nan_to_num(nan=0.0)
            found = self.enter(sized.to(self.enter.weight.dtype))
        return found

    def read(
        self, x: Tensor, state: ClassifyState | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, ClassifyState | None]:
        """Logits (B, K) of what has been read, and the state (None where both directions are read).

        Args:
            x: (B, T, C) numbers, or (B, T) symbols.
            state: what was read before.
            lengths: (B,) of right-padded rows.
        """
        if self.encoder is not None:
            if state is not None:
                self._whole()
            h = self.norm(self.encoder(self.entered(x), lengths=lengths))
            count = h.new_full((len(h),), h.shape[1]) if lengths is None else lengths
            return self.answer(h.sum(1), count), None
        h, before, stack = self._read(x, state, lengths)
        count = before.count_B + (x.shape[1] if lengths is None else lengths)
        after = ClassifyState(stack, before.sum_BD + h.sum(1), count)
        return self.answer(after.sum_BD, after.count_B), after

    def at(self, x: Tensor, places: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Logits (B, P, K) after the first places (B, P) steps of each row; arguments as in `read`, nothing read before."""
        h, _, _ = self._read(x, None, lengths)
        sums = torch.nn.functional.pad(h.cumsum(1), (0, 0, 1, 0))
        return self.answer(sums.gather(1, places[..., None].expand(-1, -1, h.shape[-1])), places)

    def every(
        self, x: Tensor, state: ClassifyState | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, ClassifyState]:
        """Logits (B, T, K) after every step, and the state; arguments as in `read`. Past its length a row repeats itself."""
        h, before, stack = self._read(x, state, lengths)
        steps = torch.arange(1, x.shape[1] + 1, device=x.device).expand(len(x), -1)
        steps = steps if lengths is None else torch.minimum(steps, lengths[:, None])
        sums, counts = before.sum_BD[:, None] + h.cumsum(1), before.count_B[:, None] + steps
        last = before.count_B + (x.shape[1] if lengths is None else lengths)
        return self.answer(sums, counts), ClassifyState(stack, before.sum_BD + h.sum(1), last)

    def _read(
        self, x: Tensor, state: ClassifyState | None, lengths: Tensor | None
    ) -> tuple[Tensor, ClassifyState, tuple[State, ...]]:
        """What the layers say (B, T, D), 0 past the lengths; the state before, and that of the layers after."""
        before = self.init_state(len(x)) if state is None else state
        h, after = self.causal(self.entered(x), before.stack, lengths=lengths)
        return self.norm(h), before, after

    def step(self, x: Tensor, state: ClassifyState) -> tuple[Tensor, ClassifyState]:
        """One step of each sequence, by the step of the layers: x (B, C), or symbols (B,), gives logits (B, K)."""
        h, stack = self.causal.step(self.entered(x), state.stack)
        state = ClassifyState(stack, state.sum_BD + self.norm(h), state.count_B + 1)
        return self.answer(state.sum_BD, state.count_B), state

    def answer(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Logits (..., K) of sums (..., D) over counts (...) of steps; of no steps, those of an empty sum."""
        found: Tensor = self.head(sums / counts.clamp(min=1)[..., None])
        return found

    def forward(self, x: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Logits (B, K) of whole sequences, as `read` gives them."""
        return self.read(x, lengths=lengths)[0]


@contextmanager
def rescaled(network: nn.Module, factor: float) -> Iterator[None]:
    """In the block, every time scale of the layers is `factor` times as long: 2 reads sequences of half the sampling rate.

    Raises:
        BadInput: if the factor is not positive, or no layer has a time scale.
    """
    layers: list[Any] = [part for part in network.modules() if hasattr(part, "step_rescale")]
    if not 0 < factor < float("inf"):
        raise BadInput(f"step_rescale must be a positive number, not {factor!r}")
    if factor != 1 and not layers:
        raise BadInput(
            "no layer of this network has a time scale, so it reads one sampling rate; resample the data to it"
        )
    before = [part.step_rescale for part in layers]
    try:
        for part in layers:
            part.step_rescale *= factor
        yield
    finally:
        for part, value in zip(layers, before):
            part.step_rescale = value
