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
    "cross_entropy": ("conca.kernels.cross_entropy", "rows"),
    "short_conv": ("conca.kernels.short_conv", "forward"),
    "short_conv_backward": ("conca.kernels.short_conv", "backward"),
    "one_row": ("conca.kernels.one_row", "forward"),
    "gated_rms_norm": ("conca.kernels.gated_norm", "forward"),
    "gated_rms_norm_backward": ("conca.kernels.gated_norm", "backward"),
    "duality": ("conca.kernels.duality", "forward"),
    "duality_backward": ("conca.kernels.duality", "backward"),
    "program": ("conca.kernels.program_table", "forward"),
    "rms_norm": ("conca.kernels.norm", "forward"),
    "rms_norm_backward": ("conca.kernels.norm", "backward"),
    "selective_scan": ("conca.kernels.selective_scan", "forward"),
    "selective_scan_backward": ("conca.kernels.selective_scan_backward", "backward"),
    "summed_angles": ("conca.kernels.angles", "forward"),
    "summed_angles_backward": ("conca.kernels.angles", "backward"),
    "gated_skip": ("conca.kernels.gated_skip", "forward"),
    "gated_skip_backward": ("conca.kernels.gated_skip", "backward"),
    "turned_keys": ("conca.kernels.turned_keys", "forward"),
    "turned_keys_backward": ("conca.kernels.turned_keys", "backward"),
}


def _loader(module: str, name: str) -> bodies.Body:
    body: bodies.Body = getattr(import_module(module), name)
    return body


def warm(processes: int = 1) -> tuple[str, ...]:
    """Compile every kernel in every precision, or load it from disk; the names of the operations that have one here.

    Several processes share the work (the compiler of one runs on one core), and leave it on disk, whence a first use loads it.
    Raises ImportError where Numba is missing.
    """
    modules = sorted({module for module, _ in _WHERE.values()})
    if processes > 1:
        fresh = import_module("multiprocessing").get_context("spawn")
        with import_module("concurrent.futures").ProcessPoolExecutor(processes, mp_context=fresh) as pool:
            list(pool.map(_warmed, modules))
    else:
        for module in modules:
            _warmed(module)
    return tuple(_WHERE)


def _warmed(module: str) -> None:
    import_module(module).warm()


for _operation, (_module, _name) in _WHERE.items():
    bodies.register(_operation, "cpu", partial(_loader, _module, _name))
