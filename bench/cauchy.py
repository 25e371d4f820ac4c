"""The Cauchy sum against PyTorch alone, in time and in memory, and the kernel of a DPLR state space that is made of it.

    python bench/cauchy.py

Four numerators (rank 1, one input, one output) share 32 poles in each of 128 channels, at the 8193 nodes of a length of 16384; float32.
"Taken in" is with the low rank: one spectrum comes out. The plain body is what runs where there is no kernel. The definition makes
arrays (D, 4, N, J), of which autograd keeps several: too large for most machines, so its figures are those of 8 channels, times 16.
Memory is how far forward and backward raise the peak of a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import torch
from record import medians, record
from torch import Tensor

import conca.kernels
from conca.ops.bodies import plain_bodies
from conca.ops.cauchy import cauchy, cauchy_definition, low_rank_cauchy
from conca.ops.dplr_kernel import DPLR, dplr_kernel, nodes, truncate

D, N, LENGTH = 128, 32, 16384
PART = 16
"""The definition runs on one of so many parts of the channels."""
REPEATS = 5
Sums = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def plain(v: Tensor, w: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return cauchy_definition(v, w, y, x, rank=1)


FORMS: dict[str, Sums] = {
    "kernel": lambda v, w, y, x: cauchy(v.flatten(1, 2), w, y, x),
    "kernel, low rank taken in": lambda v, w, y, x: low_rank_cauchy(v, w, y, x, rank=1),
    "plain body, low rank taken in": lambda v, w, y, x: low_rank_cauchy(v, w, y, x, rank=1),
    "definition": lambda v, w, y, x: cauchy_definition(v, w, y, x),
    "definition, low rank taken in": plain,
}


def example(channels: int) -> list[Tensor]:
    torch.manual_seed(0)
    v = torch.randn(channels, 2, 2, N, dtype=torch.complex64, requires_grad=True)
    w = torch.complex(-torch.rand(channels, N) - 0.01, 2 * torch.randn(channels, N)).requires_grad_()
    return [v, w, *nodes(LENGTH, w.real.detach())]


def both(form: Sums, args: list[Tensor]) -> Tensor:
    """Forward, and backward from ones; the gradient to the poles."""
    sums = form(*args)
    return torch.autograd.grad(sums, args[:2], torch.ones_like(sums))[1]


def peak(task: Callable[[], object]) -> float:
    """MiB by which a task raises the memory of this process, at its most; Linux counts them."""

    def counted(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = counted("VmRSS")
    task()
    return counted("VmHWM") - before


def child(name: str) -> None:
    """One form: seconds forward, seconds forward and backward, and the rise of the peak in MiB."""
    parts = PART if name.startswith("definition") else 1
    form, args, small = FORMS[name], example(D // parts), example(2)
    with plain_bodies() if name.startswith("plain") else nullcontext():
        measure(form, args, small, parts)


def measure(form: Sums, args: list[Tensor], small: list[Tensor], parts: int) -> None:
    both(form, [*small[:2], small[2][:64], small[3][:64]])  # what is loaded or compiled once does not count
    rise = peak(lambda: both(form, args))

    def forward() -> Tensor:
        with torch.no_grad():
            return form(*args)

    found = medians({"forward": forward, "both": lambda: both(form, args)}, 1 if parts > 1 else REPEATS)
    print(json.dumps([parts * found["forward"], parts * found["both"], parts * rise]))


def whole() -> tuple[float, float, float]:
    """Seconds of the kernel of a state space, from the truncated C: forward, both; and of the inverse FFT alone."""
    v, w, *_ = example(D)
    p, b, c = (v[:, i, k].detach() for i, k in ((0, 0), (0, 1), (1, 1)))
    leaves = [w.detach(), p[None] * 0.1, 0.2 * p.conj()[None], torch.rand(D) * 0.1, b[None], c[None]]
    leaves = [t.resolve_conj().requires_grad_() for t in leaves]
    tilde = truncate(DPLR(*leaves[:4]), leaves[5], LENGTH).detach().requires_grad_()

    def forward() -> Tensor:
        return dplr_kernel(DPLR(*leaves[:4]), leaves[4], tilde, LENGTH, truncated=True)

    def frozen() -> Tensor:
        with torch.no_grad():
            return forward()

    spectrum = torch.randn(D, LENGTH // 2 + 1, dtype=torch.complex64)
    found = medians(
        {
            "forward": frozen,
            "both": lambda: torch.autograd.grad(forward().sum(), [*leaves[:5], tilde]),
            "fft": lambda: torch.fft.irfft(spectrum, LENGTH),
        },
        REPEATS,
    )
    return found["forward"], found["both"], found["fft"]


def agreement() -> float:
    """Largest difference of the kernel from the definition in float64, relative to the largest sum."""
    v, w, y, x = (t.detach() for t in example(2))
    want = plain(*(t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (v, w, y, x)))
    return float((low_rank_cauchy(v, w, y, x, rank=1) - want).abs().max() / want.abs().max())


def main() -> None:
    conca.kernels.warm()
    found = {}
    for name in FORMS:
        out = subprocess.run([sys.executable, __file__, name], check=True, capture_output=True, text=True).stdout
        found[name] = json.loads(out.splitlines()[-1])
    rows: list[tuple[object, ...]] = []
    for name, values in found.items():
        reference = found["kernel, low rank taken in" if "taken in" in name else "kernel"]
        times = [value / of for value, of in zip(values, reference)]
        cells = (f"{1e3 * values[0]:.0f}", f"{1e3 * values[1]:.0f}", f"{values[2]:.0f}")
        rows.append((name, *(f"{cell} ({ratio:.1f})" for cell, ratio in zip(cells, times))))
    forward, full, fft = whole()
    rows.append(("kernel of a state space, from c~", f"{1e3 * forward:.0f}", f"{1e3 * full:.0f}", ""))
    rows.append(("its inverse FFT alone", f"{1e3 * fft:.0f}", "", ""))
    header = ("form (times the kernel's)", "forward, ms", "forward and backward, ms", "peak memory of both, MiB")
    note = f"Largest difference of the kernel from the definition in float64, relative to the largest sum: {agreement():.0e}."
    title = f"Cauchy sums of 4 numerators at (D {D}, N/2 {N}, J {LENGTH // 2 + 1}), float32"
    record("cauchy", title, header, rows, note)


if __name__ == "__main__":
    child(sys.argv[1]) if len(sys.argv) > 1 else main()
