"""Which options of `conca fit` belong to which task, and the estimator that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conca.estimators.classify_config import ClassifyConfig
from conca.estimators.config import ForecastConfig
from conca.estimators.text_config import TextConfig
from conca.types import BadInput, nearest

if TYPE_CHECKING:
    from conca import Classifier, Forecaster
    from conca.estimators.image_diffusion import ImageDiffusion
    from conca.estimators.image_energy import ImageEnergy

__all__ = ["check_task", "default", "estimator"]

MADE = {"epochs", "max_minutes", "batch_size", "lr", "seed", "devices", "precision"}
"""Options of all tasks; `ALONE` has those of some estimators, `READ` those of their `fit`."""
SEQUENCES = {"layers", "d_model", "dropout", "weight_decay", "patience"}
IMAGES = {"size", "colour", "labels", "features", "test_fraction"}
READ = {
    "forecast": {
        *("target", "time", "series", "covariates", "categorical", "known", "tz"),
        *("test_fraction", "windows", "step", "refit", "strict"),
    },
    "classify": {"time", "series", "label", "rate", "order", "test_fraction"},
    "text": {"tokenizer", "from"},
    "energy": {"skip_broken"},
    "diffusion": {"skip_broken"},
}
ALONE = {
    "forecast": SEQUENCES | {"horizon", "members", "length", "truncate", "quantiles"},
    "classify": SEQUENCES | {"axes", "bidirectional", "smoothing"},
    "text": SEQUENCES | {"length", "test_fraction", "lora"},
    "energy": IMAGES | {"recipe", "activation", "chain_steps", "l2", "spectral"},
    "diffusion": IMAGES | {"schedule", "levels", "scalar", "blocks", "dropout"},
}
DEFAULTS = {"to forecast": ForecastConfig, "to classify": ClassifyConfig, "of text": TextConfig}
SHOWN = {"refit": "no-refit"}
"""How an option is written, where that is not its name."""


def default(name: str) -> str:
    """The default of an option, in brackets, for every task that has it and another than that of the forecaster."""
    values = {
        task: getattr(config, name) for task, config in DEFAULTS.items() if getattr(config, name, None) is not None
    }
    shown = {task: f"{value:g}" if isinstance(value, float) else str(value) for task, value in values.items()}
    ours = shown.pop("to forecast")
    return "[" + "; ".join([ours, *(f"{task} {value}" for task, value in shown.items() if value != ours)]) + "]"


def check_task(task: str, options: dict[str, Any]) -> None:
    """Raise BadInput for an unknown task, an option that was given and is not for it, or one that it needs and was not given."""
    if task not in READ:
        raise BadInput(f"--task: unknown task '{task}'; {nearest(task, READ)}")
    for name in options:
        if name not in MADE | READ[task] | ALONE[task]:
            shown = SHOWN.get(name, name).replace("_", "-")
            other = next(one for one in READ if name in READ[one] | ALONE[one])
            mend = "leave it out" if task != "forecast" else f"add --task {other}, or leave it out"
            raise BadInput(f"--{shown} belongs to --task {other}, and this is {task}; {mend}")
    if task == "forecast" and "horizon" not in options:
        raise BadInput(
            "--horizon is missing: say how many steps ahead to forecast (or --task classify, text, energy, diffusion)"
        )
    columns = options.get("series", [])
    if task == "classify" and len(columns) > 1:
        raise BadInput(f"--series: sequences are told apart by one column, and {len(columns)} are named")


def estimator(
    task: str, options: dict[str, Any]
) -> tuple[Forecaster | Classifier | ImageEnergy | ImageDiffusion, dict[str, Any]]:
    """The estimator that checked options make, and those that its `fit` takes. Raises BadInput for ill values."""
    import conca

    made = {name: value for name, value in options.items() if name in MADE | ALONE[task]}
    read = {name: value for name, value in options.items() if name in READ[task]}
    if task == "forecast":
        return conca.Forecaster(**made), read
    if "seed" in made:
        made["random_state"] = made.pop("seed")
    if task in ("energy", "diffusion"):
        return images(task)(**made), read
    if "series" in read:
        (read["series"],) = read["series"]
    return conca.Classifier(**made), read


def images(task: str) -> type[ImageEnergy] | type[ImageDiffusion]:
    """The estimator of a task on images."""
    from conca.estimators.image_diffusion import ImageDiffusion
    from conca.estimators.image_energy import ImageEnergy

    return ImageEnergy if task == "energy" else ImageDiffusion
