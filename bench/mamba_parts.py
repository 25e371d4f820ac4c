"""Where the time of Mamba, Mamba-2 and Mamba-3 goes: operations of a training step, and pieces of a decoded token.

    python bench/mamba_parts.py [--rounds 9]

Training: self times of PyTorch's profiler over some steps, in shares of a step. Decoding: the whole, and what it takes without one
kind of instruction, in turns; a token of int8 weights, so that what is not reading them shows.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import torch
from mamba_decoding import alone, decoder
from mamba_sides import Task, turns
from mamba_training import warmed, with_head, without_head
from record import record
from torch.profiler import profile

from conca.infer.decoder import Decoder, Fused
from conca.layers.states import leaves
from conca.ops.program import Convolve, Instruction, Job, Norm, Phase, Product, Program, Select, run_program
from conca.train.pages import keep_memory

STEPS = 5
LARGE = 200_000
"""Weights of a map that is read from memory for most of the time it takes."""
KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "memories": ("selective_scan", "duality", "turned_keys", "gated_skip", "summed_angles"),
    "norms, convolutions, loss": ("rms_norm", "gated_rms_norm", "short_conv", "cross_entropy", "embedding"),
}


def shares(step: Task) -> list[str]:
    """Shares of a step, in percent, by kind and of the rest."""
    step()
    with profile() as found:
        for _ in range(STEPS):
            step()
    times = {event.key: event.self_cpu_time_total for event in found.key_averages()}
    whole = sum(times.values())
    sums = [sum(t for key, t in times.items() if any(n in key for n in names)) / whole for names in KINDS.values()]
    return [f"{100 * share:.0f}%" for share in (*sums, 1 - sum(sums))]


def training() -> list[tuple[str, ...]]:
    """Rows about training steps."""
    rows = []
    for family, T, head in (
        ("mamba", 256, False),
        ("mamba", 512, True),
        ("mamba2", 1024, True),
        ("mamba3", 1024, False),
    ):
        model = warmed(family)
        step = (with_head if head else without_head)(model, T)
        assert step is not None
        rows.append((f"{family}, T {T}, {'with' if head else 'without'} head", *shares(step)))
    return rows


def without(program: Program, dropped: Callable[[Instruction], bool]) -> Program:
    """A program without some instructions."""

    def kept(some: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(i for i in some if not dropped(i))

    def phase(p: Phase) -> Phase:
        jobs: list[Job] = [replace(job, instructions=kept(job.instructions)) for job in p.jobs]
        return replace(p, jobs=tuple(job for job in jobs if job.instructions), prepared=kept(p.prepared))

    return replace(program, phases=tuple(map(phase, program.phases)))


@torch.no_grad()
def decoding(rounds: int) -> list[tuple[str, ...]]:
    """Rows about one token."""
    found, size = decoder("int8")
    token = torch.zeros(1, dtype=torch.int64)
    state = found.step(token, found.init_state(1))[1]
    program, x, flat = program_of(found), found.embedding(token), list(leaves(state))  # type: ignore[misc]
    dropped: dict[str, Callable[[Instruction], bool]] = {
        "the program": lambda i: False,
        "without the scans": lambda i: isinstance(i, Select),
        "without convolutions and norms": lambda i: isinstance(i, Convolve | Norm),
        "without small products": lambda i: isinstance(i, Product) and i.weight.numel() < LARGE,
        "large products alone": lambda i: not isinstance(i, Product) or i.weight.numel() < LARGE,
    }
    tasks: dict[str, Task] = {"a token": lambda: found.step(token, state)}
    for name, out in dropped.items():
        some = without(program, out)
        tasks[name] = lambda some=some: run_program(some, x, flat)
    tasks["one product of as many bytes"] = alone(size, "int8")
    many = {name: lambda task=task: [task() for _ in range(8)] for name, task in tasks.items()}
    seconds = turns(many, rounds)
    return [(name, f"{s / 8 * 1e3:.2f} ms") for name, s in seconds.items()]


def program_of(found: Decoder) -> Program:
    """The one program of a model whose layers are all known."""
    assert found._plan is not None
    (piece,) = found._plan.pieces
    assert isinstance(piece, Fused)
    return piece.program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="timings of each, taking turns")
    options = parser.parse_args()
    keep_memory()
    record("mamba_step_parts", "Where a training step goes", ("step", *KINDS, "all else"), training())
    record(
        "mamba_token_parts",
        "Where a decoded token goes, weights in int8",
        ("what runs", "time"),
        decoding(options.rounds),
    )


if __name__ == "__main__":
    main()
