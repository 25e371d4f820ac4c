"""What energies are trained by: functions of single samples, each of shape (B,) before it is averaged.

    contrastive_divergence   down at the data, up where the model's own chains are
    jem                      cross entropy and contrastive divergence of one classifier
    noise_contrastive        data against noise of known density; log Z is learnt
    energy_margin            known data below one height, strange data above another

Score matching, which needs no chains, is in score_matching.py.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.energy.chain import Divergence
from conca.energy.classifier import ClassifierEnergy, labels_of
from conca.energy.energy import Energy
from conca.types import BadInput

__all__ = [
    "Reduction",
    "averaged",
    "checked",
    "contrastive_divergence",
    "energy_margin",
    "jem",
    "margins",
    "noise_contrastive",
]

Reduction = Literal["mean", "none"]


def averaged(each: Tensor, reduction: Reduction) -> Tensor:
    """The mean of (B,), or all of it. Raises BadInput for another word."""
    if reduction not in ("mean", "none"):
        raise BadInput(f"reduction must be 'mean' or 'none', not {reduction!r}")
    return each.mean() if reduction == "mean" else each


def checked(energy: Tensor, limit: float = math.inf, slope: Tensor | None = None) -> Tensor:
    """Energies (B,), as they are. Raises Divergence where one is not finite, or higher or lower than the limit."""
    seen = energy.detach()
    wrong = ~(seen.isfinite() & (seen.abs() <= limit))
    if bool(wrong.any()):
        steep = float("nan") if slope is None else float(slope.detach().abs().max())
        raise Divergence(0, float(seen.abs().max()), steep, int(wrong.sum()), len(seen), training=True)
    return energy


def contrastive_divergence(
    energy: Energy,
    x: Tensor,
    x_model: Tensor,
    *,
    l2: float = 0.0,
    limit: float = math.inf,
    reduction: Reduction = "mean",
) -> Tensor:
    """E(x) - E(x_model) + l2 (E(x)^2 + E(x_model)^2), whose gradient is that of the likelihood where chains have arrived.

    Where `x_model` comes from decides what it is: chains begun at the data (contrastive divergence), at the places where
    those of the last update ended (persistent, `ReplayBuffer`), or at noise (short-run). No gradient goes through chains.
    Its value is no likelihood: near 0, with energies near 0, all is well.

    Args:
        energy: also a composite, or one under conditions.
        x: data, (B, ...).
        x_model: where the chains are, (B, ...); as many as data.
        l2: weight of the squares, which hold energies near 0 so that training does not run away.
        limit: |E| beyond it raises Divergence.
        reduction: "mean", or "none" for (B,).

    Raises:
        Divergence: where an energy is not finite, or beyond the limit.
        BadInput: where there are not as many of both.

    Source: Hinton 2002, "Training Products of Experts by Minimizing Contrastive Divergence"; Du & Mordatch 2019 for the
    squares.
    """
    if len(x) != len(x_model):
        raise BadInput(f"as many places of the model as data are compared, not {len(x_model)} and {len(x)}")
    low, high = (checked(energy(place.detach()), limit) for place in (x, x_model))
    each = low - high + (l2 * (low.square() + high.square()) if l2 else 0.0)
    return averaged(each, reduction)


def jem(
    energy: ClassifierEnergy,
    x: Tensor,
    y: Tensor,
    x_model: Tensor,
    *,
    weight: float = 1.0,
    l2: float = 0.0,
    limit: float = math.inf,
    x_clean: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """-log p(y | x) + weight (E(x) - E(x_model)) + l2 squares: a classifier that is a density as well.

    Args:
        energy: the classifier.
        x, y: data (B, ...) and labels (B,).
        x_model: where chains of the energy are, (B, ...).
        weight, l2, limit, reduction: as in `contrastive_divergence`.
        x_clean: what the cross entropy reads, where x has noise added for the density alone.

    Raises:
        Divergence, BadInput: as `contrastive_divergence` does; BadInput for labels that cannot be.

    Source: Grathwohl et al. 2020, "Your Classifier is Secretly an Energy Based Model and You Should Treat It Like One".
    """
    logits = energy.logits(x if x_clean is None else x_clean)
    each = checked(F.cross_entropy(logits, labels_of(y, logits), reduction="none"))
    if weight:
        each = each + weight * contrastive_divergence(energy, x, x_model, l2=l2, limit=limit, reduction="none")
    return averaged(each, reduction)


def noise_contrastive(
    energy: Energy,
    x: Tensor,
    x_noise: Tensor,
    noise: Energy,
    log_z: Tensor | float,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Logistic loss of telling data from noise by G(x) = -E(x) - log_z + E_noise(x), both as frequent.

    The best energy is that of the data, and the best `log_z` its log Z, so the density is learnt with its normaliser and
    without chains; it needs noise that resembles the data.

    Args:
        energy: what is trained.
        x, x_noise: data and draws of the noise, (B, ...) each.
        noise: the energy of the noise, normalised: exp(-E) its density (`Gaussian`, `GaussianMixture`).
        log_z: a parameter, trained beside the energy; or a number.
        reduction: "mean", or "none" for (B,).

    Raises:
        Divergence: where an energy is not finite.
        BadInput: where there are not as many of both.

    Source: Gutmann & Hyvarinen 2010, "Noise-contrastive estimation".
    """
    if len(x) != len(x_noise):
        raise BadInput(f"as many draws of the noise as data are compared, not {len(x_noise)} and {len(x)}")
    both = torch.cat([x.detach(), x_noise.detach()])
    with torch.no_grad():
        by_noise = noise(both)
    told = by_noise - checked(energy(both)) - log_z
    return averaged(F.softplus(-told[: len(x)]) + F.softplus(told[len(x) :]), reduction)


def energy_margin(
    inside: Tensor, outside: Tensor, m_in: float, m_out: float, *, reduction: Reduction = "mean"
) -> Tensor:
    """relu(E_in - m_in)^2 + relu(m_out - E_out)^2: known data below m_in, strange data above m_out.

    It is added, times 0.1, to the cross entropy when a classifier is fine-tuned. `margins` sets both heights.

    Args:
        inside, outside: energies of known and of strange data, (B,) and (C,).
        m_in, m_out: m_in is the lower one.
        reduction: "mean": the sum of both means; "none": (B + C,).

    Raises:
        BadInput: where m_in is not below m_out, as where the two are taken for each other.
        Divergence: where an energy is not finite.

    Source: Liu et al. 2020, "Energy-based Out-of-distribution Detection", eq. 8, in whose text the two names are swapped.
    """
    if not m_in < m_out:
        raise BadInput(f"m_in, the height below which known data belong, must be below m_out, not {m_in} and {m_out}")
    low, high = F.relu(checked(inside) - m_in).square(), F.relu(m_out - checked(outside)).square()
    return (
        averaged(low, "mean") + averaged(high, "mean")
        if reduction == "mean"
        else averaged(torch.cat([low, high]), reduction)
    )


def margins(inside: Tensor, outside: Tensor) -> tuple[float, float]:
    """(m_in, m_out) for `energy_margin`, from energies observed before fine-tuning: the means of known and strange data.

    Where they are not apart (the mean of the strange ones is lower), both are moved to the outer quarters of all energies.

    Raises:
        BadInput: where there are none, one is not finite, or all are alike.

    Source: the advice of the authors of Liu et al. 2020, to choose them around the means.
    """
    for what, values in (("inside", inside), ("outside", outside)):
        if values.numel() == 0 or not bool(values.isfinite().all()):
            raise BadInput(
                f"margins are set from energies that were observed, one or more and finite; {what} has none such"
            )
    m_in, m_out = float(inside.mean()), float(outside.mean())
    if not m_in < m_out:
        both = torch.cat([inside.flatten(), outside.flatten()]).double()
        m_in, m_out = (float(both.quantile(q)) for q in (0.25, 0.75))
    if not m_in < m_out:
        raise BadInput("all energies observed are alike, so there is nothing between which margins could lie")
    return m_in, m_out
