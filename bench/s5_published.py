"""The S5 layer against the plain published form and against its matrix products alone, in time and in memory.

    python bench/s5_published.py

The published form in PyTorch (in our own words) keeps complex parameters for all of the 64 modes, both of each conjugate pair, and reads
the real part; it multiplies the maps with one step at a time (vmap), and scans pairs (a, b u) of one sequence by an associative scan, a
recursion that joins neighbours, scans the joined ones and fills in the rest; sequences are a vmap around it. The plain form is the
leanest that PyTorch alone allows: one of each pair, whole batches, one complex product for each map, the same recursion. The products
alone are the two maps as real matrices (and the gate's), forward and backward, with nothing between them.

Gate "none" is the state space alone, as the published module is. Times are medians of three runs, each a process in which the
forms take turns; memory is measured in a process for each form.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from functools import partial
from statistics import median
from typing import Any

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
GATES = ("none", "gelu", "half_glu1")
FORMS = ("published", "plain", "conca", "products")
Pair = tuple[Tensor, Tensor]


def join(left: Pair, right: Pair) -> Pair:
    """What two neighbouring stretches do, one after the other."""
    return right[0] * left[0], right[0] * left[1] + right[1]


def associative(pairs: Pair, axis: int) -> Pair:
    """All running joins along an axis."""
    length = pairs[0].shape[axis]
    if length < 2:
        return pairs

    def every(begin: int, stop: int | None, of: Pair) -> Pair:
        cut = (slice(None),) * axis + (slice(begin, stop, 2 if of is pairs else 1),)
        return of[0][cut], of[1][cut]

    odd = associative(join(every(0, length - length % 2, pairs), every(1, None, pairs)), axis)
    even = join(every(0, (length - 1) // 2, odd), every(2, None, pairs))
    woven = []
    for whole, inner, outer in zip(pairs, even, odd):
        evens = torch.cat([whole.narrow(axis, 0, 1), inner], axis)
        pieces = evens.narrow(axis, 0, outer.shape[axis]), outer
        woven.append(torch.stack(pieces, axis + 1).flatten(axis, axis + 1))
        if length % 2:
            woven[-1] = torch.cat([woven[-1], evens.narrow(axis, evens.shape[axis] - 1, 1)], axis)
    return woven[0], woven[1]


class Plain(nn.Module):
    """Complex parameters, complex products, associative scan of pairs, GELU, gate; `published` or as lean as it gets."""

    def __init__(self, like: S5, *, published: bool) -> None:
        super().__init__()
        with torch.no_grad():
            b, c = like.maps()
            eigenvalues, steps = like.eigenvalues(), like.log_dt
            if published:
                b, c = torch.cat([b, b.conj()]), torch.cat([c, c.conj()], 1)
                eigenvalues, steps = torch.cat([eigenvalues, eigenvalues.conj()]), steps.repeat(2)
        self.b, self.c, self.eigenvalues = (nn.Parameter(t.clone().resolve_conj()) for t in (b, c, eigenvalues))
        self.log_dt, self.skip = nn.Parameter(steps.clone()), nn.Parameter(like.skip.detach().clone())
        self.out, self.published, self.bare = like.out, published, like.gate == "none"

    def forward(self, x: Tensor) -> Tensor:
        a = torch.exp(self.eigenvalues * self.log_dt.exp())
        b = ((a - 1) / self.eigenvalues)[:, None] * self.b
        if self.published:
            y = torch.vmap(lambda row: self.sequence(row, a, b))(x)
        else:
            inputs = torch.einsum("pd,btd->btp", b, x.to(b.dtype))
            states = associative((a.expand_as(inputs), inputs), 1)[1]
            y = 2 * torch.einsum("dp,btp->btd", self.c, states).real + self.skip * x
        y = y if self.bare else F.gelu(y)
        return y if self.out is None else y * torch.sigmoid(self.out(y))

    def sequence(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """One sequence (T, D)."""
        inputs = torch.vmap(lambda u: b @ u)(x.to(b.dtype))
        states = associative((a.tile(len(x), 1), inputs), 0)[1]
        return torch.vmap(lambda h: (self.c @ h).real)(states) + self.skip * x


class Products(nn.Module):
    """The two maps, and the gate's, as real products."""

    def __init__(self, like: S5) -> None:
        super().__init__()
        self.b, self.c = (nn.Linear(*sizes, bias=False) for sizes in ((D, N), (N, D)))
        self.out = like.out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.c(self.b(x))
        return y if self.out is None else self.out(y)


def made(name: str, layer: S5) -> nn.Module:
    if name == "products":
        return Products(layer)
    return layer if name == "conca" else Plain(layer, published=name == "published")


def step(module: nn.Module, x: Tensor) -> None:
    """Forward and backward, to input and parameters."""
    y = module(x)
    y = y[0] if isinstance(y, tuple) else y
    y.backward(torch.ones_like(y))


def peak(name: str, gate: str, B: int, T: int) -> None:
    """How far a step of one form raises the peak of this process's memory."""
    torch.manual_seed(0)
    module = made(name, S5(D, d_state=N, gate=gate))
    step(module, torch.randn(B, 64, D, requires_grad=True))  # what is loaded or compiled once does not count
    x = torch.randn(B, T, D, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(module, x)
    print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))


def times(_: str, gate: str, B: int, T: int) -> None:
    """Seconds of a step of each form; they take turns."""
    torch.manual_seed(0)
    layer, x = S5(D, d_state=N, gate=gate), torch.randn(B, T, D, requires_grad=True)
    tasks = {name: partial(step, made(name, layer), x) for name in FORMS}
    print(json.dumps(medians(tasks, 2**18 // T // B)))


def agreement() -> float:
    """Largest difference of conca and both other outputs, relative to the largest output, in float64."""
    torch.manual_seed(0)
    layer, x = S5(8, d_state=N).double(), torch.randn(2, 301, 8, dtype=torch.float64)
    with torch.no_grad():
        y = layer(x)[0]
        other = [Plain(layer, published=published)(x) for published in (False, True)]
    return max(float((y - z).abs().max() / z.abs().max()) for z in other)


def measured(gate: str, B: int, T: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and MiB of each form."""

    def run(what: str, name: str) -> Any:
        command = [sys.executable, __file__, what, name, gate, str(B), str(T)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])

    rounds = [run("times", "all") for _ in range(ROUNDS)]
    seconds = {name: median(found[name] for found in rounds) for name in FORMS}
    return seconds, {name: run("peak", name) for name in FORMS}


def main() -> None:
    rows = []
    for gate in GATES:
        for B, T in SHAPES:
            seconds, memory = measured(gate, B, T)
            for name in FORMS:
                ratio = seconds[name] / seconds["conca"]
                rows.append(
                    (gate, f"({B}, {T})", name, f"{1e3 * seconds[name]:.1f}", f"{ratio:.2f}", f"{memory[name]:.0f}")
                )
    title = f"S5 layer, forward and backward, d_model {D}, d_state {N}, float32"
    note = (
        "published: all modes, a vmap over steps and sequences. plain: half of the modes, whole batches. products: the matrix products of "
        f"conca alone. Largest relative difference of the outputs in float64: {agreement():.0e}."
    )
    header = ("gate", "(B, T)", "form", "ms", "times conca", "peak memory of a step, MiB")
    record("s5_published", title, header, rows, note)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"peak": peak, "times": times}[sys.argv[1]](*sys.argv[2:4], *map(int, sys.argv[4:6]))
    else:
        main()
