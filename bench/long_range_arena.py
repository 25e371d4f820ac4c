"""ListOps and Pathfinder of the Long Range Arena, made here: S5, LSTM and attention in 20 minutes each, beside published figures.

    python bench/long_range_arena.py [--work FOLDER] [--only listops/s5] [--minutes 20] [--threads 1] [--seed 0]

FOLDER holds the data, which are made first, and a run of each layer; one that is finished is not run again, one that was killed goes
on; the page lists all that are finished. Several may run side by side, each with an `--only` of its own. Before a run its steps are
timed, and the schedule is laid so that it ends in the time given: each sequence is seen once, or all of them more often where there is
time.

Path-X, 200,000 pictures of 128 x 128 pixels, with S5 as published (6 layers, 256 modes, both directions, 75 epochs), for a machine with
a GPU and days of time; it is resumed by the same command:

    python bench/long_range_arena.py --task pathx --work FOLDER --minutes 20000

That it starts is seen in a minute on two cores: `--task pathx --work OTHER --count 20 --batch-size 1 --minutes 0.1 --no-page`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packages import CACHE
from record import machine, record

import conca
from conca.data import listops, pathfinder
from conca.data.labelled import Labelled
from conca.data.labelled_source import read_labelled

VALIDATION, TEST = 1000, 2000
"""Sequences that are looked at, at most, after each epoch and at the end."""
SHARE, LEAST, MORE = 0.95, 25, 40
"""Share of the minutes that the steps get; least steps of an epoch; steps that are timed."""


@dataclass(frozen=True)
class Network:
    """A network, and how it learns."""

    layers: str
    d_model: int = 64
    lr: float = 4e-3
    batch_size: int = 32
    dropout: float = 0.0
    bidirectional: bool = False
    epochs: int | None = None
    """As published; None: as many as there is time for."""


SMALL = {
    "s5": Network("s5*4", lr=3e-3, batch_size=16),
    "lstm": Network("lstm*2", lr=2e-3),
    "attention": Network("attention gatedmlp attention gatedmlp", lr=1e-3, batch_size=16),
}
LARGE = {"s5": Network("s5(d_state=256, structure={'blocks': 16}, dt=(1e-4, 0.1))*6", 128, 1e-3, 32, 0.0, True, 75)}
EXTRA = {"s4d": Network("s4d*4", lr=1e-2, batch_size=16)}
TASKS = {"listops": SMALL | EXTRA, "pathfinder": SMALL, "pathx": LARGE}
COUNTS = {"listops": listops.COUNT, "pathfinder": pathfinder.COUNT, "pathx": pathfinder.COUNT}
WORDS = {
    "listops": "ListOps, 501 to 1,999 symbols, 10 classes",
    "pathfinder": "Pathfinder, 32 x 32 pixels, 14 paddles, 2 classes",
    "pathx": "Path-X, 128 x 128 pixels, 14 paddles, 2 classes",
}
PUBLISHED = {
    "listops": "Transformer 36.37, S4 59.60, S5 62.15, Mega 63.14",
    "pathfinder": "Transformer 71.40, S4 94.20, S5 95.33, Mega 96.01",
    "pathx": "Transformer fails, S4 96.35, S5 98.58, Mega 97.98",
}
REDUCED = (
    "The published figures are from far larger budgets: networks of up to millions of parameters that read both "
    "ways, 40 (ListOps) and 200 (Pathfinder) epochs of all data on GPUs, where the runs here have minutes on a "
    "processor, 50,000 to 85,000 parameters, and read forward. They are Tay et al. 2021 (Transformer), Gu et al. "
    "2022 (S4), Smith et al. 2023 (S5) and Ma et al. 2023 (Mega); no published figure of an LSTM is among them. "
    "Attention is softmax attention with rotary positions, which is all that it knows of places; between its layers "
    "stand gated maps. Figures here are of the first 2,000 test sequences: the standard error is 1.1 points at "
    "most. The data are made by the published rules and not the published files, so that the rows of a task share a "
    "distribution, not the sequences."
)


def made(task: str, folder: Path, count: int, seed: int) -> Path:
    """The file of a task, made if it is not there."""
    path = folder / f"{task}-{count}-{seed}.npz"
    if not path.exists():
        print(f"making {path}", file=sys.stderr, flush=True)
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        if task == "listops":
            listops.write_arrays(path, listops.listops(count, seed=seed, processes=workers), count)
        else:
            given = pathfinder.setting(128 if task == "pathx" else 32)
            blocks = pathfinder.pathfinder(given, count, seed=seed, processes=workers)
            pathfinder.write_pictures(path, blocks, given, count)
    return path


def cut(data: Labelled, train: int | None = None, judged: tuple[int, int] = (VALIDATION, TEST)) -> Labelled:
    """The first sequences of each part."""
    parts = zip(("train", "validation", "test"), (train, *judged))
    return data.take(np.concatenate([np.flatnonzero(data.parts == part)[:most] for part, most in parts]))


def classifier(network: Network, epochs: int, seed: int, minutes: float | None = None) -> conca.Classifier:
    options = asdict(network) | {"epochs": epochs, "random_state": seed, "max_minutes": minutes, "patience": epochs}
    return conca.Classifier(**options, smoothing=0.0)


def seconds_of_a_step(network: Network, data: Labelled, seed: int) -> float:
    """Of a training as it will be: one of more steps takes so much longer than one of fewer."""

    def taken(steps: int) -> float:
        some = cut(data, steps * network.batch_size, (0, 0))
        model = classifier(network, 1, seed)
        begin = time.perf_counter()
        model.fit(some)
        return time.perf_counter() - begin

    taken(LEAST)  # compiles
    return (taken(LEAST + MORE) - taken(LEAST)) / MORE


def laid(network: Network, data: Labelled, minutes: float, seed: int) -> dict[str, Any]:
    """How many sequences are learnt from and how often, so that the schedule ends in the minutes given."""
    every = int((data.parts == "train").sum())
    if network.epochs is not None:
        return {"train": every, "epochs": network.epochs}
    step = seconds_of_a_step(network, data, seed)
    seen = int(SHARE * 60 * minutes / step) * network.batch_size
    train = min(every, max(seen, LEAST * network.batch_size))
    return {"train": train, "epochs": max(round(seen / train), 1), "seconds of a step": round(step, 4)}


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a file says, written now if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(make(), indent=1))
        new.replace(path)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def run(task: str, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Train one network, or go on with it, and judge it."""
    network = TASKS[task][name]
    if given.batch_size:
        network = replace(network, batch_size=given.batch_size)
    place = given.work / task / name
    data = cut(read_labelled(made(task, given.work, given.count or COUNTS[task], given.seed)))
    plan = kept(place / "plan.json", partial(laid, network, data, given.minutes, given.seed))
    model = classifier(network, plan["epochs"], given.seed, given.minutes)
    began = (place / "run").exists() or any(place.glob(".run*"))
    model.fit(cut(data, plan["train"]), out=place / "run", resume=began, force=began, progress=True)
    scores = model.scores_
    return plan | {
        "accuracy": float(scores.loc["model", "accuracy"]),
        "chance": float(scores.loc["most frequent", "accuracy"]),
        "steps": int(model.history_["step"].iloc[-1]),
        "parameters": sum(p.numel() for p in model.network_.parameters()),
        "network": asdict(network),
        "minutes": given.minutes,
        "threads": given.threads,
        "seed": given.seed,
        "machine": machine(),
    }


def rows(work: Path) -> list[list[str]]:
    """One row for each run that is finished, after what was published of its task."""
    found: list[list[str]] = []
    for task, networks in TASKS.items():
        ends = {name: work / task / name / "result.json" for name in networks}
        done = {name: json.loads(path.read_text()) for name, path in ends.items() if path.exists()}
        for name, end in done.items():
            cores = "one core" if end["threads"] == 1 else f"{end['threads']} threads"
            budget = f"{end['steps']:,} steps in {end['minutes']:g} minutes on {cores}; {end['train']:,} sequences"
            what = f"`{end['network']['layers']}`, width {end['network']['d_model']}, {end['parameters']:,} parameters"
            found.append([task, name, f"**{end['accuracy']:.2%}**", f"{end['chance']:.2%}", what, budget])
        if done:
            found.append([task, "published", PUBLISHED[task], "", "", "hours to days of GPUs"])
    return found


def unlearnt(listed: list[list[str]]) -> str:
    """Which of the networks are no better than the most frequent class, by two standard errors."""
    plain = [row for row in listed if row[1] != "published"]
    share = {(task, name): [float(text.strip("*%")) for text in texts] for task, name, *texts, _, _ in plain}
    named = [f"{task} {name}" for (task, name), (right, chance) in share.items() if right - chance < 2.2]
    return f"No better than the most frequent class, by two standard errors: {', '.join(named)}." if named else ""


def page(given: argparse.Namespace) -> None:
    """Write what is finished."""
    listed = rows(given.work)
    tasks = dict.fromkeys(row[0] for row in listed)
    notes = "\n".join(
        [unlearnt(listed), "", REDUCED, "", *(f"- {task}: {WORDS[task]}" for task in tasks), "", f"Seed {given.seed}."]
    )
    header = ("task", "network", "accuracy on the test", "most frequent class", "network", "budget")
    record("long_range_arena", "Long Range Arena, made here: minutes on a processor", header, listed, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [f"{task}/{name}" for task, networks in TASKS.items() for name in networks]
    parser.add_argument("--work", type=Path, default=CACHE.parent / "long_range_arena", help="folder for data and runs")
    parser.add_argument("--task", choices=list(TASKS), action="append", help="may be given again [listops, pathfinder]")
    parser.add_argument("--only", choices=every, action="append", help="may be given again")
    parser.add_argument("--minutes", type=float, default=20.0, help="of each training [20]")
    parser.add_argument("--count", type=int, help="sequences of a task, all parts together [100,000 or 200,000]")
    parser.add_argument("--batch-size", type=int, help="sequences in a step [16, of lstm and Path-X 32]")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-page", action="store_true", help="leave bench/results as it is")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    tasks = given.task or ["listops", "pathfinder"]
    for key in given.only or [key for key in every if key.partition("/")[0] in tasks]:
        task, _, name = key.partition("/")
        kept(given.work / task / name / "result.json", partial(run, task, name, given))
    if not given.no_page:
        page(given)


if __name__ == "__main__":
    main()
