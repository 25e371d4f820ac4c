"""Going on with the training of a checkpoint of 130 million parameters: a whole step, beside transformers.

    python bench/going_on.py [--rounds 3] [--layers 24] [--work FOLDER]

A checkpoint of the shape of mamba-130m with random weights (no hub is asked) is written by transformers, and read by both. A step is
forward, mean cross entropy, backward and AdamW, float32, one row of T tokens; both take turns. Their first losses are compared: the third
changes by 0.1 already where these weights change by a millionth. The step of conca is what `conca fit --task text --from` does. Freed
memory stays with the process, for both.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import torch
from record import record
from torch import Tensor, nn

import conca
from conca.train.pages import keep_memory

VOCAB = 50280


def main() -> None:
    """Write the checkpoint, read it twice, and take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    keep_memory()
    folder = given.work or Path(tempfile.mkdtemp(prefix="conca-going-on-")) / "mamba-130m"
    if not folder.exists():
        write(folder, given.layers)
    rows = [row(folder, length, given.rounds) for length in (256, 512)]
    head = ["tokens of a step", "conca, s", "transformers, s", "times", "first loss of both"]
    record("going_on", "Going on with a checkpoint of the shape of mamba-130m, one training step", head, rows)


def write(folder: Path, layers: int) -> None:
    """The checkpoint, with random weights."""
    import transformers

    transformers.logging.set_verbosity_error()  # it says that its fast kernels are not there, which is why it is here
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=VOCAB, hidden_size=768, state_size=16, num_hidden_layers=layers)
    transformers.MambaForCausalLM(config).save_pretrained(folder)


def row(folder: Path, length: int, rounds: int) -> list[str]:
    """The times of one length."""
    import transformers

    transformers.logging.set_verbosity_error()
    tokens = torch.randint(VOCAB, (1, length + 1), generator=torch.Generator().manual_seed(0))
    ours, theirs = conca.load(folder).train(), transformers.AutoModelForCausalLM.from_pretrained(folder).train()
    assert isinstance(ours, conca.LanguageModel)

    def our_loss() -> Tensor:
        return ours.loss(ours.read(tokens[:, :-1])[0], tokens[:, 1:])

    def their_loss() -> Tensor:
        return theirs(tokens, labels=tokens, use_cache=False).loss

    steps = {"conca": step_of(ours, our_loss), "transformers": step_of(theirs, their_loss)}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):  # the first is not timed
        for name, step in steps.items():
            begin = time.perf_counter()
            losses[name].append(step())
            if turn:
                times[name].append(time.perf_counter() - begin)
    own, other = (median(some) for some in times.values())
    shown = ", ".join(f"{some[0]:.4f}" for some in losses.values())
    return [str(length), f"{own:.2f}", f"{other:.2f}", f"{other / own:.1f}", shown]


def step_of(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], float]:
    """A training step, which gives its loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        found = loss()
        found.backward()
        optimizer.step()
        return float(found.detach())

    return step


if __name__ == "__main__":
    main()
