"""Memories that flow and memories that settle: sequence models and energy models for PyTorch.

Names, and rooms such as `conca.infer`, are handed on when they are first asked for: `import conca` costs next to nothing and needs
no optional package. A family of layers of your own in `conca/layers` is found by the name of its class.

Imported before PyTorch, it sets two variables where you have not chosen. OMP_WAIT_POLICY=passive: PyTorch's threads sleep between
products instead of taking the processor from kernels and other programs. THP_MEM_ALLOC_ENABLE=1: large tensors lie on large pages,
which saves time with long sequences on Linux.

>>> import conca
>>> "S4D" in dir(conca)
True
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from conca.types import BadInput

if TYPE_CHECKING:
    from conca.energy import (
        Divergence,
        DoubleWell,
        Energy,
        Gaussian,
        Hopfield,
        Score,
        descent,
        mala,
        mixture,
        sample,
        ula,
    )
    from conca.estimators.classifier import Classifier
    from conca.estimators.forecaster import Forecaster
    from conca.estimators.image_diffusion import ImageDiffusion
    from conca.estimators.image_energy import ImageEnergy
    from conca.estimators.language import LanguageModel
    from conca.estimators.load import load
    from conca.layers.attention import Attention
    from conca.layers.bidirectional import Bidirectional, BidirectionalBlock
    from conca.layers.gated_mlp import GatedMLP
    from conca.layers.hippo import HiPPO
    from conca.layers.kalman import GaussianSystem
    from conca.layers.linear_system import LinearSystem
    from conca.layers.lssl import LSSL
    from conca.layers.lstm import LSTM
    from conca.layers.mamba import Mamba
    from conca.layers.mamba2 import Mamba2
    from conca.layers.mamba3 import Mamba3
    from conca.layers.mixer import Mixer, Output
    from conca.layers.quantised import narrowed
    from conca.layers.s4 import S4
    from conca.layers.s4d import S4D
    from conca.layers.s5 import S5
    from conca.layers.short_conv import ShortConv
    from conca.layers.structural import structural
    from conca.layers.tied_embedding import TiedEmbedding
    from conca.models.stack import Block, Stack, pattern
    from conca.ops.bodies import plain_bodies
    from conca.train.groups import param_groups

if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"

__all__ = [
    "LSSL",
    "LSTM",
    "S4",
    "S4D",
    "S5",
    "Attention",
    "BadInput",
    "Bidirectional",
    "BidirectionalBlock",
    "Block",
    "Classifier",
    "Divergence",
    "DoubleWell",
    "Energy",
    "Forecaster",
    "GatedMLP",
    "Gaussian",
    "GaussianSystem",
    "HiPPO",
    "Hopfield",
    "ImageDiffusion",
    "ImageEnergy",
    "LanguageModel",
    "LinearSystem",
    "Mamba",
    "Mamba2",
    "Mamba3",
    "Mixer",
    "Output",
    "Score",
    "ShortConv",
    "Stack",
    "TiedEmbedding",
    "descent",
    "load",
    "mala",
    "mixture",
    "narrowed",
    "param_groups",
    "pattern",
    "plain_bodies",
    "sample",
    "structural",
    "ula",
]

_WHERE = {
    "S4": "conca.layers.s4",
    "S5": "conca.layers.s5",
    "HiPPO": "conca.layers.hippo",
    "S4D": "conca.layers.s4d",
    "LSSL": "conca.layers.lssl",
    "Bidirectional": "conca.layers.bidirectional",
    "BidirectionalBlock": "conca.layers.bidirectional",
    "LSTM": "conca.layers.lstm",
    "Attention": "conca.layers.attention",
    "ShortConv": "conca.layers.short_conv",
    "GatedMLP": "conca.layers.gated_mlp",
    "Mamba": "conca.layers.mamba",
    "Mamba2": "conca.layers.mamba2",
    "Mamba3": "conca.layers.mamba3",
    "TiedEmbedding": "conca.layers.tied_embedding",
    "narrowed": "conca.layers.quantised",
    "LinearSystem": "conca.layers.linear_system",
    "GaussianSystem": "conca.layers.kalman",
    "structural": "conca.layers.structural",
    "Mixer": "conca.layers.mixer",
    "Output": "conca.layers.mixer",
    "Stack": "conca.models.stack",
    "Block": "conca.models.stack",
    "pattern": "conca.models.stack",
    "Energy": "conca.energy",
    "Score": "conca.energy",
    "Gaussian": "conca.energy",
    "DoubleWell": "conca.energy",
    "Hopfield": "conca.energy",
    "Divergence": "conca.energy",
    "mixture": "conca.energy",
    "sample": "conca.energy",
    "descent": "conca.energy",
    "ula": "conca.energy",
    "mala": "conca.energy",
    "Classifier": "conca.estimators.classifier",
    "Forecaster": "conca.estimators.forecaster",
    "ImageDiffusion": "conca.estimators.image_diffusion",
    "ImageEnergy": "conca.estimators.image_energy",
    "LanguageModel": "conca.estimators.language",
    "load": "conca.estimators.load",
    "param_groups": "conca.train.groups",
    "plain_bodies": "conca.ops.bodies",
}
_ROOMS = ("infer", "laws", "layers", "energy", "ops")


def __getattr__(name: str) -> Any:
    """Import the module that holds `name`; a missing optional package is named together with what installs it."""
    try:
        if name in _ROOMS:
            return import_module(f"conca.{name}")
        value = getattr(import_module(_WHERE[name]), name) if name in _WHERE else _family(name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "conca"):
            raise
        line = f'conca.{name} needs {package}, which is not installed: pip install "conca[all]"'
        raise ModuleNotFoundError(line, name=error.name) from error
    globals()[name] = value
    return value


def _family(name: str) -> Any:
    """A family of layers that is not listed above, by the name of its class."""
    if name[:1].isupper():
        for found in import_module("conca.layers").families().values():
            if found.__name__ == name:
                return found
    raise AttributeError(f"module 'conca' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


# The folder may be deleted: what it holds is faster, never different. It registers loaders and imports nothing heavy.
if find_spec("conca.kernels") is not None:
    import_module("conca.kernels")
