"""The tub: a state that sums up the past, step by step and all at once."""

from __future__ import annotations

import torch
from torch import Tensor

from conca.bench.stop import Claim, Stop
from conca.ops.convolution import causal_convolution, causal_convolution_fft
from conca.ops.scan import scan, scan_recurrence
from conca.report.drawing import COLOURS, SOFT, canvas, key, label, svg_of, whole_steps
from conca.report.page import Picture

__all__ = ["LEVELS", "tub"]

LEVELS = 2.0, 3.0, 3.5, 3.75, 3.875
"""Litres after each of the first five minutes, from an empty tub."""
MINUTES = 60


def tub() -> Stop:
    """Two litres a minute come in, half of what is there leaves every minute."""
    taps, keeps = (torch.full((1, MINUTES, 1), value, dtype=torch.float64) for value in (2.0, 0.5))
    empty = torch.zeros(1, 1, dtype=torch.float64)
    levels = scan(keeps, taps, empty).flatten()
    stepped = scan_recurrence(keeps, taps, empty).flatten()
    weights = 0.5 ** torch.arange(MINUTES, dtype=torch.float64)[None]
    before = torch.zeros(1, MINUTES - 1, 1, dtype=torch.float64)
    summed = causal_convolution(taps, weights, None, before)[0].flatten()
    fourier = causal_convolution_fft(taps, weights, None, before)[0].flatten()
    cup = torch.zeros_like(taps)
    cup[:, 0] = 1.0
    left = scan(keeps, cup, empty).flatten()
    claims = [
        *(
            Claim(f"litres after {m + 1} min, by a scan", level, float(levels[m]), 0.0)
            for m, level in enumerate(LEVELS)
        ),
        Claim("litres after an hour", 4.0, float(levels[-1]), 1e-12),
        Claim("minute by minute less by the scan, at most", 0.0, gap(stepped, levels), 1e-15),
        Claim("2 + 1 + 0.5 + 0.25 + 0.125, as a convolution", 3.875, float(summed[4]), 0.0),
        Claim("convolution less scan, over an hour, at most", 0.0, gap(summed, levels), 1e-14),
        Claim("the same through the Fourier transform", 0.0, gap(fourier, levels), 1e-14),
        Claim("share left of what entered five minutes ago", 1 / 32, float(left[5]), 0.0),
        Claim("share left of what entered half an hour ago", 0.0, float(left[30]), 1e-9),
        Claim("litres by which the sum errs in minute 4, the drain having moved", 1.4375, moved(weights), 1e-14),
    ]
    reading = (
        "Read once a minute, the tub fills to 4 litres. What came in k minutes ago has been halved k times since, so the level is also "
        "a plain sum over the past: recurrence and convolution are one thing, as long as tap and drain stay as they are."
    )
    return Stop("The tub", reading, claims, picture(levels, summed, left))


def gap(a: Tensor, b: Tensor) -> float:
    """The greatest difference."""
    return float((a - b).abs().max())


def moved(weights: Tensor) -> float:
    """From minute 3 on three quarters stay: 2, 3, 4.25, 5.1875 litres, and the old sum still says 3.75."""
    keeps = torch.tensor([0.5, 0.5, 0.75, 0.75], dtype=torch.float64)[None, :, None]
    taps, empty = torch.full_like(keeps, 2.0), torch.zeros(1, 1, dtype=torch.float64)
    before = torch.zeros(1, 3, 1, dtype=torch.float64)
    summed = causal_convolution(taps, weights[:, :4], None, before)[0]
    return float((scan(keeps, taps, empty) - summed)[0, -1, 0])


def picture(levels: Tensor, summed: Tensor, left: Tensor) -> Picture:
    """The level minute by minute, and what is left of a litre."""
    figure, (above, below) = canvas(2, 2.1)
    minutes = list(range(13))
    above.axhline(4.0, color=SOFT, lw=1.0, ls="--", label="4 litres")
    above.bar(minutes, [0.0, *levels[:12].tolist()], color=COLOURS[0], alpha=0.35, label="step by step")
    above.plot(minutes[1:], summed[:12].tolist(), "o", color=COLOURS[1], ms=3.5, label="as a sum over the past")
    label(above, "minutes", "litres in the tub")
    key(above, 3)
    below.semilogy(range(31), left[:31].tolist(), "o-", color=COLOURS[0], ms=2.5, lw=1.0)
    label(below, "minutes since it entered", "share still there")
    for axes in (above, below):
        whole_steps(axes)
    words = "0, 2, 3, 3.5, 3.75, 3.875 litres, settling at 4; of what entered five minutes ago 1/32 is left, after half an hour "
    words += "less than 1e-9."
    return Picture(svg_of(figure, "tub"), f"The level of the tub. {words}", words)
