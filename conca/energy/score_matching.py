"""Score matching: energies and slopes are trained by the slope of the data, without chains and without log Z."""

from __future__ import annotations

import torch
from torch import Tensor

from conca.energy.draws import whole
from conca.energy.energy import Energy, Score, squares
from conca.energy.losses import Reduction, averaged, checked
from conca.types import BadInput

__all__ = ["denoising_score_matching", "sliced_score_matching"]


def denoising_score_matching(
    energy: Score, x: Tensor, sigma: float | Tensor, *, generator: torch.Generator, reduction: Reduction = "mean"
) -> Tensor:
    """|sigma score(x + sigma z) + z|^2 / 2: least where the score is that of the data with noise of deviation sigma.

    Args:
        energy: an `Energy` (trained through its slope, by second derivatives) or a `Score`; where it has a level t that is
            not bound, it is asked at t = sigma.
        x: data, (B, ...).
        sigma: positive, a number or one per row, (B,).
        generator: of the noise.
        reduction: "mean", or "none" for (B,).

    Raises:
        BadInput: for a sigma that is not positive.
        Divergence: where a slope is not finite.

    Source: Vincent 2011, "A Connection Between Score Matching and Denoising Autoencoders"; Song & Ermon 2019 for the weight
    sigma^2.
    """
    level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
    if level.shape not in ((), (len(x),)) or not bool(((level > 0) & level.isfinite()).all()):
        raise BadInput(f"sigma must be positive and finite, a number or one per row, not {sigma}")
    spread = level.expand(len(x)).reshape(-1, *[1] * (x.dim() - 1))
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    asked = energy.at(level) if "t" in energy.conditions() else energy
    return averaged(checked(squares(spread * asked.score(x.detach() + spread * noise) + noise) / 2), reduction)


def sliced_score_matching(
    energy: Energy, x: Tensor, *, slices: int = 1, generator: torch.Generator, reduction: Reduction = "mean"
) -> Tensor:
    """|score|^2 / 2 + v' (d score / dx) v in expectation over signs v: least where the score is that of the data itself.

    In the variance-reduced form: the first part needs no slices. Twice differentiated, so activations must be smooth.

    Args:
        energy: what is trained.
        x: data, (B, ...).
        slices: how many v per row.
        generator: of the signs.
        reduction: "mean", or "none" for (B,).

    Raises:
        Divergence: where a slope is not finite.

    Source: Hyvarinen 2005, "Estimation of Non-Normalized Statistical Models by Score Matching"; Song et al. 2019, "Sliced
    Score Matching".
    """
    whole(slices, "the number of slices")
    z = x.detach().clone().requires_grad_()
    score = energy.score(z)
    trace = z.new_zeros(len(z))
    for _ in range(slices):
        v = 2.0 * torch.randint(2, z.shape, generator=generator, device=z.device).to(z) - 1
        (along,) = torch.autograd.grad((score * v).sum(), z, create_graph=True)
        trace = trace + (along * v).unsqueeze(-1).flatten(1).sum(1) / slices
    return averaged(checked(squares(score) / 2 + trace), reduction)
