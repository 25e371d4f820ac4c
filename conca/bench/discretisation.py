"""From continuous to discrete: the tub as water that flows all the time, sampled in four ways."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from conca.bench.stop import Claim, Stop
from conca.ops.discretise import backward_euler, bilinear, forward_euler, generalised_bilinear, zero_order_hold
from conca.ops.scan import scan
from conca.report.drawing import COLOURS, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["discretisation"]

DRAIN, TAP, MINUTES = -math.log(2.0), 4 * math.log(2.0), 5
"""h' = DRAIN h + TAP u halves the water in a minute and settles at 4 litres; after five minutes there are 3.875."""
COUNTS = tuple(2**k for k in range(4, 11))
"""Steps that the five minutes are cut into."""
RULES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "forward Euler": forward_euler,
    "backward Euler": backward_euler,
    "bilinear": bilinear,
    "zero-order hold": zero_order_hold,
}


def discretisation() -> Stop:
    """Each rule at many step sizes, against what is really there after five minutes."""
    errors = {name: [abs(level(rule, count) - 3.875) for count in COUNTS] for name, rule in RULES.items()}
    slopes = {name: slope(errors[name]) for name in ("forward Euler", "backward Euler", "bilinear")}
    one = torch.tensor(-1.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    tustin, half = bilinear(*one), generalised_bilinear(*one, 0.5)
    claims = [
        Claim("litres after five minutes, zero-order hold, one step a minute", 3.875, level(zero_order_hold, 5), 1e-12),
        Claim("error of the zero-order hold at any step, at most", 0.0, max(errors["zero-order hold"]), 1e-11),
        Claim("order of forward Euler: slope of its error", 1.0, slopes["forward Euler"], 0.05),
        Claim("order of backward Euler", 1.0, slopes["backward Euler"], 0.05),
        Claim("order of the bilinear rule", 2.0, slopes["bilinear"], 0.05),
        Claim("bilinear, A = -1, step 1: what is kept", 1 / 3, float(tustin[0]), 1e-15),
        Claim("bilinear, A = -1, step 1: what comes in", 2 / 3, float(tustin[1]), 1e-15),
        Claim("generalised bilinear at alpha 1/2 less bilinear", 0.0, float(abs(half[0] - tustin[0])), 0.0),
        Claim(
            "forward Euler, A = -1, step 3: what is kept (it blows up)",
            -2.0,
            float(forward_euler(one[0], 3 * one[1])[0]),
            0.0,
        ),
    ]
    reading = (
        "The same tub with the water flowing all the time. Held inputs are exact at any step; the rules that approximate err by the "
        "step (Euler) or its square (bilinear), which is the slope of their lines."
    )
    return Stop("Continuous time, sampled", reading, claims, picture(errors))


def level(rule: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], count: int) -> float:
    """Litres after five minutes in `count` steps, from an empty tub."""
    a, b = rule(*(torch.tensor(v, dtype=torch.float64) for v in (DRAIN, MINUTES / count)))
    ones = torch.ones(1, count, 1, dtype=torch.float64)
    return float(scan(a * ones, b * TAP * ones, torch.zeros(1, 1, dtype=torch.float64))[0, -1, 0])


def slope(errors: list[float]) -> float:
    """Of the logarithm of the error over that of the step, over the smaller steps."""
    return float(-np.polyfit(np.log(COUNTS[2:]), np.log(errors[2:]), 1)[0])


def picture(errors: dict[str, list[float]]) -> Picture:
    """Error over step."""
    figure, (axes,) = canvas()
    steps = [60 * MINUTES / count for count in COUNTS]
    for colour, (name, line) in zip(COLOURS[1:4] + COLOURS[:1], errors.items()):
        dash = "--" if name == "backward Euler" else "-"
        axes.loglog(steps, np.maximum(line, 1e-17), "o", ls=dash, color=colour, ms=3, lw=1.3, label=name)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xticks([0.3, 1, 3, 10, 20])
    label(axes, "step in seconds", "error after five minutes, litres")
    key(axes)
    first, second = errors["forward Euler"][-1], errors["bilinear"][-1]
    words = f"At {COUNTS[-1]:,} steps forward Euler errs by {first:.1e} litres, the bilinear rule by {second:.1e}, the zero-order "
    words += f"hold by {errors['zero-order hold'][-1]:.0e}."
    return Picture(svg_of(figure, "discretisation"), f"Error over step size. {words}", words)
