"""What a network remembers, measured: how much of a bump in the past is still in the forecast; it works for every family."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conca.data.encoding import Encoded, Encoding
from conca.data.grid import FIRST, LARGEST, Grid, untick
from conca.data.panel import Series
from conca.infer.fitted import Fitted
from conca.infer.forecast import forecast
from conca.report.drawing import COLOURS, SOFT, canvas, key, label, logarithmic, svg_of
from conca.report.page import Picture, short
from conca.report.words import listing, number, span

__all__ = ["Response", "picture", "reach", "response"]

Floats = NDArray[np.float64]

ROWS, NEAR, LAGS = 384, 26, 40
"""Rows of the series that is bumped, at most; how many of the last ones are tried, and how many of all."""
FAINT = 0.05


@dataclass(frozen=True)
class Response:
    """How the median forecast moves when one past value of the same target is higher.

    lags   (L,) rows from the bump to the first step ahead: 1 is the last known row
    steps  (S,) steps ahead, counted from 1
    value  (S, L) change of the forecast as a share of the bump
    bump   its height in the unit of the target
    """

    lags: NDArray[np.int64]
    steps: NDArray[np.int64]
    value: Floats
    bump: float


def response(fitted: Fitted, target: int = 0) -> Response:
    """Forecast a series that stands still, then once more for each place with one value raised by one deviation.

    The series stands at the mean of the first fitted one, its covariates at theirs, also those known in advance, and ends where
    that one ended.
    """
    encoding, horizon = fitted.encoding, fitted.network.config.horizon
    beyond = horizon if fitted.schema.known else 0
    still = standing(fitted, ROWS + beyond)
    rows = len(still) - beyond
    steps = np.unique([1, (horizon + 1) // 2, horizon])
    lags = tried(rows - 1, steps, encoding.anchor.seasons)
    bump = encoding.own[0].scale[target]
    encoded = [encoding.encode(fitted.schema, still)]
    encoded += [raised(encoding, fitted, still, rows - int(lag), target, bump) for lag in lags]
    cutoffs = [np.array([rows - 1])] * len(encoded)
    found = np.concatenate(forecast(fitted.network, encoded, cutoffs, context=fitted.context))
    median = found[:, :, target, fitted.network.middle]
    return Response(lags, steps, (median[1:] - median[0])[:, steps - 1].T / bump, bump)


def tried(longest: int, steps: NDArray[np.int64], seasons: tuple[int, ...]) -> NDArray[np.int64]:
    """Lags up to the longest: the first ones, then ever fewer; and the rows that these steps start from by their seasons."""
    spaced = np.geomspace(1, max(longest, 1), LAGS).round().astype(np.int64)
    starts = [season * -(-step // season) - step + 1 for season in seasons for step in steps.tolist()]
    every = np.unique([*range(1, NEAR + 1), *spaced, *starts, *(season + 1 for season in seasons)])
    return np.asarray(every[every <= max(longest, 1)], dtype=np.int64)


def raised(encoding: Encoding, fitted: Fitted, still: Series, row: int, target: int, bump: float) -> Encoded:
    """The series with one value higher, encoded."""
    values = still.target.copy()
    values[row, target] += bump
    changed = Series(still.key, still.times, values, still.numeric, still.categorical, still.given)
    return encoding.encode(fitted.schema, changed)


def standing(fitted: Fitted, rows: int) -> Series:
    """A series of at most so many rows at the means of the first fitted one, up to where that one ended."""
    schema, encoding = fitted.schema, fitted.encoding
    times = times_until(fitted.ends.times[0], rows, schema.grid)
    rows = len(times)
    target = encoding.own[0].inverse(unbent(encoding.scaler.mean, encoding.bends))
    numeric = unbent(encoding.covariates.mean, encoding.covariate_bends)
    return Series(
        key=fitted.ends.keys[0],
        times=times,
        target=np.tile(target, (rows, 1)),
        numeric=np.tile(numeric, (rows, 1)),
        categorical=np.zeros((rows, len(schema.categorical)), np.int64),
        given=np.ones(rows, bool),
    )


def unbent(values: tuple[float, ...], bends: tuple[float, ...]) -> Floats:
    """The inverse of `conca.data.encoding.bend` for one row."""
    v, b = np.asarray(values, dtype=np.float64), np.asarray(bends, dtype=np.float64)
    bent = b > 0
    return np.asarray(np.where(bent, np.sinh(np.where(bent, v * b, 0.0)) / np.where(bent, b, 1.0), v))


def times_until(last: int, rows: int, grid: Grid) -> NDArray[np.int64]:
    """At most so many times of a grid, up to `last`, dates not before 1678; of months, their first days."""
    if grid.months:
        month = np.array([last]).view("datetime64[ns]").astype("datetime64[M]").astype(np.int64)
        months = month - grid.months * np.arange(rows)[::-1]
        when = months[months >= (1678 - 1970) * 12].astype("datetime64[M]").astype("datetime64[ns]").astype(np.int64)
    else:
        first = FIRST if grid.kind == "datetime" else -LARGEST
        when = last - grid.step * np.arange(min(rows, (last - first) // grid.step + 1))[::-1]
    return untick(when, grid.kind)


def reach(found: Response) -> int:
    """The longest of the tried lags whose response is a twentieth of the largest one before the last known row, 0 if none is.

    The last known row is left out: the forecast starts from it, whatever the network remembers.
    """
    size = np.abs(found.value[:, found.lags > 1])
    alive = (size > FAINT * size.max(initial=0.0)).any(0)
    return int(found.lags[found.lags > 1][alive].max(initial=0))


def picture(found: Response, target: str, grid: Grid, name: str) -> Picture:
    """The response by lag, and once more without the last known row."""
    panels = 2 if len(found.lags) > 2 else 1
    figure, every = canvas(panels, 2.1)
    for axes, first in zip(every, (1, 2)):
        axes.axhline(0, color=SOFT, lw=0.8)
        shown = found.lags >= first
        for colour, step, line in zip(COLOURS, found.steps, found.value):
            axes.plot(found.lags[shown], line[shown], color=colour, lw=1.3, marker=".", ms=3, label=f"step {step}")
        logarithmic(axes)
    label(every[0], "", "share of the bump")
    label(every[-1], "rows before the first step ahead", "share of the bump")
    key(every[0], 3)
    if panels > 1:
        label(every[1], every[1].get_xlabel(), "share of the bump", "without the last known row")
    words = f"{short(target)}: {bumped(found)} {farther(found, grid)}"
    return Picture(svg_of(figure, name), f"Response of the forecast to a bump. {words}", words)


def change(share: float, bump: float) -> str:
    """A change of the forecast in words: "88 higher", "9 lower", "about the same" where it is less than a two-hundredth of the bump."""
    if abs(share) < 0.005:
        return "about the same"
    return f"{number(abs(share) * abs(bump), 3)} {'higher' if share * bump > 0 else 'lower'}"


def bumped(found: Response) -> str:
    """What the last known row does, in words."""
    ends = [
        f"{change(float(line[0]), found.bump)} {step} step{'s' * bool(step > 1)} ahead"
        for step, line in zip(found.steps, found.value)
    ]
    return f"Had the last value been {number(found.bump, 3)} higher, the forecast would be {listing(ends)}."


def farther(found: Response, grid: Grid) -> str:
    """What rows before the last one do, in words."""
    early = found.lags > 1
    if not early.any() or not np.abs(found.value[:, early]).max() > 0:
        return "Rows before it do nothing."
    step, lag = np.unravel_index(np.abs(found.value[:, early]).argmax(), found.value[:, early].shape)
    top, far = found.value[:, early][step, lag], reach(found)
    words = f"Of the rows before it, the one {found.lags[early][lag]} back counts most: as much higher there, and the forecast "
    words += (
        f"{found.steps[step]} step{'s' * bool(found.steps[step] > 1)} ahead would be {change(float(top), found.bump)}; "
    )
    rows = f"{far} row{'s' * (far > 1)}" + (f" ({span(far, grid)})" if grid.seconds else "")
    if far == found.lags[-1]:
        return f"{words}{rows} back, as far as was tried, more than a twentieth of that is left."
    return f"{words}beyond {rows} less than a twentieth of that is left."
