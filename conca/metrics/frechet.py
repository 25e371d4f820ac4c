"""How far one set of samples lies from another, in the features of some network, by their means and covariances."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["frechet_distance"]

Floats = NDArray[np.float64]


def frechet_distance(a: ArrayLike, b: ArrayLike) -> float:
    """|mean_a - mean_b|^2 + trace(C_a + C_b - 2 (C_a C_b)^(1/2)) of features a (n, d) and b (m, d); 0 where both agree.

    It is biased upward by few samples, the more the fewer; compare sets of one size. In the features of Inception it is known as FID,
    in those of another network its values compare with nothing else.

    Raises ValueError for sets of other widths, of less than two samples, or with numbers that are not finite.

    Source: Dowson & Landau 1982, "The Frechet distance between multivariate normal distributions"; Heusel et al. 2017.
    """
    first, second = (np.asarray(x, dtype=np.float64) for x in (a, b))
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1]:
        raise ValueError(f"two sets of features are (n, d) and (m, d), not {first.shape} and {second.shape}")
    if min(len(first), len(second)) < 2 or not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("each set needs two samples or more, all of them finite")
    gap = first.mean(0) - second.mean(0)
    one, two = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (first, second))
    root = _root(one)
    shared = np.sqrt(np.clip(np.linalg.eigvalsh(root @ two @ root), 0, None)).sum()
    return float(max(gap @ gap + np.trace(one) + np.trace(two) - 2 * shared, 0.0))


def _root(matrix: Floats) -> Floats:
    """The square root of a symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    found: Floats = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    return found
