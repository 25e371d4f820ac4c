"""A fit of a classifier as a whole: which sequences are learnt from, stopped by and judged, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from conca.data.labelled import Labelled, counted, origin
from conca.data.split_labels import encode_labels, stratified
from conca.energy.novelty import energy_score
from conca.estimators.classify_config import ClassifyConfig
from conca.estimators.label_scores import MODEL, score_labels
from conca.estimators.labels import Labels
from conca.estimators.neighbour import affordable, nearest_neighbour
from conca.estimators.training import trainer
from conca.infer.labelling import logits_of
from conca.models.classify import ClassifyNetwork, ClassifyNetworkConfig
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.types import BadInput

__all__ = ["Fit", "fit_labels", "judge", "plan"]

Integers = NDArray[np.int64]

SHARES = 10
"""Even shares of a sequence after which the answers are judged."""
ENOUGH, SHARE = 1000, 0.1
"""From so many sequences on, a share of those that could be learnt from decides when to stop."""
BLOCK = 2**22


@dataclass(frozen=True)
class Plan:
    """Numbers of the sequences that are learnt from, stopped by (maybe none) and judged (maybe none)."""

    train: Integers
    validation: Integers
    test: Integers


@dataclass(frozen=True)
class Fit:
    """What a fit ends with.

    classes     (K,) sorted
    counts      (K,) sequences of each class that were learnt from
    scores      on the sequences held out; empty if there are none
    evaluation  what was said of them
    """

    network: ClassifyNetwork
    classes: NDArray[Any]
    counts: Integers
    scores: pd.DataFrame
    evaluation: Labels | None
    history: pd.DataFrame
    notices: list[str]


def plan(data: Labelled, test_fraction: float, seed: int) -> Plan:
    """Official parts as they are; what they leave open is held out at random, the same share of every class.

    Raises BadInput if nothing is left to learn from.
    """
    assert data.labels is not None
    every = np.arange(len(data))
    named = {name: every[:0] if data.parts is None else every[data.parts == name] for name in ("validation", "test")}
    train = every if data.parts is None else every[data.parts == "train"]
    if not len(train):
        raise BadInput("no sequences are marked as the part 'train'; there is nothing to learn from")
    if not len(named["test"]) and test_fraction:
        kept, held = stratified(data.labels[train], test_fraction, seed)
        train, named["test"] = train[kept], train[held]
    if not len(named["validation"]) and len(train) >= ENOUGH:
        kept, held = stratified(data.labels[train], SHARE, seed + 1)
        train, named["validation"] = train[kept], train[held]
    return Plan(train, **named)


def fit_labels(
    config: ClassifyConfig,
    data: Labelled,
    folder: Path,
    names: NDArray[Any] | None = None,
    *,
    test_fraction: float,
    progress: bool,
    resume: bool,
) -> Fit:
    """Train a network on labelled sequences and judge it on those held out.

    names: of classes, ascending, where the labels are their numbers.

    Raises BadInput if there is one class, if the test part has a class that the training has not, or the training fails.
    """
    if data.labels is None:
        raise BadInput(f"{data.source}: no labels to learn from; name their column (label, --label)")
    found = plan(data, test_fraction, config.random_state)
    labels = data.labels if names is None else names[data.labels]
    classes = np.unique(labels[found.train])
    if len(classes) < 2:
        raise BadInput(f"all sequences that are learnt from have one class, {classes[0]!s}; give at least two")
    y = encoded(data, labels, classes)
    train = data.take(found.train)
    validation = (data.take(found.validation), y[found.validation]) if len(found.validation) else None
    network = new_network(config, train, len(classes))
    folder.mkdir(exist_ok=True)
    trained = trainer("label")(
        network,
        train,
        y[found.train],
        validation,
        recipe_of(config, len(train)),
        folder,
        batch_size=config.batch_size,
        smoothing=config.smoothing,
        progress=progress,
        resume=resume,
    )
    counts = np.bincount(y[found.train], minlength=len(classes))
    scores, evaluation = pd.DataFrame(), None
    if len(found.test):
        test = data.take(found.test)
        near = nearest_neighbour(train, y[found.train], test) if affordable(train, test) else None
        scores, evaluation = judge(network, test, y[found.test], classes, counts, near)
    notices = [*words(found, classes, counts, data), *verdict(scores)]
    return Fit(network, classes, counts, scores, evaluation, pd.DataFrame(trained.history), notices)


def encoded(data: Labelled, labels: NDArray[Any], classes: NDArray[Any]) -> Integers:
    """Which of the classes each sequence is of. Raises BadInput, with the files, for labels that were never learnt."""
    try:
        return encode_labels(labels, classes)
    except BadInput as error:
        raise BadInput(f"{origin(data.source)}{error}") from None


def new_network(config: ClassifyConfig, train: Labelled, classes: int) -> ClassifyNetwork:
    """A network for these sequences, its first weights by the seed."""
    described = ClassifyNetworkConfig(
        channels=len(train.channels),
        symbols=len(train.symbols),
        classes=classes,
        layers=config.layers,
        d_model=config.d_model,
        dropout=config.dropout,
        bidirectional=config.bidirectional,
    )
    with seeded(config.random_state):
        network = ClassifyNetwork(described)
    if not train.symbols:
        mean, scale = size_of(train.values)
        empty = np.flatnonzero(np.isnan(mean))
        if len(empty):
            line = f"channel '{train.channels[empty[0]]}' has no value in what is learnt from"
            raise BadInput(f"{origin(train.source)}{line}; leave it out")
        network.mean.copy_(torch.from_numpy(mean))
        network.scale.copy_(torch.from_numpy(scale))
    return network


def size_of(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean (C,) of what is known, NaN where nothing is, and standard deviation, 1 where there is none."""
    count, total, square = np.zeros((3, values.shape[1]))
    for block in blocks_of(values):
        count += (~np.isnan(block)).sum(0)
        total += np.nansum(block, 0)
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    for block in blocks_of(values):
        square += np.nansum((block - mean) ** 2, 0)
    scale = np.sqrt(square / np.maximum(count, 1))
    tiny = 1e-12 * np.maximum(np.abs(mean), 1e-12)
    return mean, np.where(scale > tiny, scale, 1.0)


def blocks_of(values: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    """Rows in blocks, so that a large array of bytes is not made eight times as large at once."""
    for start in range(0, len(values), BLOCK):
        yield values[start : start + BLOCK].astype(np.float64)


def recipe_of(config: ClassifyConfig, examples: int) -> Recipe:
    """How to train by these options."""
    epochs, steps = config.course(examples)
    return Recipe(
        lr=config.lr,
        weight_decay=config.weight_decay,
        epochs=epochs,
        steps=steps,
        patience=config.patience,
        max_minutes=config.max_minutes,
        seed=config.random_state,
        devices=config.devices,
        precision=config.precision,
    )


def judge(
    network: ClassifyNetwork,
    test: Labelled,
    truth: Integers,
    classes: Sequence[Any] | NDArray[Any],
    counts: Integers,
    near: Integers | None = None,
) -> tuple[pd.DataFrame, Labels | None]:
    """Scores on sequences held out, and what was said of them.

    counts   (K,) sequences of each class that were learnt from
    near     (n,) the answers of the nearest neighbour, where they are known
    """
    shares = 1 if network.config.bidirectional else SHARES
    logits = logits_of(network, test, shares=shares)
    found = torch.from_numpy(logits).softmax(-1).numpy()
    energy = energy_score(torch.from_numpy(logits[:, -1]).double()).numpy()
    early = None if shares == 1 else found.argmax(-1).T
    evaluation = Labels.of([str(c) for c in classes], truth, found[:, -1], test.lengths, early, energy)
    return score_labels(truth, found[:, -1], counts, near), evaluation


def words(found: Plan, classes: NDArray[Any], counts: Integers, data: Labelled) -> list[str]:
    """What the user should know of the sequences."""
    lines = []
    parts = f"learnt from {counted(len(found.train), 'sequence')}"
    parts += f", {len(found.validation):,} more decide when to stop" if len(found.validation) else ""
    parts += f"; judged: {len(found.test):,} held out" if len(found.test) else "; none held out, so there are no scores"
    lines.append(parts)
    alone = [str(c) for c in classes[counts == 1]]
    if alone:
        named = ", ".join(alone[:3]) + (", ..." if len(alone) > 3 else "")
        lines.append(f"{counted(len(alone), 'class', 'classes')} with one sequence to learn from ({named})")
    missing = np.isnan(data.values).sum() if data.values.dtype.kind == "f" else 0
    if missing:
        lines.append(f"{missing:,} of {data.values.size:,} values are missing; they count as the mean of their channel")
    return lines


def verdict(scores: pd.DataFrame) -> list[str]:
    """A line where a simple answer is better than the model's."""
    if not len(scores):
        return []
    accuracy = scores["accuracy"]
    best = str(accuracy.idxmax())
    if accuracy[best] <= accuracy[MODEL]:
        return []
    return [
        f"the highest accuracy here is that of '{best}' ({accuracy[best]:.3f}); the model's is {accuracy[MODEL]:.3f}"
    ]
