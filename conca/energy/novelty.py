"""How strange a sample is to a classifier, by its logits. One sign everywhere: higher is stranger.

energy_score        -T logsumexp(logits / T): the energy of the classifier
max_softmax_score   -max softmax(logits)
max_logit_score     -max logits
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.energy.chain import undisturbed
from conca.energy.classifier import labels_of
from conca.energy.draws import positive, whole
from conca.energy.network import value_of
from conca.types import BadInput, nearest

__all__ = ["By", "energy_score", "fit_temperature", "max_logit_score", "max_softmax_score", "novelty", "score_by"]

By = Literal["energy", "max_softmax", "max_logit"]


def energy_score(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """-T logsumexp(logits / T), (B, K) to (B,); higher is stranger. A T above 1 lets other logits than the largest count more.

    Raises BadInput for a temperature that is not positive, and logits of another shape.

    Source: Liu et al. 2020, "Energy-based Out-of-distribution Detection", whose score is the negative of this.
    """
    positive(temperature, "the temperature of a score")
    return -temperature * torch.logsumexp(_logits(logits) / temperature, 1)


def max_softmax_score(logits: Tensor) -> Tensor:
    """-max_k softmax(logits)_k, (B, K) to (B,), from -1 to -1/K; higher is stranger.

    Source: Hendrycks & Gimpel 2017, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples".
    """
    return -torch.softmax(_logits(logits), 1).amax(1)


def max_logit_score(logits: Tensor) -> Tensor:
    """-max_k logits_k, (B, K) to (B,); higher is stranger.

    Source: Hendrycks et al. 2022, "Scaling Out-of-Distribution Detection for Real-World Settings".
    """
    return -_logits(logits).amax(1)


def score_by(by: str, temperature: float = 1.0) -> Callable[[Tensor], Tensor]:
    """The score of this name, of logits (B, K). Raises BadInput for another name, and a temperature where none is used."""
    scores: dict[str, Callable[[Tensor], Tensor]] = {
        "energy": partial(energy_score, temperature=temperature),
        "max_softmax": max_softmax_score,
        "max_logit": max_logit_score,
    }
    if by not in scores:
        raise BadInput(f"unknown score {by!r}; {nearest(str(by), scores)}")
    if by != "energy" and temperature != 1.0:
        raise BadInput(f"a temperature belongs to the energy, not to {by}")
    return scores[by]


def novelty(net: nn.Module, x: Tensor, by: By = "energy", *, temperature: float = 1.0, batch_size: int = 256) -> Tensor:
    """How strange each row of x is to a classifier, (B, ...) to (B,); higher is stranger.

    >>> import torch
    >>> novelty(torch.nn.Identity(), torch.tensor([[8.0, 2.0, 1.0], [1.0, 2.0, 1.0]]))
    tensor([-8.0034, -2.5514])

    Args:
        net: any network that gives logits (B, K), alone, first in a tuple, or as `.logits`. It is asked in eval mode, without
            gradients, and left as it was.
        x: what it reads, in its precision.
        by: "energy", "max_softmax" or "max_logit".
        temperature: of the energy.
        batch_size: rows that are asked at once; the result does not depend on it.

    Raises:
        BadInput: for another score, or a network that gives no logits.
    """
    score = score_by(by, temperature)
    whole(batch_size, "batch_size")
    if not isinstance(x, Tensor) or x.dim() < 2:
        found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise BadInput(f"a classifier reads x of shape (B, ...), not {found}")
    with torch.no_grad(), undisturbed(net, x):
        net.eval()
        return torch.cat([score(value_of(net(part))) for part in torch.split(x, batch_size)])


def fit_temperature(logits: Tensor, y: Tensor) -> float:
    """The T that divides logits (B, K) so that the log loss of the labels (B,) is least; it changes no answer.

    Take logits of data that were not learnt from, in eval mode. Above 1 the classifier was too sure of itself.

    Raises:
        BadInput: for labels that do not fit, and where no temperature is best: all answers are right, or none tells anything.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks".
    """
    found = _logits(logits).detach().double()
    if not len(found) or not bool(found.isfinite().all()):
        raise BadInput("a temperature is fitted to finite logits of one row or more")
    truth = labels_of(y, found)
    low, high = -6.0, 6.0  # of log T; the loss has one valley in 1 / T, so in log T as well

    def loss(place: float) -> float:
        return float(F.cross_entropy(found / 10**place, truth))

    for _ in range(80):
        third = (high - low) / 3
        if loss(low + third) <= loss(high - third):
            high -= third
        else:
            low += third
    place = (low + high) / 2
    if not -5.9 < place < 5.9:
        raise BadInput("no temperature is best for these answers: give more of them, some of them wrong")
    return float(10**place)


def _logits(logits: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or logits.dim() != 2 or not logits.shape[1] or not logits.is_floating_point():
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise BadInput(f"logits are floating point of shape (B, K), not {found}")
    return logits
