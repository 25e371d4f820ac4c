"""A fitted model of images, and to its run folder and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import conca
from conca.estimators.image_config import DiffusionConfig, EnergyConfig
from conca.estimators.run_files import damaged, described, located, read_history, read_scores, understood
from conca.models.image_energy import ImageEnergyConfig, ImageEnergyNetwork
from conca.models.run import load_tensors, read_tensors, write_config, write_tensors
from conca.models.unet import UNet, UNetConfig
from conca.train.seeds import seeded

__all__ = ["COLUMNS", "JUDGED", "ImageRun", "read_image_run", "write_image_run"]

COLUMNS = "AUROC", "AUPR", "FPR95"
"""Of the scores: how well images held out are told from others."""
JUDGED = 1000
"""Images held out that are judged, at most."""
PARTS = "conca", "options", "network", "classes", "source", "spread", "highest", "held_out"


@dataclass(frozen=True)
class ImageRun:
    """What a fit ends with.

    config    how it was trained: of an energy or of a diffusion
    classes   names; empty where none were learnt
    source    what was read, a line
    spread    standard deviation of the pixels, between -1 and 1
    highest   noise of a geometric schedule
    held_out  images that were not learnt from
    scores    how well those are told from noise, constants and shuffled ones; empty if none were held out
    kept      tensors: `heights` (n,) of images held out, `samples` (n, C, H, W) bytes, `moments` (k, m, C, H, W) bytes and `at` (k,):
              where chains were (what was drawn), after how many updates; of an energy also `buffer` bytes and `walk` (steps, 2):
              mean energy and slope of chains from noise
    history   what was logged after each epoch
    """

    config: EnergyConfig | DiffusionConfig
    network: ImageEnergyNetwork | UNet
    classes: tuple[str, ...]
    source: str
    spread: float
    highest: float
    held_out: int
    scores: pd.DataFrame
    kept: dict[str, Tensor]
    history: pd.DataFrame = field(default_factory=pd.DataFrame)
    notices: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """ "energy" or "diffusion"."""
        return self.config.kind

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        form = self.network.config
        return form.channels, form.height, form.width


def write_image_run(folder: Path, run: ImageRun) -> None:
    """Write all files of a run into a folder."""
    run.history.to_csv(folder / "metrics.csv", index=False)
    if len(run.scores):
        run.scores.to_csv(folder / "scores.csv")
    write_tensors(folder / "model.safetensors", run.network.state_dict())
    write_tensors(folder / "evaluation.safetensors", run.kept)
    parts = {
        "conca": conca.__version__,
        "options": run.config.as_dict(),
        "network": run.network.config.as_dict(),
        "classes": list(run.classes),
        "source": run.source,
        "spread": run.spread,
        "highest": run.highest,
        "held_out": run.held_out,
    }
    write_config(folder, run.kind, parts)


def read_image_run(folder: Path, kind: str) -> ImageRun:
    """Read a run folder. Raises BadInput, one line, for what is no run, of a newer format or another kind, or not whole."""
    saved = described(folder, kind, PARTS)
    with understood(folder / "config.json"), torch.inference_mode(False), seeded(0):
        config: EnergyConfig | DiffusionConfig
        network: ImageEnergyNetwork | UNet
        if kind == "energy":
            config = EnergyConfig.from_dict(saved["options"])
            network = ImageEnergyNetwork(ImageEnergyConfig.from_dict(saved["network"]))
        else:
            config = DiffusionConfig.from_dict(saved["options"])
            network = UNet(UNetConfig.from_dict(saved["network"]))
        check_parts(network, saved)
    load_tensors(network, folder / "model.safetensors")
    with located(folder / "evaluation.safetensors"):
        kept = read_tensors(folder / "evaluation.safetensors")
        check_kept(kept, network, saved["held_out"])
    return ImageRun(
        config,
        network.eval(),
        classes=tuple(saved["classes"]),
        source=saved["source"],
        spread=float(saved["spread"]),
        highest=float(saved["highest"]),
        held_out=int(saved["held_out"]),
        scores=read_scores(folder / "scores.csv", ["against"], COLUMNS, optional=True),
        kept=kept,
        history=read_history(folder / "metrics.csv"),
    )


def check_kept(kept: dict[str, Tensor], network: ImageEnergyNetwork | UNet, held_out: int) -> None:
    """Raise BadInput unless the heights and the samples of a saved run are there, and of its images."""
    form = network.config
    heights, samples = kept.get("heights"), kept.get("samples")
    fine = heights is not None and heights.dim() == 1 and heights.dtype == torch.float64
    damaged(fine, "the heights of what was held out are missing, or no list of numbers")
    damaged(len(kept["heights"]) == min(held_out, JUDGED), "it holds as many heights as another run held out")
    fine = samples is not None and samples.dtype == torch.uint8
    fine = fine and samples is not None and samples.shape[1:] == (form.channels, form.height, form.width)
    damaged(fine, "the samples are missing, or of other images")


def check_parts(network: ImageEnergyNetwork | UNet, saved: dict[str, Any]) -> None:
    """Raise BadInput unless the parts of a saved run fit each other."""
    classes = saved["classes"]
    damaged(isinstance(classes, list) and all(isinstance(name, str) for name in classes), "classes are no texts")
    form = network.config
    known = form.classes if isinstance(form, UNetConfig) else form.outputs * (form.outputs > 1)
    damaged(len(classes) == known, f"{len(classes)} classes, and the network knows {known}")
    damaged(isinstance(saved["source"], str), "source is no text")
    for name in ("spread", "highest"):
        damaged(type(saved[name]) in (int, float) and 0 < saved[name] < 1e12, f"{name} is {saved[name]!r}")
    damaged(type(saved["held_out"]) is int and saved["held_out"] >= 0, f"held_out is {saved['held_out']!r}")
