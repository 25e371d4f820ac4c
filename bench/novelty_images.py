"""Strange images to a classifier: scores of novelty beside each other, before and after fine-tuning with margins.

    python bench/novelty_images.py [--seeds 5]

The digits 0 to 7 of scikit-learn (8 x 8) are learnt. Strange are 8 and 9, uniform noise, and digits with shuffled pixels. Margins are set
from energies observed, and tuned with other strange images: digits in negative, and means of two.
"""

from __future__ import annotations

import argparse
import copy
from collections import defaultdict
from collections.abc import Callable
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from record import record
from sklearn.datasets import load_digits
from torch import Tensor, nn

from conca.energy import energy_margin, margins
from conca.energy.novelty import By, energy_score, fit_temperature, novelty
from conca.metrics.classification import expected_calibration_error
from conca.metrics.novelty import auprc, auroc, fpr_at

BINS = 15
SCORES: dict[str, tuple[By, float]] = {
    "max-softmax": ("max_softmax", 1.0),
    "max-logit": ("max_logit", 1.0),
    **{f"energy, T {t:g}": ("energy", t) for t in (1.0, 2.0, 5.0, 20.0)},
}
Figures = dict[tuple[str, str], list[tuple[float, float, float]]]


def main() -> None:
    """Learn, tune and judge with each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    figures: Figures = defaultdict(list)
    facts: dict[str, list[float]] = defaultdict(list)
    for seed in range(given.seeds):
        one_seed(seed, figures, facts)
    write(figures, facts, given.seeds)


def one_seed(seed: int, figures: Figures, facts: dict[str, list[float]]) -> None:
    """Adds the figures of one split and one training."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    found = load_digits()
    x, y = torch.tensor(found.data, dtype=torch.float32) / 8 - 1, torch.tensor(found.target)
    known = (y < 8).nonzero()[:, 0]
    known = known[torch.randperm(len(known), generator=draw)]
    learn, choose, judge = known.split([800, 250, len(known) - 1050])
    net = network()
    train(net, lambda rows: F.cross_entropy(net(x[learn][rows]), y[learn][rows]), len(learn), 600, 1e-3, draw)
    tests = {"8 and 9": x[y > 7], **unlike(x[judge], draw)}
    other = outliers(x[learn], draw)
    with torch.no_grad():
        low, high = margins(energy_score(net(x[learn])), energy_score(net(other)))
    facts["m_in"].append(low)
    facts["m_out"].append(high)
    tuned = copy.deepcopy(net)

    def loss(rows: Tensor) -> Tensor:
        inside = tuned(x[learn][rows])
        outside = tuned(other[torch.randint(len(other), (len(rows),), generator=draw)])
        return F.cross_entropy(inside, y[learn][rows]) + 0.1 * energy_margin(
            energy_score(inside), energy_score(outside), low, high
        )

    train(tuned, loss, len(learn), 300, 3e-4, draw)
    for name, model in {"": net, "tuned with margins: ": tuned}.items():
        for score, (by, temperature) in SCORES.items():
            for what, strange in tests.items():
                pair = [
                    novelty(model, part, by, temperature=temperature).double().numpy() for part in (x[judge], strange)
                ]
                figures[name + score, what].append((auroc(*pair), auprc(*pair), fpr_at(*pair)))
        calibrated(model, name, (x, y), (choose, judge), facts)


def network() -> nn.Module:
    """64-256-256-8."""
    return nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 8))


def train(
    net: nn.Module, loss: Callable[[Tensor], Tensor], n: int, updates: int, lr: float, draw: torch.Generator
) -> None:
    """Adam, batches of 64."""
    optimizer = torch.optim.Adam(net.parameters(), lr)
    for _ in range(updates):
        optimizer.zero_grad()
        loss(torch.randint(n, (64,), generator=draw)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def unlike(x: Tensor, draw: torch.Generator) -> dict[str, Tensor]:
    """Noise and shuffled pixels: only judged."""
    shuffled = torch.stack([row[torch.randperm(64, generator=draw)] for row in x])
    return {"noise": 2 * torch.rand(x.shape, generator=draw) - 1, "shuffled pixels": shuffled}


def outliers(x: Tensor, draw: torch.Generator) -> Tensor:
    """Negatives and means of two: only tuned with."""
    return torch.cat([-x, (x + x[torch.randperm(len(x), generator=draw)]) / 2])


def calibrated(
    net: nn.Module,
    name: str,
    data: tuple[Tensor, Tensor],
    parts: tuple[Tensor, Tensor],
    facts: dict[str, list[float]],
) -> None:
    """Accuracy, and the calibration error before and after the temperature, which is fitted on the validation part."""
    (x, y), (choose, judge) = data, parts
    with torch.no_grad():
        logits, kept = net(x[judge]).double(), net(x[choose])
    facts[name + "accuracy"].append(float((logits.argmax(1) == y[judge]).double().mean()))
    temperature = fit_temperature(kept, y[choose])
    facts[name + "temperature"].append(temperature)
    for when, t in {"before": 1.0, "after": temperature}.items():
        probability = torch.softmax(logits / t, 1).numpy()
        facts[f"{name}calibration error {when}"].append(
            expected_calibration_error(y[judge].numpy(), probability, bins=BINS)
        )


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def write(figures: Figures, facts: dict[str, list[float]], seeds: int) -> None:
    """The page."""
    rows = [(what, score, *(spread(list(part)) for part in zip(*all_))) for (score, what), all_ in figures.items()]
    rows.sort(key=lambda row: row[0])
    notes = (
        f"Mean and standard deviation over {seeds} seeds, each with a split of its own: 800 digits to learn from, 250 to fit the "
        "temperature, the others to judge. Positive is the strange one, higher scores are stranger. What is tuned with (digits in "
        f"negative, means of two) is not judged. The calibration error has {BINS} bins. No figures of this setting are published.\n\n"
        + "\n".join(f"- {name}: {spread(values)}" for name, values in facts.items())
    )
    header = ("strange", "score", "AUROC", "AUPR", "FPR95")
    record("novelty_images", "Strange images to a classifier of digits", header, rows, notes)


if __name__ == "__main__":
    main()
