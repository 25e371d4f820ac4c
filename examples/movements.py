"""Recordings of three made-up movements, to try the labelling of sequences on: movements.csv, and new.csv for later.

    python examples/movements.py
    conca fit movements.csv --task classify --series recording --time second --label movement --out runs/movements

A watch feels the acceleration along three axes, fifty times a second, for one to three seconds. It is worn by many people, who
move at different speeds and wear it in different ways. A long table is the plainest form of such data: one row a step, a column
that says which recording it belongs to, a column of times, and a column with the label, the same in all rows of a recording.
"""

import numpy as np
import pandas as pd

RATE = 50  # samples a second
draw = np.random.default_rng(0)


def recording(movement: str) -> np.ndarray:
    """Acceleration (steps, 3) of one person who makes one movement."""
    t = np.arange(draw.integers(RATE, 3 * RATE)) / RATE
    speed, start = draw.uniform(0.8, 1.25), draw.uniform(0, 2 * np.pi)
    turn = 2 * np.pi * speed * t + start
    if movement == "wave":  # fast, to and fro along one axis
        moved = np.stack([np.sin(2 * turn), 0.3 * np.cos(4 * turn), 0 * t], axis=1)
    elif movement == "circle":  # two axes, a quarter of a turn apart
        moved = np.stack([np.cos(turn), np.sin(turn), 0 * t], axis=1)
    else:  # "step": a jolt at every turn, and stillness between
        moved = np.stack([0.2 * np.sin(turn), 0 * t, np.maximum(np.cos(turn), 0) ** 8], axis=1)
    worn, _ = np.linalg.qr(np.eye(3) + 0.3 * draw.normal(size=(3, 3)))  # how the watch sits
    return moved @ worn + 0.3 * draw.normal(size=moved.shape)


def table(count: int, first: int) -> pd.DataFrame:
    """So many recordings, one below the other."""
    parts = []
    for number in range(first, first + count):
        movement = ("wave", "circle", "step")[number % 3]
        felt = recording(movement)
        part = pd.DataFrame(felt.round(3), columns=["x", "y", "z"])
        part.insert(0, "second", np.arange(len(felt)) / RATE)
        part.insert(0, "recording", f"r{number:03}")
        parts.append(part.assign(movement=movement))
    return pd.concat(parts, ignore_index=True)


for name, count, first in (("movements.csv", 150, 0), ("new.csv", 60, 150)):
    made = table(count, first)
    made.to_csv(name, index=False)
    print(f"{name}: {count} recordings, {len(made):,} rows")
