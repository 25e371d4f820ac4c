"""What the layers learned to remember: impulse responses, time scales and periods, read from their weights."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from conca.data.grid import Grid
from conca.infer.fitted import Fitted
from conca.layers.bidirectional import BidirectionalBlock
from conca.layers.lstm import LSTM
from conca.layers.mamba import Mamba
from conca.layers.mamba2 import Mamba2
from conca.layers.mamba3 import Mamba3
from conca.models.structural import Structural
from conca.report import components, response
from conca.report.drawing import COLOURS, SOFT, canvas, key, label, logarithmic, svg_of
from conca.report.page import Chapter, Picture, Table
from conca.report.words import aligned, number, span

__all__ = [
    "StateSpace",
    "chapter",
    "forget_times",
    "kernel",
    "layers_of",
    "periods",
    "resting_times",
    "time_scales",
    "weights",
]

Floats = NDArray[np.float64]

TITLE = "What it remembers"
READING = (
    "First measured, whatever the layers are: a series stands still at its mean, one past value is raised, and the median forecast "
    "moves by a share of that. How slowly the lines fall says how long the model remembers. The forecast itself starts from the "
    "last known value{seasons}: what was there counts for much, whatever the layers remember."
)
SEASONS = ", corrected by what came {rows} rows before each step, as far as the table has such a season"
SSM = (
    "A state-space layer is many small memories side by side. Each answers an impulse by a curve of its own, and forgets at a "
    "rate of its own: after one time scale 37% of what came in is left."
)
GATES = (
    "An LSTM keeps a share of each cell from row to row. How large a share depends on the input, so cells may be held for much "
    "longer; the weights tell how fast a cell forgets on its own, while nothing comes in: after its time 37% of it is left."
)
SELECTIVE = (
    "A selective layer decides at every row how fast each memory forgets, and may hold it for much longer or drop it at once; the "
    "weights tell how fast it fades where the row has no say in that: after its time 37% of it is left."
)
CELLS, MEMORIES = "time of a cell", "time of a memory"
LAYERS, CHANNELS, TARGETS, LONGEST = 4, 3, 2, 1024


@runtime_checkable
class StateSpace(Protocol):
    """A layer whose memory is a linear system that does not change with time: S4D, S4, S5, LSSL, or one of the user's own."""

    def poles(self) -> Tensor:
        """Eigenvalues times time scales, complex (groups, modes): of each channel, or of a system that all channels share."""

    def kernel(self, length: int, /) -> Tensor:
        """What each channel answers to an impulse in it, (D, length), without the direct path."""


def layers_of(stack: nn.Module, family: type[Any] | UnionType) -> list[tuple[str, Any]]:
    """Layers of one family in a stack, with names such as "layer 2"; where two read both ways, "layer 2 backward" is one."""
    found = []
    for place, part in enumerate(getattr(stack, "parts", [stack]), 1):
        both = isinstance(part, BidirectionalBlock)
        ways = (("", part),) if not both else ((" forward", part.inner.ahead), (" backward", part.inner.back))
        for way, inside in ways:
            found += [(f"layer {place}{way}", module) for module in inside.modules() if isinstance(module, family)]
    return found


def kernel(layer: StateSpace, channels: Sequence[int], rows: int) -> Floats:
    """Impulse responses (channels, rows) of the state: 2 Re(C h_t) after a single input of 1; the direct path is not in it."""
    with torch.no_grad():
        found: Tensor = layer.kernel(rows)[list(channels)]
    return np.asarray(found.double().cpu().numpy())


def time_scales(layer: StateSpace) -> Floats:
    """Rows (groups, modes) after which e^-1 of an input is left in each mode: 1 / (-Re A dt); infinite where it does not fade."""
    decay = -poles_of(layer).real
    found: Floats = np.divide(1.0, decay, out=np.full(decay.shape, np.inf), where=decay > 0)
    return found


def periods(layer: StateSpace) -> Floats:
    """Rows (groups, modes) of one turn of each mode, 2 pi / |Im A dt|; infinite where it does not turn."""
    turn = np.abs(poles_of(layer).imag)
    found: Floats = np.divide(2 * np.pi, turn, out=np.full(turn.shape, np.inf), where=turn > 0)
    return found


def poles_of(layer: StateSpace) -> NDArray[np.complex128]:
    """As numbers of NumPy."""
    with torch.no_grad():
        return np.asarray(layer.poles().to(torch.complex128).cpu().numpy())


def forget_times(layer: LSTM) -> Floats:
    """Rows (D,) in which a cell at rest loses all but e^-1: -1 / ln f, f the forget gate for input and output 0."""
    core: Any = layer.core
    width = layer.d_model
    if not core.bias:
        return np.full(width, 1 / np.log(2))
    with torch.no_grad():
        bias = (core.bias_ih_l0 + core.bias_hh_l0)[width : 2 * width].double()
        return np.asarray((-1 / torch.nn.functional.logsigmoid(bias)).numpy())


@torch.no_grad()
def resting_times(layer: Mamba | Mamba2 | Mamba3) -> Floats:
    """Rows in which a memory (of a state, or of a head) loses all but e^-1, 1 / (-A dt), where the row adds nothing to dt and A."""
    dt = torch.nn.functional.softplus(layer.dt_bias.double())
    if isinstance(layer, Mamba2):
        dt = dt.clamp(*layer.decay.limit)
    if isinstance(layer, Mamba3):
        decay = -layer.decay.of(torch.zeros_like(dt)) * dt
    else:
        decay = layer.A_log.double().exp() * (dt[:, None] if isinstance(layer, Mamba) else dt)
    return np.asarray((1 / decay).flatten().cpu().numpy())


def chapter(fitted: Fitted) -> Chapter:
    """The measured response of the whole network, and what the weights of the first member say."""
    grid, tower = fitted.schema.grid, fitted.network.towers[0]
    rows = " and ".join(map(str, fitted.encoding.anchor.seasons))
    parts: list[str | Picture | Table] = [READING.format(seasons=SEASONS.format(rows=rows) if rows else "")]
    for target, name in enumerate(fitted.schema.target[:TARGETS]):
        parts.append(response.picture(response.response(fitted, target), name, grid, f"response-{target}"))
    if isinstance(tower, Structural):
        found = components.table(tower, fitted.schema.target, fitted.encoding.cycles)
        return Chapter(TITLE, [*parts, components.READING, found])
    assert isinstance(tower.stack, nn.Module)
    return Chapter(TITLE, [*parts, *weights(tower.stack, grid)])


def weights(stack: nn.Module, grid: Grid) -> list[str | Picture | Table]:
    """What the weights of a stack, or of an encoder that reads both ways, say; `grid` says how far apart rows are."""
    parts: list[str | Picture | Table] = []
    if spaces := layers_of(stack, StateSpace):
        parts += [SSM, *(impulses(layer, name, grid) for name, layer in spaces[:LAYERS])]
        scales = [(name, time_scales(layer).ravel()) for name, layer in spaces]
        turns = [(name, periods(layer).ravel()) for name, layer in spaces]
        parts += [spread(scales, "time scale", grid), spread(turns, "period", grid), table(scales, turns)]
    if gates := layers_of(stack, LSTM):
        times = [(name, forget_times(layer)) for name, layer in gates]
        parts += [GATES, spread(times, CELLS, grid), table(times)]
    if selective := layers_of(stack, Mamba | Mamba2 | Mamba3):
        times = [(name, resting_times(layer)) for name, layer in selective]
        parts += [SELECTIVE, spread(times, MEMORIES, grid), table(times)]
    if not spaces and not gates and not selective:
        parts.append("The layers of this network have no time scales that could be read from their weights.")
    return parts


def impulses(layer: StateSpace, name: str, grid: Grid) -> Picture:
    """Kernels of a few channels, from the slowest to the fastest, each divided by its largest value."""
    width: int = getattr(layer, "d_model", 1)
    scales = np.broadcast_to(np.median(time_scales(layer), axis=1), width)
    order = np.argsort(-scales, kind="stable")
    chosen = [int(order[i]) for i in np.unique(np.linspace(0, len(order) - 1, CHANNELS).astype(int))]
    figure, panels = canvas(len(chosen), 1.3)
    for axes, colour, channel in zip(panels, COLOURS, chosen):
        rows = int(np.clip(3 * scales[channel], 16, LONGEST))
        line = kernel(layer, [channel], rows)[0]
        axes.axhline(0, color=SOFT, lw=0.6)
        axes.plot(np.arange(rows), line, color=colour, lw=0.9)
        label(axes, "", "", f"median time scale {span(scales[channel], grid)}")
    label(panels[-1], "rows since the impulse", "", panels[-1].get_title(loc="left"))
    slow, fast = (span(scales[chosen[i]], grid) for i in (0, -1))
    words = f"{name}, impulse responses of {len(chosen)} of {len(order)} channels, each over three of its median time scales "
    words += f"(at most {LONGEST:,} rows): "
    words += f"{slow} in the slowest, {fast} in the fastest." if slow != fast else f"{slow}."
    return Picture(
        svg_of(figure, f"kernel-{name.replace(' ', '-')}"), f"Impulse responses. {words}", words[0].upper() + words[1:]
    )


def spread(found: Sequence[tuple[str, Floats]], what: str, grid: Grid) -> Picture:
    """How the time scales or periods of the layers are spread, on a logarithmic axis where they differ much."""
    every = np.concatenate([values[np.isfinite(values)] for _, values in found])
    low, high = (every.min(), every.max()) if every.size else (1.0, 1.0)
    wide = high > 10 * low
    edges = (np.geomspace if wide else np.linspace)(low * 0.98, high * 1.02, 31)
    figure, (axes,) = canvas(height=2.3)
    for place, (name, values) in enumerate(found[: len(COLOURS)]):
        finite = values[np.isfinite(values)]
        colour = COLOURS[place % len(COLOURS)]
        axes.hist(finite, bins=edges.tolist(), histtype="step", lw=1.4, color=colour, label=name)
    if wide:
        logarithmic(axes)
    label(axes, f"{what} in rows", "how many")
    key(axes, 4)
    middle = float(np.median(every)) if every.size else float("nan")
    ends = f"{number(low, 3)} to {number(high, 3)} rows"
    half = number(middle, 3) + (f" ({span(middle, grid)})" if grid.seconds and middle >= 2 else "")
    words = f"{what[0].upper()}{what[1:]}: from {ends}, half of them beyond {half}."
    if what == MEMORIES:
        words = f"Memories fade within {ends} where a row has no say, half of them in more than {half}."
    if what == CELLS:
        words = f"Cells forget within {ends} on their own, half of them in more than {half}."
    if what == "period":
        words += " A period of less than 2 rows cannot be told from a longer one."
    return Picture(svg_of(figure, what.replace(" ", "-")), f"Distribution. {words}", words)


def table(scales: Sequence[tuple[str, Floats]], turns: Sequence[tuple[str, Floats]] = ()) -> Table:
    """Rows that 10%, 50% and 90% of the time scales of each layer are below, and the median period."""
    columns = [aligned([float(np.quantile(values, share)) for _, values in scales]) for share in (0.1, 0.5, 0.9)]
    if turns:
        columns.append(aligned([float(np.median(values)) for _, values in turns]))
    headings = ["rows", "10% below", "50%", "90%", *(["median period"] if turns else [])]
    return Table(headings, [[name, *row] for (name, _), *row in zip(scales, *columns)])
