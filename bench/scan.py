"""The scan kernel against PyTorch alone: the library's plain body, a doubling scan (Hillis and Steele), a loop over time.

    python bench/scan.py

Forward, and forward and backward, of one float32 example; the forms take turns, times are medians.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

from collections.abc import Callable

import torch
from record import medians, record
from torch import Tensor

import conca.kernels
from conca.ops.scan import scan, scan_doubling, scan_recurrence, scan_tree

B, T, D = 4, 4096, 512
REPEATS = 7
Scan = Callable[[Tensor, Tensor, Tensor], Tensor]
FORMS: dict[str, Scan] = {
    "kernel": scan,
    "plain body (a tree of pairs)": scan_tree,
    "doubling": scan_doubling,
    "loop over time": scan_recurrence,
}


def tasks(args: list[Tensor], weight: Tensor) -> dict[str, Callable[[], object]]:
    """Every form, forward without gradients and forward with backward to all three arguments."""

    def forward(form: Scan) -> Tensor:
        with torch.no_grad():
            return form(*args)

    def both(form: Scan) -> tuple[Tensor, ...]:
        return torch.autograd.grad(form(*args), args, weight)

    found: dict[str, Callable[[], object]] = {}
    for name, form in FORMS.items():
        found[f"{name}, forward"] = lambda form=form: forward(form)
        found[f"{name}, both"] = lambda form=form: both(form)
    return found


def main() -> None:
    conca.kernels.warm()
    torch.manual_seed(0)
    args = [torch.rand(B, T, D, requires_grad=True), torch.randn(B, T, D, requires_grad=True)]
    args.append(torch.randn(B, D, requires_grad=True))
    weight = torch.randn(B, T, D)
    with torch.no_grad():
        kernel, plain = scan(*args), scan_tree(*args)
        worst = float((kernel - plain).abs().max() / plain.abs().max())
    found = medians(tasks(args, weight), REPEATS)
    rows = []
    for name in FORMS:
        pair = [found[f"{name}, {way}"] for way in ("forward", "both")]
        ratios = [f"{t / found[f'kernel, {way}']:.1f}" for t, way in zip(pair, ("forward", "both"))]
        rows.append((name, f"{1e3 * pair[0]:.0f}", ratios[0], f"{1e3 * pair[1]:.0f}", ratios[1]))
    header = ("form", "forward, ms", "times the kernel", "forward and backward, ms", "times the kernel")
    note = f"Largest difference of kernel and plain body, relative to the largest state: {worst:.0e}."
    record("scan", f"Scan h_t = a_t h_(t-1) + x_t at (B {B}, T {T}, D {D}), float32", header, rows, note)


if __name__ == "__main__":
    main()
