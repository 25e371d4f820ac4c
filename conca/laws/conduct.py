"""Laws of conduct: what a mixer does not do, and what it keeps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conca.laws.compare import identical, same, whole
from conca.laws.inputs import BATCH, FORMS, LENGTHS, drawn, warm
from conca.laws.outcome import DoesNotApply
from conca.layers import states
from conca.layers.mixer import Mixer
from conca.layers.states import leaves, take, tree_map

__all__ = ["bounded", "causal", "honest", "kept", "pure", "rows_independent"]

NORMS = (nn.RMSNorm, nn.LayerNorm, nn.GroupNorm)


def _copy(state: Any) -> Any:
    return tree_map(Tensor.clone, state)


def pure(mixer: Mixer[Any]) -> None:
    """Arguments stay as they were, continuations of one state do not disturb each other, results alias nothing."""
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            for name, form in FORMS.items():
                for T in LENGTHS:
                    x = drawn(mixer, T)
                    state = warm(mixer)
                    if T:
                        state = mixer.step(x[:, 0], state)[1]
                    x_before, state_before = x.clone(), _copy(mixer.canonical(state))
                    apart = _copy(whole(mixer, form(mixer, -x, _copy(state))))
                    first = form(mixer, x, state)
                    seen = _copy(whole(mixer, first))
                    second = form(mixer, -x, state)
                    what = f"{name}, {T} tokens"
                    identical(whole(mixer, first), seen, f"{what}: a second continuation changed the first")
                    same(whole(mixer, second), apart, f"{what}: a first continuation changed the second")
                    identical(x, x_before, f"{what}: the input was written to")
                    identical(mixer.canonical(state), state_before, f"{what}: the incoming state was written to")
                    same(whole(mixer, form(mixer, x, state)), seen, f"{what}: run again")
                    _unaliased(x, first, what)


def _unaliased(x: Tensor, result: tuple[Tensor, Any], what: str) -> None:
    y, state = result
    places = {t.untyped_storage().data_ptr() for t in leaves(state) if t.numel()}
    if x.numel():
        given = x.untyped_storage().data_ptr()
        assert y.untyped_storage().data_ptr() != given, f"{what}: the output is a view of the input"
        assert given not in places, f"{what}: the state is a view of the input"
        assert y.untyped_storage().data_ptr() not in places, f"{what}: the output is a view of the state"


def causal(mixer: Mixer[Any]) -> None:
    """Changing an input changes no earlier output, not even by rounding where the body is not a convolution."""
    compare = same if mixer.convolves else identical
    for T in LENGTHS:
        y = mixer(drawn(mixer, T), warm(mixer))[0]
        for t in range(T):
            x = drawn(mixer, T)
            x[:, t:] += 1
            compare(mixer(x, warm(mixer))[0][:, :t], y[:, :t], f"input {t} of {T} changed")


def rows_independent(mixer: Mixer[Any]) -> None:
    """A row gives what it gives alone."""
    for form in FORMS.values():
        for T in LENGTHS:
            x, state = drawn(mixer, T), warm(mixer)
            y, new = form(mixer, x, state)
            for b in range(BATCH):
                i = torch.tensor([b], device=x.device)
                alone = form(mixer, x[i], take(state, i))
                same((y[i], mixer.canonical(take(new, i))), whole(mixer, alone), f"row {b} alone, {T} tokens")


def bounded(mixer: Mixer[Any]) -> None:
    """The state does not grow, where the mixer says so."""
    if not mixer.bounded:
        raise DoesNotApply("its memory grows with the text, and it says so")
    size = [leaf.shape for leaf in leaves(mixer.init_state(BATCH))]
    for name, form in FORMS.items():
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients):
                for T in LENGTHS:
                    found = [leaf.shape for leaf in leaves(form(mixer, drawn(mixer, T), warm(mixer))[1])]
                    assert found == size, f"{name}, {T} tokens: the state grew from {size} to {found}"


def kept(mixer: Mixer[Any]) -> None:
    """A state saved to disk and loaded has the same bits, and goes on."""
    if not list(leaves(mixer.init_state(BATCH))):
        raise DoesNotApply("it has no state")
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        for T in LENGTHS:
            state = mixer(drawn(mixer, T), warm(mixer))[1]
            if T:
                state = mixer.step(drawn(mixer, T)[:, 0], state)[1]
            states.save(state, path)
            back = states.load(path, mixer.init_state(BATCH))
            identical(back, state, f"loaded after {T} tokens")
            same(whole(mixer, mixer(drawn(mixer, 7), back)), whole(mixer, mixer(drawn(mixer, 7), state)), "going on")


class _Wrapped(nn.Module):
    """Stands where a linear map or a norm stood, and has no weight to be read."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Tensor) -> Tensor:
        y: Tensor = self.inner(*inputs)
        return 1.25 * y + 0.1


def _matters(mixer: Mixer[Any], part: nn.Module, before: Tensor) -> bool:
    """Whether the output depends on the parameters of a part (those of queries that have one key to look at do not count)."""
    with torch.no_grad():
        kept = [p.clone() for p in part.parameters()]
        try:
            for p in part.parameters():
                p.mul_(1.25).add_(0.1)
            return not torch.allclose(mixer(drawn(mixer, 7), warm(mixer))[0], before)
        finally:
            for p, value in zip(part.parameters(), kept):
                p.copy_(value)


def honest(mixer: Mixer[Any]) -> None:
    """Linear maps and norms are used by calling them: hooks and wrappers take effect, in every form."""
    found = [(name, part) for name, part in mixer.named_modules() if isinstance(part, (nn.Linear, *NORMS))]
    if not found:
        raise DoesNotApply("it has no linear map and no norm")
    x, state = drawn(mixer, 7), warm(mixer)
    before = mixer(x, state)[0]

    def outputs() -> list[Any]:
        results = [whole(mixer, form(mixer, x, state)) for form in FORMS.values()]
        with torch.no_grad():
            return results + [whole(mixer, form(mixer, x, state)) for form in FORMS.values()]

    for name, part in found:
        parent, _, own = name.rpartition(".")
        holder = mixer.get_submodule(parent)
        handle = part.register_forward_hook(lambda _, __, y: 1.25 * y + 0.1)
        hooked = outputs()
        handle.remove()
        setattr(holder, own, _Wrapped(part))
        try:
            wrapped = outputs()
        finally:
            setattr(holder, own, part)
        if torch.allclose(hooked[0][0], before):
            assert not _matters(mixer, part, before), f"a hook on {name} has no effect, its parameters have"
            continue
        for other in hooked[1:] + wrapped:
            same(other, hooked[0], f"hook or wrapper on {name}")
