"""Which options of `conca fit` belong to which task, and the estimator that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conca.estimators.classify_config import ClassifyConfig
from conca.estimators.config import ForecastConfig
from conca.types import BadInput, nearest

if TYPE_CHECKING:
    from conca import Classifier, Forecaster

__all__ = ["check_task", "default", "estimator"]

MADE = {
    *("layers", "d_model", "dropout", "epochs", "max_minutes", "batch_size", "lr", "weight_decay", "patience"),
    *("seed", "devices", "precision"),
}
"""Options of the estimators of both tasks; `ALONE` has those of one, `READ` those of its `fit`."""
READ = {
    "forecast": {
        *("target", "time", "series", "covariates", "categorical", "known", "tz"),
        *("test_fraction", "windows", "step", "refit", "strict"),
    },
    "classify": {"time", "series", "label", "rate", "order", "test_fraction"},
}
ALONE = {
    "forecast": {"horizon", "members", "length", "truncate", "quantiles"},
    "classify": {"axes", "bidirectional", "smoothing"},
}
SHOWN = {"refit": "no-refit"}
"""How an option is written, where that is not its name."""


def default(name: str) -> str:
    """The default of an option, in brackets, for both tasks."""
    ours, theirs = (
        f"{getattr(one, name):g}" if isinstance(getattr(one, name), float) else getattr(one, name)
        for one in (ForecastConfig, ClassifyConfig)
    )
    return f"[{ours}]" if ours == theirs else f"[{ours}; to classify {theirs}]"


def check_task(task: str, options: dict[str, Any]) -> None:
    """Raise BadInput for an unknown task, an option that was given and is not for it, or one that it needs and was not given."""
    if task not in READ:
        raise BadInput(f"--task: unknown task '{task}'; {nearest(task, READ)}")
    for name in options:
        if name not in MADE | READ[task] | ALONE[task]:
            shown = SHOWN.get(name, name).replace("_", "-")
            other = next(one for one in READ if name in READ[one] | ALONE[one])
            mend = "leave it out" if task == "classify" else "add --task classify, or leave it out"
            raise BadInput(f"--{shown} belongs to --task {other}, and this is {task}; {mend}")
    if task == "forecast" and "horizon" not in options:
        raise BadInput("--horizon is missing: say how many steps ahead to forecast (or --task classify)")
    columns = options.get("series", [])
    if task == "classify" and len(columns) > 1:
        raise BadInput(f"--series: sequences are told apart by one column, and {len(columns)} are named")


def estimator(task: str, options: dict[str, Any]) -> tuple[Forecaster | Classifier, dict[str, Any]]:
    """The estimator that checked options make, and those that its `fit` takes. Raises BadInput for ill values."""
    import conca

    made = {name: value for name, value in options.items() if name in MADE | ALONE[task]}
    read = {name: value for name, value in options.items() if name in READ[task]}
    if task == "forecast":
        return conca.Forecaster(**made), read
    if "seed" in made:
        made["random_state"] = made.pop("seed")
    if "series" in read:
        (read["series"],) = read["series"]
    return conca.Classifier(**made), read
