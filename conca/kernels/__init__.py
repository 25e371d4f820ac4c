"""Faster bodies for the operations, in Python compiled by Numba; the library is correct, and slower, without this folder.

Importing this room registers loaders with `conca.ops.bodies`; Numba itself is imported when a kernel is first wanted.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from conca.ops import bodies

__all__ = ["warm"]

_WHERE = {
    "scan": ("conca.kernels.scan", "forward"),
    "scan_backward": ("conca.kernels.scan", "backward"),
    "diagonal_ssm": ("conca.kernels.diagonal", "forward"),
    "diagonal_ssm_backward": ("conca.kernels.diagonal", "backward"),
    "kalman_likelihood": ("conca.kernels.kalman", "forward"),
    "kalman_likelihood_backward": ("conca.kernels.kalman", "backward"),
    "diagonal_filter": ("conca.kernels.kalman_diagonal", "forward"),
    "diagonal_filter_backward": ("conca.kernels.kalman_diagonal", "backward"),
    "cauchy": ("conca.kernels.cauchy", "forward"),
    "cauchy_backward": ("conca.kernels.cauchy", "backward"),
    "dplr_ssm": ("conca.kernels.dplr", "forward"),
    "dplr_ssm_backward": ("conca.kernels.dplr", "backward"),
    "rms_norm": ("conca.kernels.norm", "forward"),
    "rms_norm_backward": ("conca.kernels.norm", "backward"),
}


def _loader(module: str, name: str) -> bodies.Body:
    body: bodies.Body = getattr(import_module(module), name)
    return body


def warm() -> tuple[str, ...]:
    """Compile every kernel in every precision, or load it from disk; the names of the operations that have one here.

    Raises ImportError where Numba is missing.
    """
    for module in sorted({module for module, _ in _WHERE.values()}):
        import_module(module).warm()
    return tuple(_WHERE)


for _operation, (_module, _name) in _WHERE.items():
    bodies.register(_operation, "cpu", partial(_loader, _module, _name))
