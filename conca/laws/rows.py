"""Laws of rows: padded rows and packed rows give what their sequences give alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
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

Result = tuple[Tensor, Any]


def ragged(mixer: Mixer[Any]) -> None:
    """A right-padded row, its padding poisoned with NaN, gives what the row alone gives: outputs, state, gradients."""
    for T in LENGTHS:
        mixed = T, 0, (T + 1) // 2
        for lengths in sorted({mixed, (0, 0, 0), (min(1, T), T, T)}):
            _same_as_alone(mixer, T, lengths)
        _same_slopes(mixer, T, mixed)


def _same_as_alone(mixer: Mixer[Any], T: int, lengths: tuple[int, ...]) -> None:
    n = torch.tensor(lengths, device=drawn(mixer, T).device)
    x, options = _poisoned(mixer, T, n), times(mixer, T)

    with torch.no_grad():
        alone = [whole(mixer, _row(mixer, x, b, lengths[b], warm(mixer), options)) for b in range(BATCH)]
    for name, form in FORMS.items():
        with torch.no_grad():
            y, new = form(mixer, x, warm(mixer), lengths=n, **options)
        for b, L in enumerate(lengths):
            i = torch.tensor([b], device=x.device)
            what = f"{name}, row {b} of length {L} in {T}"
            same((y[i, :L], mixer.canonical(take(new, i))), alone[b], what)
            assert bool((y[b, L:] == 0).all()), f"{what}: the output past the length is not 0"


def _same_slopes(mixer: Mixer[Any], T: int, lengths: tuple[int, ...]) -> None:
    n = torch.tensor(lengths, device=drawn(mixer, T).device)
    x = _poisoned(mixer, T, n)

    def rows(x: Tensor, state: Any) -> list[Result]:
        return [_row(mixer, x, b, lengths[b], state, {}) for b in range(BATCH)]

    alone = _slopes(mixer, x, rows)
    for name, form in FORMS.items():

        def padded(x: Tensor, state: Any, form: Form = form) -> list[Result]:
            return [form(mixer, x, state, lengths=n)]

        same(_slopes(mixer, x, padded), alone, f"gradients, {name}, lengths {lengths} in {T}")


def _poisoned(mixer: Mixer[Any], T: int, n: Tensor) -> Tensor:
    x = drawn(mixer, T)
    x[torch.arange(T, device=x.device) >= n[:, None]] = float("nan")
    return x


def _row(mixer: Mixer[Any], x: Tensor, b: int, length: int, state: Any, options: dict[str, Tensor]) -> Result:
    """One row alone, without its padding."""
    i = torch.tensor([b], device=x.device)
    return mixer(x[i, :length], take(state, i), **{k: t[i, :length] for k, t in options.items()})


def _slopes(mixer: Mixer[Any], x: Tensor, run: Callable[[Tensor, Any], list[Result]]) -> tuple[Tensor, ...]:
    """Gradients of all that comes out, to the input, the incoming state and the parameters."""
    x, state = x.clone().requires_grad_(), fresh_leaf(warm(mixer))
    parts = [leaf for result in run(x, state) for leaf in leaves(whole(mixer, result)) if leaf.is_floating_point()]
    total = torch.stack([part.sin().sum() for part in parts]).sum()
    return gradients(total, [x, *leaf_tensors(state), *mixer.parameters()])


def packed(mixer: Mixer[Any]) -> None:
    """Several sequences in one row, with `starts`, give what they give apart."""
    with torch.no_grad():
        for T in LENGTHS:
            for lengths in ((T,) * BATCH, (T, T // 2, 0)):
                x, options = drawn(mixer, T), times(mixer, T)
                n, begins = torch.tensor(lengths, device=x.device), starts(T, x.device)
                rows = [torch.tensor([b], device=x.device) for b in range(BATCH)]
                apart = [
                    whole(mixer, _apart(mixer, x[i, :L], begins[b, :L], take(warm(mixer), i), i, options))
                    for b, (i, L) in enumerate(zip(rows, lengths))
                ]
                for name, form in FORMS.items():
                    y, new = form(mixer, x, warm(mixer), starts=begins, lengths=n, **options)
                    for b, (i, L) in enumerate(zip(rows, lengths)):
                        got = y[i, :L], mixer.canonical(take(new, i))
                        same(got, apart[b], f"{name}, row {b} of length {L} in {T}")


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
