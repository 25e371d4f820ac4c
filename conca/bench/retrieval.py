"""Attention as retrieval: one update of a continuous Hopfield memory, and why the product is divided."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from conca.bench.stop import Claim, Stop
from conca.layers.attention import Attention
from conca.ops.attention import attend
from conca.ops.hopfield import hopfield_update
from conca.report.drawing import COLOURS, canvas, key, label, svg_of, whole_steps
from conca.report.page import Picture

__all__ = ["retrieval", "variances"]

WIDTH, TOKENS = 16, 40
DRAWS = 20_000
VARIANCES = {4: (4.0, 1.003), 64: (64.0, 1.000), 512: (508.9, 0.994)}
"""Of so many draws from NumPy's default generator with seed 0, after the example of `six_tokens`; without end, d_k and 1."""


def retrieval() -> Stop:
    """Softmax attention beside the update with beta = 1 / sqrt(d_k) and a projection of the values."""
    draw = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(n, WIDTH, generator=draw, dtype=torch.float64) for n in (5, TOKENS))
    values = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
    beta = 1 / math.sqrt(WIDTH)
    memory = hopfield_update(queries, keys, beta) @ values
    attention = attend(queries[None, None], keys[None, None], (keys @ values)[None, None])[0, 0]
    layer, update = last_token(draw)
    spread = variances()
    claims = [
        Claim("one update less softmax attention, at most", 0.0, apart(memory, attention), 1e-13),
        Claim("the same for the last token of an attention layer", 0.0, apart(layer, update), 1e-13),
        Claim("beta large: distance from the nearest memory, at most", 0.0, recalled(keys), 1e-9),
        Claim("beta small: distance from the mean of all, at most", 0.0, averaged(keys), 1e-6),
    ]
    for width, (plain, divided) in spread.items():
        by_theory = VARIANCES[width]
        claims.append(Claim(f"variance of a dot product, d_k = {width}", by_theory[0], plain, 0.05))
        claims.append(Claim(f"the same divided by sqrt({width})", by_theory[1], divided, 0.0005))
    reading = (
        "A query is a probe, keys are what is remembered: one update of a continuous Hopfield memory at beta = 1 / sqrt(d_k), its result "
        "projected, is softmax attention. Undivided, dot products have the variance d_k, and the softmax would pick a single key."
    )
    return Stop("Attention is one update of a memory", reading, claims, picture(memory, attention, spread))


def last_token(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """What an attention layer says at the last token, and the same from its keys alone: values are a map of keys."""
    layer = Attention(WIDTH, n_heads=1, rope_base=None, dtype=torch.float64).eval()
    x = torch.randn(1, TOKENS, WIDTH, generator=draw, dtype=torch.float64)
    with torch.no_grad():
        for part in (layer.q, layer.k, layer.out):
            part.weight.copy_(torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64) / math.sqrt(WIDTH))
        project = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
        layer.v.weight.copy_(project @ layer.k.weight)
        found = hopfield_update(layer.q(x[0, -1:]), layer.k(x[0]), 1 / math.sqrt(WIDTH))
        return layer(x)[0][0, -1:], layer.out(found @ project.mT)


def recalled(keys: Tensor) -> float:
    """From each memory, a little disturbed, back to it at beta = 50: the greatest distance."""
    return apart(hopfield_update(keys + 0.01, keys, 50.0), keys)


def averaged(keys: Tensor) -> float:
    """At beta = 1e-9 every probe becomes the mean."""
    return apart(hopfield_update(keys, keys, 1e-9), keys.mean(0))


def variances() -> dict[int, tuple[float, float]]:
    """Of dot products of independent standard vectors by their width: as they are, and divided by its root."""
    draw, found = np.random.default_rng(0), {}
    six_tokens(draw)
    for width in VARIANCES:
        products = np.einsum("nd,nd->n", draw.standard_normal((DRAWS, width)), draw.standard_normal((DRAWS, width)))
        found[width] = float(products.var()), float((products / math.sqrt(width)).var())
    return found


def six_tokens(draw: np.random.Generator) -> None:
    """Draw an example, six tokens of width 16 and three maps to width 8: the numbers above were drawn after it."""
    draw.standard_normal((6, 16))
    draw.standard_normal((3, 16, 8))


def apart(a: Tensor, b: Tensor) -> float:
    """The greatest difference."""
    return float((a - b).abs().max())


def picture(memory: Tensor, attention: Tensor, spread: dict[int, tuple[float, float]]) -> Picture:
    """One answer in both readings, and the variances."""
    figure, (above, below) = canvas(2, 2.2)
    above.plot(memory[0].tolist(), color=COLOURS[0], lw=1.4, label="update of the memory")
    above.plot(attention[0].tolist(), "o", color=COLOURS[1], ms=4, label="softmax attention")
    label(above, "coordinate of the answer", "value")
    whole_steps(above)
    key(above)
    widths = list(spread)
    below.loglog(widths, widths, "--", color=COLOURS[4], lw=1.0, label="d_k")
    for place, name in enumerate(("dot product", "divided by sqrt(d_k)")):
        below.loglog(widths, [spread[w][place] for w in widths], "o-", color=COLOURS[place], ms=4, lw=1.2, label=name)
    below.set_xticks(widths, [str(w) for w in widths])
    below.minorticks_off()
    label(below, "width d_k", "variance")
    key(below, 3)
    words = f"Update and attention differ by at most {apart(memory, attention):.1e}; the variance of a dot product is its width, "
    words += f"{spread[512][0]:.1f} for 512."
    return Picture(svg_of(figure, "retrieval"), words, words)
