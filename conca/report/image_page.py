"""The report of a model of images: what it draws, how strange what was held out is to it, and how it was trained."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

import conca
from conca.estimators.image_config import DiffusionConfig, EnergyConfig
from conca.estimators.image_fitting import DRAWN_BY
from conca.estimators.image_model import ImageModel
from conca.estimators.image_runs import ImageRun
from conca.report.drawing import COLOURS, canvas, label, svg_of
from conca.report.image_pictures import shown
from conca.report.image_training import training, walks
from conca.report.page import Chapter, Page, Picture, Table, short

__all__ = ["page", "warnings"]

FEW = {"energy": 1000, "diffusion": 3000}
"""Updates below which a training is short."""
TOLD = 0.9
"""AUROC against shuffled images below which an energy has hardly learnt what images are."""


def page(model: ImageModel) -> Page:
    """All chapters."""
    run = model.run_
    name = "An energy" if run.kind == "energy" else "A diffusion"
    chapters = [opening(run), drawn(run), *([chains] if (chains := walks(run)) else []), training(run), *heights(run)]
    line = f"{short(run.source, 200)}; conca {conca.__version__}"
    return Page(f"{name} of images", line, chapters)


def opening(run: ImageRun) -> Chapter:
    """What went wrong, if anything did, what it is, and how well it tells what is strange."""
    told = list(warnings(run))
    words = told or ["Nothing in the record of the training speaks against it. Look at the samples all the same."]
    table = [
        ("learnt", run.source),
        ("images", " x ".join(map(str, run.shape[1:])) + (" grey" if run.shape[0] == 1 else " colour")),
        *facts(run),
        ("parameters", f"{sum(p.numel() for p in run.network.parameters()):,}"),
        ("classes", short(", ".join(run.classes), 80) if run.classes else "none learnt"),
    ]
    parts: list[str | Table] = [*words, Table(["", ""], table, words=2)]
    if len(run.scores):
        rows = [
            [str(name), *(f"{value:.3f}" for value in row)]
            for name, row in zip(run.scores.index, run.scores.to_numpy())
        ]
        parts += [
            f"How well the {min(run.held_out, 1000):,} images held out are told from others by {measure(run)}, higher is stranger. "
            "AUROC and AUPR: 1 is best, AUROC 0.5 is chance; FPR95: 0 is best.",
            Table(["against", *run.scores.columns], rows),
        ]
    return Chapter("How good it is, and what it is", parts)


def facts(run: ImageRun) -> list[tuple[str, str]]:
    """How it was trained, in words."""
    steps = f"{int(run.history['step'].iloc[-1]):,}" if len(run.history) else "unknown"
    if isinstance(run.config, EnergyConfig):
        how = run.config.how()
        return [
            ("recipe", f"{run.config.recipe} ({how.source})"),
            (
                "chains",
                f"{how.steps} steps of {how.kernel.size:g}, noise {how.kernel.noise:g}: temperature {how.kernel.temperature:.3g}",
            ),
            (
                "begin",
                f"{100 * (1 - how.restart):g}% in a buffer of {how.size:,}"
                if 0 < how.restart < 1
                else "in a buffer"
                if how.size
                else "at noise, always",
            ),
            ("spectral norm, squares", f"{'yes' if how.spectral else 'no'}, {how.l2:g}"),
            ("updates", steps),
        ]
    assert isinstance(run.config, DiffusionConfig)
    kind = "energies, whose slopes tell the noise" if run.config.scalar else "noise that is told"
    return [("schedule", f"{run.config.schedule}, {run.config.levels:,} levels"), ("network", kind), ("updates", steps)]


def measure(run: ImageRun) -> str:
    """What novelty is."""
    return "energy" if run.kind == "energy" else "the noise that is told amiss"


def warnings(run: ImageRun) -> Iterator[str]:
    """What speaks against a training, in words, and what to do."""
    history = run.history
    steps = int(history["step"].iloc[-1]) if len(history) else 0
    if len(history) and steps < FEW[run.kind]:
        yield f"The training was short: {steps:,} updates. Give it more time (--max-minutes, --epochs)."
    if isinstance(run.config, EnergyConfig):
        yield from ill_energies(run)
    elif len(history) and "val/loss" in history and history["val/loss"].min() > 0.5:
        yield "The network tells hardly any noise: more updates, or a higher rate (--lr), are needed."
    samples = run.kept["samples"].to(torch.float64)
    if len(samples) > 1 and float(samples.std(0).mean()) < 0.5:
        yield "All samples are the same image: the model has collapsed. Train anew with more noise, or a lower rate (--lr)."
    auroc = float(run.scores["AUROC"].get("shuffled", 1.0)) if len(run.scores) else 1.0
    if auroc < TOLD:
        yield f"It hardly tells images from the same pixels shuffled (AUROC {auroc:.2f}): it has learnt single pixels, not images."


def ill_energies(run: ImageRun) -> Iterator[str]:
    """What the record of an energy says against it."""
    history = run.history
    assert isinstance(run.config, EnergyConfig)
    how = run.config.how()
    if not {"energy/data", "energy/samples", "slope/samples"} <= set(history):
        return
    data, samples, slope = (
        history[name].to_numpy(np.float64) for name in ("energy/data", "energy/samples", "slope/samples")
    )
    late = slice(-max(len(data) // 4, 1), None)
    gap, size = float(np.mean((samples - data)[late])), float(np.mean(np.abs(data)[late] + np.abs(samples)[late]))
    if size > 10:
        yield f"Energies have run away: they lie near {size / 2:.3g}. Take squares of energies (--l2), a lower rate (--lr), or --spectral."
    elif gap > 0.5 * size and size > 0.02:
        yield "Samples stay far above the data: chains do not get where the energy is low. Take more steps (--chain-steps)."
    elif gap < -0.5 * size and size > 0.02:
        yield "Samples lie below the data: chains have found low places that no data fill. Take a lower rate (--lr), or train on."
    pixels = float(np.prod(run.shape)) ** 0.5
    step = how.kernel.size * min(float(np.mean(slope[late])) / pixels, how.kernel.clip or np.inf)
    if how.steps * step < how.kernel.noise * how.steps**0.5:
        yield (
            f"Slopes are too flat to move the chains: {how.steps} steps move a pixel by about {how.steps * step:.2g}, their noise by "
            f"{how.kernel.noise * how.steps**0.5:.2g}. Train on, or take a higher rate (--lr)."
        )


def drawn(run: ImageRun) -> Chapter:
    """Samples."""
    by = "chains from noise"
    if isinstance(run.config, DiffusionConfig):
        by = f"{min(DRAWN_BY, run.config.levels)} levels of the diffusion, without noise"
    words = f"{len(run.kept['samples'])} images drawn by {by}, not chosen."
    return Chapter("What it draws", [shown(run.kept["samples"].numpy(), words, words)])


def heights(run: ImageRun) -> Iterator[Chapter]:
    """How the novelty of what was held out is distributed; nothing where none was."""
    values = run.kept["heights"].numpy()
    if len(values) < 2:
        return
    figure, (axes,) = canvas()
    axes.hist(values, bins=40, color=COLOURS[0])
    label(axes, measure(run), "images held out")
    middle = np.median(values)
    said = f"Median {middle:.4g}; 1 in 100 lies above {np.quantile(values, 0.99):.4g}, from where on `conca score` calls an image strange."
    yield Chapter("How strange what was held out is", [Picture(svg_of(figure, "heights"), f"Histogram. {said}", said)])
