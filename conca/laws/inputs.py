"""What the laws feed to a mixer: seeded inputs, warm states, times, lengths and starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conca.layers.mixer import Mixer
from conca.layers.states import leaves, tree_map

__all__ = [
    "BATCH",
    "CHUNK",
    "FORMS",
    "LENGTHS",
    "LONG",
    "drawn",
    "fresh_leaf",
    "gradients",
    "leaf_tensors",
    "starts",
    "times",
    "warm",
]

BATCH = 3
CHUNK = 4
LENGTHS = (0, 1, 3, 7, 17)
"""Nothing, one token, less than a chunk, odd and prime, several chunks and one more."""
LONG = 131
"""Beyond two chunks of 64, where a body may have its own."""

Form = Callable[..., tuple[Tensor, Any]]
FORMS: dict[str, Form] = {
    "forward": lambda mixer, *args, **options: mixer(*args, **options),
    "recurrent": lambda mixer, *args, **options: mixer.recurrent(*args, **options),
    "chunked": lambda mixer, *args, **options: mixer.chunked(*args, size=CHUNK, **options),
}


def _like(mixer: Mixer[Any]) -> Tensor:
    return next((p for p in mixer.parameters() if p.is_floating_point()), torch.zeros(()))


def drawn(mixer: Mixer[Any], T: int, seed: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    """Standard normal input (3, T, D), the same for the same T and seed."""
    like = _like(mixer)
    generator = torch.Generator().manual_seed(1000 * seed + T)
    x = torch.randn(BATCH, T, mixer.d_model, generator=generator, dtype=torch.float64)
    return x.to(device=like.device, dtype=dtype or like.dtype)


def warm(mixer: Mixer[Any], dtype: torch.dtype | None = None) -> Any:
    """A state after 5, 2 and 4 tokens."""
    x = drawn(mixer, 5, seed=99, dtype=dtype)
    with torch.no_grad():
        return mixer(x, lengths=torch.tensor([5, 2, 4], device=x.device))[1]


def times(mixer: Mixer[Any], T: int) -> dict[str, Tensor]:
    """`elapsed` for a timed mixer, between 0 and 3 nominal steps; nothing for others."""
    if not mixer.timed:
        return {}
    like = _like(mixer)
    generator = torch.Generator().manual_seed(5)
    return {"elapsed": (3 * torch.rand(BATCH, T, generator=generator, dtype=torch.float64)).to(like)}


def starts(T: int, device: torch.device | None = None) -> Tensor:
    """Starts of packed sequences: scattered, none at all, and two at once with one on the last token."""
    found = torch.rand(BATCH, T, generator=torch.Generator().manual_seed(3)) < 0.3
    if T > 3:
        found[0, :2], found[1], found[2, -1] = True, False, True
    return found.to(device)


def leaf_tensors(state: Any) -> list[Tensor]:
    """The real tensors of a state, through which gradients can pass."""
    return [leaf for leaf in leaves(state) if leaf.is_floating_point()]


def fresh_leaf(state: Any) -> Any:
    """A copy of a state whose real tensors ask for gradients."""

    def own(leaf: Tensor) -> Tensor:
        copy = leaf.detach().clone()
        return copy.requires_grad_() if copy.is_floating_point() else copy

    return tree_map(own, state)


def gradients(total: Tensor, wanted: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of `total` to each tensor; zeros where it does not depend on them."""
    if not total.requires_grad:
        return tuple(torch.zeros_like(t) for t in wanted)
    return torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
