"""`conca score` on a run of images: how strange each is, and how well others are told from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from conca.cli.images import image_model
from conca.cli.output import check_free, write_csv
from conca.cli.screen import frame, notice

if TYPE_CHECKING:
    from conca.data.image_set import Images
    from conca.estimators.image_diffusion import ImageDiffusion
    from conca.estimators.image_energy import ImageEnergy

__all__ = ["score_images"]


def score_images(
    run: Path,
    data: Path,
    against: Path | None,
    out: Path | None,
    quantile: float | None,
    *,
    skip_broken: bool,
    force: bool,
    quiet: bool,
) -> None:
    """Write how strange each image is, and print a table of it. Raises BadInput for images that are not like those fitted."""
    import numpy as np
    import pandas as pd

    from conca.metrics.novelty import auprc, auroc, fpr_at

    if out is not None:
        check_free(out, force, data, *([] if against is None else [against]))
    model = image_model(run)
    sets = {"data": data, **({} if against is None else {"against": against})}
    tables, rows = [], {}
    read = {name: judged(model.read(path, skip_broken=skip_broken)) for name, path in sets.items()}
    for name, images in read.items():
        found = model.novelty(images, quantile=quantile)
        found.insert(0, "image", np.arange(len(found)))
        found.insert(0, "set", name)
        tables.append(found)
        row = {"images": float(len(found)), "novelty": found["novelty"].mean(), "rank": found["rank"].mean()}
        rows[name] = row | {"alarms": found["alarm"].mean(), **right(model, images)}
        for line in () if quiet else (images.source, *images.skipped):
            notice(line)
    summary = pd.DataFrame.from_dict(rows, orient="index")
    if against is not None:
        ordinary, strange = (table["novelty"].to_numpy() for table in tables)
        told = {"AUROC": auroc(ordinary, strange), "AUPR": auprc(ordinary, strange), "FPR95": fpr_at(ordinary, strange)}
        summary = summary.assign(**{name: [np.nan, value] for name, value in told.items()})
    if out is not None:
        write_csv(pd.concat(tables, ignore_index=True), out)
        if not quiet:
            notice(f"wrote {out}")
    frame(summary.rename_axis("set"))


def judged(images: Images) -> Images:
    """The official test part, where there is one; else all."""
    parts: Any = images.parts
    return images.part("test") if parts is not None and "test" in parts else images


def right(model: ImageEnergy | ImageDiffusion, images: Images) -> dict[str, float]:
    """accuracy, of a run that tells classes, on images that have them; nothing else."""
    from conca.estimators.image_energy import ImageEnergy

    if not isinstance(model, ImageEnergy) or not model.run_.classes or images.labels is None:
        return {}
    truth = [images.classes[place] for place in images.labels]
    return {"accuracy": float((model.predict(images) == truth).mean())}
