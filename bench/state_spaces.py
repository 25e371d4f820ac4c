"""How far each state-space layer is from the FFTs and matrix products alone, forward and backward, and what a step costs.

    python bench/state_spaces.py

The floor is what a convolution cannot avoid: the Fourier transforms of the input, of a kernel that costs nothing, and of the output,
and the matrix products of the layer's own output map; for S5, which does not convolve, the products of its maps. All in one process,
taking turns. The other columns: the same without gradients, and one token from a warm state.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import torch
import torch.nn.functional as F
from record import medians, record
from torch import Tensor, nn

from conca import LSSL, S4, S4D, S5, Mixer

B, T, D, N = 2, 16384, 128, 64
LAYERS: dict[str, Callable[[], Mixer[Any]]] = {
    "LSSL": lambda: LSSL(D, d_state=N),
    "S4": lambda: S4(D, d_state=N),
    "S4D": lambda: S4D(D, d_state=N),
    "S5": lambda: S5(D, d_state=N),
}
REPEATS = 7


class Floor(nn.Module):
    """What remains of a layer when its state space costs nothing."""

    def __init__(self, name: str) -> None:
        super().__init__()
        outputs = {"LSSL": D, "S4": 2 * D, "S4D": 2 * D, "S5": D}[name]
        self.out = nn.Linear(D, outputs)
        self.maps = nn.Sequential(nn.Linear(D, N, bias=False), nn.Linear(N, D, bias=False)) if name == "S5" else None
        self.kernel = nn.Parameter(torch.randn(D, T) / T)

    def forward(self, x: Tensor) -> Tensor:
        if self.maps is not None:
            y: Tensor = self.maps(x)
        else:
            u = x.transpose(1, 2)
            y = torch.fft.irfft(torch.fft.rfft(u, n=2 * T) * torch.fft.rfft(self.kernel, n=2 * T), n=2 * T)
            y = y[..., :T].transpose(1, 2)
        found: Tensor = self.out(y)
        return F.glu(found, -1) if found.shape[-1] > D else found


def output(module: nn.Module, x: Tensor) -> Tensor:
    """y, whatever else the module gives."""
    found = module(x)
    y: Tensor = found[0] if isinstance(found, tuple) else found
    return y


def train(module: nn.Module, x: Tensor) -> None:
    """Forward and backward, to input and parameters."""
    y = output(module, x)
    y.backward(torch.ones_like(y))


@torch.no_grad()
def read(module: nn.Module, x: Tensor) -> None:
    """Forward."""
    output(module, x)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(B, T, D, requires_grad=True)
    rows = []
    for name, make in LAYERS.items():
        layer, floor = make(), Floor(name)
        with torch.no_grad():
            _, state = layer(x[:, :64])
        token = partial(torch.no_grad()(layer.step), x[:, 0].detach(), state)
        tasks = {"train": partial(train, layer, x), "floor": partial(train, floor, x)}
        tasks |= {"read": partial(read, layer, x), "read floor": partial(read, floor, x)}
        seconds = medians(tasks, REPEATS)
        one = medians({"step": token}, 200)["step"]
        rows.append(
            (
                name,
                f"{1e3 * seconds['train']:.0f}",
                f"{1e3 * seconds['floor']:.0f}",
                f"{seconds['train'] / seconds['floor']:.2f}",
                f"{1e3 * seconds['read']:.0f}",
                f"{seconds['read'] / seconds['read floor']:.2f}",
                f"{1e6 * one:.0f}",
            )
        )
    title = f"State-space layers at (B {B}, T {T}, d_model {D}, N {N}), float32"
    header = (
        "layer",
        "training step, ms",
        "its floor, ms",
        "times the floor",
        "forward, ms",
        "times its floor",
        "one token, µs",
    )
    record("state_spaces", title, header, rows)


if __name__ == "__main__":
    main()
