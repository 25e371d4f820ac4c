"""Training through Lightning against a bare loop over the same steps: batches, network, optimiser, clipping, averaging.

    python bench/training_loop.py

The demo's table at the defaults of `Forecaster`: one epoch of some steps and its validation. The two take turns; times are
medians, of the wall and of the processor. What Lightning and the keeping of checkpoints add is the share that counts.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import argparse
import math
import tempfile
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from record import record
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

import conca
from conca.estimators import training
from conca.models.forecast import pinball
from conca.models.threads import few_threads
from conca.train.averaged import forgetting as average
from conca.train.forecast_lesson import train_forecast
from conca.train.groups import param_groups
from conca.train.seeds import seeded

TABLE = Path(__file__).parents[1] / "examples" / "data" / "beijing-air.csv.xz"


class Found(Exception):
    """What the training of the demo is given."""


def demo() -> tuple:
    """Network, pieces, validation and recipe, as `Forecaster.fit` makes them for the demo."""

    def stop(*arguments: object, **_: object) -> None:
        raise Found(arguments[:4])

    training.trainer, before = (lambda: stop), training.trainer
    try:
        conca.Forecaster(24).fit(TABLE, target="pm2.5", time="time", progress=False)
    except Found as found:
        return found.args[0]
    finally:
        training.trainer = before


def bare(network, pieces, validation, recipe):
    """The same without Lightning, and without anything kept; on as many threads."""
    with few_threads(network):
        return learnt(network, pieces, validation, recipe)


def learnt(network, pieces, validation, recipe):
    """The averaged network after all steps."""
    network.train()
    optimizer = AdamW(param_groups(network, lr=recipe.lr, weight_decay=recipe.weight_decay))
    steps = recipe.epochs * recipe.steps
    warm = min(max(steps // 20, 1), 200)
    schedule = LambdaLR(
        optimizer,
        lambda step: min(1, (step + 1) / warm) * (0.05 + 0.475 * (1 + math.cos(math.pi * min(step / steps, 1)))),
    )
    averaged = AveragedModel(network, multi_avg_fn=average)
    levels, members = torch.tensor(network.config.levels), len(network.towers)
    for step in range(steps):
        batch = pieces[step]
        torch.default_generator.manual_seed(hash((recipe.seed, step)) % 2**63)
        totals, counts = [], []
        for member, tower in enumerate(network.towers):
            own = batch.share(member, members)
            h, _ = tower(own.inputs, own.codes, lengths=own.lengths, elapsed=own.elapsed)
            q = network.straighten(tower.quantiles(h[:, own.rows], own.anchor, own.known))
            total, count = pinball(own.future, q, levels)
            totals.append(total)
            counts.append(count)
        loss = torch.stack(totals).sum() / torch.stack(counts).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        averaged.update_parameters(network)
    average_network = averaged.module.eval()
    with torch.no_grad():
        for batch in validation:
            h, _ = average_network.read(batch.inputs, batch.codes, lengths=batch.lengths, elapsed=batch.elapsed)
            pinball(batch.future, average_network(h[:, :, batch.rows], batch.anchor, batch.known), levels)
    return average_network


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    network, pieces, validation, recipe = demo()
    recipe = replace(recipe, epochs=1, steps=options.steps, devices="cpu")

    def lightning(own) -> torch.nn.Module:
        with tempfile.TemporaryDirectory() as folder:
            train_forecast(own, pieces, validation, recipe, Path(folder), progress=False)
        return own

    def loop(own) -> torch.nn.Module:
        with seeded(recipe.seed):
            return bare(own, pieces, validation, recipe)

    ways = {"bare loop": loop, "Lightning": lightning}
    wall, processor, ends = ({name: [] for name in ways} for _ in range(3))
    for repeat in range(options.repeats + 1):
        for name, way in ways.items():
            own = deepcopy(network)
            begin = time.perf_counter(), time.process_time()
            end = way(own)
            if repeat:  # the first time warms up
                wall[name].append(time.perf_counter() - begin[0])
                processor[name].append(time.process_time() - begin[1])
            ends[name] = end
    worst = max(
        float((a - b).detach().abs().max())
        for a, b in zip(ends["bare loop"].parameters(), ends["Lightning"].parameters())
    )
    rows = [
        (
            name,
            *(f"{1e3 * median(times[name]) / options.steps:.1f}" for times in (wall, processor)),
            *(f"{100 * (median(times[name]) / median(times['bare loop']) - 1):+.1f}%" for times in (wall, processor)),
        )
        for name in ways
    ]
    begin = time.process_time()
    for step in range(options.steps):
        pieces[step]
    drawing = 100 * (time.process_time() - begin) / median(processor["bare loop"])
    pairs = [100 * (b / a - 1) for a, b in zip(processor["bare loop"], processor["Lightning"])]
    note = (
        f"{options.steps} steps and their validation, {options.repeats} times each, in turns; a step is of "
        f"{pieces.batch_size} pieces of {pieces.length} rows. Pair by pair, the processor's time differs by "
        f"{min(pairs):+.1f}% to {max(pairs):+.1f}%. Drawing the batches takes {drawing:.1f}% of it. "
        f"Largest difference of the weights in the end: {worst:.0e}."
    )
    header = ("way", "wall, ms a step", "processor, ms a step", "more, by the wall", "more, by the processor")
    record("training_loop", "Training through Lightning beside a bare loop", header, rows, note)


if __name__ == "__main__":
    main()
