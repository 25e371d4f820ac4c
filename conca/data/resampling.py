"""Sound at one rate becomes sound at another, band-limited."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["resample"]

CROSSINGS, BETA, PASSED = 24, 8.0, 0.96
"""The filter reaches over this many crossings of zero to each side, under a window of Kaiser's with this parameter, and
lets this share of the band pass: what would be folded back is less than a thousandth."""


def resample(sound: NDArray[Any], own: int, rate: int) -> NDArray[np.float32]:
    """A sound (T,) of `own` samples a second at `rate` samples a second, shape (ceil(T * rate / own),), as float32.

    Frequencies that the lower of the two rates cannot hold are taken out (a polyphase filter, of SciPy); outside of the
    sound there is silence.
    """
    sound = np.asarray(sound, np.float32)
    if own == rate:
        return sound
    from scipy.signal import resample_poly  # a second to import, and most folders have one rate

    shared = gcd(own, rate)
    up, down = rate // shared, own // shared
    return np.asarray(resample_poly(sound, up, down, window=low_pass(max(up, down))), np.float32)


@lru_cache(maxsize=16)
def low_pass(factor: int) -> NDArray[np.float32]:
    """The filter that lets a share `PASSED` / `factor` of the band pass, with a gain of 1."""
    reach = CROSSINGS * factor
    at = np.arange(-reach, reach + 1) / factor
    weights = np.sinc(PASSED * at) * np.kaiser(2 * reach + 1, BETA)
    return np.asarray(weights / weights.sum(), np.float32)
