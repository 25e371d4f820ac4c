"""Noise and correction: on the way down a diffusion each step adds several times more noise than it takes away."""

from __future__ import annotations

import torch
from torch import Tensor

from conca.bench.noised import Noised
from conca.bench.stop import Claim, Stop
from conca.energy import GaussianMixture, Schedule
from conca.report.drawing import COLOURS, SOFT, canvas, key, label, logarithmic, svg_of
from conca.report.page import Picture

__all__ = ["RATIOS", "correction"]

RATIOS = {1: 1.00, 10: 2.61, 50: 5.19, 100: 7.05, 300: 9.98, 350: 10.07, 500: 9.58, 1000: 7.07}
"""Noise over correction by level, counted from 1, of the linear schedule of 1,000 levels."""
POINTS, WIDTH, ROWS = 16, 256, 1000
"""Data on which the slope is measured: so far apart, in so many coordinates, that they are told apart at most levels."""


def correction() -> Stop:
    """The noise of a step, sqrt(beta), over its correction, beta times the root mean square of the slope, 1 / sqrt(1 - abar)."""
    schedule = Schedule.linear(1000)
    line = ratios(schedule)
    walked = {t: measured(schedule, t) for t in (1, 100, 350, 1000)}
    claims = [
        Claim(f"noise over correction at level {t:,} of 1,000", ratio, float(line[t - 1]), 6e-3)
        for t, ratio in RATIOS.items()
    ]
    claims += [
        Claim("its peak", 10.07, float(line.max()), 5e-3),
        Claim("share of the levels where it is above 3", 0.986, float((line > 3).double().mean()), 5e-4),
        *(
            Claim(f"the same on points of {WIDTH} coordinates, level {t:,}", float(line[t - 1]), ratio, 0.02 * ratio)
            for t, ratio in walked.items()
        ),
    ]
    reading = (
        "A step down goes against the slope by beta and adds noise of deviation sqrt(beta). Only the first level, the last of a walk, "
        "has the two alike; elsewhere a sample is shaken several times harder than it is led, and what leads it is the sum of a "
        "thousand small corrections. Half of a step is a Langevin step on one landscape, the other half carries it to the next."
    )
    return Stop("More noise than correction", reading, claims, picture(line, walked))


def ratios(schedule: Schedule) -> Tensor:
    """noise / correction of each level, (T,), the slope of a coordinate being 1 / noise_t, as where the noise is told exactly."""
    beta = torch.tensor([schedule.step(t, t - 1)[1] for t in range(1, len(schedule) + 1)], dtype=torch.float64)
    return schedule.noise / beta.sqrt()


def measured(schedule: Schedule, t: int) -> float:
    """The same with the slope of a landscape: of noised points, at noised points."""
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(POINTS, WIDTH, generator=draw, dtype=torch.float64)
    clean = points[torch.randint(POINTS, (ROWS,), generator=draw)]
    x = schedule.noised(clean, t, torch.randn(ROWS, WIDTH, generator=draw, dtype=torch.float64))
    slope = Noised(GaussianMixture(points, 1e-4), schedule).at(t).score(x)
    beta = schedule.step(t, t - 1)[1]
    return float(beta**0.5 / (beta * slope.square().mean().sqrt()))


def picture(line: Tensor, walked: dict[int, float]) -> Picture:
    """The ratio along the path, from the data to noise."""
    figure, (axes,) = canvas()
    axes.axhline(3.0, color=SOFT, lw=1.0, ls="--", label="3")
    axes.plot(range(1, len(line) + 1), line.tolist(), color=COLOURS[0], lw=1.6, label="by the schedule")
    axes.plot(list(walked), list(walked.values()), "o", color=COLOURS[1], ms=4.5, label="on points")
    logarithmic(axes)
    label(axes, "level t, the data at the left", "noise / correction")
    key(axes, 3)
    peak = int(line.argmax()) + 1
    words = f"Noise over correction: 1.00 at level 1, {float(line.max()):.2f} at its peak, level {peak}, "
    words += f"{float(line[-1]):.2f} at level 1,000."
    return Picture(svg_of(figure, "correction"), words, words)
