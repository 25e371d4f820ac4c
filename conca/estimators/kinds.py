"""What a place is: a run folder of some kind, or language models that others have published."""

from __future__ import annotations

import json
from pathlib import Path

from conca.estimators.arguments import folder_of
from conca.models.run import CONFIG, read_config
from conca.types import BadInput, nearest

__all__ = ["KINDS", "is_run", "kind_of"]

KINDS = {
    "forecast": ("conca.estimators.forecaster", "Forecaster"),
    "classify": ("conca.estimators.classifier", "Classifier"),
    "text": ("conca.estimators.language", "LanguageModel"),
    "energy": ("conca.estimators.image_energy", "ImageEnergy"),
    "diffusion": ("conca.estimators.image_diffusion", "ImageDiffusion"),
}
"""Where what each kind of run is loaded as is; it is imported when it is needed."""
THEIRS = {"model_type", "architectures", "d_model", "ssm_cfg"}
"""Keys of configurations that are not conca's."""


def is_run(place: str | Path) -> bool:
    """Whether a place is a run folder, be it damaged: not published weights, and no ID of a hub. Raises BadInput for no path at all."""
    folder = folder_of(place)
    if folder.is_file() or (folder.suffix == ".gguf" and not folder.exists()):
        return folder.suffix not in (".gguf", ".safetensors", ".bin")
    if not folder.is_dir():
        # huggingface_hub is slow to import, and a run that is there does not need it
        from conca.models.hub import is_id

        mistyped = Path(str(place).partition("/")[0]).is_dir()
        return mistyped or not is_id(str(place))
    if not (folder / CONFIG).is_file():
        return not (folder / "params.json").is_file()
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True
    return not isinstance(found, dict) or "kind" in found or not THEIRS & set(found)


def kind_of(place: str | Path) -> str:
    """What a place holds: "forecast", "classify", "text", "energy" or "diffusion"; published weights are "text".

    Raises:
        BadInput: for a folder that is no run, or of an unknown kind.
    """
    if not is_run(place):
        return "text"
    folder = folder_of(place)
    kind: str = read_config(folder)["kind"]
    if kind not in KINDS:
        raise BadInput(f"{folder / 'config.json'}: unknown kind of run '{kind}'; {nearest(kind, KINDS)}")
    return kind
