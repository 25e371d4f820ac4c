"""What a sequence costs: time of training over its length and over the size of the state, for five families."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from conca.bench.stop import Claim, Stop
from conca.layers.attention import Attention
from conca.layers.lssl import LSSL
from conca.layers.mixer import Mixer
from conca.layers.s4 import S4
from conca.layers.s4d import S4D
from conca.layers.s5 import S5
from conca.report.drawing import COLOURS, canvas, key, label, svg_of
from conca.report.page import Picture

__all__ = ["FAMILIES", "PARTS", "slope", "slopes"]

WIDTH, STATE = 32, 32
LENGTHS, LONG = {"attention": (1024, 2048, 4096, 8192)}, (4096, 8192, 16384, 32768)
SIZES, LARGE = {"attention": (32, 64, 128, 256), "LSSL": (32, 64, 128, 256)}, (128, 256, 512, 1024)
"""What is measured: of some families, and of all others; large enough for work to outweigh the calls of its parts."""
ROUNDS, ENOUGH = 2, 0.1
"""Steps that are timed: at least so many, and more until so many seconds are spent, for a short one is easily disturbed."""
CLOSE = 0.5
"""How far a slope of measured times may lie from that of the theory, which holds for large numbers only."""

Line = tuple[Sequence[int], Sequence[float]]
Family = Callable[[int], Mixer[Any]]
FAMILIES: dict[str, Family] = {
    "attention": lambda size: Attention(WIDTH, n_heads=1, d_head=size),
    "LSSL": lambda size: LSSL(WIDTH, d_state=size),
    "S4": lambda size: S4(WIDTH, d_state=size),
    "S4D": lambda size: S4D(WIDTH, d_state=size),
    "S5": lambda size: S5(WIDTH, d_state=size),
}
PARTS = {"attention": (2, 1), "LSSL": (1, 2), "S4": (1, 1), "S4D": (1, 1), "S5": (1, 1)}
"""By the theory: powers of the length T and of the size N of the state (of the key, for attention) in the cost of training."""


def slopes() -> Stop:
    """Processor time of a step of training, forward and backward, of one thread."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        found = {name: (over_lengths(name), over_sizes(name)) for name in FAMILIES}
    finally:
        torch.set_num_threads(threads)
    claims = [
        Claim(f"{name}: slope of time over {what}", float(PARTS[name][i]), slope(found[name][i]), CLOSE)
        for i, what in enumerate(("the length", "the size of the state"))
        for name in FAMILIES
    ]
    reading = (
        "Double the text, and softmax attention works four times as long, a state of fixed size twice. Double the state, and a matrix "
        "without structure, as LSSL keeps it, works four times as long; one that is diagonal, or diagonal and a little more, twice. "
        "The slopes are of processor time on this machine, so they differ a little each time, and are the theory's where work outweighs "
        "the calls of its parts."
    )
    return Stop("What length and memory cost", reading, claims, picture(found))


def over_lengths(name: str) -> Line:
    """Lengths, and seconds for each."""
    layer = made(FAMILIES[name], STATE)
    lengths = LENGTHS.get(name, LONG)
    return lengths, [seconds(layer, length) for length in lengths]


def over_sizes(name: str) -> Line:
    """Sizes of the state, and seconds for each."""
    sizes, length = SIZES.get(name, LARGE), LENGTHS.get(name, LONG)[0]
    return sizes, [seconds(made(FAMILIES[name], size), max(length, 2048)) for size in sizes]


def made(family: Family, size: int) -> Mixer[Any]:
    """A layer, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return family(size).to(torch.float32)


def seconds(layer: Mixer[Any], length: int) -> float:
    """Of the processor, for the fastest of some steps of training on one text."""
    x = torch.randn(1, length, WIDTH, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    train = partial(step, layer, x.requires_grad_())
    train()
    found: list[float] = []
    while len(found) < ROUNDS or sum(found) < ENOUGH:
        found.append(timed(train))
    return min(found)


def timed(task: Callable[[], None]) -> float:
    """Processor time of all threads of this program: what else the machine does is not in it."""
    begin = time.process_time()
    task()
    return time.process_time() - begin


def step(layer: Mixer[Any], x: torch.Tensor) -> None:
    """Forward and backward."""
    with torch.enable_grad():
        torch.autograd.backward(layer(x)[0].sum())


def slope(line: Line) -> float:
    """Of the straight line nearest to the last three points, both scales logarithmic."""
    x, y = ([math.log(v) for v in values[-3:]] for values in line)
    middle_x, middle_y = sum(x) / 3, sum(y) / 3
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y)) / sum((a - middle_x) ** 2 for a in x)


def picture(found: dict[str, tuple[Line, Line]]) -> Picture:
    """Both, on logarithmic scales."""
    figure, panels = canvas(2, 2.5)
    for i, (axes, across) in enumerate(zip(panels, ("length T", "size N of the state"))):
        for colour, (name, lines) in zip(COLOURS, found.items()):
            at, values = lines[i]
            axes.loglog(at, [1e3 * v for v in values], "o-", color=colour, ms=3.5, lw=1.3, label=name)
        ticks = sorted({n for lines in found.values() for n in lines[i][0]})
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.minorticks_off()
        label(axes, across, "ms")
    key(panels[0], 5)
    said = ["; ".join(f"{name} {slope(lines[i]):.2f}" for name, lines in found.items()) for i in (0, 1)]
    words = f"Slopes over the length: {said[0]}. Over the size of the state (of a key, for attention): {said[1]}."
    return Picture(svg_of(figure, "slopes"), f"Time of training over length and size. {words}", words)
