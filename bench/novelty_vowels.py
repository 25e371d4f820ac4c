"""A speaker never heard to a classifier of speakers: each of nine is left out of the training in turn.

    python bench/novelty_vowels.py [--seeds 3] [--epochs 40]

Two Japanese vowels spoken by nine men, as sequences of 7 to 29 steps of 12 cepstral coefficients (JapaneseVowels, Kudo et al. 1999, in
aeon 1.6.0), with the official parts: what is ordinary in the test part are the eight speakers that were learnt, strange is the ninth.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import mean, stdev

import numpy as np
from packages import CACHE, fetched
from record import record

import conca
from conca.data.labelled_source import read_labelled
from conca.energy.novelty import By
from conca.metrics.novelty import auprc, auroc, fpr_at

SCORES: tuple[By, ...] = ("max_softmax", "max_logit", "energy")


def main() -> None:
    """Leave out each speaker in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    given = parser.parse_args()
    folder = fetched("aeon==1.6.0", CACHE) / "aeon" / "datasets" / "data" / "JapaneseVowels"
    data = read_labelled(folder / "JapaneseVowels_TRAIN.ts")
    labels = np.array([str(label) for label in data.labels])
    learnt, plain = data.parts == "train", replace(data, parts=None)
    figures: dict[By, list[tuple[float, ...]]] = {by: [] for by in SCORES}
    right = []
    for seed in range(given.seeds):
        for speaker in np.unique(labels):
            known = labels != speaker
            model = conca.Classifier(d_model=32, epochs=given.epochs, random_state=seed)
            model.fit(plain.take(np.flatnonzero(learnt & known)), labels[learnt & known])
            inside, outside = (plain.take(np.flatnonzero(~learnt & part)) for part in (known, ~known))
            right.append(float((model.predict(inside) == labels[~learnt & known]).mean()))
            for by in SCORES:
                pair = [model.novelty(part, by=by) for part in (inside, outside)]
                figures[by].append((auroc(*pair), auprc(*pair), fpr_at(*pair)))
            print(seed, speaker, f"{right[-1]:.3f}", {by: f"{figures[by][-1][0]:.3f}" for by in SCORES}, flush=True)
    rows = [[by, *(f"{mean(column):.3f} ± {stdev(column):.3f}" for column in zip(*figures[by]))] for by in SCORES]
    better = sum(a[0] > b[0] for a, b in zip(figures["energy"], figures["max_softmax"]))
    notes = (
        f"Means and standard deviations over 9 speakers left out and {given.seeds} seeds. Higher scores are stranger, "
        f"the speaker left out is the positive class. The energy has the higher AUROC than max-softmax in {better} "
        f"of {len(right)}. Accuracy on the eight that were learnt: {mean(right):.1%}."
    )
    record("novelty_vowels", "A speaker never heard", ("score", "AUROC", "AUPR", "FPR95"), rows, notes)


if __name__ == "__main__":
    main()
