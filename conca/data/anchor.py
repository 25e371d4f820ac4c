"""Where a forecast starts from at every step ahead: the last value, corrected by what came one season before that step.

With x the last known values, c a cutoff, h a step, and for every season of L rows `then` = x at the last row up to c that lies
whole seasons before c + h, and `now` = x at c - L:

    anchor_h = x_c + sum over seasons of w_then (then - x_c) + w_now (now - x_c)

The weights, one pair for every season, step and target, are a least-squares fit on the rows learnt from. Before a season has
passed, the next shorter one stands in for it, and at last x_c, so that a series without a past is anchored at its last value,
as are targets that their seasons say little about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conca.data.grid import DAY, Grid
from conca.types import BadInput

__all__ = ["Anchor", "seasons_of"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

DAYS = {"day": 1, "week": 7, "year": 364}
"""Days of a season; a year in whole weeks."""
LONGEST = 1500
"""Rows of a season, at most."""
MOST = 50_000
"""Numbers (rows times targets) that the weights are fitted on, at most; of more rows, every so many."""
PENALTY = 1e-3
"""On the squares of the weights, as a share of the mean square of what they weigh."""
WORTH = 0.5
"""A target keeps its seasons if they leave less than this share of the squared error of the last value; what explains less
is noise of the past, which a network would have to unlearn."""
BLOCK = 2**20
"""Numbers that are computed at once."""


def seasons_of(grid: Grid, cycles: Sequence[str], rows: int) -> tuple[int, ...]:
    """Rows of each season of a grid, shortest first: of the cycles named, those that `rows` hold three times."""
    if not grid.regular or grid.kind != "datetime":
        return ()
    found = (round(days * DAY / grid.step) for name, days in DAYS.items() if name in cycles)
    return tuple(n for n in found if 2 <= n <= min(rows // 3, LONGEST))


@dataclass(frozen=True)
class Anchor:
    """Seasons (S,) in rows, shortest first, and weights (H, K, 2 S): `then` and `now` of each season."""

    seasons: tuple[int, ...] = ()
    weights: tuple[tuple[tuple[float, ...], ...], ...] = ()

    @classmethod
    def fit(cls, seasons: tuple[int, ...], horizon: int, held: Sequence[Floats], target: Sequence[Floats]) -> Anchor:
        """Fit the weights on series of last known values (T, K), and of the values themselves, NaN where missing."""
        if not seasons:
            return cls()
        plain = cls(seasons)
        targets = held[0].shape[1]
        stride = max(1, -(-sum(map(len, held)) * targets // MOST))
        rows = [np.arange(min(seasons[-1], len(x) // 2), len(x) - horizon, stride) for x in held]
        weights = np.zeros((horizon, targets, 2 * len(seasons)))
        left, whole = np.zeros(targets), np.zeros(targets)
        for step in range(1, horizon + 1):
            parts = [np.stack(list(plain.moves(x, at, np.int64(step))), -1) for x, at in zip(held, rows)]
            moves, y = (
                np.concatenate(parts),
                np.concatenate([t[at + step] - x[at] for x, t, at in zip(held, target, rows)]),
            )
            for k in range(targets):
                known = ~np.isnan(y[:, k])
                weights[step - 1, k] = least_squares(moves[known, k], y[known, k])
                left[k] += ((y[known, k] - moves[known, k] @ weights[step - 1, k]) ** 2).sum()
                whole[k] += (y[known, k] ** 2).sum()
        weights[:, left >= WORTH * whole] = 0.0
        if not weights.any():
            return cls()
        return cls(seasons, tuple(tuple(tuple(map(float, pairs)) for pairs in target) for target in weights))

    def moves(self, held: Floats, at: Integers, steps: Any) -> Iterator[Floats]:
        """`then - x_c` and `now - x_c` (..., K) of each season, for rows `at` (...) of held (T, K), and steps (...)."""
        then = now = np.zeros(1)
        for season in self.seasons:
            then = move(held, at, at + steps - season * -(-steps // season), then)
            now = move(held, at, at - season, now)
            yield then
            yield now

    def starts(self, held: Floats, begin: int) -> NDArray[np.float32]:
        """Where forecasts from each row of held (T, K) from `begin` on start: (T - begin, H, K); without seasons, H is 1.

        The rows before `begin` are the past, back to the beginning of the series, or at least over the longest season.
        """
        if not self.seasons:
            return held[begin:, None].astype(np.float32)
        weights = np.asarray(self.weights)
        horizon, targets, _ = weights.shape
        steps, size = np.arange(1, horizon + 1), max(1, BLOCK // (horizon * targets))
        result = np.empty((len(held) - begin, horizon, targets), np.float32)
        for first in range(begin, len(held), size):
            at = np.arange(first, min(first + size, len(held)))[:, None]
            total = held[at]
            for place, part in enumerate(self.moves(held, at, steps)):
                total = total + weights[..., place] * part
            result[first - begin : first - begin + len(at)] = total
        return result

    def since(self, held: Floats, begin: int) -> Floats:
        """How far each row of held (T, K) from `begin` on is from the row a season before: (T - begin, S K).

        Before a season has passed, as far as from the next shorter one, and at last not at all. Rows before `begin` as in `starts`.
        """
        at, before = np.arange(begin, len(held)), np.zeros(1)
        found = [np.empty((len(at), 0))]
        for season in self.seasons:
            before = move(held, at, at - season, before)
            found.append(-before + np.zeros_like(held[at]))
        return np.concatenate(found, axis=1)

    def as_dict(self) -> dict[str, Any]:
        """Lists of numbers, ready for JSON."""
        return {"seasons": self.seasons, "weights": self.weights}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Anchor:
        """The inverse of `as_dict`, also after a trip through JSON. Raises BadInput on values that do not fit."""
        try:
            seasons = tuple(int(n) for n in saved["seasons"])
            weights = tuple(tuple(tuple(map(float, w)) for w in target) for target in saved["weights"])
            shape = np.asarray(weights, dtype=np.float64).shape
        except (KeyError, TypeError, ValueError):
            raise BadInput("anchor: 'seasons' and 'weights' must be lists of numbers") from None
        fits = len(shape) == 3 and shape[2] == 2 * len(seasons) if seasons else not weights
        if not fits or not np.isfinite(np.asarray(weights)).all() or any(not 0 < n <= LONGEST for n in seasons):
            raise BadInput("anchor: 'seasons' and 'weights' do not fit each other")
        return cls(seasons, weights)


def move(held: Floats, at: Integers, place: Integers, before: Floats) -> Floats:
    """`x_place - x_at`; `before` where there is no such row."""
    there = (place >= 0)[..., None]
    return np.where(there, held[np.maximum(place, 0)] - held[at], before)


def least_squares(x: Floats, y: Floats) -> Floats:
    """Weights (D,) of a ridge regression of y (n,) on x (n, D), nothing without rows."""
    gram = x.T @ x
    gram += np.eye(len(gram)) * (PENALTY * gram.trace() / len(gram) or 1.0)
    return np.asarray(np.linalg.solve(gram, x.T @ y))
