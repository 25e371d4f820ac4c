"""The S4D layer against the plain published form, forward and backward, in time and in memory.

    python bench/s4d_published.py

The published form (S4D, 2022, listing 1, in our own words) writes the kernel out as a sum over an array (H, N, T) and convolves by
FFT; its output map is the same. Each form runs in a process of its own, so that the peak of its memory is its own; times are medians
over alternating rounds.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import torch
import torch.nn.functional as F
from record import medians, record
from torch import Tensor, nn

from conca import S4D

B, T, D, N = 2, 16384, 128, 64
ROUNDS = 3


class Published(nn.Module):
    """Kernel by a product over (H, N/2, T), FFT convolution, GELU, gated output map."""

    def __init__(self, like: S4D) -> None:
        super().__init__()
        self.layer = like

    def forward(self, x: Tensor) -> Tensor:
        layer, length = self.layer, x.shape[1]
        eigenvalues = torch.complex(-layer.log_decay.exp(), layer.frequency)
        scaled = eigenvalues * layer.log_dt.exp()[:, None]
        weight = torch.view_as_complex(layer.c) * torch.view_as_complex(layer.b) * (torch.exp(scaled) - 1) / eigenvalues
        powers = torch.exp(scaled[..., None] * torch.arange(length))
        kernel = 2 * torch.einsum("hn,hnl->hl", weight, powers).real
        u = x.transpose(1, 2)
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length), n=2 * length)
        y = y[..., :length].transpose(1, 2) + layer.skip * x
        return F.glu(layer.out(F.gelu(y)), -1)


def step(module: nn.Module, x: Tensor) -> None:
    """Forward and backward, to input and parameters."""
    y = module(x)
    y = y[0] if isinstance(y, tuple) else y
    y.sum().backward()


def child(name: str) -> None:
    """One form: seconds of a step, and how far a step raises the peak of the process's memory."""
    torch.manual_seed(0)
    layer = S4D(D, d_state=N)
    module: nn.Module = layer if name == "conca" else Published(layer)
    step(module, torch.randn(B, 64, D, requires_grad=True))  # what is loaded or compiled once does not count
    x = torch.randn(B, T, D, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(module, x)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    seconds = medians({name: lambda: step(module, x)}, 9 if name == "conca" else 1)[name]
    print(json.dumps({"seconds": seconds, "MiB": peak}))


def agreement() -> float:
    """Largest difference of the two outputs, relative to the largest output, in float64."""
    torch.manual_seed(0)
    layer = S4D(8, d_state=N).double()
    x = torch.randn(1, 300, 8, dtype=torch.float64)
    with torch.no_grad():
        y, expected = layer(x)[0], Published(layer)(x)
    return float((y - expected).abs().max() / expected.abs().max())


def main() -> None:
    found: dict[str, list[dict[str, float]]] = {"published": [], "conca": []}
    for _ in range(ROUNDS):
        for name, runs in found.items():
            out = subprocess.run([sys.executable, __file__, name], check=True, capture_output=True, text=True).stdout
            runs.append(json.loads(out.splitlines()[-1]))
    seconds = {name: median(run["seconds"] for run in runs) for name, runs in found.items()}
    memory = {name: median(run["MiB"] for run in runs) for name, runs in found.items()}
    rows = [(name, f"{seconds[name]:.3f}", f"{memory[name]:.0f}") for name in found]
    rows.append(
        ("ratio", f"{seconds['published'] / seconds['conca']:.1f}", f"{memory['published'] / memory['conca']:.1f}")
    )
    title = f"S4D layer, forward and backward, at (B {B}, T {T}, d_model {D}, N {N}), float32"
    note = f"Largest relative difference of the two outputs in float64: {agreement():.0e}."
    record("s4d_published", title, ("form", "seconds", "peak memory of a step, MiB"), rows, note)


if __name__ == "__main__":
    child(sys.argv[1]) if len(sys.argv) > 1 else main()
