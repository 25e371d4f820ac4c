"""aeon's checks of classifiers, run on `conca.Classifier` behind a thin adapter.

    python bench/aeon_checks.py [--data DIR]

aeon wants descendants of its own class, and channels before time; the adapter is that and no more. aeon wants an older numba than conca's
constraints name, so it is installed, with conca, into an environment of its own in the data folder, in which this file runs itself again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import venv
import warnings
from collections import Counter
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from record import record

import conca

try:
    from aeon.classification import BaseClassifier
except ModuleNotFoundError:
    BaseClassifier = object

ROOT = Path(__file__).parent.parent
AEON = "aeon==1.6.0"
STORED, EMPTY = "check_classifier_against_expected_results", "with nothing to compare"
TINY = {"layers": "s4d(d_state=2)", "d_model": 4, "epochs": 1}


class AeonClassifier(BaseClassifier):
    """`conca.Classifier` as one of aeon's: arrays (n, C, T) or (n, T), or lists of arrays (C, T_i), with labels (n,)."""

    _tags: ClassVar[dict[str, Any]] = {
        "X_inner_type": ["np-list", "numpy3D", "numpy2D"],
        "algorithm_type": "deeplearning",
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "python_dependencies": "torch",
    }

    def __init__(
        self, layers: str = "s4d*4", d_model: int = 64, epochs: int | None = None, random_state: int | None = 0
    ) -> None:
        self.layers, self.d_model, self.epochs, self.random_state = layers, d_model, epochs, random_state
        super().__init__()

    def _fit(self, X: Any, y: Any) -> Self:
        self.classifier_ = conca.Classifier(axes="nct", **self.get_params()).fit(X, y)
        return self

    def _predict(self, X: Any) -> Any:
        return self.classifier_.predict(X)

    def _predict_proba(self, X: Any) -> Any:
        return self.classifier_.predict_proba(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return TINY


def elsewhere(data: Path) -> int:
    """Run this file in the environment that holds aeon, made if it is not there; its exit code."""
    folder = data / f"environment-{AEON.replace('==', '-')}-checks"
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        print(f"installing {AEON} and conca into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        wanted = [AEON, "pytest", f"torch=={version('torch').partition('+')[0]}", f"{ROOT}[all]"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True, stdout=sys.stderr)
        (folder / "done").touch()
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # conca as it is now
    return subprocess.run([str(python), *sys.argv], env=os.environ | {"PYTHONPATH": path}).returncode


def checked() -> dict[str, list[tuple[str, str]]]:
    """Of each check: on what it was run ("" where it needs no data), and "PASSED", or "FAILED: " or "SKIPPED: " and why."""
    from aeon.testing.estimator_checking import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = check_estimator(AeonClassifier)
    found: dict[str, list[tuple[str, str]]] = {}
    for name, result in said.items():
        check, _, about = name.partition("(")
        data = re.search(r"(?:datatype|data_name)=([^,)]+)", about)
        found.setdefault(check, []).append((data[1].replace("-Classification-", ", ") if data else "", result))
    return found


def page(found: dict[str, list[tuple[str, str]]], seconds: float) -> bool:
    """Write the page; whether all passed."""
    counts, rows, reasons = Counter[str](), [], []
    for check, runs in found.items():
        words = [EMPTY if check == STORED and said == "PASSED" else said.partition(":")[0].lower() for _, said in runs]
        counts.update(words)
        told = ", ".join(f"{number} {word}" for word, number in Counter(words).items())
        rows.append((f"`{check}`", "; ".join(data for data, _ in runs), told))
        reasons += [f"{check} ({data}): {said}" for data, said in runs if said != "PASSED"]
    total = ", ".join(f"{number} {word}" for word, number in counts.items())
    versions = ", ".join(f"{name} {version(name)}" for name in ("aeon", "scikit-learn", "numpy", "numba"))
    options = ", ".join(f"{name}={value!r}" for name, value in TINY.items())
    notes = (
        f"{sum(counts.values())} checks in {seconds:.0f} s: {total}. Those that train do so with `{options}`; none asks how often an "
        f"answer is right. {versions}, in an environment of their own.\n\n"
        f"`{STORED}` compares with figures that aeon stores of its own classifiers; it has none of this one, so that it cannot fail, and "
        "is not counted as passed."
    )
    notes += "".join(f"\n\n{reason}" for reason in reasons)
    record("aeon_checks", "aeon's checks of classifiers", ("check", "run on", "outcome"), rows, notes)
    return not reasons


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / ".cache" / "data", help="where the environment is kept")
    args = parser.parse_args()
    if find_spec("aeon") is None:
        return elsewhere(args.data)
    torch.set_num_threads(1)
    begin = time.perf_counter()
    found = checked()
    return 0 if page(found, time.perf_counter() - begin) else 1


if __name__ == "__main__":
    sys.exit(main())
