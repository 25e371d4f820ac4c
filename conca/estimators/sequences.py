"""What users give as sequences, brought to one form: arrays, lists of arrays, data frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from conca.data.labelled import Labelled
from conca.types import BadInput

__all__ = ["AXES", "sequences_of"]

AXES = ("ntc", "nct")
"""Order of the axes of three-dimensional arrays: sequences, time, channels, or sequences, channels, time."""


def sequences_of(estimator: BaseEstimator, X: Any, axes: str, *, reset: bool) -> tuple[Labelled, int | None]:
    """Sequences without labels, and the number of columns of a two-dimensional array (None for other input).

    Args:
        estimator: whose `n_features_in_` is set (`reset`) or compared with: the columns of a two-dimensional array, which are
            the steps of one channel, else the channels.
        X: (n, T), (n, T, C), or n arrays (T_i,) or (T_i, C). NaN are missing values.
        axes: of three-dimensional arrays and of arrays (T_i, C), "ntc", or "nct" where the channels come first.

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
    else:
        found = validate_data(estimator, X, reset=reset, ensure_all_finite="allow-nan", dtype="numeric")
        return whole(found[:, :, None]), found.shape[1]
    channels = len(data.channels)
    if reset:
        estimator.n_features_in_ = channels
        vars(estimator).pop("feature_names_in_", None)
    return data, None


def ragged(X: Any) -> bool:
    """Whether sequences are given one by one: arrays of two axes, or of unlike lengths."""
    if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1:
        return len(X) > 0 and all(np.ndim(one) in (1, 2) for one in X)
    if not isinstance(X, (list, tuple)) or not len(X) or isinstance(X[0], pd.DataFrame | str):
        return False
    shapes = {np.shape(one) if not isinstance(one, (list, tuple)) else (len(one), -1) for one in X}
    return len(shapes) > 1 and all(hasattr(one, "__len__") and not isinstance(one, str) for one in X)


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
        channels=tuple(str(c) for c in range(channels)),
    )
