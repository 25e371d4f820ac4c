"""One training step at 16,384 steps, the length of Path-X, in time and in memory: state spaces beside softmax attention.

    python bench/long_step.py [--width 64] [--batch 1] [--threads 2]

Every network is a classifier's, six blocks of one width, and a step is what training does: forward, cross-entropy, backward, AdamW, on
one thread where the steps of a recurrence are too small to be shared. Each runs in a process of its own, so that the peak of its
memory is its own; what is loaded or compiled once does not count. Softmax attention is here twice: PyTorch's fused causal kernel called
bare, which never holds the matrix of weights and skips what lies ahead (the leanest there is), and conca's layer, which hands out its
state.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import torch
import torch.nn.functional as F
from record import medians, record
from torch import Tensor

import conca
from conca.layers.attention import Attention, Cache
from conca.models.classify import ClassifyNetwork, ClassifyNetworkConfig
from conca.models.stack import Block, Stack
from conca.models.threads import few_threads

T, LAYERS, CLASSES, HEADS = 16384, 6, 2, 4
LEANEST = "attention, fused and bare"
NETWORKS = {
    "s4d": f"s4d*{LAYERS}",
    "s5": f"s5*{LAYERS}",
    "s4": f"s4*{LAYERS}",
    "lstm": f"lstm*{LAYERS}",
    LEANEST: f"attention(n_heads={HEADS})*{LAYERS}",
    "attention": f"attention(n_heads={HEADS})*{LAYERS}",
}
PATIENCE, LIMIT = 20.0, 300
"""Seconds that are spent on timing a network, where one step does not take longer; and after which a network is given up."""


class Fused(Attention):
    """Whole sequences from the beginning, by PyTorch's causal kernel; no state comes out."""

    def parallel(
        self, x: Tensor, state: Cache, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, Cache]:
        q, k, v = (z.transpose(1, 2) for z in self._project(x, state.seen_B))
        y: Tensor = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return y, state


def network(name: str, width: int) -> ClassifyNetwork:
    found = ClassifyNetwork(ClassifyNetworkConfig(1, 0, CLASSES, NETWORKS[name], width))
    if name == LEANEST:
        found.stack = Stack(Block(Fused(width, n_heads=HEADS)) for _ in range(LAYERS))
    return found


def child(name: str, width: int, batch: int) -> None:
    """Seconds of a step, and how far a step raises the peak of the process's memory."""
    torch.manual_seed(0)
    net = network(name, width)
    optimizer = torch.optim.AdamW(conca.param_groups(net, lr=1e-3))
    y = torch.arange(batch) % CLASSES

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    with few_threads(net):
        step(torch.randn(batch, 64, 1))
        x = torch.randn(batch, T, 1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        first = medians({"": lambda: step(x)}, 1)[""]
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        repeats = min(15, int(PATIENCE / first))
        seconds = medians({"": lambda: step(x)}, repeats)[""] if repeats > 1 else first
    weights = sum(p.numel() for p in net.parameters())
    print(json.dumps({"seconds": seconds, "MiB": peak, "weights": weights}))


def measured(name: str, args: argparse.Namespace) -> dict[str, float]:
    words = [sys.executable, __file__, "--child", name, "--width", str(args.width), "--batch", str(args.batch)]
    words += ["--threads", str(args.threads)]
    print(name, file=sys.stderr, flush=True)
    try:
        found = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT).stdout
    except subprocess.TimeoutExpired:
        return {}
    return dict(json.loads(found.splitlines()[-1]))


def page(found: dict[str, dict[str, float]], args: argparse.Namespace) -> None:
    lean = found[LEANEST] or {"seconds": float("nan"), "MiB": float("nan")}
    rows = []
    for name, run in found.items():
        if not run:
            rows.append((name, "", f"more than {LIMIT}", "", "", ""))
            continue
        time, memory = lean["seconds"] / run["seconds"], lean["MiB"] / run["MiB"]
        weights = f"{run['weights']:,.0f}"
        rows.append((name, weights, f"{run['seconds']:.2f}", f"{time:.1f}", f"{run['MiB']:.0f}", f"{memory:.1f}"))
    matrix = args.batch * HEADS * T * T * 4 / 2**30
    notes = (
        "Ratios are to attention, fused and bare: above 1, faster or leaner. Its time alone grows with the square of the steps; "
        f"written out as in the textbook, each layer would keep a matrix of {matrix:.1f} GiB, {LAYERS * matrix:.0f} GiB in all."
    )
    title = f"A training step at {T:,} steps: {LAYERS} layers, width {args.width}, sequences: {args.batch}, {HEADS} heads, float32"
    header = ("layers", "parameters", "seconds", "times as fast", "peak memory of a step, MiB", "times as lean")
    record("long_step", title, header, rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        child(args.child, args.width, args.batch)
    else:
        page({name: measured(name, args) for name in NETWORKS}, args)


if __name__ == "__main__":
    main()
