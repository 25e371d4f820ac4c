"""`conca sample`: images drawn from a run, or from a sum of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from typer import Argument, Option

from conca.cli.images import Drawing, check_picture, image_model, write_picture
from conca.cli.screen import notice, watched

__all__ = ["sample"]

Count: TypeAlias = Annotated[int, Option("-n", "--number", metavar="N", help="How many images.")]
Steps: TypeAlias = Annotated[
    int | None,
    Option(
        metavar="N",
        help="Of each chain [16 times those of the training]; of a diffusion, levels that are visited [50; ddpm: all].",
    ),
]
Kernel: TypeAlias = Annotated[
    str | None,
    Option(metavar="WORD", help="Of a diffusion: ddim, ddpm (ancestral), or langevin (only --corrector moves) [ddim]."),
]
Variance: TypeAlias = Annotated[str | None, Option(metavar="WORD", help="Of ddpm: large (beta) or small [large].")]
Eta: TypeAlias = Annotated[
    float | None, Option(metavar="X", help="Of ddim: share of the noise that is drawn anew [0].")
]
Corrector: TypeAlias = Annotated[
    str | None,
    Option(metavar="WORD", help="Of a diffusion: further steps at each level, ula or mala (of --scalar runs) [none]."),
]
Corrections: TypeAlias = Annotated[int | None, Option(metavar="N", help="How many of them [1].")]
Ratio: TypeAlias = Annotated[
    float | None, Option(metavar="X", help="Their step, in units of the variance of the level's noise [0.1].")
]
Seed: TypeAlias = Annotated[int, Option(metavar="N", help="Same seed, same machine, same images.")]
Scale: TypeAlias = Annotated[int, Option(metavar="N", help="Each pixel becomes so many pixels wide and high.")]


def sample(
    runs: Annotated[
        list[str],
        Argument(
            metavar="RUN [+ RUN ...]",
            help="Run, or a sum: A + B, A + 0.5*B, A - 0.5*B, A or B; A:3 is the class 3 of A.",
        ),
    ],
    out: Annotated[Path, Option(metavar="FILE", help=".png: a grid; .npz: the array X, (n, C, H, W).")],
    number: Count = 64,
    steps: Steps = None,
    kernel: Kernel = None,
    variance: Variance = None,
    eta: Eta = None,
    schedule: Annotated[
        str | None,
        Option(metavar="WORD", help="Of a diffusion: another schedule to walk, linear, cosine or geometric."),
    ] = None,
    levels: Annotated[int | None, Option(metavar="N", help="Levels of that schedule.")] = None,
    corrector: Corrector = None,
    corrections: Corrections = None,
    ratio: Ratio = None,
    seed: Seed = 0,
    columns: Annotated[int | None, Option(metavar="N", help="Images side by side; default: as many as rows.")] = None,
    scale: Scale = 1,
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No notices.")] = False,
) -> None:
    """Draw images: by chains from noise on an energy, or by a diffusion backwards.

    Of a sum of runs, images for which all hold (+), none of what is taken away (-), or any (or). The runs need not know of each
    other; they are of one task, size and colour. A sum of diffusions is no diffusion of the sum: --corrections walk each level,
    which brings images nearer to it.
    """
    check_picture(out, force, number=number, scale=scale, columns=columns)
    drawing = Drawing(steps, kernel, variance, eta, schedule, levels, corrector, corrections, ratio)
    from conca.estimators.image_energy import ImageEnergy
    from conca.estimators.image_sums import composed, parts_of

    parts, either = parts_of(runs)
    models = [image_model(part.run) for part in parts]
    first = models[0]
    for model in models:
        drawing.check(model)
    if isinstance(first, ImageEnergy):
        landscape = composed(models, parts, either)
        with watched("chains", quiet) as watch:
            pixels = first.sample(number, steps=steps, random_state=seed, energy=landscape, watch=watch)  # type: ignore[arg-type]
    else:
        walked = first.schedule_of(schedule, levels)
        landscape = composed(models, parts, either, walked)
        with watched("levels", quiet) as watch:
            pixels = first.sample(
                number, schedule=walked, random_state=seed, score=landscape, watch=watch, **drawing.of(first)
            )
    write_picture(out, pixels, columns, scale)
    if not quiet:
        notice(f"wrote {out}")
