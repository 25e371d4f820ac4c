"""A forecaster of tables: fit, predict, score, backtest, save and load, data frames in and out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from conca.data.encoding import Encoded
from conca.data.future import Future, empty_future, read_future
from conca.data.panel import Names, Panel, Schema
from conca.data.table import Origin, Source
from conca.estimators.arguments import check_switches, folder_of
from conca.estimators.columns import Columns, as_given, columns_of, read_columns
from conca.estimators.config import ForecastConfig
from conca.estimators.evaluation import Evaluation
from conca.estimators.fitting import fit_run, judged, trial_of, unseen, verdict
from conca.estimators.holdout import HoldOut
from conca.estimators.novelty import novelty_frame
from conca.estimators.runs import Run, read_run, write_run
from conca.estimators.scores import Trial, score_table
from conca.estimators.training import learn
from conca.estimators.workplace import stamp, workplace
from conca.infer.fitted import Fitted
from conca.infer.forecast import forecast
from conca.infer.frame import check_names, long_frame
from conca.models.forecast import ForecastNetwork
from conca.models.run import check_free, new_folder
from conca.train.ranks import first
from conca.types import BadInput

__all__ = ["Forecaster"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Forecaster:
    """Quantile forecasts of one or many series, `horizon` steps ahead.

    >>> import numpy as np, pandas as pd
    >>> table = pd.DataFrame({"y": np.sin(np.arange(200) / 4)})
    >>> model = Forecaster(horizon=3, layers="s4d", d_model=8, epochs=1).fit(table, progress=False)
    >>> model.predict().columns.tolist()
    ['cutoff', 'step', 'target_name', 'q0.1', 'q0.5', 'q0.9', 'y']

    Args:
        horizon: steps ahead.
        options: the fields of `ForecastConfig` by name: layers, d_model, quantiles, members, dropout, epochs, max_minutes,
            batch_size, length, truncate, lr, weight_decay, patience, seed, devices, precision.

    Raises:
        BadInput: for an unknown option (the nearest known one is named) or an ill value.

    After `fit`: `scores_` (a frame: one row for the model and for each simple forecast; columns MAE, RMSE, MASE, pinball,
    coverage; all of rows that were held out), `target_scores_` (the same for each target, where there are several),
    `refit_scores_` (on the same rows, of the model that has learnt from them too: how well it fits, not how well it
    forecasts), `evaluation_` (forecasts of the rows held out, see `Evaluation`), `history_` (a frame: what was logged
    after each epoch), `notices_` (lines about the table: rows sorted, series left out), `schema_`, and `network_`, a
    `torch.nn.Module`. After `backtest`: `backtest_scores_`.
    """

    def __init__(self, horizon: int = ForecastConfig.horizon, **options: Any) -> None:
        self.config = ForecastConfig.from_dict({"horizon": horizon, **options})
        self.backtest_scores_ = pd.DataFrame()
        self.notices_: list[str] = []
        self._run: Run | None = None

    def __repr__(self) -> str:
        return f"Forecaster({', '.join(f'{k}={v!r}' for k, v in self.config.as_dict().items())})"

    @property
    def run_(self) -> Run:
        """All that the fit ended with. Raises RuntimeError before `fit`."""
        if self._run is None:
            raise RuntimeError("this forecaster is not fitted; call fit first")
        return self._run

    @property
    def fitted(self) -> Fitted:
        """What forecasts are made with. Raises RuntimeError before `fit`."""
        return self.run_.fitted

    @property
    def schema_(self) -> Schema:
        """What the columns of the table mean."""
        return self.fitted.schema

    @property
    def network_(self) -> ForecastNetwork:
        """The trained network."""
        return self.fitted.network

    @property
    def scores_(self) -> pd.DataFrame:
        """Scores on the rows held out; empty before `fit`."""
        return self._run.scores if self._run else pd.DataFrame()

    @property
    def target_scores_(self) -> pd.DataFrame:
        """Scores of each target on the rows held out; empty for one target."""
        return self._run.target_scores if self._run else pd.DataFrame()

    @property
    def refit_scores_(self) -> pd.DataFrame:
        """Scores on the same rows of the model that has learnt from them too; empty without refit."""
        return self._run.refit_scores if self._run else pd.DataFrame()

    @property
    def evaluation_(self) -> Evaluation | None:
        """Forecasts of the rows held out; None if there are none."""
        return self._run.evaluation if self._run else None

    @property
    def history_(self) -> pd.DataFrame:
        """What was logged after each epoch; empty before `fit`."""
        return self._run.history if self._run else pd.DataFrame()

    def fit(
        self,
        data: Source,
        *,
        target: Names | None = None,
        time: str | None = None,
        series: Names = (),
        covariates: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        known: Sequence[str] = (),
        tz: str | None = None,
        out: str | Path | None = None,
        test_fraction: float = 0.2,
        windows: int | None = None,
        step: int | None = None,
        refit: bool = True,
        strict: bool = False,
        progress: bool = True,
        force: bool = False,
        resume: bool = False,
    ) -> Self:
        """Learn from a table. In threads, one training waits for the other, and so does `load`.

        The last rows of every series are held out at first: nothing is fitted on them, `scores_` is measured on them. The
        last tenth of the others decides when to stop. Then, with `refit`, a new network learns from all rows, for as many
        steps as were found best.

        Args:
            data: a data frame (of pandas, polars, or Arrow), or the path of a CSV (.csv, .csv.gz, .csv.xz) or Parquet file.
            target: column or columns to forecast; None: `y` beside `ds`, `target` beside `timestamp`, else the only column
                of numbers beside those named.
            time: column of times; None: `ds` or `timestamp` as above, else the order of the rows is time.
            series: column or columns that tell series apart; none: `unique_id` or `item_id` as above.
            covariates: other columns to use; None: all that fit.
            categorical: columns among them that are categories though they look like numbers.
            known: columns among them that are known in advance (`predict(future=...)`), such as holidays.
            tz: time zone of the times, where they are those of local clocks, such as "Europe/Rome".
            out: run folder to write; None: keep the model in memory alone (`save` writes it later).
            test_fraction: share of the rows of every series that is held out, 0 for none.
            windows, step: hold out so many windows of `horizon` rows, so far apart (the horizon), instead of a share.
            refit: learn from all rows in the end.
            strict: refuse a table with series that must be left out.
            progress: show a bar on stderr.
            force: replace the run folder if it exists.
            resume: go on with a training for `out` that was killed or interrupted; it ends as if it had not been.

        Raises:
            BadInput: one line, for a table that cannot be read or used, an ill option, a folder that exists. Then nothing
                is written; of a training that is interrupted, what `resume` needs is kept beside `out`.
        """
        check_switches(refit=refit, strict=strict, progress=progress, force=force, resume=resume)
        held = HoldOut(self.config.horizon, test_fraction, windows, step)
        if out is not None and first():
            check_free(folder_of(out), force, resume)
        columns = Columns(target, time, series, covariates, categorical, known, tz)
        panel = read_columns(data, columns, minimum=held.minimum, strict=strict)
        check_names(panel.schema, self.config.columns)
        plan = held.plan(panel.series)
        options = self.config.as_dict() | {
            "test_fraction": test_fraction,
            "windows": windows,
            "step": step,
            "refit": refit,
        }
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            workplace(out, force, resume, stamp(panel, options)) as folder,
        ):
            run, self.notices_ = fit_run(
                self.config, panel, plan, folder, progress=progress, resume=resume, refit=refit
            )
            if out is not None and first():
                write_run(folder, run)
            self._run = run
        return self

    def backtest(
        self,
        data: Source,
        *,
        windows: int = 4,
        step: int | None = None,
        refit: bool = False,
        strict: bool = False,
        progress: bool = True,
        **columns: Any,
    ) -> pd.DataFrame:
        """Forecast the last windows of a table as they would have been forecast then; what was fitted stays as it is.

        Args:
            data: as in `fit`.
            windows: so many, `horizon` rows each; the last one ends with the series.
            step: rows from one window to the next; None: the horizon.
            refit: train anew for every window, on all rows before it; else once, on those before the first.
            strict, progress: as in `fit`.
            columns: target, time, series, covariates, categorical, known, tz, as in `fit`; none: those of the fitted table.

        Returns:
            The forecasts, as `predict` gives them, `y` beside them; `backtest_scores_` compares them with simple ones.

        Raises:
            BadInput: one line, as in `fit`.
        """
        check_switches(refit=refit, strict=strict, progress=progress)
        held = HoldOut(self.config.horizon, 0.0, windows, step)
        chosen = columns_of(self.schema_) if self._run and not columns else Columns.of(columns)
        panel = read_columns(data, chosen, minimum=held.minimum, strict=strict)
        check_names(panel.schema, self.config.columns)
        plans = [held.window(panel.series, w) for w in range(windows)] if refit else [held.plan(panel.series)]
        trials = []
        with torch.inference_mode(False), torch.enable_grad():
            for plan in plans:
                with workplace(None, False, False, {}) as folder:
                    learnt = learn(
                        self.config, panel, plan.splits, folder, progress=progress, minutes=self.config.max_minutes
                    )
                trials.append(trial_of(self.config, learnt, plan))
        self.notices_, self.backtest_scores_ = list(panel.notices), score_table(trials)
        frames = [long_frame(panel.schema, t.series, t.cutoffs, t.quantiles, self.config.columns) for t in trials]
        result: pd.DataFrame = as_given(pd.concat(frames, ignore_index=True), data)
        return result

    def predict(
        self, data: Source | None = None, *, rolling: bool = False, future: Source | None = None
    ) -> pd.DataFrame:
        """Forecast a table, from the end of every series or, `rolling`, from every row.

        Args:
            data: a table with the columns of the one that was fitted; None: the fitted series go on from their ends.
            rolling: forecast from every row.
            future: where columns are known in advance: a table with their values in the steps ahead (see `make_future`).

        Returns:
            One row for each series, cutoff, step ahead and target: the columns of series and time (dates, with their zone if
            there is one); `cutoff`, the time of the last row that was known (its number, where there is no time column);
            `step`, from 1; `target_name`; the quantiles, such as `q0.1`; and `y` where it is known. A frame of polars for one
            of polars.

        What should be known about the table (rows sorted, categories or series that were not fitted) is in `notices_`
        afterwards, a list of lines.

        Raises:
            BadInput: for a table that cannot be read or does not fit the fitted one.
            RuntimeError: before `fit`.
        """
        check_switches(rolling=rolling)
        fitted, config = self.fitted, self.config
        schema, targets = fitted.schema, fitted.schema.target
        if data is None:
            if rolling or future is not None or schema.known:
                what = "rolling forecasts need" if rolling else "what is known in advance needs"
                raise BadInput(f"{what} a table; give the data to forecast")
            return long_frame(
                schema, fitted.ends.series(targets), fitted.ends.cutoffs(), fitted.ends.parts(), config.columns
            )
        panel, encoded = self._encoded(data, future)
        every = [np.flatnonzero(s.given) if rolling else np.array([len(s) - 1]) for s in panel.series]
        if schema.known and future is None:
            every = self._within(panel, every, rolling)
        found = forecast(fitted.network, encoded, every, context=config.length)
        result: pd.DataFrame = as_given(long_frame(schema, panel.series, every, found, config.columns), data)
        return result

    def _within(self, panel: Panel, rows: Sequence[Integers], rolling: bool) -> list[Integers]:
        """The rows whose steps ahead lie in the table, since what is known in advance is not known beyond it."""
        names = ", ".join(f"'{name}'" for name in panel.schema.known)
        if not rolling:
            advice = "give them as future (--future); make_future (--make-future) makes the table to fill in"
            raise BadInput(f"the values of {names} in the steps ahead are needed; {advice}")
        self.notices_.append(f"forecasts whose steps ahead reach beyond the table are left out: {names} must be known")
        return [r[r + self.config.horizon < len(s)] for r, s in zip(rows, panel.series)]

    def make_future(self, data: Source | None = None) -> pd.DataFrame:
        """The table to fill in with what is known in advance of the steps ahead: series, time, and empty columns.

        Args:
            data: the table that is to be forecast; None: the fitted one.

        Raises:
            BadInput: if the forecaster knows no column in advance, or the table cannot be read.
            RuntimeError: before `fit`.
        """
        schema, ends = self.fitted.schema, self.fitted.ends.series(self.fitted.schema.target)
        if not schema.known:
            raise BadInput(
                "no column of this forecaster is known in advance; name some when it is fitted (known, --known)"
            )
        series = ends if data is None else self._encoded(data)[0].series
        found: pd.DataFrame = as_given(
            empty_future(schema, [(s.key, s.times[-1]) for s in series], self.config.horizon), data
        )
        return found

    def _encoded(self, data: Source, future: Source | None = None) -> tuple[Panel, list[Encoded]]:
        """The series of a new table, as they are and as the network reads them; sets the notices."""
        fitted, futures = self.fitted, None
        panel = read_columns(data, fitted.schema)
        self.notices_ = list(panel.notices)
        unknown = sum(not fitted.encoding.knows(s.key) for s in panel.series)
        if unknown:
            self.notices_.append(
                f"{unknown} of {len(panel)} series were not fitted; they are scaled as the average series is"
            )
        if future is not None:
            if not fitted.schema.known:
                raise BadInput("no column of this forecaster is known in advance; leave the future out")
            ends = [(s.key, s.times[-1]) for s in panel.series]
            futures = read_future(future, fitted.schema, ends, self.config.horizon, self.notices_)
        known: Sequence[Future | None] = futures or [None] * len(panel)
        return panel, [fitted.encoding.encode(fitted.schema, s, future=f) for s, f in zip(panel.series, known)]

    def score(self, data: Source) -> pd.DataFrame:
        """How well a table is forecast, beside the simple forecasts of the run: one row for each, lower is better.

        Judged are the rows after those that the model learnt from; give these as well, they are read as the past. A table
        without times is judged whole. `notices_` says what was judged.

        Returns:
            A frame as `scores_`: MAE, RMSE, MASE, pinball, and coverage (right where it is the share that the quantiles claim).

        Raises:
            BadInput: for a table that cannot be read or does not fit the fitted one, or has no new row with a known value.
            RuntimeError: before `fit`.
        """
        fitted, config = self.fitted, self.config
        panel, encoded = self._encoded(data)
        new = unseen(fitted, panel.series)
        found = forecast(fitted.network, encoded, new.cutoffs, context=config.length)
        table = score_table([Trial(panel.series, new.cutoffs, found, config.quantiles, self.run_.simple)])
        name = Origin.of(data).name
        if not len(table):
            what = f"values of {', '.join(fitted.schema.target)} after those that were learnt from"
            raise BadInput(f"{name}: there is nothing to judge; give rows with {what}")
        lines = {
            f"{new.old} of {len(panel)} series have no rows after those that were learnt from; they are not judged": new.old,
            f"{name}: begins after the rows that were learnt from; give these too, as the past": new.cold,
            "without times it cannot be told which rows were learnt from; all are judged": new.doubtful,
        }
        self.notices_ += [line for line, count in lines.items() if count]
        self.notices_ += [judged(fitted.schema, panel.series, new.cutoffs, config.horizon), *verdict(table)]
        return table

    def novelty(self, data: Source, *, quantile: float | None = None) -> pd.DataFrame:
        """How strange each row is: -log of the density of its targets under the forecast from the row before; higher is stranger.

        Returns a line for each row: series, time (or `row`), `novelty` (nats; NaN for the first row of a series and without a
        target), `rank` (share of the rows held out at the fit that scored lower), `alarm` (1 where that is `quantile`, or 0.99, or more).
        Raises BadInput as `predict` does, and where too little was held out for the quantile.
        """
        result: pd.DataFrame = as_given(novelty_frame(self.run_, *self._encoded(data), quantile), data)
        return result

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write a run folder, whole or not at all.

        Raises:
            BadInput: if the folder exists and is not to be replaced (`force`).
            RuntimeError: before `fit`.
        """
        run = self.run_
        check_switches(force=force)
        with new_folder(folder_of(folder), force) as new:
            write_run(new, run)

    @classmethod
    def load(cls, folder: str | Path) -> Forecaster:
        """Read a run folder.

        Raises:
            BadInput: one line, for a folder that is no run, of a newer format, of another kind, damaged, or not whole.
        """
        run = read_run(folder_of(folder))
        result = cls(**run.config.as_dict())
        result._run = run
        return result
