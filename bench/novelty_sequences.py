"""Movements never seen to a classifier of movements: each of seven exercises is left out of the training in turn.

    python bench/novelty_sequences.py [--data FOLDER] [--epochs 15]

Recordings of a smartwatch (seglearn 1.2.5, six channels, 50 rows a second, ten people), cut into windows of 4 seconds and averaged by four
rows. Seven people are learnt from, three judged: their windows of the six exercises that were learnt are ordinary, those of the
seventh strange.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packages import CACHE, fetched
from record import record

import conca
from conca.energy.novelty import By
from conca.metrics.classification import expected_calibration_error
from conca.metrics.novelty import auprc, auroc, fpr_at

PACKAGE, FILE = "seglearn==1.2.5", "seglearn/data/watch_dataset.npy"
SHA = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
ROWS, MEAN_OF, LEARN, BINS = 200, 4, 7, 15
SCORES: dict[str, tuple[By, float]] = {
    "max-softmax": ("max_softmax", 1.0),
    "max-logit": ("max_logit", 1.0),
    **{f"energy, T {t:g}": ("energy", t) for t in (1.0, 2.0, 5.0)},
}


def main() -> None:
    """Leave out each exercise in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=CACHE)
    parser.add_argument("--epochs", type=int, default=15)
    given = parser.parse_args()
    names, x, y, person = windows(fetched(PACKAGE, given.data) / FILE)
    figures: dict[str, list[Sequence[float]]] = {score: [] for score in SCORES}
    rows: list[tuple[object, ...]] = []
    plain: list[tuple[float, float]] = []
    for unseen, name in enumerate(names):
        ordinary, learnt = y != unseen, person <= LEARN
        model = conca.Classifier(d_model=32, epochs=given.epochs, random_state=0)
        model.fit(x[ordinary & learnt], y[ordinary & learnt])
        inside, outside = x[ordinary & ~learnt], x[~ordinary & ~learnt]
        truth = np.searchsorted(model.classes_, y[ordinary & ~learnt])
        probability = model.predict_proba(inside)
        right = float((probability.argmax(1) == truth).mean())
        plain.append((right, expected_calibration_error(truth, probability, bins=BINS)))
        for score, (by, temperature) in SCORES.items():
            pair = [model.novelty(part, by=by, temperature=temperature) for part in (inside, outside)]
            found = auroc(*pair), auprc(*pair), fpr_at(*pair)
            figures[score].append(found)
            rows.append((name, f"{right:.1%}", score, *(f"{value:.3f}" for value in found)))
        print(name, plain[-1], len(inside), len(outside), flush=True)
    write(figures, rows, plain, given.epochs)


def windows(path: Path) -> tuple[list[str], NDArray[np.float64], NDArray[Any], NDArray[Any]]:
    """Names of the exercises, windows (n, T, 6), exercise and person of each (n,). The file is a pickle, so its hash is asked first."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA:
        raise SystemExit(f"{path} is not the file of {PACKAGE}")
    data = np.load(path, allow_pickle=True).item()
    cut, owner = [], []
    for place, recording in enumerate(data["X"]):
        for begin in range(0, len(recording) - ROWS + 1, ROWS):
            part = recording[begin : begin + ROWS]
            cut.append(part.reshape(ROWS // MEAN_OF, MEAN_OF, -1).mean(1))
            owner.append(place)
    of = np.array(owner)
    return list(data["y_labels"]), np.stack(cut), np.asarray(data["y"])[of], np.asarray(data["subject"])[of]


def write(
    figures: dict[str, list[Sequence[float]]],
    rows: list[tuple[object, ...]],
    plain: list[tuple[float, float]],
    epochs: int,
) -> None:
    """The page."""
    right, error = (mean(values) for values in zip(*plain))
    whole = [
        ("mean", f"{right:.1%}", score, *(f"{mean(part):.3f}" for part in zip(*found)))
        for score, found in figures.items()
    ]
    pairs = list(zip(figures["energy, T 1"], figures["max-softmax"]))
    notes = (
        f"By AUROC the energy (T 1) is better than max-softmax in {sum(e[0] > m[0] for e, m in pairs)} of {len(pairs)} exercises. "
        f"`conca.Classifier` of width 32, {epochs} epochs, one seed, for each exercise left out; people 1 to {LEARN} are learnt from, "
        "the others judged. Accuracy is that of windows of exercises that were learnt. Positive is the strange one, higher scores are "
        f"stranger. Mean calibration error ({BINS} bins) {error:.3f}. No figures of this setting are published."
    )
    header = ("exercise never seen", "accuracy", "score", "AUROC", "AUPR", "FPR95")
    record("novelty_sequences", "Movements never seen to a classifier of movements", header, [*whole, *rows], notes)


if __name__ == "__main__":
    main()
