"""Runs the laws on the families that are found, or on a mixer of the user's own, and says how each came out."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conca import layers
from conca.laws.agreement import (
    bodies_agree,
    forms_agree,
    forms_agree_bfloat16,
    forms_agree_float32,
    gradients_agree,
    split,
    twice,
)
from conca.laws.conduct import bounded, causal, honest, kept, pure, rows_independent
from conca.laws.outcome import Verdict, judge
from conca.laws.rows import packed, ragged
from conca.layers.mixer import Mixer

__all__ = ["LAWS", "Verdict", "check", "mixers"]

LAWS: dict[str, Callable[[Mixer[Any]], None]] = {
    "forms agree": forms_agree,
    "forms agree (float32)": forms_agree_float32,
    "forms agree (bfloat16)": forms_agree_bfloat16,
    "split": split,
    "gradients agree": gradients_agree,
    "pure": pure,
    "causal": causal,
    "rows independent": rows_independent,
    "bounded": bounded,
    "ragged": ragged,
    "packed": packed,
    "kept": kept,
    "bodies agree": bodies_agree,
    "honest modules": honest,
    "twice differentiable": twice,
}
"""The laws of a mixer by name (the first in three precisions), each a function that raises AssertionError."""


def mixers() -> dict[str, type[Mixer[Any]]]:
    """Every mixer of the rooms `layers` and `models`, by name, found by walking."""
    found = dict(layers.families())
    for module in layers.walked("conca.models"):
        found |= {name.lower(): cls for name, cls in layers.mixers(module).items()}
    return dict(sorted(found.items()))


def check(target: type[Mixer[Any]] | Mixer[Any], laws: tuple[str, ...] | None = None) -> Iterator[Verdict]:
    """Run the laws, in float64 and evaluation mode, on the samples of a class, or on one instance (a copy of it).

    Args:
        target: a mixer class (its `samples()` are used), or an instance.
        laws: names from `LAWS`; None runs all.

    Yields:
        One verdict per sample and law, as they come.
    """
    name = (target if inspect.isclass(target) else type(target)).__name__.lower()
    with _double():
        samples = target.samples() if inspect.isclass(target) else (copy.deepcopy(target),)
        samples = tuple(sample.double().eval() for sample in samples)
    for number, sample in enumerate(samples):
        for law in laws or tuple(LAWS):
            with _double():
                verdict = judge(name, number, law, LAWS[law], sample)
            yield verdict


@contextmanager
def _double() -> Iterator[None]:
    """float64 by default, and a seed of its own, both as before afterwards."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
