"""The S4 layer against the plain Cauchy form, forward and backward, in time and in memory.

    python bench/s4_cauchy.py

The plain form is the paper's in PyTorch's own operations: the four Cauchy products as sums over arrays (H, N/2, L/2 + 1), Woodbury's
identity, an inverse FFT to the kernel, and convolution by FFT; autograd keeps what it needs. As in the paper's code, what is stored
is the truncated C, so no power of the matrix is computed. Its output map is the same. Each form runs in a process of its own, so
that the peak of its memory is its own; times are medians over alternating rounds. The last row is what no form can avoid: the FFTs
of a convolution whose kernel costs nothing, and the matrix product of the output map.
"""

from __future__ import annotations

import json
import math
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

from conca.layers.s4 import S4
from conca.ops.dplr_kernel import truncate

B, T, D, N = 2, 16384, 128, 64
ROUNDS = 3


class Convolved(nn.Module):
    """FFT convolution with a given kernel (H, L), skip, GELU, gated output map."""

    def __init__(self, layer: S4) -> None:
        super().__init__()
        self.layer = layer

    def kernel(self, length: int) -> Tensor:
        """(H, L), numbers that stand for a kernel."""
        return self.layer.skip[:, None] * torch.linspace(1, 0, length, dtype=self.layer.skip.dtype)

    def forward(self, x: Tensor) -> Tensor:
        layer, length = self.layer, x.shape[1]
        u, kernel = x.transpose(1, 2), self.kernel(length)
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length), n=2 * length)
        y = y[..., :length].transpose(1, 2) + layer.skip * x
        return F.glu(layer.out(F.gelu(y)), -1)


class Cauchy(Convolved):
    """The kernel by four Cauchy products and Woodbury's identity; rank 1, and one matrix for all channels."""

    def __init__(self, layer: S4, length: int) -> None:
        super().__init__(layer)
        with torch.no_grad():
            c = truncate(layer.system(), 2 * torch.view_as_complex(layer.c)[None], length)[0] / 2
        self.tilde = nn.Parameter(torch.view_as_real(c).clone())

    def kernel(self, length: int) -> Tensor:
        layer = self.layer
        eigenvalues = torch.complex(-layer.log_decay.exp(), layer.frequency)
        p, b, c = (torch.view_as_complex(t) for t in (layer.p[0], layer.b, self.tilde))
        dt = layer.log_dt.exp()[:, None]
        angle = torch.arange(length // 2 + 1, dtype=dt.dtype) * (-2 * math.pi / length)
        roots = torch.polar(torch.ones_like(angle), angle)
        z = 2 * (1 - roots[:-1]) / (1 + roots[:-1])  # all but the last, which is infinite
        poles = (eigenvalues * dt)[..., None]
        one, other = 1 / (z - poles), 1 / (z - poles.conj())

        def product(v: Tensor, w: Tensor) -> Tensor:
            weights = (dt * v * w)[..., None]
            return (weights * one + weights.conj() * other).sum(1)

        by_b, by_p = product(p.conj(), b), product(p.conj(), p)
        spectrum = 2 / (1 + roots[:-1]) * (product(c, b) - product(c, p) * by_b / (1 + by_p))
        last = dt * (c * b).sum(-1, keepdim=True).real
        return torch.fft.irfft(torch.cat([spectrum, last.to(spectrum.dtype)], -1), n=length)


def step(module: nn.Module, x: Tensor) -> None:
    """Forward and backward, to input and parameters."""
    y = module(x)
    y = y[0] if isinstance(y, tuple) else y
    y.sum().backward()


def child(name: str) -> None:
    """One form: seconds of a step, and how far a step raises the peak of the process's memory."""
    torch.manual_seed(0)
    layer = S4(D, d_state=N)
    module: nn.Module = layer
    if name != "conca":
        module = Cauchy(layer, T) if name == "plain Cauchy" else Convolved(layer)
    step(module, torch.randn(B, 64, D, requires_grad=True))  # what is loaded or compiled once does not count
    x = torch.randn(B, T, D, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(module, x)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    seconds = medians({name: lambda: step(module, x)}, 1 if name == "plain Cauchy" else 9)[name]
    print(json.dumps({"seconds": seconds, "MiB": peak}))


def agreement() -> float:
    """Largest difference of the two outputs, relative to the largest output, in float64."""
    torch.manual_seed(0)
    layer = S4(8, d_state=N).double()
    x = torch.randn(1, 300, 8, dtype=torch.float64)
    with torch.no_grad():
        y, expected = layer(x)[0], Cauchy(layer, 300)(x)
    return float((y - expected).abs().max() / expected.abs().max())


def main() -> None:
    found: dict[str, list[dict[str, float]]] = {"plain Cauchy": [], "conca": [], "FFT and products alone": []}
    for _ in range(ROUNDS):
        for name, runs in found.items():
            out = subprocess.run([sys.executable, __file__, name], check=True, capture_output=True, text=True).stdout
            runs.append(json.loads(out.splitlines()[-1]))
    seconds = {name: median(run["seconds"] for run in runs) for name, runs in found.items()}
    memory = {name: median(run["MiB"] for run in runs) for name, runs in found.items()}
    rows = [(name, f"{seconds[name]:.3f}", f"{memory[name]:.0f}") for name in found]
    for other in ("plain Cauchy", "FFT and products alone"):
        ratio = seconds[other] / seconds["conca"], memory[other] / memory["conca"]
        rows.append((f"{other} / conca", *(f"{r:.1f}" for r in ratio)))
    title = f"S4 layer, rank 1, forward and backward, at (B {B}, T {T}, d_model {D}, N {N}), float32"
    note = f"Largest relative difference of the outputs of the first two in float64: {agreement():.0e}."
    record("s4_cauchy", title, ("form", "seconds", "peak memory of a step, MiB"), rows, note)


if __name__ == "__main__":
    child(sys.argv[1]) if len(sys.argv) > 1 else main()
