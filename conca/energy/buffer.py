"""A replay buffer: places where chains of earlier updates ended, from which later ones begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from conca.types import BadInput

__all__ = ["ReplayBuffer"]

Start = Callable[[int, torch.Generator], Tensor]


class ReplayBuffer:
    """Keeps `size` places; `draw` hands some out, and `put` writes what became of them back at the same indices.

    >>> import torch
    >>> draw = torch.Generator().manual_seed(0)
    >>> buffer = ReplayBuffer(100, lambda n, g: torch.rand(n, 2, generator=g), generator=draw)
    >>> x, index = buffer.draw(8)
    >>> buffer.put(index, x + 1.0)
    >>> torch.equal(buffer.places[index], x + 1.0)
    True

    No index is drawn twice at once. Of what is drawn, each place is with probability `restart` a fresh one (in place of that
    which is kept, and written back like the others): 1 is short-run from noise, 0 persistent chains that never restart.

    Args:
        size: how many places.
        start: `start(n, generator)` gives n fresh places, (n, ...): how the buffer is filled, and where chains restart.
        restart: probability of a fresh one, from 0 to 1.
        n_classes: parts of (nearly) one size, one per class, from which `draw(n, y=...)` draws; 0: one part.
        generator: of all random numbers here; its state is kept with the places.

    Attributes:
        places: (size, ...), on the device and of the precision of what `start` gives.

    Raises:
        BadInput: for sizes, shares and starts that cannot be.

    Source: Tieleman 2008 for persistent chains; Du & Mordatch 2019 for restarts; Grathwohl et al. 2020 for writing back.
    """

    def __init__(
        self, size: int, start: Start, *, restart: float = 0.05, n_classes: int = 0, generator: torch.Generator
    ) -> None:
        if not isinstance(size, int) or size < 1:
            raise BadInput(f"a buffer keeps one place or more, not {size!r}")
        if not 0 <= restart <= 1:
            raise BadInput(f"restart is a share from 0 to 1, not {restart}")
        if not isinstance(n_classes, int) or not 0 <= n_classes <= size:
            raise BadInput(f"n_classes must lie between 0 and the size, {size}, not {n_classes!r}")
        if not isinstance(generator, torch.Generator):
            raise BadInput("a buffer draws random numbers: pass generator=torch.Generator().manual_seed(seed)")
        self.start, self.restart, self.n_classes, self.generator = start, float(restart), n_classes, generator
        self.places = self._fresh(size)

    def __len__(self) -> int:
        return len(self.places)

    def part(self, label: int) -> range:
        """The indices of a class."""
        edges = [round(len(self) * k / max(1, self.n_classes)) for k in range(max(1, self.n_classes) + 1)]
        return range(edges[label], edges[label + 1])

    def draw(self, n: int, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(places (n, ...), indices (n,)): no index twice.

        Args:
            n: how many, at most as many as there are.
            y: (n,) classes: each place is drawn from the part of its class.

        Raises:
            BadInput: where more are asked for than there are (in a class), or classes do not fit.
        """
        index = self._drawn(n, y)
        x = self.places[index].clone()
        fresh = torch.rand(n, generator=self.generator) < self.restart
        if bool(fresh.any()):
            x[fresh.to(x.device)] = self._fresh(int(fresh.sum()))
        return x, index

    def _drawn(self, n: int, y: Tensor | None) -> Tensor:
        if (y is None) != (self.n_classes == 0):
            wants = "has a part for each class: draw(n, y=labels)" if y is None else "has no classes: draw(n)"
            raise BadInput(f"this buffer {wants}")
        labels = torch.zeros(n, dtype=torch.long) if y is None else y.cpu()
        known = max(1, self.n_classes)
        if labels.shape != (n,) or labels.is_floating_point() or not bool(((labels >= 0) & (labels < known)).all()):
            raise BadInput(f"labels must be {n} whole numbers between 0 and {known - 1}, not {labels.tolist()}")
        index = torch.empty(n, dtype=torch.long)
        for label in sorted(set(labels.tolist())):
            own, part = labels == label, self.part(label)
            if int(own.sum()) > len(part):
                of = "" if y is None else f" of class {label}"
                raise BadInput(f"{int(own.sum())} places{of} are asked for, and the buffer has {len(part)}")
            index[own] = part.start + torch.randperm(len(part), generator=self.generator)[: int(own.sum())]
        return index

    def put(self, index: Tensor, x: Tensor) -> None:
        """Write places (n, ...) at the indices (n,) that they were drawn with. Raises BadInput where they do not fit."""
        if bool(((index < 0) | (index >= len(self))).any()) or len(set(index.tolist())) < len(index):
            raise BadInput(
                f"indices are those that draw gave, each once, from 0 to {len(self) - 1}, not {index.tolist()}"
            )
        if index.shape != x.shape[:1] or x.shape[1:] != self.places.shape[1:]:
            shape = f"({len(index)}, {', '.join(map(str, self.places.shape[1:]))})"
            raise BadInput(f"places of shape {shape} go back at {len(index)} indices, not {tuple(x.shape)}")
        if not bool(x.isfinite().all()):
            raise BadInput("a place that is not finite is not kept")
        self.places[index] = x.detach().to(self.places)

    def _fresh(self, n: int) -> Tensor:
        x = self.start(n, self.generator)
        like = getattr(self, "places", x)
        if not isinstance(x, Tensor) or len(x) != n or x.shape[1:] != like.shape[1:] or not bool(x.isfinite().all()):
            found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise BadInput(
                f"start({n}, generator) must give {n} finite places on the first axis, always of one shape, not {found}"
            )
        return x.detach()

    def state_dict(self) -> dict[str, Tensor]:
        """The places and the state of the generator, copied."""
        return {"places": self.places.clone(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there, with the same draws. Raises BadInput, and changes nothing, unless it is of such a buffer."""
        if state.keys() != {"places", "generator"} or state["places"].shape != self.places.shape:
            found = tuple(state["places"].shape) if "places" in state else sorted(state)
            raise BadInput(f"this is not the state of a buffer of shape {tuple(self.places.shape)}: {found}")
        try:
            self.generator.set_state(state["generator"].cpu())
        except (RuntimeError, TypeError) as error:
            raise BadInput(f"this is not the state of a generator ({error})") from None
        self.places = state["places"].to(self.places, copy=True)
