"""What models of images share: how they are fitted, kept, asked how strange an image is."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from conca.data.image_arrays import as_pixels
from conca.data.image_file import Pixels
from conca.data.image_folder import Fit
from conca.data.image_set import Images
from conca.data.images import load_images
from conca.estimators.arguments import check_switches, folder_of
from conca.estimators.image_config import DiffusionConfig, EnergyConfig
from conca.estimators.image_fitting import fit_diffusion, fit_energy, settled
from conca.estimators.image_runs import ImageRun, read_image_run, write_image_run
from conca.estimators.workplace import workplace
from conca.infer.images import Known, floats_of
from conca.infer.novelty import Calibration
from conca.models.image_energy import ImageEnergyConfig, ImageEnergyNetwork
from conca.models.run import check_free, new_folder
from conca.models.unet import UNet
from conca.train.ranks import first
from conca.train.seeds import seeded
from conca.types import BadInput

__all__ = ["ImageModel", "images_of"]

ROUNDING = 1e-5
"""Of a score: one that is higher by less than this share is not counted as higher."""


def images_of(
    X: Any,
    y: Any = None,
    *,
    size: int | None = None,
    colour: str | None = None,
    labelled: bool = False,
    skip_broken: bool = False,
) -> Images:
    """Images from a path, from `Images`, or from an array (n, H, W), (n, C, H, W) or (n, H, W, C), bytes or numbers from 0 to 1.

    Raises BadInput, one line, for what cannot be read as images.
    """
    if isinstance(X, (str, PathLike)):
        if y is not None:
            raise BadInput("labels are read with the images; leave y out, or give arrays")
        return load_images(X, size=size, colour=colour, labelled=labelled, skip_broken=skip_broken)
    if isinstance(X, Images):
        if y is not None:
            raise BadInput("labels are a part of Images; leave y out")
        return X
    pixels, _ = as_pixels(np.asarray(X), "X", Fit(None if size is None else (size, size), colour))
    if y is not None and len(np.asarray(y)) != len(pixels):
        raise BadInput(f"{len(pixels)} images and {len(np.asarray(y))} labels; give one for each")
    return Images.of(pixels, None if y is None else np.asarray(y), None, "X")


class ImageModel(BaseEstimator):  # type: ignore[misc]
    """A model of images; see `ImageEnergy` and `ImageDiffusion`."""

    options: ClassVar[type[EnergyConfig] | type[DiffusionConfig]]

    @property
    def run_(self) -> ImageRun:
        """All that the fit ended with. Raises NotFittedError before `fit`."""
        check_is_fitted(self)
        return self._run

    @property
    def config(self) -> EnergyConfig | DiffusionConfig:
        """The options, checked: those of the fit, after it. Raises BadInput for an ill one."""
        return self._run.config if hasattr(self, "_run") else self._asked()

    def _asked(self) -> EnergyConfig | DiffusionConfig:
        options = self.get_params(deep=False)
        if options["random_state"] is None:
            options["random_state"] = int(np.random.default_rng().integers(2**31))
        return self.options(**options)

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        out: str | Path | None = None,
        skip_broken: bool = False,
        progress: bool = False,
        force: bool = False,
        resume: bool = False,
    ) -> Self:
        """Learn from images.

        Args:
            X: a path (see `conca.data.images.load_images`), a `conca.data.images.Images`, or an array (n, H, W), (n, C, H, W) or
                (n, H, W, C), bytes or numbers from 0 to 1.
            y: (n,) classes, where X is an array and classes are to be learnt (`labels=True`).
            out: run folder to write; None: keep the model in memory alone (`save` writes it later).
            skip_broken: pass over picture files that cannot be read.
            progress: show a bar on stderr.
            force: replace the run folder if it exists.
            resume: go on with a training for `out` that was killed or interrupted; it ends as if it had not been.

        Raises:
            BadInput: one line, for images that cannot be read or used, an ill option, a folder that exists. It is a ValueError.
            Divergence: where the training runs away.
        """
        check_switches(skip_broken=skip_broken, progress=progress, force=force, resume=resume)
        config = self._asked()
        if out is not None and first():
            check_free(folder_of(out), force, resume)
        images = images_of(
            X, y, size=config.size, colour=config.colour, labelled=config.labels, skip_broken=skip_broken
        )
        images = settled(images, config)
        stamp = {"options": {"task": config.kind, **config.as_dict()}, "data": images.stamp()}
        with torch.inference_mode(False), torch.enable_grad(), workplace(out, force, resume, stamp) as folder:
            if isinstance(config, EnergyConfig):
                run = fit_energy(config, images, folder, progress=progress, resume=resume)
            else:
                run = fit_diffusion(config, images, folder, progress=progress, resume=resume)
            if out is not None and first():
                write_image_run(folder, run)
        self._take(run)
        return self

    def _take(self, run: ImageRun) -> None:
        """Become what a fit ended with."""
        self._run, self.network_, self.history_, self.scores_ = run, run.network, run.history, run.scores
        self.shape_, self.notices_ = run.shape, list(run.notices)
        if run.classes:
            self.classes_ = np.array(run.classes)

    def read(self, X: Any, *, skip_broken: bool = False) -> Images:
        """Images in the form that was fitted, from what `fit` takes. Raises BadInput where they are of another size or kind."""
        check_is_fitted(self)
        config = self._run.config
        images = images_of(X, size=config.size, colour=config.colour, skip_broken=skip_broken)
        if images.shape != self._run.shape:
            wanted, found = (described(shape) for shape in (self._run.shape, images.shape))
            line = f"{images.source.partition(':')[0]}: images are {found}, and {wanted} was fitted"
            raise BadInput(f"{line}; make them so, or fit with size and colour (--size, --colour)")
        return images

    def _heights(self, pixels: Pixels) -> NDArray[np.float64]:
        """How strange each image is."""
        raise NotImplementedError

    def novelty(self, X: Any, *, quantile: float | None = None) -> pd.DataFrame:
        """How strange each image is, one row for each: novelty (higher is stranger), rank among the images held out (0 to 1), alarm.

        Args:
            X: as in `fit`.
            quantile: the rank from which on there is an alarm, 1; None: 0.99, or the highest that there is, if that is lower.

        Raises:
            BadInput: as `read` does, and for a quantile that cannot be reached. Where nothing was held out at the fit, rank is NaN and
                alarm too.
        """
        images = self.read(X)
        found = self._heights(images.pixels)
        calibration = Calibration.of(self._run.kept["heights"].numpy(), "images")
        if not len(calibration.scores):
            if quantile is not None:
                raise BadInput(
                    "nothing was held out when this run was fitted, so no image has a rank; leave the quantile out"
                )
            return pd.DataFrame({"novelty": found, "rank": np.nan, "alarm": np.nan})
        rounding = ROUNDING * (np.abs(found) + calibration.scores.std())  # it differs with what is scored at once
        rank = calibration.rank(found - rounding)
        return pd.DataFrame(
            {"novelty": found, "rank": rank, "alarm": (rank >= calibration.checked(quantile)).astype(int)}
        )

    def _known(self, image: Any, mask: Any, low: float, high: float) -> Known:
        """An image and where it is known, as tensors; mask is True where it is damaged."""
        pixels, shape = np.asarray(image), self.run_.shape
        if pixels.ndim == 2:
            pixels = pixels[None]
        if pixels.shape != shape or pixels.dtype != np.uint8:
            raise BadInput(f"the image must be bytes of shape {shape}, not {pixels.dtype} of shape {pixels.shape}")
        holes = np.asarray(mask)
        if holes.shape != pixels.shape[1:] or holes.dtype != bool:
            raise BadInput(
                f"the mask must be bool of shape {pixels.shape[1:]}, True where the image is to be completed"
            )
        return floats_of(pixels, low, high), torch.from_numpy(~holes).expand(shape).clone()

    def __getstate__(self) -> dict[str, Any]:
        """All but the network and its landscape, which cannot be pickled under a spectral norm: these as tensors."""
        state: dict[str, Any] = super().__getstate__()
        if "_run" not in state:
            return state
        run: ImageRun = state["_run"]
        rest = {name: value for name, value in state.items() if name not in ("_energy", "network_", "_run")}
        fields = {name: value for name, value in vars(run).items() if name != "network"}
        return rest | {"_packed": (fields, run.network.config, run.network.state_dict())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The inverse of `__getstate__`."""
        packed = state.pop("_packed", None)
        super().__setstate__(state)
        if packed is not None:
            fields, config, tensors = packed
            with seeded(0):
                network = ImageEnergyNetwork(config) if isinstance(config, ImageEnergyConfig) else UNet(config)
            network.to(next(iter(tensors.values())).dtype).load_state_dict(tensors)
            self._take(ImageRun(network=network.eval(), **fields))

    def save(self, out: str | Path, *, force: bool = False) -> Self:
        """Write the run folder. Raises BadInput where that cannot be done, NotFittedError before `fit`."""
        run = self.run_
        with new_folder(folder_of(out), force) as folder:
            write_image_run(folder, run)
        return self

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The model of a run folder. Raises BadInput for what is none, or damaged."""
        run = read_image_run(folder_of(folder), cls.options.kind)
        model = cls(**{name: getattr(run.config, name) for name in cls._get_param_names()})
        model._take(run)
        return model


def described(shape: tuple[int, int, int]) -> str:
    """Size and kind of an image, in words."""
    channels, height, width = shape
    return f"{height} x {width} in {'grey' if channels == 1 else 'colour'}"
