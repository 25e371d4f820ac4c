"""One layer in every form: convolution, recurrence, chunks and stream give one line."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.bench.stop import Claim, Stop
from conca.layers import states
from conca.layers.s4d import S4D, S4DState
from conca.ops.diagonal import diagonal_ssm_convolution
from conca.report.drawing import COLOURS, canvas, key, label, svg_of, whole_steps
from conca.report.page import Picture

__all__ = ["forms"]

WIDTH, STATE, STEPS, PAUSE = 8, 16, 120, 50
CLOSE = 1e-12


def forms() -> Stop:
    """An S4D layer reads one sequence in five ways."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        layer = S4D(WIDTH, d_state=STATE, dtype=torch.float64).eval()
        x = torch.randn(2, STEPS, WIDTH, dtype=torch.float64).cumsum(1) / 4
        truth, last = layer.recurrent(x)
        whole, state = layer(x)
        chunked, _ = layer.chunked(x, size=16)
        convolved = convolution(layer, x)
        streamed, same, end = stream(layer, x)
    lines = {
        "all at once": whole,
        "in chunks of 16": chunked,
        "convolution (FFT)": convolved,
        "stream, paused": streamed,
    }
    claims = [Claim(f"{name} less the recurrence, at most", 0.0, apart(y, truth), CLOSE) for name, y in lines.items()]
    claims += [
        Claim("final state, all at once less the recurrence, at most", 0.0, apart(state.h_BDN2, last.h_BDN2), CLOSE),
        Claim("final state, stream less the recurrence, at most", 0.0, apart(end.h_BDN2, last.h_BDN2), CLOSE),
        Claim("bits of the state that the disk changed", 0.0, float(same), 0.0),
        Claim(
            "bytes of the state of one sequence, after any number of steps", 8.0 * WIDTH * STATE, bytes_of(state), 0.0
        ),
    ]
    reading = (
        "The same layer and the same input, computed as a recurrence, all at once, in chunks, as one long convolution, and token by "
        "token with the state kept on disk in the middle. In float64 the lines differ by rounding alone."
    )
    return Stop("Five forms, one line", reading, claims, picture(truth, lines))


def convolution(layer: S4D, x: Tensor) -> Tensor:
    """The layer with its state space written as one convolution by FFT, from an empty state."""
    a, b = layer.discretised()
    empty = torch.view_as_complex(layer.init_state(len(x)).h_BDN2)
    y, _ = diagonal_ssm_convolution(x, a, b, 2 * torch.view_as_complex(layer.c), empty)
    return F.glu(layer.out(F.gelu(y + layer.skip * x)), -1)


def stream(layer: S4D, x: Tensor) -> tuple[Tensor, int, S4DState]:
    """Outputs token by token, numbers of the state that differ after a stay on disk, and the last state."""
    outputs, state, changed = [], layer.init_state(len(x)), 0
    for t, token in enumerate(x.unbind(1)):
        if t == PAUSE:
            with tempfile.TemporaryDirectory(prefix="conca-") as folder:
                states.save(state, Path(folder) / "state.safetensors")
                found = states.load(Path(folder) / "state.safetensors", layer.init_state(1))
            changed, state = int((found.h_BDN2 != state.h_BDN2).sum()), found
        y, state = layer.step(token, state)
        outputs.append(y)
    return torch.stack(outputs, 1), changed, state


def apart(a: Tensor, b: Tensor) -> float:
    """The greatest difference."""
    return float((a - b).abs().max())


def bytes_of(state: S4DState) -> float:
    """Of one row."""
    return states.size_in_bytes(state) / len(state.h_BDN2)


def picture(truth: Tensor, lines: dict[str, Tensor]) -> Picture:
    """One channel in all forms, and their distance from the recurrence."""
    figure, (above, below) = canvas(2, 2.2)
    above.plot(truth[0, :, 0].tolist(), color=COLOURS[0], lw=1.4, label="recurrence")
    for turn, (name, y) in enumerate(lines.items()):
        colour = COLOURS[turn + 1]
        places = list(range(2 * turn, STEPS, 8))
        above.plot(places, y[0, places, 0].tolist(), "o", color=colour, ms=3, label=name)
        difference = (y - truth).abs().amax((0, 2)).clamp(min=1e-18)
        below.semilogy(difference.tolist(), color=colour, lw=1.0)
    above.axvline(PAUSE, color=COLOURS[4], lw=0.8, ls=":")
    label(above, "", "output of a channel")
    label(below, "step", "distance from it")
    key(above, 2)
    for axes in (above, below):
        whole_steps(axes)
    worst = max(apart(y, truth) for y in lines.values())
    words = f"Five forms of one S4D layer lie on one line; they differ by at most {worst:.1e}. The state was on disk at step {PAUSE}."
    return Picture(svg_of(figure, "forms"), words, words)
