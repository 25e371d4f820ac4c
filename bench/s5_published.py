"""The S5 layer against the plain published form and against its matrix products alone, in time and in memory.

    python bench/s5_published.py

The published form in PyTorch (in our own words) keeps complex parameters, takes the maps as complex products and scans pairs (a, b u)
by an associative scan: a recursion that joins neighbours, scans the joined ones and fills in the rest. It is written twice: with one of
each conjugate pair kept, as S5 is defined, and with both kept, as it is often run (the real part is then read once). The gate is the
same. The products alone are the two maps and the gate's, real, forward and backward, and nothing between them.

Each form runs in a process of its own, so that the peak of its memory is its own; times are medians over alternating rounds.
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

from conca import S5

D, N = 128, 64
SHAPES = ((2, 16384), (8, 1024))
ROUNDS = 3
FORMS = {
    "published, one of each pair": "plain",
    "published, both of each pair": "both",
    "conca": "conca",
    "matrix products alone": "products",
}
Pair = tuple[Tensor, Tensor]


def join(left: Pair, right: Pair) -> Pair:
    """What two neighbouring stretches do, one after the other."""
    return right[0] * left[0], right[0] * left[1] + right[1]


def associative(pairs: Pair) -> Pair:
    """All running joins along axis 1."""
    length = pairs[0].shape[1]
    if length < 2:
        return pairs
    first, second = (tuple(t[:, start : length - length % 2 : 2] for t in pairs) for start in (0, 1))
    odd = associative(join(first, second))  # type: ignore[arg-type]
    before = tuple(t[:, : (length - 1) // 2] for t in odd)
    even = join(before, tuple(t[:, 2::2] for t in pairs))  # type: ignore[arg-type]
    found = []
    for whole, inner, outer in zip(pairs, even, odd):
        evens = torch.cat([whole[:, :1], inner], 1)
        woven = torch.stack([evens[:, : outer.shape[1]], outer], 2).flatten(1, 2)
        found.append(torch.cat([woven, evens[:, outer.shape[1] :]], 1))
    return found[0], found[1]


class Published(nn.Module):
    """Complex parameters, complex products, associative scan of pairs, GELU, gate."""

    def __init__(self, like: S5, *, both: bool) -> None:
        super().__init__()
        with torch.no_grad():
            b, c = like.maps()
            eigenvalues, steps = like.eigenvalues(), like.log_dt
            if both:
                b, c = torch.cat([b, b.conj()]), torch.cat([c, c.conj()], 1)
                eigenvalues, steps = torch.cat([eigenvalues, eigenvalues.conj()]), steps.repeat(2)
        self.b, self.c, self.eigenvalues = (nn.Parameter(t.clone().resolve_conj()) for t in (b, c, eigenvalues))
        self.log_dt, self.skip = nn.Parameter(steps.clone()), nn.Parameter(like.skip.detach().clone())
        self.out, self.read = like.out, 1 if both else 2

    def forward(self, x: Tensor) -> Tensor:
        step = self.log_dt.exp()
        a = torch.exp(self.eigenvalues * step)
        b = ((a - 1) / self.eigenvalues)[:, None] * self.b
        inputs = torch.einsum("pd,btd->btp", b, x.to(b.dtype))
        _, states = associative((a.expand_as(inputs), inputs))
        y = self.read * torch.einsum("dp,btp->btd", self.c, states).real + self.skip * x
        y = F.gelu(y)
        return y * torch.sigmoid(self.out(y))


class Products(nn.Module):
    """The two maps and the gate's as real products."""

    def __init__(self, like: S5) -> None:
        super().__init__()
        self.b, self.c = (nn.Linear(*sizes, bias=False) for sizes in ((D, N), (N, D)))
        self.out = like.out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.c(self.b(x)))
        return y


def made(name: str, layer: S5) -> nn.Module:
    if name == "products":
        return Products(layer)
    return layer if name == "conca" else Published(layer, both=name == "both")


def step(module: nn.Module, x: Tensor) -> None:
    """Forward and backward, to input and parameters."""
    y = module(x)
    y = y[0] if isinstance(y, tuple) else y
    y.backward(torch.ones_like(y))


def child(name: str, B: int, T: int) -> None:
    """One form: seconds of a step, and how far a step raises the peak of the process's memory."""
    torch.manual_seed(0)
    module = made(name, S5(D, d_state=N))
    step(module, torch.randn(B, 64, D, requires_grad=True))  # what is loaded or compiled once does not count
    x = torch.randn(B, T, D, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(module, x)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    seconds = medians({name: lambda: step(module, x)}, 5 if name in ("plain", "both") else 15)[name]
    print(json.dumps({"seconds": seconds, "MiB": peak}))


def agreement() -> float:
    """Largest difference of conca and both published outputs, relative to the largest output, in float64."""
    torch.manual_seed(0)
    layer, x = S5(8, d_state=N).double(), torch.randn(1, 301, 8, dtype=torch.float64)
    with torch.no_grad():
        y = layer(x)[0]
        other = [Published(layer, both=both)(x) for both in (False, True)]
    return max(float((y - z).abs().max() / z.abs().max()) for z in other)


def main() -> None:
    rows = []
    for B, T in SHAPES:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in FORMS}
        for _ in range(ROUNDS):
            for name, runs in found.items():
                command = [sys.executable, __file__, FORMS[name], str(B), str(T)]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                runs.append(json.loads(out.splitlines()[-1]))
        seconds = {name: median(run["seconds"] for run in runs) for name, runs in found.items()}
        memory = {name: median(run["MiB"] for run in runs) for name, runs in found.items()}
        for name in FORMS:
            times = seconds[name] / seconds["conca"], memory[name] / max(memory["conca"], 1e-3)
            cells = f"{1e3 * seconds[name]:.1f}", f"{times[0]:.2f}", f"{memory[name]:.0f}", f"{times[1]:.2f}"
            rows.append((f"({B}, {T})", name, *cells))
    title = f"S5 layer, forward and backward, d_model {D}, d_state {N}, float32"
    note = f"Largest relative difference of the outputs in float64: {agreement():.0e}."
    header = ("(B, T)", "form", "ms", "times conca", "peak memory of a step, MiB", "times conca")
    record("s5_published", title, header, rows, note)


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 1 else main()
