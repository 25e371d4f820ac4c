"""A classifier of sequences, in scikit-learn's conventions: fit, predict, predict_proba, score, save and load."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from conca.data.labelled import Labelled
from conca.data.labelled_source import read_labelled
from conca.data.split_labels import encode_labels
from conca.energy.novelty import By, score_by
from conca.estimators.arguments import check_switches, folder_of
from conca.estimators.classify_config import ClassifyConfig
from conca.estimators.fitting_sequences import check_channels, check_reading, in_order, settled
from conca.estimators.label_fitting import fit_labels, judge
from conca.estimators.label_runs import Features, LabelRun, read_label_run, write_label_run
from conca.estimators.labels import Labels
from conca.estimators.sequences import labels_of, sequences_of, stored
from conca.estimators.workplace import label_stamp, workplace
from conca.infer.labelling import logits_of, probabilities
from conca.models.classify import ClassifyNetwork, rescaled
from conca.models.run import check_free, new_folder
from conca.train.ranks import first
from conca.types import BadInput

__all__ = ["Classifier"]


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classes of whole sequences, and of their beginnings.

    >>> import numpy as np
    >>> phase = np.random.default_rng(0).uniform(0, 6, size=(40, 1))
    >>> speed = np.repeat([[0.3], [0.9]], 20, axis=0)
    >>> X, y = np.sin(phase + speed * np.arange(30)), np.repeat(["slow", "fast"], 20)
    >>> model = Classifier(layers="s4d(d_state=8)", d_model=16, epochs=5).fit(X, y)
    >>> model.predict(X[[0, -1]]), model.predict_proba(X).shape
    (array(['slow', 'fast'], dtype='<U4'), (40, 2))

    Args:
        layers: pattern of the network's stack, such as "s4d*4", "s5*2 attention(window=64)" or "lstm".
        d_model: its width.
        bidirectional: whether every layer reads backward too; then there is no answer before the end of a sequence.
        dropout: on what a block adds.
        epochs: at most so many; an epoch is every sequence once, or at least 25 steps. None: 40, or as many as make 1,000 steps.
        max_minutes: of training at most, about.
        batch_size: sequences in a step.
        lr, weight_decay: highest rate and decay of AdamW.
        smoothing: share of the truth that is spread over all classes while it learns.
        patience: epochs without a better validation error before training stops; a tenth of the sequences validates, if there are
            1,000 or more, or an official validation part.
        random_state: same seed, same machine, same model; None: another one at every fit.
        devices: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1"; more than one: "2", "cpu:2", "cuda:0,1".
        precision: "32-true", "bf16-mixed", "64-true", and on a GPU "16-mixed".
        axes: of three-dimensional arrays: "ntc" (sequences, time, channels), or "nct" where the channels come before time.

    What is missing, NaN, counts as the mean of its channel. After `fit`: `classes_`, `n_features_in_` (columns of a
    two-dimensional array, else channels), `network_` (a `torch.nn.Module`), `history_` (a frame: what was logged after each
    epoch), `scores_` (a frame: accuracy, macro F1 and log loss on the sequences held out, beside plain answers; empty if there are
    none), `evaluation_` (what was said of them, see `conca.estimators.labels.Labels`), `notices_` (lines), `channels_`,
    `symbols_`, `rate_` (samples a second, of audio), `reading_` (how the file was read), `source_` (a line: what was read) and `counts_`
    (sequences of each class that were learnt from).
    """

    def __init__(
        self,
        *,
        layers: str = ClassifyConfig.layers,
        d_model: int = ClassifyConfig.d_model,
        bidirectional: bool = False,
        dropout: float = ClassifyConfig.dropout,
        epochs: int | None = None,
        max_minutes: float | None = None,
        batch_size: int = ClassifyConfig.batch_size,
        lr: float = ClassifyConfig.lr,
        weight_decay: float = ClassifyConfig.weight_decay,
        smoothing: float = ClassifyConfig.smoothing,
        patience: int = ClassifyConfig.patience,
        axes: str = "ntc",
        random_state: int | None = 0,
        devices: str = ClassifyConfig.devices,
        precision: str = ClassifyConfig.precision,
    ) -> None:
        self.layers, self.d_model, self.bidirectional = layers, d_model, bidirectional
        self.dropout, self.epochs, self.max_minutes, self.batch_size = dropout, epochs, max_minutes, batch_size
        self.lr, self.weight_decay, self.smoothing, self.patience = lr, weight_decay, smoothing, patience
        self.axes, self.random_state, self.devices, self.precision = axes, random_state, devices, precision

    @property
    def run_(self) -> LabelRun:
        """All that the fit ended with. Raises NotFittedError before `fit`."""
        check_is_fitted(self)
        return self._run

    @property
    def config(self) -> ClassifyConfig:
        """The options, checked: those of the fit, after it. Raises BadInput for an ill one."""
        return self._run.config if hasattr(self, "_run") else self._asked()

    def _asked(self) -> ClassifyConfig:
        options = self.get_params(deep=False)
        options.pop("axes")
        state = options["random_state"]
        if state is None:
            options["random_state"] = int(np.random.default_rng().integers(2**31))
        elif isinstance(state, np.random.RandomState):
            options["random_state"] = int(state.randint(2**31 - 1))
        return ClassifyConfig(**options)

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        series: str | None = None,
        time: str | None = None,
        label: str | None = None,
        rate: float | None = None,
        order: str | None = None,
        out: str | Path | None = None,
        test_fraction: float | None = None,
        progress: bool = False,
        force: bool = False,
        resume: bool = False,
    ) -> Self:
        """Learn from labelled sequences.

        Args:
            X: an array (n, T) or (n, T, C), n arrays (T_i,) or (T_i, C), a `conca.data.labelled.Labelled`, the path of a file, folder or
                archive (see `conca.data.labelled_source.read_labelled`), or a data frame with a row for each step and the name of the
                column that tells sequences apart (`series`).
            y: (n,) labels, where X does not hold them.
            series, time, label: columns of a long table.
            rate: samples a second that audio is brought to.
            order: of the steps, "permuted" or "bits".
            out: run folder to write; None: keep the model in memory alone (`save` writes it later).
            test_fraction: share of the sequences that is held out and judged where there is no official test part; None: 0.2 of a
                file, nothing of arrays.
            progress: show a bar on stderr.
            force: replace the run folder if it exists.
            resume: go on with a training for `out` that was killed or interrupted; it ends as if it had not been.

        Raises:
            BadInput: one line, for data that cannot be read or used, an ill option, a folder that exists. It is a ValueError.
        """
        check_switches(progress=progress, force=force, resume=resume)
        config = self._asked()
        if out is not None and first():
            check_free(folder_of(out), force, resume)
        given = {"series": series, "time": time, "label": label, "rate": rate, "order": order}
        reading = {name: value for name, value in given.items() if value is not None}
        data, names, features = self._to_learn(X, y, reading)
        share: Any = test_fraction if test_fraction is not None else 0.2 * (isinstance(X, (str, PathLike)))
        if not isinstance(share, int | float) or not 0 <= share < 1:
            raise BadInput(f"test_fraction must be at least 0 and less than 1, not {share!r}")
        stamp = label_stamp(data, config.as_dict() | {"test_fraction": share})
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            workplace(out, force, resume, stamp) as folder,
        ):
            found = fit_labels(config, data, folder, names, test_fraction=share, progress=progress, resume=resume)
            run = LabelRun(
                config,
                found.network,
                found.classes,
                found.counts,
                channels=data.channels,
                symbols=data.symbols,
                rate=data.rate,
                reading=reading | ({"axes": self.axes} if self.axes != "ntc" else {}),
                source=data.source,
                features=features,
                scores=found.scores,
                evaluation=found.evaluation,
                history=found.history,
            )
            if out is not None and first():
                write_label_run(folder, run)
        self._take(run)
        self.notices_: list[str] = [*([data.source] if data.source else []), *found.notices]
        return self

    def _to_learn(self, X: Any, y: Any, reading: dict[str, Any]) -> tuple[Labelled, NDArray[Any] | None, Features]:
        """Sequences with labels; the classes that stand for these, where they are numbers of classes; columns of a table."""
        if stored(X, reading):
            if y is not None:
                raise BadInput("labels are read with the sequences (label); leave y out, or give arrays")
            data = read_labelled(X, axes=self.axes, **reading)
            check_reading(X, data, reading)
            X = data
        elif reading:
            raise BadInput(f"{next(iter(reading))} belongs to the reading of a file, and X is none; leave it out")
        if isinstance(X, Labelled) and y is None:
            self.n_features_in_ = len(X.channels)
            self.__dict__.pop("feature_names_in_", None)
            return X, None, None
        if y is None:
            raise BadInput("requires y to be passed, but the target y is None; give a label for every sequence")
        if isinstance(X, Labelled):
            data, features = X, None
            self.n_features_in_ = len(X.channels)
        else:
            data, columns = sequences_of(self, X, self.axes, reset=True)
            names = tuple(getattr(self, "feature_names_in_", ()))
            features = names or columns
        y = labels_of(y)
        if len(y) != len(data):
            raise BadInput(f"{len(data)} sequences and {len(y)} labels; give one label for each")
        classes, codes = np.unique(y, return_inverse=True)
        return replace(data, labels=codes.astype(np.int64)), classes, features

    def _take(self, run: LabelRun) -> None:
        """Become what a fit ended with."""
        self._run = run
        self.classes_, self.network_ = run.classes, run.network
        self.history_, self.scores_, self.evaluation_ = run.history, run.scores, run.evaluation
        self.channels_, self.symbols_, self.rate_, self.reading_ = run.channels, run.symbols, run.rate, run.reading
        self.counts_, self.source_ = run.counts, run.source
        if isinstance(run.features, tuple):
            self.feature_names_in_ = np.array(run.features, dtype=object)
        columns = len(run.features) if isinstance(run.features, tuple) else run.features
        self.n_features_in_ = len(run.channels) if columns is None else columns
        self.notices_ = []

    def read(self, data: Any, *, labelled: bool = False, **reading: Any) -> Labelled:
        """Sequences to be classified, in the form that `predict` takes, from a path or from what `predict` takes.

        Args:
            data: as X in `fit`.
            labelled: whether labels must be there.
            reading: series, time, label, rate, order, where they are other than in the fit.

        Raises:
            BadInput: for data that cannot be read, or that have other channels or symbols than what was fitted.
        """
        check_is_fitted(self)
        if stored(data, self.reading_ | reading):
            options = {"axes": self.axes, "rate": self.rate_} | self.reading_ | reading
            found = read_labelled(data, labelled=labelled, **options)
            found = in_order(settled(found, self.symbols_), self.channels_)
            check_channels(found, self.channels_, self.axes)
            self.notices_ = [line for line in (found.source, self.about_rate(found.rate)) if line]
            return found
        if isinstance(data, Labelled):
            found = in_order(settled(data, self.symbols_), self.channels_)
            check_channels(found, self.channels_, self.axes)
            return found
        columns = self._run.features is not None
        if self.symbols_:
            raise BadInput("symbols were fitted, and these are numbers; give symbols (a file, or Labelled)")
        found, features = sequences_of(self, data, self.axes, reset=False, columns=columns)
        if features is None or self._run.features is None:
            check_channels(found, self.channels_, self.axes)
        return found

    def about_rate(self, rate: float | None) -> str:
        """A line to tell the user where sequences of another sampling rate than the fitted one are read."""
        if rate is None or self.rate_ is None or rate == self.rate_:
            return ""
        return f"read at {rate:g} samples a second by layers whose steps are made {self.rate_ / rate:g} times as long"

    def network_at(self, rate: float | None) -> ClassifyNetwork:
        """The network for sequences of so many samples a second: a copy whose steps are as much longer or shorter.

        Raises BadInput if no layer has a time scale.
        """
        check_is_fitted(self)
        if rate is None or self.rate_ is None or rate == self.rate_:
            return self.network_
        network = deepcopy(self.network_)
        with rescaled(network, self.rate_ / rate):
            return deepcopy(network)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (n, K) of the classes, in the order of `classes_`; X as in `fit`.

        Audio of another rate than what was fitted (`read(path, rate=...)`) is read by steps that are as much longer.

        Raises:
            BadInput: as `read` does.
            NotFittedError: before `fit`.
        """
        data = self.read(X)
        found = probabilities(self.network_at(data.rate), data)[:, -1].astype(np.float64)
        result: NDArray[np.float64] = found / found.sum(1, keepdims=True)
        return result

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class (n,) of each sequence; X as in `fit`. Raises as `predict_proba` does."""
        best = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def novelty(self, X: Any, *, by: By = "energy", temperature: float = 1.0) -> NDArray[np.float64]:
        """How strange each sequence is, (n,), by its logits: higher is stranger; X as in `fit`.

        Args:
            by: "energy" (-logsumexp of the logits), "max_softmax" or "max_logit", see `conca.energy.novelty`.
            temperature: of the energy.

        Raises:
            BadInput: as `predict_proba` does, and for another score.
        """
        score, data = score_by(by, temperature), self.read(X)
        logits = torch.from_numpy(logits_of(self.network_at(data.rate), data)[:, -1]).double()
        found: NDArray[np.float64] = score(logits).numpy()
        return found

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The accuracy; X as in `fit`, with y or with labels of its own."""
        if y is None:
            if sample_weight is not None:
                raise BadInput("weights belong to labels that are given; give y")
            return float(self.evaluate(X)["accuracy"].iloc[0])
        return float(super().score(X, y, sample_weight))

    def evaluate(self, data: Any, y: Any = None, **reading: Any) -> pd.DataFrame:
        """How well sequences are classified: a frame as `scores_`, of the model and of the most frequent class.

        Where a file has an official test part, that is judged, else all of it. `notices_` says what was.

        Args:
            data: as X in `fit`.
            y: labels, where the data do not hold them.
            reading: as in `read`.

        Raises:
            BadInput: as `read` does, and for labels that were never learnt.
        """
        found, truth = self._to_judge(data, y, reading)
        scores, _ = judge(self.network_at(found.rate), found, truth, self.classes_, self._run.counts)
        return scores

    def judged(self, data: Any, y: Any = None, **reading: Any) -> Labels:
        """What is said of every sequence beside what is right (`conca.estimators.labels.Labels`); arguments as in `evaluate`."""
        found, truth = self._to_judge(data, y, reading)
        _, said = judge(self.network_at(found.rate), found, truth, self.classes_, self._run.counts)
        assert said is not None
        return said

    def _to_judge(self, data: Any, y: Any, reading: dict[str, Any]) -> tuple[Labelled, NDArray[np.int64]]:
        found = self.read(data, labelled=y is None, **reading)
        if y is None and found.parts is not None and "test" in found.parts:
            found = found.part("test")
            self.notices_.append(f"judged: the {len(found):,} sequences of the test part")
        labels: Sequence[Any] | NDArray[Any] | None = found.labels if y is None else column_or_1d(y)
        if labels is None:
            raise BadInput("labels are needed to judge; give them")
        return found, encode_labels(labels, self.classes_)

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write a run folder, whole or not at all.

        Raises:
            BadInput: if the folder exists and is not to be replaced (`force`).
            NotFittedError: before `fit`.
        """
        check_is_fitted(self)
        check_switches(force=force)
        with new_folder(folder_of(folder), force) as new:
            write_label_run(new, self._run)

    @classmethod
    def load(cls, folder: str | Path) -> Classifier:
        """Read a run folder.

        Raises:
            BadInput: one line, for a folder that is no run, of a newer format, of another kind, damaged, or not whole.
        """
        run = read_label_run(folder_of(folder))
        result = cls(**run.config.as_dict(), axes=run.reading.get("axes", "ntc"))
        result._take(run)
        return result

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.three_d_array = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_run")
