"""Memory of a training step of Mamba with its head, by length, beside transformers.

    python bench/mamba_memory.py [--quick]

Every figure comes from a process of its own: how far one step (forward, mean cross entropy, backward, from no gradients) raises the
resident memory above what the model itself takes. A short step before loads and compiles what is loaded once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import mamba_sides as sides
import torch
from mamba_training import LAYERS, with_head
from record import record
from torch import nn

LENGTHS = (128, 256, 512, 1024, 2048)
THEIRS = (128, 256, 512)
MIB = 1024


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (the most so far) of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def model_of(name: str) -> nn.Module | None:
    makers = {
        "conca Mamba": lambda: sides.language("mamba", LAYERS),
        "conca Mamba-2": lambda: sides.language("mamba2", LAYERS),
        "conca Mamba-3": lambda: sides.language("mamba3", LAYERS),
        "transformers Mamba": lambda: sides.transformers_mamba(LAYERS),
        "transformers Mamba-2": lambda: sides.transformers_mamba2(LAYERS),
    }
    return makers[name]()


def child(name: str, T: int) -> None:
    """Print KiB of a step."""
    model = model_of(name)
    step = with_head(model, 8)
    if model is None or step is None:
        return
    step()
    model.zero_grad(set_to_none=True)
    step = with_head(model, T)
    before = resident("VmRSS")
    step()
    print(resident("VmHWM") - before)


def measured(name: str, T: int) -> float | None:
    """MiB of a step, None where the peer is not there."""
    command = [sys.executable, __file__, "--child", name, "--length", str(T)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    found = int(out[-1]) / MIB if out else None
    print(f"{name}, T {T}: {found if found is None else round(found)} MiB", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="leave out the peer's step of 512, which takes a minute or two"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        torch.manual_seed(0)
        child(options.child, options.length)
        return
    rows, found = [], {}
    for name in ("conca Mamba", "conca Mamba-2", "conca Mamba-3", "transformers Mamba", "transformers Mamba-2"):
        lengths = THEIRS if name == "transformers Mamba" else LENGTHS
        for T in lengths[:-1] if options.quick and name == "transformers Mamba" else lengths:
            found[name, T] = measured(name, T)
        cells = ["" if found.get((name, T)) is None else f"{found[name, T]:.0f}" for T in LENGTHS]
        rows.append((name, *cells))
    notes = []
    for family in ("Mamba", "Mamba-2"):
        ours, theirs = (found.get((f"{side} {family}", 512)) for side in ("conca", "transformers"))
        if ours and theirs:
            notes.append(f"{family} at T 512: {ours / theirs:.2f} of what transformers needs.")
    per = [(found["conca Mamba", b] - found["conca Mamba", a]) / (b - a) for a, b in pairwise(LENGTHS)]
    notes.append("Mamba grows by " + ", ".join(f"{p:.2f}" for p in per) + " MiB a token from each length to the next.")
    header = "MiB of a step", *(f"T {T}" for T in LENGTHS)
    record(
        "mamba_memory",
        f"Memory of a training step: {LAYERS} layers and a head of {sides.VOCAB:,} tokens",
        header,
        rows,
        " ".join(notes),
    )


if __name__ == "__main__":
    main()
