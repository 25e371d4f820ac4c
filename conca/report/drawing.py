"""Drawings: figures of one size and look, as SVG whose colours follow the page that holds them.

No text of the user goes into a drawing: names stand beside it, in HTML, where they are escaped and wrap. So there is no dollar
sign to be read as mathematics, and no letter that the font lacks.
"""

from __future__ import annotations

import io
import re
from itertools import count
from threading import Lock
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

__all__ = [
    "COLOURS",
    "INK",
    "SOFT",
    "TEXT",
    "canvas",
    "dated",
    "key",
    "label",
    "logarithmic",
    "observed",
    "svg_of",
    "whole_steps",
]

INK, SOFT, RULE = "#1d2330", "#667085", "#d5d9e0"
COLOURS = ("#1f6fb2", "#c8501e", "#2e8b57", "#7d4fb3", "#8a6d1a", "#b03a6f")
"""Of lines; the first belongs to the model."""
NAMES = ("one", "two", "three", "four", "five", "six")
VARIABLES = {INK: "ink", SOFT: "soft", RULE: "rule", **dict(zip(COLOURS, NAMES))}
WIDTH, HEIGHT, TEXT = 4.3, 2.75, 9.0
"""Inches and points: on a phone a point is about a pixel."""

_drawing = Lock()
_numbers = re.compile(r'\b(id="|xlink:href="#|href="#|url\(#)([^")]+)')


def canvas(rows: int = 1, height: float = HEIGHT, **shared: Any) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels below each other, `height` inches each."""
    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    figure.patch.set_alpha(0.0)
    panels = figure.subplots(rows, 1, squeeze=False, **shared)[:, 0]
    for axes in panels:
        axes.patch.set_alpha(0.0)
        axes.tick_params(labelsize=TEXT, colors=SOFT, length=2.5, width=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(SOFT)
            axes.spines[side].set_linewidth(0.6)
        axes.yaxis.set_major_formatter("{x:g}")  # no power of ten above the axis, where the key stands
        axes.grid(True, color=RULE, linewidth=0.5)
        axes.set_axisbelow(True)
    return figure, list(panels)


def label(axes: Axes, across: str, up: str, title: str = "") -> None:
    """The words at the axes."""
    axes.set_xlabel(across, fontsize=TEXT, color=INK, parse_math=False)
    axes.set_ylabel(up, fontsize=TEXT, color=INK, parse_math=False)
    if title:
        axes.set_title(title, fontsize=TEXT + 0.5, color=INK, loc="left", parse_math=False)


def key(axes: Axes, columns: int = 2) -> None:
    """What the lines mean, above the panel, so that it hides nothing."""
    handles, names = axes.get_legend_handles_labels()
    if names:
        axes.legend(
            handles,
            names,
            fontsize=TEXT - 0.5,
            labelcolor=INK,
            frameon=False,
            ncols=columns,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            borderaxespad=0.1,
            handlelength=1.4,
            columnspacing=1.2,
        )


def observed(axes: Axes, expected: NDArray[Any], found: NDArray[Any], bars: NDArray[Any]) -> None:
    """Shares that were found, with error bars, over those that were to be expected; where they agree is a diagonal."""
    axes.plot([0, 1], [0, 1], color=SOFT, lw=1.0, ls="--", label="right")
    style: dict[str, Any] = {"fmt": "o-", "color": COLOURS[0], "ms": 4, "lw": 1.4, "elinewidth": 1.0, "capsize": 3}
    axes.errorbar(expected, found, yerr=bars, label="observed", **style)


def whole_steps(axes: Axes) -> None:
    """Whole numbers along the x axis."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))


def dated(axes: Axes) -> None:
    """Dates along the x axis."""
    dates = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(dates)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(dates))  # type: ignore[no-untyped-call]
    axes.xaxis.get_offset_text().set(color=SOFT, fontsize=TEXT)


def logarithmic(axes: Axes) -> None:
    """A logarithmic x axis with plain numbers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()


def svg_of(figure: Figure, name: str) -> str:
    """A figure as an SVG element for a page; `name`, unlike that of any other, goes before the identifiers inside it.

    Matplotlib draws one figure at a time, whatever thread asks.
    """
    text = drawn(figure)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg [^>]*?) ?width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?) ?height="[^"]*"', r"\1", text, count=1)
    return coloured(renamed(text, name))


def drawn(figure: Figure) -> str:
    """A figure as Matplotlib writes it, without what comes before the element; drawn once, where `savefig` draws twice."""
    stream = io.StringIO()
    with _drawing:
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            figure.set_layout_engine("none")
        FigureCanvasSVG(figure).print_svg(stream, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))  # type: ignore[no-untyped-call]
    text = stream.getvalue()
    return text[text.index("<svg") :]


def renamed(svg: str, name: str) -> str:
    """Identifiers that no other drawing of the page has, the same at every run."""
    known: dict[str, str] = {}
    numbers = count()

    def new(match: re.Match[str]) -> str:
        if match[2] not in known:
            known[match[2]] = f"{name}-{next(numbers)}"
        return match[1] + known[match[2]]

    return _numbers.sub(new, svg)


def coloured(svg: str) -> str:
    """Colours as the variables of the page, so that they follow light and dark."""
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return svg
