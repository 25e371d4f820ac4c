"""`conca complete`: what is damaged in an image is filled in by a run; what is known does not move."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from conca.cli.images import Drawing, check_picture, image_model, write_picture
from conca.cli.sample import Corrections, Corrector, Eta, Kernel, Ratio, Scale, Seed, Steps, Variance
from conca.cli.screen import notice, watched

__all__ = ["complete"]


def complete(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder that `conca fit --task energy` or diffusion wrote.")],
    image: Annotated[Path, Argument(metavar="IMAGE", help="Picture of the size that was fitted.")],
    mask: Annotated[
        Path,
        Option(
            metavar="MASK",
            help="Picture of the same size: white where the image is to be filled in, black where it is known.",
        ),
    ],
    out: Annotated[
        Path, Option(metavar="FILE", help=".png: the image, or a grid of several; .npz: the array X, (n, C, H, W).")
    ],
    number: Annotated[int, Option("-n", "--number", metavar="N", help="How many ways to fill it in.")] = 1,
    label: Annotated[
        str | None, Option(metavar="CLASS", help="Of a run that was fitted with labels: what it is to be.")
    ] = None,
    steps: Steps = None,
    kernel: Kernel = None,
    variance: Variance = None,
    eta: Eta = None,
    corrector: Corrector = None,
    corrections: Corrections = None,
    ratio: Ratio = None,
    seed: Seed = 0,
    scale: Scale = 1,
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No notices.")] = False,
) -> None:
    """Fill in the damaged part of an image.

    The same chains as of `conca sample`, with the known pixels held where they are. Of a diffusion, --corrections let the new part
    look at the known one more often.
    """
    check_picture(out, force, image, mask, number=number, scale=scale)
    drawing = Drawing(steps, kernel, variance, eta, None, None, corrector, corrections, ratio)
    model = image_model(run)
    drawing.check(model)
    from conca.data.images import load_image, load_mask
    from conca.estimators.image_energy import ImageEnergy

    pixels = load_image(image, shape=model.shape_)
    holes = load_mask(mask, model.shape_)
    with watched("completing", quiet) as watch:
        if isinstance(model, ImageEnergy):
            found = model.complete(pixels, holes, number, steps=steps, label=label, random_state=seed, watch=watch)
        else:
            options = drawing.of(model)
            found = model.complete(pixels, holes, number, label=label, random_state=seed, watch=watch, **options)
    write_picture(out, found, None, scale)
    if not quiet:
        notice(f"wrote {out}")
