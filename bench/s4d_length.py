"""How time and memory of training a stack of S4D grow with the length of the sequence: slopes on a log-log scale.

    python bench/s4d_length.py

Each length runs in a process of its own, so that the peak of its memory is its own.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import torch
from record import medians, record

from conca import pattern

PATTERN, WIDTH = "s4d*2", 32
LENGTHS = [2**k for k in range(10, 18)]


def child(length: int) -> None:
    """Seconds of a training step at one length, and how far it raises the peak of the process's memory."""
    torch.manual_seed(0)
    stack = pattern(PATTERN, WIDTH)

    def step(x: torch.Tensor) -> None:
        stack(x)[0].sum().backward()

    step(torch.randn(1, 64, WIDTH))
    x = torch.randn(1, length, WIDTH)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(x)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    seconds = medians({"step": lambda: step(x)}, max(5, 2**16 // length))["step"]
    print(json.dumps({"seconds": seconds, "MiB": peak}))


def slope(lengths: list[int], values: list[float]) -> float:
    """Of the least-squares line through log(value) over log(length)."""
    x, y = ([math.log(v) for v in column] for column in (lengths, values))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def main() -> None:
    runs = []
    for length in LENGTHS:
        out = subprocess.run([sys.executable, __file__, str(length)], check=True, capture_output=True, text=True).stdout
        runs.append(json.loads(out.splitlines()[-1]))
    seconds, memory = ([run[key] for run in runs] for key in ("seconds", "MiB"))
    rows = [(n, f"{1e3 * s:.1f}", f"{m:.0f}") for n, s, m in zip(LENGTHS, seconds, memory)]
    long = [
        i for i, n in enumerate(LENGTHS) if n >= 2**13
    ]  # a shorter step's memory disappears in what is loaded anyway
    note = (
        f"Slope of time from 2^10 to 2^17: {slope(LENGTHS, seconds):.2f}; of memory from 2^13 to 2^17: "
        f"{slope([LENGTHS[i] for i in long], [max(memory[i], 1e-3) for i in long]):.2f}."
    )
    title = f"Training step of `{PATTERN}`, width {WIDTH}, one sequence, float32"
    record("s4d_length", title, ("steps", "ms", "peak memory of a step, MiB"), rows, note)


if __name__ == "__main__":
    child(int(sys.argv[1])) if len(sys.argv) > 1 else main()
