"""What users give as sequences, brought to one form: arrays, lists of arrays, data frames."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from os import PathLike
from typing import Any
from warnings import warn

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from conca.data.labelled import Labelled, numbered
from conca.types import BadInput

__all__ = ["AXES", "ROLES", "labels_of", "sequences_of", "stored", "swapped"]

ROLES = ("series", "time", "label")
"""Columns of a long table that are no channels."""
AXES = ("ntc", "nct")
"""Order of the axes of three-dimensional arrays: sequences, time, channels, or sequences, channels, time."""


def sequences_of(
    estimator: BaseEstimator, X: Any, axes: str, *, reset: bool, columns: bool = True
) -> tuple[Labelled, int | None]:
    """Sequences without labels, and the number of columns of a two-dimensional array (None for other input).

    Args:
        estimator: whose `n_features_in_` is set (`reset`) or compared with: the columns of a two-dimensional array, which are
            the steps of one channel, else the channels.
        X: (n, T), (n, T, C), or n arrays (T_i,) or (T_i, C). NaN are missing values.
        axes: of three-dimensional arrays and of arrays (T_i, C), "ntc", or "nct" where the channels come first.
        columns: whether those of a two-dimensional array are features; if not, it may have any number of them, as it has steps.

    Raises:
        BadInput: for another number of channels than was fitted, sequences without a step, and values that are no numbers.
        ValueError: as scikit-learn does, for a two-dimensional array.
    """
    if axes not in AXES:
        raise BadInput(f"axes must be one of {', '.join(AXES)}, not {axes!r}")
    if ragged(X):
        data = Labelled.of([turned(np.asarray(one), axes) for one in X])
    elif getattr(X, "ndim", 0) == 3 or (isinstance(X, (list, tuple)) and np.ndim(X) == 3):
        found = check_array(X, allow_nd=True, ensure_all_finite="allow-nan", dtype="numeric")
        data = whole(found.transpose(0, 2, 1) if axes == "nct" else found)
        if reset and len(data.channels) > data.lengths[0]:
            line = f"{data.lengths[0]} steps of {len(data.channels)} channels"
            warn(f"{line}: if these are the steps, give {swapped(axes)}", stacklevel=4)
    elif not columns:
        data = whole(check_array(X, ensure_all_finite="allow-nan", dtype="numeric")[:, :, None])
    else:
        found = validate_data(estimator, X, reset=reset, ensure_all_finite="allow-nan", dtype="numeric")
        return whole(found[:, :, None]), found.shape[1]
    channels = len(data.channels)
    if reset:
        estimator.n_features_in_ = channels
        vars(estimator).pop("feature_names_in_", None)
    return data, None


def labels_of(y: Any) -> NDArray[Any]:
    """Labels (n,) as scikit-learn takes them: text, numbers or truth values, all of one kind.

    Raises:
        BadInput: if one is missing, if kinds are mixed, and for dates.
        ValueError: as scikit-learn does, for what are no classes.
    """
    missing = np.flatnonzero(pd.isna(pd.Series(np.ravel(np.asarray(y, dtype=object)), dtype=object)))
    if len(missing):
        raise BadInput(f"the label of sequence {missing[0]} is missing; give every one a label")
    found: NDArray[Any] = column_or_1d(y, warn=True)
    if found.dtype.kind == "O":
        texts = sum(isinstance(label, str) for label in found)
        if texts not in (0, len(found)):
            raise BadInput("some labels are text and some are not; give all of one kind")
    if found.dtype.kind in "mM" or (found.dtype.kind == "O" and found.size and isinstance(found[0], date | timedelta)):
        raise BadInput("labels are dates or spans of time; give text or whole numbers")
    check_classification_targets(found)
    return found


def ragged(X: Any) -> bool:
    """Whether sequences are given one by one: arrays in a list, or lists of unlike lengths."""
    if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1:
        return len(X) > 0 and all(np.ndim(one) in (1, 2) for one in X)
    if not isinstance(X, (list, tuple)) or not len(X):
        return False
    if all(isinstance(one, np.ndarray | pd.DataFrame | pd.Series | torch.Tensor) for one in X):
        return all(one.ndim in (1, 2) for one in X)
    lengths = {len(one) for one in X if hasattr(one, "__len__") and not isinstance(one, str)}
    return len(lengths) > 1 and all(hasattr(one, "__len__") and not isinstance(one, str) for one in X)


def swapped(axes: str) -> str:
    """How the other order of axes is asked for."""
    return f"axes='{next(word for word in AXES if word != axes)}'"


def turned(sequence: NDArray[Any], axes: str) -> NDArray[Any]:
    """A sequence with its time first."""
    return sequence.T if axes == "nct" and sequence.ndim == 2 else sequence


def whole(x: NDArray[Any]) -> Labelled:
    """An array (n, T, C) as sequences."""
    n, steps, channels = x.shape
    if not steps or not channels:
        raise BadInput(f"sequences of {steps} steps and {channels} channels are empty; give at least one of each")
    return Labelled(
        values=np.ascontiguousarray(x).reshape(n * steps, channels),
        lengths=np.full(n, steps, np.int64),
        labels=None,
        parts=None,
        ids=tuple(map(str, range(n))),
        channels=numbered(channels),
    )


def stored(X: Any, reading: Mapping[str, Any]) -> bool:
    """Whether sequences must be read: from a path, or from a data frame with a row for each step."""
    named = any(reading.get(name) is not None for name in ROLES)
    return isinstance(X, (str, PathLike)) or (hasattr(X, "columns") and named)
