"""The demo: `conca fit` with its defaults on a year of hourly air quality held out, and how long it takes.

python bench/demo.py
"""

from __future__ import annotations

import os
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from record import record

import conca

DATA = Path(__file__).parent.parent / "examples" / "data" / "beijing-air.csv.xz"


def main() -> None:
    """Fit twice, without and with the last training on all rows, so that both times are seen."""
    seconds = {}
    for refit in (False, True):
        begin = time.perf_counter()
        model = conca.Forecaster(horizon=24).fit(DATA, target="pm2.5", time="time", refit=refit, progress=False)
        seconds[refit] = time.perf_counter() - begin
    rows = [
        [name, *(f"{value:.4g}" for value in row)] for name, row in zip(model.scores_.index, model.scores_.to_numpy())
    ]
    again = model.refit_scores_.loc["model"]
    notes = (
        f"{model.notices_[-1]}. Training and judging took {seconds[False]:.0f} s; with the last training on all rows, which learns the "
        f"rows held out too (MAE there {again['MAE']:.4g}: how well it fits, not how well it forecasts), {seconds[True]:.0f} s."
    )
    record("demo", "The demo: pm2.5 in Beijing, 24 hours ahead", ["forecast", *model.scores_.columns], rows, notes)


if __name__ == "__main__":
    main()
