"""A training step and a forward pass of Mamba, Mamba-2 and Mamba-3 beside their peers and the matrix products alone.

    python bench/mamba_training.py [--rounds 5] [--only mamba mamba2 mamba3] [--fresh-memory] [--quick]

Float32, width 768, 4 layers, one row. A step is forward, mean cross entropy (or, without a head, mean square) and backward. Within a
row of the table all take turns in one process; a peer that takes longer than 15 s is timed once. Freed memory stays with the process
(`conca.train.pages`), as where `conca fit` trains, for all that take turns: else each step gets fresh pages from the system, which has
to empty them, and on a virtual machine to find them first. The products find their outputs already there.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import mamba_sides as sides
import torch
from mamba_sides import VOCAB, WIDTH, Language, Task, language, products, turns
from record import record
from torch import Tensor, nn

from conca.train.pages import keep_memory

LAYERS = 4
Row = tuple[str, ...]


def ids(T: int) -> tuple[Tensor, Tensor]:
    """Random tokens and targets (1, T)."""
    return torch.randint(VOCAB, (1, T)), torch.randint(VOCAB, (1, T))


def step_of(model: nn.Module, loss: Callable[[], Tensor]) -> Task:
    """A training step from no gradients."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss().backward()

    return step


def with_head(model: nn.Module | None, T: int) -> Task | None:
    """A step on tokens."""
    if model is None:
        return None
    tokens, target = ids(T)
    if isinstance(model, Language):
        return step_of(model, lambda: model.loss(tokens, target))
    return step_of(model, lambda: model(tokens, labels=target, use_cache=False).loss)


def without_head(model: nn.Module | None, T: int) -> Task | None:
    """A step on vectors."""
    if model is None:
        return None
    x = torch.randn(1, T, WIDTH)
    layers = model.stack if isinstance(model, Language) else model

    def loss() -> Tensor:
        found = layers(x)
        y: Tensor = found[0] if isinstance(found, tuple) else found
        return y.square().mean()

    return step_of(model, loss)


def forward(model: nn.Module | None, T: int) -> Task | None:
    """All logits, without gradients."""
    if model is None:
        return None
    tokens, _ = ids(T)

    @torch.no_grad()
    def run() -> None:
        model(tokens) if isinstance(model, Language) else model(tokens, use_cache=False)

    return run


def warmed(family: str) -> Language:
    """Our model, its kernels compiled."""
    model = language(family, LAYERS)
    with_head(model, 8)()
    forward(model, 8)()
    return model


@torch.no_grad()
def same(ours: Language, theirs: nn.Module | None) -> None:
    """Both say the same, from the same weights."""
    if theirs is not None:
        tokens, _ = ids(24)
        a, b = ours(tokens), theirs(tokens).logits
        error = (a - b).abs().max() / b.abs().max()
        assert error < 1e-4, f"not the same model: {error:.1e}"


class Limit(NamedTuple):
    """Products alone: those of the maps and the head, and those that memories of matrices need besides."""

    maps: Task
    chunks: Task | None


def limit(family: str, T: int, *, head: bool, backward: bool = True) -> Limit:
    """The products of a pass over T tokens."""
    maps = products(family, LAYERS, T, head=head, backward=backward)
    return Limit(maps, sides.chunks(family, LAYERS, T, backward=backward))


def compared(name: str, peer: str, rounds: int, ours: Task | None, theirs: Task | None, alone: Limit) -> Row:
    """A row of the table."""
    found = turns({"ours": ours, "peer": theirs, **alone._asdict()}, rounds)
    mine, other, bare, inner = (found.get(k) for k in ("ours", "peer", "maps", "chunks"))
    every = None if bare is None else bare + (inner or 0.0)
    name_of_peer = peer if theirs or "(" in peer else f"{peer} (not there)"
    cells = sides.seconds(mine), name_of_peer, sides.seconds(other), sides.times(other, mine)
    row = (
        name,
        *cells,
        sides.seconds(bare),
        sides.times(mine, bare),
        sides.times(mine, every),
        sides.times(other, every),
    )
    print(*row, sep=" | ", flush=True)
    return row


def mamba(rounds: int, quick: bool) -> list[Row]:
    """Mamba beside transformers and mambapy."""
    ours, rows = warmed("mamba"), []
    theirs = sides.transformers_mamba(LAYERS, ours)
    same(ours, theirs)
    for T in (128, 256, 512):
        left_out = quick and T == 512
        tasks = with_head(ours, T), with_head(None if left_out else theirs, T), limit("mamba", T, head=True)
        peer = "transformers (left out)" if left_out else "transformers"
        rows.append(compared(f"Mamba, step with head, T {T}", peer, rounds, *tasks))
    tasks = forward(ours, 512), forward(theirs, 512), limit("mamba", 512, head=True, backward=False)
    rows.append(compared("Mamba, forward with head, T 512", "transformers", rounds, *tasks))
    theirs = sides.mambapy(LAYERS)
    for T in (256, 1024):
        tasks = without_head(ours, T), without_head(theirs, T), limit("mamba", T, head=False)
        rows.append(compared(f"Mamba, step without head, T {T}", "mambapy", rounds, *tasks))
    return rows


def mamba2(rounds: int, quick: bool) -> list[Row]:
    """Mamba-2 beside transformers."""
    ours, rows = warmed("mamba2"), []
    theirs = sides.transformers_mamba2(LAYERS, ours)
    same(ours, theirs)
    for T in (256, 1024):
        tasks = with_head(ours, T), with_head(theirs, T), limit("mamba2", T, head=True)
        rows.append(compared(f"Mamba-2, step with head, T {T}", "transformers", rounds, *tasks))
    tasks = forward(ours, 1024), forward(theirs, 1024), limit("mamba2", 1024, head=True, backward=False)
    rows.append(compared("Mamba-2, forward with head, T 1024", "transformers", rounds, *tasks))
    return rows


def mamba3(rounds: int, quick: bool) -> list[Row]:
    """Mamba-3 beside Mamba-2, both ours."""
    ours, older, rows = warmed("mamba3"), warmed("mamba2"), []
    for T in (256, 1024):
        tasks = without_head(ours, T), without_head(older, T), limit("mamba3", T, head=False)
        rows.append(compared(f"Mamba-3, step without head, T {T}", "our Mamba-2", rounds, *tasks))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="timings of each, taking turns")
    parser.add_argument("--only", nargs="+", choices=["mamba", "mamba2", "mamba3"], help="some of the families")
    parser.add_argument("--quick", action="store_true", help="leave out the peer's step of 512, which takes minutes")
    parser.add_argument(
        "--fresh-memory", action="store_true", help="freed memory goes back to the system, for all of them"
    )
    options = parser.parse_args()
    begin, rows = time.perf_counter(), []
    if not options.fresh_memory:
        keep_memory()
    for name, run in (("mamba", mamba), ("mamba2", mamba2), ("mamba3", mamba3)):
        if not options.only or name in options.only:
            rows += run(options.rounds, options.quick)
    header = (
        "work",
        "conca",
        "peer",
        "its time",
        "peer / conca",
        "maps alone",
        "conca / maps",
        "conca / all products",
        "peer / all products",
    )
    took = (time.perf_counter() - begin) / 60
    notes = (
        f"{LAYERS} layers of width {WIDTH}, head of {VOCAB:,} tokens, one row, float32; medians of {options.rounds} turns, "
        f"peers over 15 s once. Maps are the products of the linear maps and the head; all products also those within and between "
        f"chunks of 64 steps, for Mamba-2 and Mamba-3, by `torch.bmm`. Products "
        f"here: {sides.rate():.0f} GFLOP/s. The whole page took {took:.0f} minutes."
    )
    record(
        "_".join(["mamba_training", *(["fresh"] if options.fresh_memory else []), *(options.only or [])]),
        "Mamba: training and forward passes" + (", fresh memory at every step" if options.fresh_memory else ""),
        header,
        rows,
        notes,
    )


if __name__ == "__main__":
    main()
