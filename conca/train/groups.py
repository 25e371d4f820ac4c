"""Parameters in groups, by how they want to be trained."""

from __future__ import annotations

from typing import Any

from torch import nn

from conca.layers.mixer import Mixer, Role
from conca.models.structural import Structural

__all__ = ["param_groups"]

UNDECAYED = (nn.RMSNorm, nn.LayerNorm, nn.GroupNorm, nn.Embedding)


def param_groups(module: nn.Module, *, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Groups for a PyTorch optimiser in which every parameter that needs a gradient stands once.

    Weight decay spares norms, embeddings, vectors (biases), and whatever the `roles` of a mixer say; parameters whose role
    has a rate of its own get that multiple of `lr`.

    >>> from conca.layers.s4d import S4D
    >>> [(g["lr"], g["weight_decay"]) for g in param_groups(S4D(8), lr=1e-2, weight_decay=0.1)]
    [(0.001, 0.0), (0.01, 0.0), (0.01, 0.1)]
    """
    roles: dict[int, Role] = {}
    for part in module.modules():
        if isinstance(part, Mixer | Structural):
            named = dict(part.named_parameters())
            roles |= {id(named[name]): role for name, role in part.roles().items() if name in named}
    spared = {id(p) for part in module.modules() if isinstance(part, UNDECAYED) for p in part.parameters(recurse=False)}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if not parameter.requires_grad:
            continue
        role = roles.get(id(parameter), Role(decay=parameter.dim() > 1 and id(parameter) not in spared))
        rate = lr if role.rate is None else lr * role.rate
        groups.setdefault((rate, weight_decay if role.decay else 0.0), []).append(parameter)
    return [
        {"params": found, "lr": rate, "weight_decay": decay}
        for (rate, decay), found in sorted(groups.items(), key=lambda g: g[0])
    ]
