"""Every test starts alike: float64, one thread, the same seeds."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ.pop("COLUMNS", None)  # the width of no screen, which a runner of several processes sets
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


@pytest.fixture(autouse=True)
def alike() -> None:
    """float64, one thread and fixed seeds, whatever the test before has left."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(scope="session")
def image_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small images, `bars.npz`, and runs of them: energy, joint, diffusion, scalar; nobody may change it."""
    from conca.estimators.image_config import DiffusionConfig, EnergyConfig
    from conca.estimators.image_diffusion import ImageDiffusion
    from conca.estimators.image_energy import ImageEnergy

    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 60, (60, 1, 8, 8), dtype=np.uint8)
    places = draw.integers(0, 8, 60)
    pixels[np.arange(60), 0, :, places] = 255
    y = np.where(places < 4, "left", "right")
    np.savez(folder / "bars.npz", X=pixels, y=y)
    walked = {"features": 4, "epochs": 2, "batch_size": 8, "chain_steps": 3}
    told = {"features": 8, "epochs": 2, "batch_size": 8, "schedule": "cosine", "levels": 8}
    models = {
        "energy": ImageEnergy(**walked),
        "joint": ImageEnergy(labels=True, recipe="jem", **walked),
        "diffusion": ImageDiffusion(labels=True, **told),
        "scalar": ImageDiffusion(scalar=True, **told),
    }
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EnergyConfig, "epoch", 6)  # updates
        patch.setattr(DiffusionConfig, "epoch", 6)
        for name, model in models.items():
            model.fit(pixels, y, out=folder / name)
    return folder
