"""A run folder, or published weights, become what can be used: an estimator or a language model."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conca.estimators.kinds import KINDS, kind_of
from conca.types import BadInput

if TYPE_CHECKING:
    from conca.estimators.classifier import Classifier
    from conca.estimators.forecaster import Forecaster
    from conca.estimators.image_diffusion import ImageDiffusion
    from conca.estimators.image_energy import ImageEnergy
    from conca.estimators.language import LanguageModel

__all__ = ["load"]


def load(place: str | Path, **options: Any) -> Forecaster | Classifier | LanguageModel | ImageEnergy | ImageDiffusion:
    """What a run folder holds, whatever its kind; or a language model that was published.

    Args:
        place: a run folder; an ID of the Hugging Face hub, such as "state-spaces/mamba-130m-hf"; a folder of such weights; a .gguf
            file.
        options: of language models alone, as `LanguageModel.from_pretrained` takes them: dtype, quantize, revision, tokenizer, ...

    Raises:
        BadInput: one line, for what cannot be found, a folder that is no run, of a newer format or an unknown kind, or not whole.
    """
    kind = kind_of(place)
    module, name = KINDS[kind]
    found: Any = getattr(import_module(module), name)
    if kind == "text":
        model: LanguageModel = found.from_pretrained(place, **options)
        return model
    if options:
        raise BadInput(
            f"{place}: is a run of kind '{kind}', which takes no option {next(iter(options))!r}; leave it out"
        )
    estimator: Forecaster | Classifier | ImageEnergy | ImageDiffusion = found.load(place)
    return estimator
