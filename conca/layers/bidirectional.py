"""Bidirectional: two mixers read a sequence, one from each end, and every output sees all of it.

    y_t = W [ahead(x)_t, reverse(back(reverse(x)))_t]                       or the sum of the two

Schuster and Paliwal, Bidirectional Recurrent Neural Networks, 1997. It is no mixer: it cannot step, for what comes last is read
first. Every row is reversed within its own length and every packed sequence within itself, so the padding stays behind and the result
is that of the sequence alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from conca.layers.mixer import Mixer
from conca.layers.norm import RMSNorm
from conca.layers.rows import inside
from conca.types import nearest

__all__ = ["Bidirectional", "BidirectionalBlock"]

MERGES = ("cat", "sum")


class Bidirectional(nn.Module):
    """Two mixers of one width, one for each direction.

    Args:
        ahead: reads from the first sample to the last; any mixer, stacks and hybrids too.
        back: reads from the last to the first; its parameters are its own unless it is the same object as `ahead`.
        merge: "cat" puts the two outputs side by side, as PyTorch's recurrent networks do, and maps the 2 D numbers back to D;
            "sum" adds them, without parameters.
        bias: of that map.
        device, dtype: of that map; by default those of `ahead`.

    Raises:
        ValueError: for mixers of different width, or an unknown `merge`.
    """

    def __init__(
        self,
        ahead: Mixer[Any],
        back: Mixer[Any],
        *,
        merge: str = "cat",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for mixer in (ahead, back):
            if not isinstance(mixer, Mixer):
                raise ValueError(f"Bidirectional takes two mixers, and {type(mixer).__name__} is none")
        if ahead.d_model != back.d_model:
            raise ValueError(f"Bidirectional needs mixers of one width, got {ahead.d_model} and {back.d_model}")
        if merge not in MERGES:
            raise ValueError(f"unknown merge {merge!r}; {nearest(merge, MERGES)}")
        self.d_model, self.merge = ahead.d_model, merge
        self.ahead, self.back = ahead, back
        self.out = None
        if merge == "cat":
            like = _like(ahead)
            self.out = nn.Linear(
                2 * self.d_model, self.d_model, bias=bias, device=device or like.device, dtype=dtype or like.dtype
            )

    @classmethod
    def of(cls, make: Callable[[], Mixer[Any]], **options: Any) -> Self:
        """Both directions by one maker, called twice: `Bidirectional.of(lambda: pattern("s4d*2", d_model=64))`."""
        return cls(make(), make(), **options)

    @property
    def timed(self) -> bool:
        """Whether `elapsed` is understood: by either direction; the other does not get it."""
        return self.ahead.timed or self.back.timed

    def forward(
        self, x: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None, elapsed: Tensor | None = None
    ) -> Tensor:
        """y (B, T, D) of x (B, T, D); the keywords mean what they mean to a mixer.

        Args:
            lengths: (B,) integers. Past its length a row is 0, whatever stands there.
            starts: (B, T) bool. A new sequence begins here; nothing passes this point, either way.
            elapsed: (B, T), time since the previous sample in nominal steps. A gap lies between two samples, so the way back
                meets it at the earlier one; the first sample that is read of a sequence, from either end, counts as 1.

        Raises:
            ValueError: for shapes that do not fit, and for `elapsed` where neither direction is timed.
        """
        self._check(x, lengths, starts, elapsed)
        begins, ends, mirror = mirrored(x, lengths, starts)
        there = back = None
        if elapsed is not None:
            there = elapsed.masked_fill(begins, 1)
            back = elapsed.roll(-1, 1).masked_fill(ends, 1).gather(1, mirror)
        y, _ = self.ahead(x, lengths=lengths, starts=starts, elapsed=there if self.ahead.timed else None)
        reverse, _ = self.back(
            _taken(x, mirror), lengths=lengths, starts=starts, elapsed=back if self.back.timed else None
        )
        reverse = _taken(reverse, mirror)
        if self.out is None:
            return y + reverse
        merged: Tensor = self.out(torch.cat([y, reverse], -1))
        return merged if lengths is None else merged.masked_fill(~inside(x, lengths)[..., None], 0)

    if TYPE_CHECKING:
        __call__ = forward

    def _check(self, x: Tensor, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None) -> None:
        """What has to hold before anything is reversed; the mixers check the rest."""
        for word, tensor in (("x", x), ("lengths", lengths), ("starts", starts), ("elapsed", elapsed)):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise ValueError(f"Bidirectional: {word} must be a tensor, got {type(tensor).__name__}")
        if x.dim() != 3 or x.shape[2] != self.d_model:
            raise ValueError(f"Bidirectional: expected x of shape (batch, time, {self.d_model}), got {tuple(x.shape)}")
        if elapsed is not None and not self.timed:
            raise ValueError("Bidirectional: neither direction understands elapsed")
        for word, tensor, shape in (
            ("lengths", lengths, x.shape[:1]),
            ("starts", starts, x.shape[:2]),
            ("elapsed", elapsed, x.shape[:2]),
        ):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"Bidirectional: expected {word} of shape {tuple(shape)}, got {tuple(tensor.shape)}")
        if starts is not None and starts.dtype != torch.bool:
            raise ValueError(f"Bidirectional: expected starts of dtype bool, got {starts.dtype}")


class BidirectionalBlock(nn.Module):
    """A pre-norm residual block around a bidirectional layer, x + dropout(inner(norm(x))); blocks in a row make an encoder.

    Args:
        inner: the bidirectional layer.
        dropout: on what it adds.

    Raises:
        ValueError: for anything else than a bidirectional layer.
    """

    def __init__(self, inner: Bidirectional, *, dropout: float = 0.0) -> None:
        super().__init__()
        if not isinstance(inner, Bidirectional):
            raise ValueError(f"BidirectionalBlock takes a Bidirectional, and {type(inner).__name__} is none")
        self.d_model = inner.d_model
        self.norm = RMSNorm(inner.d_model, eps=1e-6, device=_like(inner).device)
        self.inner = inner
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None, elapsed: Tensor | None = None
    ) -> Tensor:
        """y (B, T, D) of x (B, T, D); `elapsed` goes on to a timed layer alone. Past its length a row is 0."""
        if lengths is not None and lengths.shape == x.shape[:1]:
            x = x.masked_fill(~inside(x, lengths)[..., None], 0)
        options = {"lengths": lengths, "starts": starts, "elapsed": elapsed if self.inner.timed else None}
        y: Tensor = x + self.dropout(self.inner(self.norm(x), **options))
        return y

    if TYPE_CHECKING:
        __call__ = forward


def mirrored(x_BTD: Tensor, lengths_B: Tensor | None, starts_BT: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Where sequences begin and where they end, bool (B, T), and the index (B, T) that turns each of them round in its place.

    The padding keeps its place. Turning round twice changes nothing.
    """
    B, T = x_BTD.shape[:2]
    at = torch.arange(T, device=x_BTD.device).expand(B, T)
    live = at < (T if lengths_B is None else lengths_B[:, None])
    begins = (at == 0) & live
    if starts_BT is not None:
        begins = begins | (starts_BT & live)
    ends = live & (begins.roll(-1, 1) | (at == (T if lengths_B is None else lengths_B[:, None]) - 1))
    if T == 0:
        return begins, ends, at
    begin = torch.where(begins, at, 0).cummax(1).values
    end = torch.where(ends, at, T - 1).flip(1).cummin(1).values.flip(1)
    return begins, ends, torch.where(live, begin + end - at, at)


def _taken(x_BTD: Tensor, index_BT: Tensor) -> Tensor:
    return x_BTD.gather(1, index_BT[..., None].expand_as(x_BTD))


def _like(module: nn.Module) -> Tensor:
    """A tensor of the device and the type of a module's parameters; of those that are narrowest, since recurrences stay wide."""
    return min(
        (p.detach() for p in module.parameters() if p.is_floating_point()),
        key=Tensor.element_size,
        default=torch.empty(0),
    )
