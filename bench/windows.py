"""How fast training windows are read: a thousand short series in one fit, and one long series.

    python bench/windows.py

A window is a row that is forecast from, with its history and its targets; a piece holds as many as it has rows. Read are the
batches of the training (three members, 16 pieces each), on one thread; the median of several rounds.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import torch
from record import record

from conca.data.encoding import Encoded
from conca.train.pieces import Pieces

BATCHES, ROUNDS = 60, 7


def series(rows: int, inputs: int) -> Encoded:
    """Noise."""
    x = np.random.default_rng(rows).normal(size=(rows, inputs)).astype(np.float32)
    return Encoded(x, np.zeros((rows, 0), np.int64), x[:, None, :1], x[:, :1], None, np.zeros(1), np.ones(1))


def measure(parts: list[Encoded], length: int, horizon: int) -> tuple[float, float]:
    """Pieces and windows a second."""
    pieces = Pieces(parts, [len(p) for p in parts], horizon=horizon, length=length, batch_size=48, seed=0)
    found = []
    for _ in range(ROUNDS):
        begin, count, rows = time.perf_counter(), 0, 0
        for step in range(BATCHES):
            batch = pieces[step]
            count += len(batch.inputs)
            rows += int(batch.inputs.shape[0] * len(batch.rows) if batch.lengths is None else batch.lengths.sum())
        took = time.perf_counter() - begin
        found.append((count / took, rows / took))
    return tuple(median(values) for values in zip(*found))


def main() -> None:
    """Two tables."""
    torch.set_num_threads(1)
    sizes = np.random.default_rng(0).integers(30, 121, size=1000)
    cases = {
        "1,000 series of 30 to 120 rows, 12 steps ahead": ([series(int(n), 12) for n in sizes], 120, 12),
        "one series of 35,000 rows, 24 steps ahead": ([series(35_000, 20)], 512, 24),
    }
    rows = []
    for name, (parts, length, horizon) in cases.items():
        pieces, windows = measure(parts, length, horizon)
        rows.append((name, f"{pieces:,.0f}", f"{windows:,.0f}"))
    record("windows", "Reading training windows", ("table", "pieces a second", "windows a second"), rows)


if __name__ == "__main__":
    main()
