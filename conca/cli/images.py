"""Runs on images at the prompt: loaded, alone or as a sum, and drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conca.cli.kind import kind_of
from conca.types import BadInput

if TYPE_CHECKING:
    from conca.data.image_file import Pixels
    from conca.energy.chain import Kernel
    from conca.estimators.image_diffusion import ImageDiffusion
    from conca.estimators.image_energy import ImageEnergy

__all__ = ["Drawing", "check_picture", "image_model", "write_picture"]

KERNELS = "ddim", "ddpm", "langevin"
CORRECTORS = "ula", "mala"
LARGEST = 64
"""Pixels that one becomes, at most."""
RATIO = 0.1
"""Step of a corrector, times the variance of the noise of a level."""


def image_model(run: Path | str) -> ImageEnergy | ImageDiffusion:
    """The model of a run. Raises BadInput for a run of another task, or damaged, or none; the hub has none of images."""
    if not Path(run).exists():
        raise BadInput(f"{run}: there is no such folder; check the path")
    kind = kind_of(run)
    if kind == "energy":
        from conca.estimators.image_energy import ImageEnergy

        return ImageEnergy.load(run)
    if kind == "diffusion":
        from conca.estimators.image_diffusion import ImageDiffusion

        return ImageDiffusion.load(run)
    raise BadInput(
        f"{run}: is no run on images (it was fitted by --task {kind}); name one of --task energy or diffusion"
    )


@dataclass(frozen=True)
class Drawing:
    """How images are drawn; None: by default.

    steps        of a chain, or levels of a diffusion
    kernel       of a diffusion: ddim, ddpm, langevin
    variance     of ddpm: large or small
    eta          of ddim
    schedule     that a diffusion walks
    levels       of it
    corrector    ula or mala
    corrections  its steps at each level
    ratio        its step, times the variance of the noise of the level
    """

    steps: int | None = None
    kernel: str | None = None
    variance: str | None = None
    eta: float | None = None
    schedule: str | None = None
    levels: int | None = None
    corrector: str | None = None
    corrections: int | None = None
    ratio: float | None = None

    def check(self, model: ImageEnergy | ImageDiffusion) -> None:
        """Raise BadInput for an option that the run does not have, and for a value that cannot be."""
        from conca.estimators.image_energy import ImageEnergy

        for name in ("steps", "levels", "corrections"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise BadInput(f"--{name} must be 1 or more, not {count}")
        if isinstance(model, ImageEnergy):
            for name, value in vars(self).items():
                if value is not None and name != "steps":
                    raise BadInput(f"--{name} belongs to a diffusion, and this run is an energy; leave it out")
        for name, known in (
            ("kernel", KERNELS),
            ("corrector", CORRECTORS),
            ("schedule", ("linear", "cosine", "geometric")),
        ):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise BadInput(f"--{name} is one of {', '.join(known)}, not {value!r}")
        if self.variance is not None and self.kernel != "ddpm":
            raise BadInput("--variance belongs to --kernel ddpm")
        if self.eta is not None and self.kernel not in (None, "ddim"):
            raise BadInput("--eta belongs to --kernel ddim")
        if self.corrector == "mala" and not model.get_params()["scalar"]:
            raise BadInput(
                "--corrector mala accepts by energies, and this run knows only slopes; say ula, or fit with --scalar"
            )
        if self.ratio is not None and not 0 < self.ratio < math.inf:
            raise BadInput(f"--ratio must be a positive number, not {self.ratio}")
        if self.ratio is not None and (self.corrector, self.corrections) == (None, None) and self.kernel != "langevin":
            raise BadInput("--ratio belongs to --corrector; say ula or mala, or leave it out")

    def of(self, model: ImageDiffusion) -> dict[str, Any]:
        """What `ImageDiffusion.sample` and `complete` take. Raises BadInput for values that cannot be."""
        from conca.energy.reverse import ddim, ddpm

        bounds = (-1.0, 1.0)
        options: dict[str, Any] = {}
        if self.steps is not None or self.kernel == "ddpm":
            options["steps"] = self.steps
        if self.kernel == "ddpm":
            options["kernel"] = ddpm(self.variance or "large", bounds=bounds)  # type: ignore[arg-type]
        elif self.kernel == "langevin":
            options["kernel"] = "langevin"
        else:
            options["kernel"] = ddim(self.eta or 0.0, bounds=bounds)
        if self.kernel == "langevin" or self.corrections is not None or self.corrector is not None:
            options |= {
                "corrector": corrector(self.corrector or "ula", self.ratio or RATIO),
                "corrections": self.corrections or 1,
            }
        return options


def corrector(name: str, ratio: float) -> Callable[[float], Kernel[Any, Any]]:
    """The kernel of further steps, as a function of the noise of a level."""
    from conca.energy.langevin import mala, ula

    make: Callable[[float], Kernel[Any, Any]] = mala if name == "mala" else ula
    return lambda noise: make(ratio * noise**2)


def check_picture(
    path: Path, force: bool, *inputs: Path, number: int = 1, scale: int = 1, columns: int | None = None
) -> None:
    """Refuse a file that cannot be written, or not in this form, before any work is done."""
    from conca.cli.output import check_free

    if number < 1 or not 1 <= scale <= LARGEST or (columns is not None and columns < 1):
        raise BadInput(f"--number and --columns must be 1 or more, --scale from 1 to {LARGEST}")
    ending = path.suffix.lower()
    if ending not in (".png", ".npz"):
        raise BadInput(f"{path}: pictures are written to .png or .npz; name such a file")
    if ending == ".npz" and (scale != 1 or columns is not None):
        raise BadInput(f"{path}: holds an array, and --scale and --columns belong to a picture; leave them out")
    check_free(path, force, *inputs)


def write_picture(path: Path, pixels: Pixels, columns: int | None, scale: int) -> None:
    """Images (N, C, H, W) as a grid (.png), one alone as itself, or as an array X (.npz). Raises BadInput where that cannot be done."""
    import io

    import numpy as np

    from conca.data.image_grid import grid_of, png_of
    from conca.models.run import write_whole

    if path.suffix.lower() == ".npz":
        file = io.BytesIO()
        np.savez_compressed(file, X=pixels)
        content = file.getvalue()
    elif len(pixels) == 1:
        content = png_of(pixels[0].repeat(scale, axis=1).repeat(scale, axis=2))
    else:
        content = png_of(grid_of(pixels, columns, scale=scale))
    try:
        write_whole(path, content, shared=True)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; nothing was written") from error
