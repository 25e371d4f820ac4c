"""`conca fit`, killed twenty times at random moments and resumed each time, ends with the bits of an undisturbed run.

    python bench/kills.py

Every command runs until it is done or, after a random part of the time that an undisturbed one takes, gets SIGKILL: while Python
starts, while it reads, trains, writes a checkpoint, evaluates, or writes the run. What is done is compared, and the next begins.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from record import record

from conca.models.run import CHECKPOINT

FIT = (
    "--target y --time time --horizon 6 --layers lstm --d-model 32 --length 128 --epochs 4 --batch-size 8 --members 2 "
    "--truncate 64 --resume -q"
)
PROGRAM = "import sys; from conca.cli.main import main; sys.exit(main())"
FILES = (
    "model.safetensors",
    "latest.safetensors",
    "evaluation.safetensors",
    "metrics.csv",
    "scores.csv",
    "refit_scores.csv",
)


def fit(table: Path, out: Path, patience: float | None = None) -> bool:
    """Whether the command was done before it was killed."""
    words = [sys.executable, "-c", PROGRAM, "fit", str(table), *FIT.split(), "--out", str(out)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        status = process.wait(patience)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return False
    if status:
        sys.exit(f"conca fit ended with {status}")
    return True


def standing(folder: Path, name: str) -> str:
    """Where the training stands that was killed."""
    if (folder / name).exists():
        return "the run was whole"
    for path in folder.glob(f".{name}.*.part"):
        for place, words in ((path / "refit", "last training"), (path, "first training")):
            if (place / CHECKPOINT).exists():
                course = torch.load(place / CHECKPOINT, weights_only=True)["course"]
                return f"{words}, step {course['step']}" + (", done" if course["ended"] else "")
    return "before the first checkpoint"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw, numbers = random.Random(options.seed), np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        y = np.sin(np.arange(6000) / 4) + 0.1 * numbers.normal(size=6000)
        times = pd.date_range("2024-01-01", periods=len(y), freq="h")
        pd.DataFrame({"time": times, "y": y}).to_csv(folder / "table.csv", index=False)
        fit(folder / "table.csv", folder / "warm")
        begin = time.monotonic()
        fit(folder / "table.csv", folder / "whole")
        duration = time.monotonic() - begin
        rows, done, differ, whole = [], 0, [], False
        while len(rows) < options.kills or not whole:
            patience = draw.uniform(0, 1.2 * duration) if len(rows) < options.kills else None
            run = f"run{done}"
            ended = fit(folder / "table.csv", folder / run, patience)
            if not ended:
                rows.append((len(rows) + 1, done + 1, f"{patience:.1f}", standing(folder, run)))
                print(*rows[-1], file=sys.stderr, flush=True)
            whole = (folder / run).exists()
            if whole:
                differ += [f for f in FILES if (folder / run / f).read_bytes() != (folder / "whole" / f).read_bytes()]
                done += 1
    verdict = "all equal those of the undisturbed run, bit for bit" if not differ else f"DIFFERENT: {differ}"
    note = (
        f"The undisturbed command took {duration:.1f} s. {done} runs were done in the end, out of {len(rows)} killed commands; "
        f"their {', '.join(FILES)}: {verdict}."
    )
    header = ("kill", "run", "after, s", "the training stood at")
    record("kills", f"{len(rows)} kills at random moments", header, rows, note)
    if differ:
        sys.exit(1)


if __name__ == "__main__":
    main()
