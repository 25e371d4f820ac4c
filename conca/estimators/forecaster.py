"""A forecaster of tables: fit, predict, save and load, data frames in and out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch

import conca
from conca.data.encoding import Encoded, Encoding
from conca.data.panel import Names, Panel, Schema, as_names, read_panel
from conca.data.split import Split, split_by_time
from conca.data.table import Source
from conca.estimators.config import ForecastConfig
from conca.estimators.saved import check_parts, check_schema, network_config, read_history, read_scores
from conca.estimators.scores import held_out_cutoffs, score_table
from conca.estimators.target import only_target
from conca.infer.fitted import Fitted
from conca.infer.forecast import forecast
from conca.infer.frame import Ends, check_names, long_frame
from conca.models.forecast import ForecastNetwork, NetworkConfig
from conca.models.run import (
    check_free,
    check_keys,
    load_tensors,
    new_folder,
    read_config,
    read_tensors,
    write_config,
    write_tensors,
)
from conca.train.calibrate import calibrate
from conca.train.pieces import Pieces, windows
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.types import BadInput

__all__ = ["Forecaster"]

VALIDATION = 0.1
"""The share of the rows known to the training, the last ones, that it stops by."""
PASSES = 4
"""How often an epoch reads each row."""
STEPS = 10, 250
"""Steps of an epoch, at least and at most."""
PARTS = ("forecast", "network", "schema", "encoding", "latest")


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
            batch_size, length, lr, weight_decay, patience, seed, devices, precision.

    Raises:
        BadInput: for an unknown option (the nearest known one is named) or an ill value.

    After `fit`: `scores_` (a frame: one row for the model and for each simple forecast; columns MAE, RMSE, MASE, pinball,
    coverage), `history_` (a frame: what was logged after each epoch), `notices_` (lines about the table: rows sorted, series
    left out), `schema_`, and `network_`, a `torch.nn.Module`.
    """

    def __init__(self, horizon: int = ForecastConfig.horizon, **options: Any) -> None:
        self.config = ForecastConfig.from_dict({"horizon": horizon, **options})
        self.scores_ = pd.DataFrame()
        self.history_ = pd.DataFrame()
        self.notices_: list[str] = []
        self._fitted: Fitted | None = None

    def __repr__(self) -> str:
        return f"Forecaster({', '.join(f'{k}={v!r}' for k, v in self.config.as_dict().items())})"

    @property
    def schema_(self) -> Schema:
        """What the columns of the table mean."""
        return self.fitted.schema

    @property
    def network_(self) -> ForecastNetwork:
        """The trained network."""
        return self.fitted.network

    @property
    def fitted(self) -> Fitted:
        """What was fitted. Raises RuntimeError before `fit`."""
        if self._fitted is None:
            raise RuntimeError("this forecaster is not fitted; call fit first")
        return self._fitted

    def fit(
        self,
        data: Source,
        *,
        target: Names | None = None,
        time: str | None = None,
        series: Names = (),
        covariates: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        out: str | Path | None = None,
        test_fraction: float = 0.2,
        strict: bool = False,
        progress: bool = True,
        force: bool = False,
    ) -> Self:
        """Learn from a table. In threads, one training waits for the other, and so does `load`.

        The last `test_fraction` of the rows of every series is held out: nothing is fitted on it, `scores_` is measured
        on it. The last tenth of the others decides when to stop.

        Args:
            data: a data frame, or the path of a CSV (.csv, .csv.gz, .csv.xz) or Parquet file.
            target: column or columns to forecast; None: the only column of numbers beside those named.
            time: column of times; None: the order of the rows is time.
            series: column or columns that tell series apart.
            covariates: other columns to use; None: all that fit.
            categorical: columns among them that are categories though they look like numbers.
            out: run folder to write; None: keep the model in memory alone (`save` writes it later).
            test_fraction: share of the rows of every series that is held out, 0 for none.
            strict: refuse a table with series that must be left out.
            progress: show a bar on stderr.
            force: replace the run folder if it exists.

        Raises:
            BadInput: one line, for a table that cannot be read or used, an ill option, a folder that exists. Then, and
                when interrupted, nothing is written.
        """
        share: Any = test_fraction
        if not isinstance(share, Real) or not 0 <= float(share) < 1:
            raise BadInput(f"test_fraction must be at least 0 and less than 1, not {test_fraction!r}")
        if out is not None:
            check_free(Path(out), force)
        if target is None:
            named = (as_names(names) for names in (time, series, covariates, categorical))
            target = only_target(data, {name for names in named for name in names})
        panel = read_panel(
            data,
            target=target,
            time=time,
            series=series,
            covariates=covariates,
            categorical=categorical,
            minimum=self.config.horizon + 2,
            strict=strict,
        )
        check_names(panel.schema, self.config.columns)
        splits = [split_by_time(len(s), held_out=test_fraction, validation=VALIDATION) for s in panel.series]
        with torch.inference_mode(False), torch.enable_grad(), workplace(out, force) as folder:
            self._learn(panel, splits, folder, progress)
            if out is not None:
                self._write(folder)
        return self

    def _learn(self, panel: Panel, splits: Sequence[Split], folder: Path, progress: bool) -> None:
        known = [split.validation for split in splits]
        panel = panel.known(known)
        config, schema = self.config, panel.schema
        if all(np.isnan(s.target[1 : split.train]).all() for s, split in zip(panel.series, splits)):
            raise BadInput("no target value is left to learn from; give more rows, or hold out fewer (test_fraction)")
        encoding = Encoding.fit(schema, panel.series, known)
        encoded = [encoding.encode(schema, s) for s in panel.series]
        with seeded(config.seed):
            network = ForecastNetwork(network_config(config, schema, encoding))
        pieces, validation = self._material(encoded, splits)
        rows = sum(split.train for split in splits)
        steps = int(np.clip(PASSES * rows / (pieces.length * config.batch_size), *STEPS))
        trainer()(network, pieces, validation, self._recipe(steps), folder, progress=progress)
        calibrate(network, validation)
        chosen = held_out_cutoffs(splits, config.horizon)
        last = [np.array([len(s) - 1]) for s in panel.series]
        every = [np.unique(np.concatenate([c, end])) for c, end in zip(chosen, last)]
        found = forecast(network, encoded, every, context=config.length)
        held_out = [q[np.isin(rows, c)] for q, rows, c in zip(found, every, chosen)]
        self.scores_ = score_table(schema, panel.series, splits, held_out, config.horizon, config.quantiles)
        self.history_ = read_history(folder / "metrics.csv")
        self.history_.to_csv(folder / "metrics.csv", index=False)
        self.notices_ = list(panel.notices)
        self._fitted = Fitted(schema, encoding, network, Ends.of(panel.series, [q[-1] for q in found]), config.length)

    def _material(self, encoded: Sequence[Encoded], splits: Sequence[Split]) -> tuple[Pieces, list[Any]]:
        config = self.config
        length = min(config.length, max(split.train for split in splits))
        train, known = [split.train for split in splits], [split.validation for split in splits]
        pieces = Pieces(
            encoded,
            train,
            horizon=config.horizon,
            length=length,
            batch_size=config.batch_size * config.members,
            seed=config.seed,
        )
        validation = windows(encoded, train, known, horizon=config.horizon, length=length, batch_size=config.batch_size)
        return pieces, [batch for batch in validation if not bool(torch.isnan(batch.future).all())]

    def _recipe(self, steps: int) -> Recipe:
        config = self.config
        return Recipe(
            lr=config.lr,
            weight_decay=config.weight_decay,
            epochs=config.epochs,
            steps=steps,
            patience=config.patience,
            max_minutes=config.max_minutes,
            seed=config.seed,
            devices=config.devices,
            precision=config.precision,
        )

    def predict(self, data: Source | None = None, *, rolling: bool = False) -> pd.DataFrame:
        """Forecast a table, from the end of every series or, `rolling`, from every row.

        Args:
            data: a table with the columns of the one that was fitted; None: the fitted series go on from their ends.
            rolling: forecast from every row.

        Returns:
            One row for each series, cutoff, step ahead and target: the columns of series and time, as the table has them;
            `cutoff`, the time of the last row that was known (its number, where there is no time column); `step`, from 1;
            `target_name`; the quantiles, such as `q0.1`; and `y` where it is known.

        What should be known about the table (rows sorted, categories or series that were not fitted) is in `notices_`
        afterwards, a list of lines.

        Raises:
            BadInput: for a table that cannot be read or does not fit the fitted one.
            RuntimeError: before `fit`.
        """
        fitted, config = self.fitted, self.config
        schema, targets = fitted.schema, fitted.schema.target
        if data is None:
            if rolling:
                raise BadInput("rolling forecasts need a table; give the data to forecast")
            return long_frame(
                schema, fitted.ends.series(targets), fitted.ends.cutoffs(), fitted.ends.parts(), config.columns
            )
        panel = read_panel(data, schema=schema)
        self.notices_ = list(panel.notices)
        unknown = sum(not fitted.encoding.knows(s.key) for s in panel.series)
        if unknown:
            self.notices_.append(
                f"{unknown} of {len(panel)} series were not fitted; they are scaled as the average series is"
            )
        encoded = [fitted.encoding.encode(schema, s) for s in panel.series]
        every = [np.flatnonzero(s.given) if rolling else np.array([len(s) - 1]) for s in panel.series]
        found = forecast(fitted.network, encoded, every, context=config.length)
        return long_frame(schema, panel.series, every, found, config.columns)

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write a run folder, whole or not at all.

        Raises:
            BadInput: if the folder exists and is not to be replaced (`force`).
            RuntimeError: before `fit`.
        """
        _ = self.fitted
        with new_folder(Path(folder), force) as new:
            self.history_.to_csv(new / "metrics.csv", index=False)
            self._write(new)

    def _write(self, folder: Path) -> None:
        fitted = self.fitted
        parts = {
            "conca": conca.__version__,
            "forecast": self.config.as_dict(),
            "network": fitted.network.config.as_dict(),
            "schema": fitted.schema.as_dict(),
            "encoding": fitted.encoding.as_dict(),
            "latest": fitted.ends.as_dict(),
        }
        self.scores_.to_csv(folder / "scores.csv")
        write_tensors(folder / "model.safetensors", fitted.network.state_dict())
        write_tensors(folder / "latest.safetensors", {"quantiles": torch.from_numpy(fitted.ends.quantiles)})
        write_config(folder, "forecast", parts)

    @classmethod
    def load(cls, folder: str | Path) -> Forecaster:
        """Read a run folder.

        Raises:
            BadInput: one line, for a folder that is no run, of a newer format, of another kind, damaged, or not whole.
        """
        folder = Path(folder)
        saved = read_config(folder)
        path = folder / "config.json"
        if saved["kind"] != "forecast":
            raise BadInput(f"{path}: a run of kind '{saved['kind']}', not a forecaster")
        check_keys(path, saved, ("conca", *PARTS))
        try:
            config = ForecastConfig.from_dict(saved["forecast"])
            quantiles = read_tensors(folder / "latest.safetensors").get("quantiles", torch.empty(0))
            ends = Ends.from_dict(saved["latest"], quantiles.numpy())
            schema, encoding = Schema.from_dict(saved["schema"]), Encoding.from_dict(saved["encoding"])
            check_schema(schema, saved["schema"])
            check_parts(config, schema, encoding, NetworkConfig.from_dict(saved["network"]), ends)
            with torch.inference_mode(False), seeded(0):
                network = ForecastNetwork(network_config(config, schema, encoding))
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise BadInput(f"{path}: cannot be understood ({' '.join(str(error).split())})") from None
        load_tensors(network, folder / "model.safetensors")
        if not all(bool(torch.isfinite(tensor).all()) for tensor in network.state_dict().values()):
            raise BadInput(f"{folder / 'model.safetensors'}: the run is damaged: a weight is no number")
        result = cls(**config.as_dict())
        result._fitted = Fitted(schema, encoding, network.eval(), ends, config.length)
        result.scores_ = read_scores(folder / "scores.csv")
        result.history_ = read_history(folder / "metrics.csv")
        return result


def trainer() -> Callable[..., None]:
    """The training itself, imported when it is needed: forecasting does without Lightning."""
    try:
        return import_module("conca.train.fit").train_forecast  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        line = f'fitting needs {error.name}, which is not installed: pip install "conca[all]"'
        raise ModuleNotFoundError(line, name=error.name) from error


@contextmanager
def workplace(out: str | Path | None, force: bool) -> Iterator[Path]:
    """The new run folder, or a temporary one that disappears."""
    if out is not None:
        with new_folder(Path(out), force) as folder:
            yield folder
    else:
        temporary = Path(tempfile.mkdtemp(prefix="conca-"))
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
