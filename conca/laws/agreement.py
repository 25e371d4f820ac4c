"""Laws of agreement: every form, every cut, every body is one function, and so are its first and second derivatives."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from conca.laws.compare import TOLERANCES, same, whole
from conca.laws.inputs import (
    FORMS,
    LENGTHS,
    LONG,
    Form,
    drawn,
    fresh_leaf,
    gradients,
    leaf_tensors,
    starts,
    times,
    warm,
)
from conca.laws.outcome import DoesNotApply
from conca.layers.mixer import Mixer
from conca.layers.states import leaves
from conca.ops.bodies import plain_bodies, watched

__all__ = [
    "bodies_agree",
    "forms_agree",
    "forms_agree_bfloat16",
    "forms_agree_float32",
    "gradients_agree",
    "split",
    "twice",
]


def forms_agree(mixer: Mixer[Any]) -> None:
    """Forward = recurrent = chunked, outputs and final state, warm and fresh, with and without gradients and `elapsed`."""
    for T in LENGTHS:
        for options in [{}, times(mixer, T)] if mixer.timed else [{}]:
            for state in (None, warm(mixer)):
                expected = whole(mixer, mixer.recurrent(drawn(mixer, T), state, **options))
                for name, form in FORMS.items():
                    what = f"{name}, {T} tokens, {'fresh' if state is None else 'warm'}{' with elapsed' if options else ''}"
                    if name != "recurrent":
                        same(whole(mixer, form(mixer, drawn(mixer, T), state, **options)), expected, what)
                    with torch.no_grad():
                        result = form(mixer, drawn(mixer, T), state, **options)
                    same(whole(mixer, result), expected, f"{what}, without gradients")
    with torch.no_grad():
        state, x = warm(mixer), drawn(mixer, LONG)
        expected = whole(mixer, mixer.recurrent(x, state))
        same(whole(mixer, mixer(x, state)), expected, f"forward, {LONG} tokens")


def forms_agree_float32(mixer: Mixer[Any]) -> None:
    """The forms agree in float32."""
    _forms_agree_in(mixer, torch.float32)


def forms_agree_bfloat16(mixer: Mixer[Any]) -> None:
    """The forms agree in bfloat16, where PyTorch supports it; recurrences stay wider by themselves."""
    try:
        _forms_agree_in(mixer, torch.bfloat16)
    except (NotImplementedError, RuntimeError) as error:
        if "not implemented for" not in str(error):
            raise
        raise DoesNotApply("PyTorch has no bfloat16 body here") from error


def _forms_agree_in(mixer: Mixer[Any], dtype: torch.dtype) -> None:
    narrow = copy.deepcopy(mixer).to(dtype)
    with torch.no_grad():
        for T in (1, 17):
            x, state = drawn(narrow, T, dtype=dtype), warm(narrow, dtype)
            expected = whole(narrow, narrow.recurrent(x, state))
            for name, form in FORMS.items():
                same(whole(narrow, form(narrow, x, state)), expected, f"{name}, {T} tokens, {dtype}", TOLERANCES[dtype])


def split(mixer: Mixer[Any]) -> None:
    """For every cut, running the two parts in turn equals running the whole."""
    for T in LENGTHS:
        x, options = drawn(mixer, T), times(mixer, T)
        expected = whole(mixer, mixer(x, warm(mixer), **options))
        for cut in range(T + 1):
            first, state = mixer(x[:, :cut], warm(mixer), **{k: t[:, :cut] for k, t in options.items()})
            second, state = mixer(x[:, cut:], state, **{k: t[:, cut:] for k, t in options.items()})
            same(whole(mixer, (torch.cat([first, second], 1), state)), expected, f"cut {cut} of {T}")


def loss(mixer: Mixer[Any], result: tuple[Tensor, Any]) -> Tensor:
    """A number that depends on the output and on the final state, each entry with a weight of its own."""
    total = result[0].new_zeros(())
    for place, leaf in enumerate(leaves(whole(mixer, result))):
        if leaf.is_floating_point():
            generator = torch.Generator().manual_seed(place)
            weight = torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf)
            total = total + (leaf.sin() * weight).sum()
    return total


def _grads(mixer: Mixer[Any], form: Form, T: int, options: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """To the input, the times, the parameters and the incoming state."""
    x, state = drawn(mixer, T).requires_grad_(), fresh_leaf(warm(mixer))
    options = {k: t.clone().requires_grad_() if t.is_floating_point() else t for k, t in options.items()}
    total = loss(mixer, form(mixer, x, state, **options))
    real = [t for t in options.values() if t.is_floating_point()]
    wanted = [x, *real, *mixer.parameters(), *leaf_tensors(state)]
    return gradients(total, wanted)


def gradients_agree(mixer: Mixer[Any]) -> None:
    """Gradients to inputs, parameters and incoming state agree, with a loss on the final state too."""
    for T in LENGTHS:
        device = drawn(mixer, T).device
        cases: list[dict[str, Tensor]] = [
            {},
            {"lengths": torch.tensor([T, 0, (T + 1) // 2], device=device)},
            {"starts": starts(T, device)},
        ]
        if mixer.timed:
            cases.append(times(mixer, T))
        for options in cases:
            expected = _grads(mixer, FORMS["recurrent"], T, options)
            for name in ("forward", "chunked"):
                what = f"gradients of {name}, {T} tokens{', with ' + ', '.join(options) if options else ''}"
                same(_grads(mixer, FORMS[name], T, options), expected, what)
    _slopes_are_differences(mixer)


def _slopes_are_differences(mixer: Mixer[Any], T: int = 7, step: float = 1e-6) -> None:
    """The gradient to each parameter, along one direction, against central differences."""
    for name, parameter in mixer.named_parameters():
        if not parameter.requires_grad or not parameter.is_floating_point():
            continue
        generator = torch.Generator().manual_seed(11)
        way = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
        (slope,) = gradients(loss(mixer, mixer(drawn(mixer, T), warm(mixer))), [parameter])
        state, ends = warm(mixer), []
        with torch.no_grad():
            kept = parameter.clone()
            try:
                for sign in (1, -1):
                    parameter.copy_(kept + sign * step * way)
                    ends.append(loss(mixer, mixer(drawn(mixer, T), state)))
            finally:
                parameter.copy_(kept)
        near = (ends[0] - ends[1]) / (2 * step)
        same((slope * way).sum(), near, f"the gradient to {name} against finite differences", 1e-5)


def _second(mixer: Mixer[Any], form: Form, T: int) -> tuple[Tensor, ...]:
    x, state = drawn(mixer, T).requires_grad_(), fresh_leaf(warm(mixer))
    inputs = [x, *leaf_tensors(state)]
    wanted = [*inputs, *mixer.parameters()]
    first = loss(mixer, form(mixer, x, state))
    if not first.requires_grad:
        return gradients(first, wanted)
    slopes = torch.autograd.grad(first, inputs, create_graph=True, allow_unused=True, materialize_grads=True)
    total = torch.stack([slope.square().sum() for slope in slopes]).sum()
    return gradients(total, wanted)


def bodies_agree(mixer: Mixer[Any]) -> None:
    """Kernel and plain PyTorch agree, forward, backward, twice differentiated; also beyond one chunk of the kernels."""
    with watched() as kernels:
        mixer(drawn(mixer, 3), warm(mixer))
    if not kernels:
        raise DoesNotApply("no operation of it has a kernel here")
    for T in (*LENGTHS, 67):
        fast = whole(mixer, mixer(drawn(mixer, T), warm(mixer))), _grads(mixer, FORMS["forward"], T, {})
        with plain_bodies():
            plain = whole(mixer, mixer(drawn(mixer, T), warm(mixer))), _grads(mixer, FORMS["forward"], T, {})
        same(fast, plain, f"kernel against plain body, {T} tokens")
        if T < 8:
            bent = _second(mixer, FORMS["forward"], T)
            with plain_bodies():
                same(
                    bent,
                    _second(mixer, FORMS["forward"], T),
                    f"second derivatives of kernel and plain body, {T} tokens",
                )


def twice(mixer: Mixer[Any]) -> None:
    """Input gradients are themselves differentiable, the same in every form, and right by finite differences."""
    for T in LENGTHS[:-1]:
        expected = _second(mixer, FORMS["recurrent"], T)
        for name in ("forward", "chunked"):
            same(_second(mixer, FORMS[name], T), expected, f"second derivatives of {name}, {T} tokens")
    state, x, direction = warm(mixer), drawn(mixer, 3).requires_grad_(), drawn(mixer, 3, seed=7)

    def slope(z: Tensor) -> Tensor:
        total = mixer(z, state)[0].sin().sum()
        return torch.autograd.grad(total, z, create_graph=True)[0]

    (got,) = torch.autograd.grad((slope(x) * direction).sum(), x, allow_unused=True, materialize_grads=True)
    step = 1e-5
    near = (slope(x + step * direction) - slope(x - step * direction)) / (2 * step)
    same(got, near.detach(), "second derivatives against finite differences", 1e-6)
