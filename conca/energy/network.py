"""Energies that are learnt: a network gives the number; and the check that its rows do not interact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from conca.energy.chain import undisturbed
from conca.energy.energy import Energy
from conca.types import BadInput

__all__ = ["Learnt", "NetworkEnergy", "rows_apart"]

ROWS = 4
"""Of the batch by which a network is tried."""


class Learnt(Energy):
    """An energy around a network that reads points of one shape: what `NetworkEnergy` and `ClassifierEnergy` share.

    Args:
        net: reads x, (B, *shape), in the precision of its parameters.
        shape: of one point.
        frozen: keep the network in eval mode, whatever `train()` says: batch norms then use what they have stored.

    Raises:
        BadInput: where rows of the network interact (`rows_apart`), or it cannot read such points.
    """

    def __init__(self, net: nn.Module, shape: tuple[int, ...], *, frozen: bool = False) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise BadInput(f"{type(self).__name__} is made around a torch.nn.Module, not a {type(net).__name__}")
        if not isinstance(shape, tuple) or not all(isinstance(n, int) and n > 0 for n in shape):
            raise BadInput(f"the shape of one point is a tuple of whole numbers, such as (2,), not {shape!r}")
        self.shape, self.frozen = shape, frozen
        self.net = net.eval() if frozen else net
        rows_apart(net, self.shape, training=not frozen)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            self.net.eval()
        return self

    def asked(self, x: Tensor) -> Tensor:
        """What the network says of x, (B, ...); raises BadInput where x is of another shape or precision."""
        if tuple(x.shape[1:]) != self.shape:
            shape = ", ".join(["B", *map(str, self.shape or ())])
            raise BadInput(f"this {type(self).__name__} reads x of shape ({shape}), not {tuple(x.shape)}")
        if self.frozen and self.net.training:
            self.net.eval()
        dtype = _dtype(self.net)
        if dtype is not None and x.dtype != dtype:
            raise BadInput(f"this network is of {dtype}, x of {x.dtype}: use x.to({dtype}), or .to() on both")
        return value_of(self.net(x))


class NetworkEnergy(Learnt):
    """E(x) = net(x): a network that gives one number per row, shape (B,) or (B, 1).

    >>> import torch
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 1))
    >>> NetworkEnergy(net, (2,)).score(torch.zeros(3, 2)).shape
    torch.Size([3, 2])

    Smooth activations (SiLU, softplus) give slopes that chains can follow; spectral norm on every layer
    (`torch.nn.utils.parametrizations.spectral_norm`) bounds them, which keeps training stable. Arguments and errors as in
    `Learnt`.
    """

    @classmethod
    def samples(cls) -> tuple[Energy, ...]:
        """A plane, and a tiny image by a convolution."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            plane = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1))
            image = nn.Sequential(
                nn.Conv2d(1, 3, 2), nn.Softplus(), nn.Flatten(0), nn.Unflatten(0, (-1, 3)), nn.Linear(3, 1)
            )
        return cls(plane, (2,)), cls(image, (1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        energy = self.asked(x)
        return energy[:, 0] if energy.dim() == 2 and energy.shape[1] == 1 else energy


def rows_apart(net: nn.Module, shape: tuple[int, ...], *, training: bool = True) -> None:
    """Raise BadInput, naming the module, where what a network says of one row depends on the others.

    Batch norms are found by their kind, means over the batch by trying: a batch of four goes through the network twice, in
    the second with other rows around the first; the first module, as they are run, that says something else of an input
    that was the same is named.

    Args:
        net: the network; modes, buffers and the random state are as before afterwards.
        shape: of one point.
        training: try it in training mode (else in eval mode, in which batch norms use what they have stored).
    """
    if training:
        for name, module in net.named_modules():
            if isinstance(module, _BatchNorm):
                raise BadInput(
                    f"rows of a batch interact in '{name or 'the network'}', a {type(module).__name__}; use GroupNorm or "
                    "LayerNorm, or frozen=True for a network that is not trained any more"
                )
    draw = torch.Generator().manual_seed(0)
    dtype = _dtype(net) or torch.get_default_dtype()
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    x, others = (torch.randn(ROWS, *shape, generator=draw).to(device, dtype) for _ in range(2))
    others[0] = x[0]
    seen = [_watched(net, batch, training) for batch in (x, others)]
    for (name, kind, given, said), (_, _, given_too, said_too) in zip(*seen):
        if _alike(given, given_too) and not _alike(said, said_too):
            where = f"'{name}', a {kind}" if name else f"the network, a {kind}, outside of its modules"
            raise BadInput(
                f"rows of a batch interact in {where}; use what looks at one row alone, such as LayerNorm or GroupNorm"
            )


Seen = tuple[str, str, Tensor | None, Tensor | None]


def _watched(net: nn.Module, x: Tensor, training: bool) -> list[Seen]:
    """Module by module, as they end: name, kind, and the first row of what it read and said."""
    seen: list[Seen] = []

    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            given = args[0] if len(args) == 1 else None  # of several, any may have brought the others in
            seen.append((name, type(module).__name__, _first(given), _first(value_of(output))))

        return hook

    with torch.no_grad(), undisturbed(net, x), _hooked(net, watch):
        net.train(training)
        torch.manual_seed(0)
        try:
            net(x)
        except RuntimeError as error:
            what = " ".join(str(error).split())
            raise BadInput(f"the network cannot read x of shape {tuple(x.shape)} of {x.dtype}: {what}") from error
    return seen


@contextmanager
def _hooked(net: nn.Module, watch: Callable[[str], Any]) -> Iterator[None]:
    handles = [module.register_forward_hook(watch(name)) for name, module in net.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first(value: Any) -> Tensor | None:
    """The first of four rows, also where axes of rows were joined with others; None where there are no rows."""
    if not isinstance(value, Tensor) or value.dim() == 0 or len(value) % ROWS or not len(value):
        return None
    return value[: len(value) // ROWS].clone()


def _alike(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    close: bool = (
        torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) if a.is_floating_point() else torch.equal(a, b)
    )
    return close


def value_of(said: Any) -> Tensor:
    """What a network says: a tensor, or the first of a pair (with a state, as sequence layers give it), or `.logits`."""
    if isinstance(said, Tensor):
        return said
    if hasattr(said, "logits"):
        return value_of(said.logits)
    if isinstance(said, tuple) and said:
        return value_of(said[0])
    raise BadInput(f"a network must give a tensor, not a {type(said).__name__}")


def _dtype(net: nn.Module) -> torch.dtype | None:
    """The precision of its parameters; None where it has none, so that any will do."""
    return next((p.dtype for p in net.parameters() if p.is_floating_point()), None)
