"""One training of a forecaster: from the series of a table to a network that has learnt from some of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conca.data.encoding import Encoded, Encoding
from conca.data.panel import Panel, Schema
from conca.data.split import Split
from conca.estimators.config import ForecastConfig
from conca.estimators.saved import network_config
from conca.models.forecast import ForecastNetwork
from conca.train.calibrate import calibrate
from conca.train.pieces import Batch, Pieces, windows
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.types import BadInput

if TYPE_CHECKING:
    from conca.train.course import Trained

__all__ = ["Learnt", "learn", "trainer"]

PASSES, PASSES_OF_SEASONS = 4, 16
"""How often an epoch reads each row: of tables that their seasons say little about, and of others (`conca.data.anchor`), where little
is left of the noise that a network would learn by heart, and what is left is fine detail."""
STEPS = 10, 250
"""Steps of an epoch, at least and at most."""
STEPS_OF_STRUCTURE = 40
"""Of a structural forecaster: its few parameters need many steps, but no more of them where there are more rows."""
TARGETS_OF_STRUCTURE = 2**11
"""Targets that a piece is compared with, about, by a structural forecaster, whose forecasts take longer than its filter."""


@dataclass(frozen=True)
class Learnt:
    """What a training ends with.

    panel     the table as the model may know it: categories met only in rows held out are unknown
    encoding, network  fitted
    encoded   the series of the panel
    recipe    how it was trained
    trained   what happened
    """

    panel: Panel
    encoding: Encoding
    network: ForecastNetwork
    encoded: list[Encoded]
    recipe: Recipe
    trained: Trained

    @property
    def schema(self) -> Schema:
        """What the columns mean."""
        return self.panel.schema


def learn(
    config: ForecastConfig,
    panel: Panel,
    splits: Sequence[Split],
    folder: Path,
    *,
    progress: bool,
    resume: bool = False,
    after: Learnt | None = None,
    minutes: float | None = None,
) -> Learnt:
    """Train a network on the rows before `validation` of every series; the rows from `train` on decide when to stop.

    after   an earlier training whose steps, schedule and spread of quantiles are repeated; then no row is kept to stop by
    minutes of training, at most
    resume  go on with the training that `folder` holds, if there is one

    Raises BadInput if there is nothing to learn from, or if the training fails.
    """
    known = [split.validation for split in splits]
    train = known if after else [split.train for split in splits]
    panel = panel.known(known)
    if all(np.isnan(s.target[1:end]).all() for s, end in zip(panel.series, train)):
        raise BadInput("no target value is left to learn from; give more rows, or hold out fewer (test_fraction)")
    encoding = Encoding.fit(panel.schema, panel.series, known, config.horizon)
    encoded = [encoding.encode(panel.schema, s) for s in panel.series]
    with seeded(config.seed):
        network = ForecastNetwork(network_config(config, panel.schema, encoding))
    length = min(config.length, max(train))
    size = config.batch_size * config.members
    structural = network.config.structure is not None
    most = TARGETS_OF_STRUCTURE * len(panel.schema.target) if structural else None
    pieces = Pieces(encoded, train, horizon=config.horizon, length=length, batch_size=size, seed=config.seed, most=most)
    checks: list[Batch] = []
    if after is None:
        checks = windows(encoded, train, known, horizon=config.horizon, length=length, batch_size=config.batch_size)
        checks = [batch for batch in checks if not bool(np.isnan(batch.future.numpy()).all())]
    passes = PASSES_OF_SEASONS if encoding.anchor.seasons else PASSES
    steps = int(np.clip(passes * sum(train) / (length * config.batch_size), *STEPS))
    steps = STEPS_OF_STRUCTURE if structural else steps
    recipe = recipe_of(config, after.recipe.steps if after else steps, after.trained.steps if after else None, minutes)
    folder.mkdir(exist_ok=True)
    trained = trainer("forecast")(network, pieces, checks, recipe, folder, progress=progress, resume=resume)
    if after is None:
        calibrate(network, checks)
    else:
        network.spread.copy_(after.network.spread)
    return Learnt(panel, encoding, network, encoded, recipe, trained)


def recipe_of(config: ForecastConfig, steps: int, stop: int | None, minutes: float | None) -> Recipe:
    """How to train by these options."""
    return Recipe(
        lr=config.lr,
        weight_decay=config.weight_decay,
        epochs=config.epochs,
        steps=steps,
        patience=config.patience,
        max_minutes=minutes,
        seed=config.seed,
        devices=config.devices,
        precision=config.precision,
        truncate=config.truncate,
        stop=stop,
    )


def trainer(kind: str, what: str | None = None) -> Callable[..., Any]:
    """The training of a kind of network, imported when it is needed: what is fitted does without Lightning."""
    try:
        return getattr(import_module(f"conca.train.{kind}_lesson"), f"train_{what or kind}")  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        line = f'fitting needs {error.name}, which is not installed: pip install "conca[all]"'
        raise ModuleNotFoundError(line, name=error.name) from error
