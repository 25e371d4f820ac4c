"""Settling: a Hopfield memory from noisy starts, whose energy never rises on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from conca.bench.stop import Claim, Stop
from conca.energy import Hopfield, descent, sample
from conca.report.drawing import COLOURS, canvas, key, label, svg_of, whole_steps
from conca.report.page import Picture

__all__ = ["settling"]

MEMORIES, WIDTH, STARTS, STEPS = 12, 32, 64, 25
FLAT = 1e-12
"""Rounding of energies of about 10 in float64."""


def settling() -> Stop:
    """Updates, and descents of several steps, on memories cold and warm."""
    draw = torch.Generator().manual_seed(0)
    stored = torch.randn(MEMORIES, WIDTH, generator=draw, dtype=torch.float64).sign()
    which = torch.arange(STARTS) % MEMORIES
    start = stored[which] + 0.6 * torch.randn(STARTS, WIDTH, generator=draw, dtype=torch.float64)
    far = 2 * torch.randn(STARTS, WIDTH, generator=draw, dtype=torch.float64)
    memory = Hopfield(stored, beta=1.0)
    with torch.no_grad():
        paths = {beta: [updated(Hopfield(stored, beta), x) for x in (start, far)] for beta in (0.05, 0.2, 1.0)}
        gap = float((start + memory.score(start) - memory.step(start)).abs().max())
        settled = paths[1.0][0][1]
        lowest = min(float(memory(x).min()) for x in (start, far, settled))
    found = float((settled.sign() == stored[which]).all(1).double().mean())
    claims = [
        Claim(f"largest rise of the energy in an update, beta = {beta:g}", 0.0, max(map(rise, both)), FLAT)
        for beta, both in paths.items()
    ]
    for size in (0.1, 0.5, 1.0):
        claims.append(
            Claim(f"largest rise in a descent of step {size:g}", 0.0, rise(descended(memory, far, size)), FLAT)
        )
    claims += [
        Claim("an update less a descent of step 1, at most", 0.0, gap, 1e-13),
        Claim("share of noisy starts that find their own memory", 1.0, found, 0.0),
        Claim("how far the energy falls below 0", 0.0, max(0.0, -lowest), FLAT),
    ]
    reading = (
        "Each line is one probe: a stored pattern under noise, or noise alone. Every update goes down or stays, whatever the "
        "temperature, so it must come to rest; where memories are far apart, at the one that is nearest."
    )
    lines = torch.stack([heights for heights, _ in paths[0.2]])
    return Stop("The energy never rises", reading, claims, picture(lines))


Way = tuple[Tensor, Tensor]
"""Energies (steps + 1, B) along the way, and where it ends."""


def updated(memory: Hopfield, x: Tensor) -> Way:
    """By the update."""
    heights = [memory(x)]
    for _ in range(STEPS):
        x = memory.step(x)
        heights.append(memory(x))
    return torch.stack(heights), x


def descended(memory: Hopfield, x: Tensor, size: float) -> Way:
    """By descent, through the one loop of all chains."""
    chain, info = sample(memory, descent(size), x, steps=STEPS)
    return torch.cat([memory(x)[None].detach(), info["energy"]]), chain[-1]


def rise(path: Way) -> float:
    """The largest step upward, 0 if there is none."""
    return float(path[0].diff(dim=0).max().clamp(min=0.0))


def picture(lines: Tensor) -> Picture:
    """Energies (2, steps + 1, B) of probes near a memory and of noise."""
    figure, (axes,) = canvas()
    for colour, name, group in zip(COLOURS, ("a memory under noise", "noise alone"), lines):
        for turn, line in enumerate(group.T[:24]):
            axes.plot(line[:12].tolist(), color=colour, lw=0.8, alpha=0.7, label=name if turn == 0 else None)
    label(axes, "updates", "energy (beta = 0.2)")
    whole_steps(axes)
    key(axes)
    top = float(lines.diff(dim=1).max())
    words = f"Energies of {2 * 24} of {lines.shape[0] * lines.shape[2]} probes, update by update; the largest rise anywhere is "
    words += f"{max(top, 0.0):.0e}."
    return Picture(svg_of(figure, "settling"), words, words)
