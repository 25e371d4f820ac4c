"""Series become the rows that a network reads: bent, scaled, held where missing, with masks and a calendar.

Everything at a row is a function of the rows up to it, so that reading a series whole or row by row is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conca.data.anchor import Anchor, seasons_of
from conca.data.calendar import calendar, choose_cycles
from conca.data.future import Future
from conca.data.grid import ticks
from conca.data.panel import Key, Schema, Series
from conca.data.scaling import Scaler
from conca.types import BadInput, nearest

__all__ = ["Carry", "Encoded", "Encoding", "bend", "choose_bends"]

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]

SKEWED = 1.0
"""Columns without negative values that are more skewed than this are bent."""
FARTHEST = 8.0
"""Covariates further than this many deviations from their mean are cut off there."""
MOST_KNOWN = 256
"""Categories of all columns that are known in advance, at most."""
FARTHEST_TARGET = 1e6
"""Targets are cut off there: beyond all that is plausible, but within what single precision squares and sums."""


@dataclass(frozen=True)
class Carry:
    """What the rows after a cut must know of those before it.

    anchor   (P, K) the last known targets, bent and normalised, at the last P rows (a season, at most); 0 before the first
    numeric  (F,) the last known numeric covariates
    time     of the last row as an integer (`conca.data.grid.ticks`)
    """

    anchor: Floats
    numeric: Floats
    time: int


@dataclass(frozen=True)
class Encoded:
    """One series as a network reads it; T rows, K targets, I inputs, C categorical columns.

    inputs   (T, I) bent and normalised values, masks, calendar, and how far the targets are from a season before
    codes    (T, C) codes of the categories
    anchor   (T, H or 1, K) where forecasts from a row start, bent and normalised (`conca.data.anchor`)
    target   (T, K) `(y - origin) / unit`, cut off at `FARTHEST_TARGET`, NaN where missing
    elapsed  (T,) time since the previous row in nominal steps, None where rows are regular
    origin, unit  (K,) the user's y is `target * unit + origin`
    carry    what rows after these must know; None where there is no row yet
    known    (T + F, G) what is known in advance of each row, and of F rows after the last; None if there is no such thing
    """

    inputs: Floats32
    codes: NDArray[np.int64]
    anchor: Floats32
    target: Floats32
    elapsed: Floats32 | None
    origin: Floats
    unit: Floats
    carry: Carry | None = None
    known: Floats32 | None = None

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Encoding:
    """How the series of one table are turned into rows; fitted on the training rows, kept in the run.

    bends     of each target; 0 leaves it straight (see `bend`)
    scaler    of the bent targets of all series
    pooled    scale of the targets of a series that is not known
    keys      the known series, their parts as text
    own       scales of the known series
    covariate_bends, covariates   the same for the numeric covariates, all series together
    cycles    of the calendar
    anchor    where forecasts start
    """

    bends: tuple[float, ...]
    scaler: Scaler
    pooled: Scaler
    keys: tuple[tuple[str, ...], ...]
    own: tuple[Scaler, ...]
    covariate_bends: tuple[float, ...]
    covariates: Scaler
    cycles: tuple[str, ...]
    anchor: Anchor = field(default_factory=Anchor)

    @classmethod
    def fit(cls, schema: Schema, series: Sequence[Series], train: Sequence[int], horizon: int = 1) -> Encoding:
        """Choose and fit everything on the first `train` rows of each series, for forecasts of `horizon` steps.

        Raises BadInput if columns that are known in advance have more than `MOST_KNOWN` categories in all.
        """
        check_known(schema)
        targets = [s.target[:end] for s, end in zip(series, train)]
        numbers = [s.numeric[:end] for s, end in zip(series, train)]
        n_targets, n_numbers = len(schema.target), len(schema.numeric)
        bends = choose_bends(targets, n_targets)
        pooled = without_origin(Scaler.fit(targets, n_targets), bends)
        own = tuple(without_origin(scaler, bends) for scaler in Scaler.each(targets, pooled))
        bent = [bend(scaler.transform(rows), bends) for scaler, rows in zip(own, targets)]
        covariate_bends = choose_bends(numbers, n_numbers, normalised=False)
        scaler = Scaler.fit(bent, n_targets)
        cycles = choose_cycles([s.times[:end] for s, end in zip(series, train)], schema.grid)
        values = [scaler.transform(rows) for rows in bent]
        seasons = seasons_of(schema.grid, cycles, max(train))
        return cls(
            bends=bends,
            scaler=scaler,
            pooled=pooled,
            keys=tuple(named(s.key) for s in series),
            own=own,
            covariate_bends=covariate_bends,
            covariates=Scaler.fit([bend(rows, covariate_bends) for rows in numbers], n_numbers),
            cycles=cycles,
            anchor=Anchor.fit(seasons, horizon, [held(rows) for rows in values], values),
        )

    def inputs(self, schema: Schema) -> int:
        """The number I of inputs of a row."""
        numbers = (3 + len(self.anchor.seasons)) * len(self.bends) + 2 * len(self.covariate_bends)
        return numbers + 4 * len(self.cycles) + (not schema.grid.regular)

    def known_inputs(self, schema: Schema) -> int:
        """The number G of what is known in advance of a row."""
        return 2 * len(schema.known_numeric) + sum(len(schema.levels[c]) for c in schema.known_categorical)

    def knows(self, key: Key) -> bool:
        """Whether a series has a scale of its own."""
        return named(key) in self.places

    @cached_property
    def places(self) -> dict[tuple[str, ...], int]:
        """Where each known series stands among `keys`."""
        return {key: place for place, key in enumerate(self.keys)}

    def encode(
        self, schema: Schema, series: Series, carry: Carry | None = None, future: Future | None = None
    ) -> Encoded:
        """The rows of one series, or those that go on from rows read before: `carry` is the `Encoded.carry` of these.

        A series that is read in parts becomes the same numbers, bit for bit, as one that is read whole. `future` is what is
        known in advance of rows after the last.
        """
        own = self.own[self.places[named(series.key)]] if self.knows(series.key) else self.pooled
        with np.errstate(over="ignore"):  # what overflows is cut off
            target = own.transform(series.target).clip(-FARTHEST_TARGET, FARTHEST_TARGET)
            value = self.scaler.transform(bend(target, self.bends)).clip(-FARTHEST_TARGET, FARTHEST_TARGET)
            bent = bend(series.numeric, self.covariate_bends)
            covariate = self.covariates.transform(bent).clip(-FARTHEST, FARTHEST)
        past = np.empty((0, len(self.bends))) if carry is None else carry.anchor
        last = held(value, None if carry is None else past[-1])
        numeric = held(covariate, None if carry is None else carry.numeric)
        parts = [np.nan_to_num(value), last, np.isnan(value), numeric, np.isnan(covariate)]
        parts.append(doubled(calendar(series.times, self.cycles, schema.grid)))
        elapsed = None if schema.grid.regular else elapsed_since(series, schema, carry)
        if elapsed is not None:
            parts.append(np.log1p(elapsed)[:, None])
        every = np.concatenate([past, last])
        parts.append(self.anchor.since(every, len(past)))
        if len(series):
            kept = every[-max(self.anchor.seasons, default=1) :].copy()
            carry = Carry(kept, numeric[-1].copy(), int(ticks(series.times[-1:])[0]))
        return Encoded(
            inputs=np.concatenate(parts, axis=1).astype(np.float32),
            codes=series.categorical,
            anchor=self.anchor.starts(every, len(past)),
            target=target.astype(np.float32),
            elapsed=None if elapsed is None else elapsed.astype(np.float32),
            origin=np.asarray(own.mean),
            unit=np.asarray(own.scale),
            carry=carry,
            known=self.known(schema, series, future) if schema.known else None,
        )

    def known(self, schema: Schema, series: Series, future: Future | None) -> Floats32:
        """What is known in advance of the rows of a series and its future (T + F, G): numbers, masks, indicators."""
        numeric, codes = series.numeric[:, schema.known_numeric], series.categorical[:, schema.known_categorical]
        if future is not None:
            numeric, codes = np.concatenate([numeric, future.numeric]), np.concatenate([codes, future.categorical])
        bends, scaler = self.covariate_bends, self.covariates
        chosen = [(bends[place], scaler.mean[place], scaler.scale[place]) for place in schema.known_numeric]
        b, mean, scale = np.array(chosen).reshape(-1, 3).T
        with np.errstate(over="ignore"):
            value = ((bend(numeric, tuple(b)) - mean) / scale).clip(-FARTHEST, FARTHEST)
        parts = [np.nan_to_num(value), np.isnan(value)]
        for place, c in enumerate(schema.known_categorical):
            parts.append(codes[:, place, None] == np.arange(1, len(schema.levels[c]) + 1))
        return np.concatenate(parts, axis=1).astype(np.float32)

    def as_dict(self) -> dict[str, Any]:
        """Lists, strings and numbers, ready for JSON."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in ("bends", "covariate_bends", "cycles", "keys")}
        scalers = {name: getattr(self, name).as_dict() for name in ("scaler", "pooled", "covariates")}
        own = [scaler.as_dict() for scaler in self.own]
        return plain | scalers | {"own": own, "anchor": self.anchor.as_dict()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Encoding:
        """The inverse of `as_dict`, also after a trip through JSON. Raises BadInput on unknown, missing or ill values."""
        known = [f.name for f in fields(cls)]
        for key in saved:
            if key not in known:
                raise BadInput(f"encoding: unknown key '{key}'; {nearest(key, known)}")
        try:
            result = cls(
                bends=tuple(map(float, saved["bends"])),
                scaler=Scaler.from_dict(saved["scaler"]),
                pooled=Scaler.from_dict(saved["pooled"]),
                keys=tuple(tuple(map(str, key)) for key in saved["keys"]),
                own=tuple(Scaler.from_dict(scaler) for scaler in saved["own"]),
                covariate_bends=tuple(map(float, saved["covariate_bends"])),
                covariates=Scaler.from_dict(saved["covariates"]),
                cycles=tuple(map(str, saved["cycles"])),
                anchor=Anchor.from_dict(saved["anchor"]) if "anchor" in saved else Anchor(),
            )
        except KeyError as error:
            raise BadInput(f"encoding: the key {error} is missing") from None
        except (TypeError, ValueError) as error:
            raise BadInput(f"encoding: a value cannot be read ({error})") from None
        if len(result.keys) != len(result.own):
            raise BadInput("encoding: 'own' must hold one scaler for each of 'keys'")
        return result


def check_known(schema: Schema) -> None:
    """Raise BadInput if columns that are known in advance have too many categories: each is a number at every step ahead."""
    sizes = {schema.categorical[c]: len(schema.levels[c]) for c in schema.known_categorical}
    if sum(sizes.values()) > MOST_KNOWN:
        name = max(sizes, key=lambda n: sizes[n])
        advice = f"at most {MOST_KNOWN} in all are taken; join some, or do not name it as known"
        raise BadInput(f"column '{name}': it is known in advance and has {sizes[name]:,} categories; {advice}")


def named(key: Key) -> tuple[str, ...]:
    """The key of a series as text, as JSON keeps it."""
    return tuple(map(str, key))


def bend(values: Floats, bends: Sequence[float]) -> Floats:
    """`asinh(b * value) / b` for each column with a bend b > 0, a logarithm that is straight near 0; NaN stays."""
    b = np.asarray(bends, dtype=np.float64)
    bent = b > 0
    return np.asarray(np.where(bent, np.arcsinh(values * b) / np.where(bent, b, 1.0), values))


def choose_bends(parts: Sequence[Floats], columns: int, normalised: bool = True) -> tuple[float, ...]:
    """The bend of each column of rows (T, columns): 0, or such that it sets in at a quarter of the median.

    Bent are columns without negative values whose skewness is above `SKEWED`. `normalised`: the bend applies to values
    that have been divided by their standard deviation.
    """
    rows = np.concatenate(parts) if parts else np.empty((0, columns))
    result = []
    for column in rows.T:
        known = column[~np.isnan(column)]
        deviation = float(known.std()) if known.size else 0.0
        if deviation <= 1e-9 * np.abs(known).max(initial=0.0) or known.min() < 0:
            result.append(0.0)
            continue
        skewness = float((((known - known.mean()) / deviation) ** 3).mean())
        middle = max(float(np.median(known[known > 0])), 1e-12 * float(known.max()))
        result.append(4.0 / middle * (deviation if normalised else 1.0) if skewness > SKEWED else 0.0)
    return tuple(result)


def without_origin(scaler: Scaler, bends: Sequence[float]) -> Scaler:
    """A scaler that leaves 0 where it is in columns that are bent."""
    return Scaler(tuple(0.0 if b > 0 else m for m, b in zip(scaler.mean, bends)), scaler.scale)


def doubled(places: Floats) -> Floats:
    """Sines and cosines (T, 2 * cycles), and beside them those of twice the angles."""
    sine, cosine = places[:, 0::2], places[:, 1::2]
    return np.concatenate([places, 2 * sine * cosine, cosine**2 - sine**2], axis=1)


def held(values: Floats, before: Floats | None = None) -> Floats:
    """Values (T, F) with the last known one where missing; before the first known one that of `before` (F,), or 0."""
    if not len(values):
        return values
    known = ~np.isnan(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values))[:, None], -1), axis=0)
    first = 0.0 if before is None else before
    return np.where(last >= 0, np.take_along_axis(values, np.maximum(last, 0), axis=0), first)


def elapsed_since(series: Series, schema: Schema, carry: Carry | None) -> Floats:
    """Time (T,) since the previous row in nominal steps; 1 where there was none."""
    elapsed = schema.grid.elapsed(series.times)
    if carry is not None and len(elapsed):
        elapsed[0] = (ticks(series.times[:1])[0] - carry.time) / schema.grid.step
    return elapsed
