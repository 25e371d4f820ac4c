"""Laws 8 and 9: padded rows and packed rows give what their sequences give alone."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from conca.laws.compare import same, whole
from conca.laws.inputs import (
    BATCH,
    FORMS,
    LENGTHS,
    Form,
    drawn,
    fresh_leaf,
    gradients,
    leaf_tensors,
    starts,
    times,
    warm,
)
from conca.layers.mixer import Mixer
from conca.layers.states import leaves, take

__all__ = ["packed", "ragged"]


def ragged(mixer: Mixer[Any]) -> None:
    """Law 8: a right-padded row, its padding poisoned with NaN, gives what the row alone gives: outputs, state, gradients."""
    for T in LENGTHS:
        for lengths in sorted({(T, 0, (T + 1) // 2), (0, 0, 0), (min(1, T), T, T)}):
            n = torch.tensor(lengths, device=drawn(mixer, T).device)
            x, options = _poisoned(mixer, T, n), times(mixer, T)
            for name, form in FORMS.items():
                with torch.no_grad():
                    y, new = form(mixer, x, warm(mixer), lengths=n, **options)
                    for b in range(BATCH):
                        i, L = torch.tensor([b], device=x.device), lengths[b]
                        alone = mixer(x[i, :L], take(warm(mixer), i), **{k: t[i, :L] for k, t in options.items()})
                        what = f"{name}, row {b} of length {L} in {T}"
                        same((y[i, :L], mixer.canonical(take(new, i))), whole(mixer, alone), what)
                        assert bool((y[b, L:] == 0).all()), f"{what}: the output past the length is not 0"
                _same_gradients(mixer, form, x, n, f"{name}, lengths {lengths} in {T}")


def _poisoned(mixer: Mixer[Any], T: int, n: Tensor) -> Tensor:
    x = drawn(mixer, T)
    x[torch.arange(T, device=x.device) >= n[:, None]] = float("nan")
    return x


def _total(mixer: Mixer[Any], result: tuple[Tensor, Any]) -> Tensor:
    parts = [leaf.sin().sum() for leaf in leaves(whole(mixer, result)) if leaf.is_floating_point()]
    return torch.stack(parts).sum()


def _same_gradients(mixer: Mixer[Any], form: Form, x: Tensor, n: Tensor, what: str) -> None:
    """The gradients of the padded batch are those of its rows run alone."""
    x, state = x.clone().requires_grad_(), fresh_leaf(warm(mixer))
    wanted = [x, *leaf_tensors(state), *mixer.parameters()]
    padded = _total(mixer, form(mixer, x, state, lengths=n))
    rows = []
    for b in range(BATCH):
        i = torch.tensor([b], device=x.device)
        rows.append(_total(mixer, mixer(x[i, : int(n[b])], take(state, i))))
    alone = torch.stack(rows).sum()
    same(gradients(padded, wanted), gradients(alone, wanted), f"gradients, {what}")


def packed(mixer: Mixer[Any]) -> None:
    """Law 9: several sequences in one row, with `starts`, give what they give apart."""
    for T in LENGTHS:
        for lengths in ((T,) * BATCH, (T, T // 2, 0)):
            x, options = drawn(mixer, T), times(mixer, T)
            n, begins = torch.tensor(lengths, device=x.device), starts(T, x.device)
            for name, form in FORMS.items():
                with torch.no_grad():
                    y, new = form(mixer, x, warm(mixer), starts=begins, lengths=n, **options)
                    for b in range(BATCH):
                        i, L = torch.tensor([b], device=x.device), lengths[b]
                        apart = _apart(mixer, x[i, :L], begins[b, :L], take(warm(mixer), i), i, options)
                        got = y[i, :L], mixer.canonical(take(new, i))
                        same(got, whole(mixer, apart), f"{name}, row {b} of length {L} in {T}")


def _apart(
    mixer: Mixer[Any], x: Tensor, begins: Tensor, state: Any, i: Tensor, options: dict[str, Tensor]
) -> tuple[Tensor, Any]:
    """One packed row, its sequences run one after the other, each from nothing but the first."""
    L = x.shape[1]
    cuts = [0, *begins.nonzero()[:, 0].tolist(), L]
    outputs = []
    for j, (begin, end) in enumerate(itertools.pairwise(cuts)):
        timing = {k: t[i, begin:end].clone() for k, t in options.items()}
        if j:
            state = mixer.init_state(1)
            for t in timing.values():
                t[:, :1] = 1
        y, state = mixer(x[:, begin:end], state, **timing)
        outputs.append(y)
    return torch.cat(outputs, 1), state
