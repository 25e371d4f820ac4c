"""Valleys along a diffusion: one where noise is strong, and one after another as it falls, until each point has its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.bench.noised import Noised
from conca.bench.stop import Claim, Stop
from conca.energy import Energy, GaussianMixture, Schedule, descent, sample
from conca.report.drawing import COLOURS, canvas, label, svg_of, whole_steps
from conca.report.page import Picture

__all__ = ["minima"]

POINTS = ((-2.4, 0.3), (-2.0, -0.1), (-0.8, 0.6), (0.7, -0.6), (1.3, 0.0), (2.6, 0.3))
SCALE = 0.05
TABLE = (1, 100, 140, 170, 250, 400, 1000)
DRAWN = (*range(20, 181, 20), 220, 280, 310, 320, 330, 360)
"""Levels that are counted on a grid, too; and more of them for the picture."""
SIDE, STEPS = 8, 200
"""Starts along a side of the square from which the landscapes are descended, and steps of a descent."""


def minima() -> Stop:
    """Six points under noise, at levels of 1,000; and two, of which it is known where their valleys part."""
    schedule = Schedule.linear(1000)
    points = torch.tensor(POINTS, dtype=torch.float64)
    six = Noised(GaussianMixture(points, SCALE), schedule)
    found = {t: valleys(six, t) for t in sorted({*TABLE, *DRAWN})}
    claims = [
        Claim(f"valleys at level {t:,}: on a grid, by descent", on_grid(six.at(t)), len(found[t]), 0.0) for t in TABLE
    ]
    two = Noised(GaussianMixture(torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64), SCALE), schedule)
    gap = torch.cdist(found[1], schedule.level(1)[0] * points).min(1).values
    claims += [
        Claim(
            "level where two points around 0 part: where signal^2 (1 - scale^2) is noise^2",
            parting(schedule),
            parted(two),
            4,
        ),
        Claim("valleys at level 1 less the points, at most", 0.0, float(gap.max()), 1e-9),
    ]
    reading = (
        "Each line is a valley of E_t, from noise at the left to the data at the right. Where noise is strong there is one, and whoever "
        "descends finds it; as it falls, valleys part, first of groups and then of points, when a sample is already in the right one."
    )
    return Stop("Valleys part as noise falls", reading, claims, picture(found))


def valleys(path: Noised, t: int) -> Tensor:
    """Where descents from all over the plane end, each place once, (valleys, 2)."""
    landscape = path.level(t)
    side = torch.linspace(-3, 3, SIDE, dtype=torch.float64)
    start = torch.cat([landscape.means, torch.cartesian_prod(side, side)])
    variance = float(landscape.scales[0]) ** 2  # a step by it goes to a mean of the points, and never up
    ends = sample(landscape, descent(variance), start, STEPS, STEPS)[0][-1]
    near = torch.cdist(ends, ends) < 0.05
    return ends[sorted(set(near.double().argmax(1).tolist()))]


def on_grid(landscape: Energy) -> int:
    """How many points of a fine grid lie below their eight neighbours."""
    across, up = (torch.linspace(-low, low, count, dtype=torch.float64) for low, count in ((3.0, 301), (1.5, 151)))
    heights = landscape(torch.cartesian_prod(across, up)).reshape(1, 301, 151)
    return int((F.max_pool2d(-heights, 3, 1, 1) == -heights)[:, 1:-1, 1:-1].sum())


def parting(schedule: Schedule) -> int:
    """The last level at which two bowls at -1 and 1 make two valleys: their distance is above twice their deviation."""
    return int((schedule.signal.square() * (1 - SCALE**2) > schedule.noise.square()).sum())


def parted(path: Noised) -> int:
    """The same by descent, halving."""
    low, high = 1, len(path.schedule)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(valleys(path, middle)) == 2 else (low, middle)
    return low


def picture(found: dict[int, Tensor]) -> Picture:
    """How many valleys there are, and where along the first coordinate."""
    figure, (above, below) = canvas(2, 2.1, sharex=True)
    levels = [t for t in found if t <= max(DRAWN + TABLE[:-1])]
    above.step(levels, [len(found[t]) for t in levels], where="mid", color=COLOURS[0], lw=1.6)
    label(above, "", "valleys")
    for t in levels:
        below.plot([t] * len(found[t]), found[t][:, 0].tolist(), "o", color=COLOURS[0], ms=2.8)
    label(below, "level t", "first coordinate")
    below.invert_xaxis()
    whole_steps(below)
    said = ", ".join(f"{len(found[t])} at {t:,}" for t in reversed(TABLE))
    words = f"Valleys of the landscape of six points under noise, by level: {said}."
    return Picture(svg_of(figure, "minima"), words, words)
