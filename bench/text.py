"""Shakespeare byte by byte on two cores: language models of several families, beside xz -9 and zstd -19 on the same text.

    python bench/text.py [--work FOLDER] [--only NAME] [--minutes M] [--data FOLDER] [--threads N]

Mamba-2 learns for 30 minutes, each of the others for 15; each is a run in FOLDER, and what is there is not learnt again. A training
that was killed goes on. The page holds all that are finished.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from packages import CACHE
from record import record
from text_data import shakespeare

from conca.estimators.text_config import TextConfig
from conca.estimators.text_fitting import fit_text
from conca.estimators.text_runs import TextRun, read_text_run
from conca.models.language import LanguageNetwork
from conca.models.run import unfinished
from conca.train.pages import keep_memory


@dataclass(frozen=True)
class Entry:
    """A model: what its stack is, how wide, how fast it learns, and how long."""

    layers: str
    d_model: int = 256
    lr: float = 3e-3
    minutes: float = 15


ENTRIES = {
    "mamba2": Entry("mamba2(d_state=32)*4", lr=6e-3, minutes=30),
    "mamba": Entry("mamba*4", lr=6e-3),
    "mamba3": Entry("mamba3(d_state=32)*4", lr=6e-3),
    "s5": Entry(" ".join(["s5 gatedmlp"] * 4)),
    "lstm": Entry("lstm*2", d_model=384),
    "attention": Entry(" ".join(["attention gatedmlp"] * 4)),
}
PROMPT = "\n\nHAMLET. "
SAMPLE, TEMPERATURE = 300, 0.7


def main() -> None:
    """Learn what is asked for and is not there, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=CACHE.parent / "text")
    parser.add_argument("--only", choices=tuple(ENTRIES), action="append")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_memory()
    given.work.mkdir(parents=True, exist_ok=True)
    files = shakespeare(given.data)
    for name in given.only or ENTRIES:
        if not (given.work / name / "config.json").exists():
            learn(name, files, given.work / name, given.minutes)
    page({name: given.work / name for name in ENTRIES if (given.work / name / "config.json").exists()})


def learn(name: str, files: list[Path], out: Path, minutes: float | None) -> None:
    """One of them, which goes on where it was stopped."""
    entry, begin = ENTRIES[name], time.perf_counter()
    config = TextConfig(
        layers=entry.layers,
        d_model=entry.d_model,
        lr=entry.lr,
        max_minutes=entry.minutes if minutes is None else minutes,
        patience=10**6,
        devices="cpu",
        test_fraction=0.1,
    )

    def say(line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr)

    run = fit_text(files, config, out, progress=True, resume=bool(unfinished(out)), say=say)
    spent = {"wall": time.perf_counter() - begin, "sample": sampled(run.network)}
    (out / "logs" / "bench.json").write_text(json.dumps(spent))


def sampled(network: LanguageNetwork) -> str:
    """A text that goes on from a speaker's name, drawn with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.from_numpy(np.frombuffer(PROMPT.encode(), np.uint8).astype(np.int64))[None]
    with torch.no_grad():
        logits, state = network(ids)
        last, found = logits[:, -1], bytearray(PROMPT.encode())
        for _ in range(SAMPLE):
            token = torch.multinomial(torch.softmax(last / TEMPERATURE, -1), 1, generator=generator)[:, 0]
            found.append(int(token))
            last, state = network.step(token, state)
    return found.decode("ascii", "replace")


def page(runs: dict[str, Path]) -> None:
    """The table of all that are finished, and a sample of each."""
    rows, samples, packed = [], [], {}
    for name, folder in runs.items():
        run = read_text_run(folder)
        rows.append(row(name, run))
        packed = {answer: bits for answer, bits in run.scores["bits per byte"].items() if answer != "model"}
        kept = folder / "logs" / "bench.json"
        if kept.exists():
            text = json.loads(kept.read_text())["sample"].strip()
            samples.append(f"{name}:\n\n```text\n{text}\n```")
    held = ", ".join(f"{answer} {bits:.3f}" for answer, bits in packed.items())
    notes = [
        f"Bits per byte of the last tenth of the text, 505,724 bytes, which nobody has learnt. There, compressors alone: {held}.",
        "The state goes on over all of it; attention reads windows of 256 bytes that overlap by half. Batches of "
        f"{TextConfig.batch_size} passages of {TextConfig.length} bytes, AdamW, cosine by time, averaged weights of the epoch that "
        f"validates best, seed 0. Samples go on from a speaker's name, at temperature {TEMPERATURE:g}.",
        *samples,
    ]
    header = ("model", "layers", "width", "parameters", "minutes", "steps", "bytes read", "bits per byte")
    record("text", "Shakespeare byte by byte", header, rows, "\n\n".join(notes))


def row(name: str, run: TextRun) -> tuple[str, ...]:
    """A line of the table."""
    config = run.config
    steps = int(run.history["step"].iloc[-1])
    parameters = sum(p.numel() for p in run.network.parameters())
    read = steps * config.batch_size * config.length
    return (
        name,
        f"`{config.layers}`",
        str(config.d_model),
        f"{parameters:,}",
        f"{config.max_minutes:g}",
        f"{steps:,}",
        f"{read / 1e6:.1f} MB",
        f"**{run.scores.loc['model', 'bits per byte']:.3f}**",
    )


if __name__ == "__main__":
    main()
