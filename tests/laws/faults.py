"""Seeded faults: mixers that break one law each, most of them after faults that users of other libraries have reported."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from conca.layers.attention import Attention
from conca.layers.mixer import Mixer, Role
from conca.layers.s4d import S4D
from conca.ops.bodies import plain_bodies


class LeakyState(NamedTuple):
    h: torch.Tensor


class Leaky(Mixer[LeakyState]):
    """A sound toy: h_t = a h_{t-1} + tanh(W x_t), y_t = sin h_t."""

    def __init__(self, d_model: int = 4) -> None:
        super().__init__()
        self.d_model = d_model
        self.into = nn.Linear(d_model, d_model)
        self.decay = nn.Parameter(torch.linspace(0.3, 0.9, d_model))

    @classmethod
    def samples(cls):
        return (cls(),)

    def roles(self):
        return {"decay": Role(float32=True)}

    def init_state(self, batch):
        return LeakyState(self.zeros(batch, self.d_model))

    def cell(self, x, h):
        h = self.decay * h + self.into(x).tanh()
        return h.sin().to(x.dtype), h

    def step(self, x, state, *, elapsed=None):
        y, h = self.cell(x, state.h)
        return y, LeakyState(h)

    def loop(self, x, h):
        out = []
        for t in range(x.shape[1]):
            y, h = self.cell(x[:, t], h)
            out.append(y)
        return torch.stack(out, 1), LeakyState(h)

    def parallel(self, x, state, *, lengths, starts, elapsed):
        return self.loop(x, state.h)


class ColdState(Leaky):
    """The parallel form ignores the incoming state."""

    def parallel(self, x, state, **_: Any):
        return self.loop(x, torch.zeros_like(state.h))


class StepOmitsActivation(Leaky):
    def step(self, x, state, *, elapsed=None):
        h = self.decay * state.h + self.into(x)
        return h.sin(), LeakyState(h)


class FinalStateEarly(Leaky):
    """The final state is the one before the last token."""

    def parallel(self, x, state, **_: Any):
        y, new = self.loop(x, state.h)
        return y, (self.loop(x[:, :-1], state.h)[1] if x.shape[1] > 1 else new)


class ElapsedIgnoredInStep(S4D):
    def step(self, x, state, *, elapsed=None):
        return super().step(x, state)


class NarrowStateIn32(Leaky):
    """In float32 the step keeps its state in bfloat16."""

    def step(self, x, state, *, elapsed=None):
        y, h = self.cell(x, state.h)
        return y, LeakyState(h.bfloat16().float() if h.dtype == torch.float32 and x.dtype == torch.float32 else h)


class NarrowStateIn16(Leaky):
    """In bfloat16 the step keeps its state in eight bits."""

    def step(self, x, state, *, elapsed=None):
        y, h = self.cell(x, state.h)
        return y, LeakyState(h.to(torch.float8_e5m2).to(h.dtype) if x.dtype == torch.bfloat16 else h)


class RestartsLongTexts(Leaky):
    """More than two tokens on a warm state are taken for a new text."""

    def parallel(self, x, state, **_: Any):
        return self.loop(x, torch.zeros_like(state.h) if x.shape[1] > 2 else state.h)


class DetachedState(Leaky):
    """The step detaches its state: only gradients suffer."""

    def parallel(self, x, state, **_: Any):
        return self.loop(x, state.h.detach())


class FinalGradientDropped(Leaky):
    def parallel(self, x, state, **_: Any):
        y, new = self.loop(x, state.h)
        return y, LeakyState(new.h.detach())


class ParameterDetached(Leaky):
    """A parameter that is used and never learns, in every form alike."""

    def cell(self, x, h):
        h = self.decay.detach() * h + self.into(x).tanh()
        return h.sin().to(x.dtype), h


class ElapsedDetached(S4D):
    """No gradient reaches the times, in the parallel form."""

    def parallel(self, x, state, *, lengths, starts, elapsed):
        gone = None if elapsed is None else elapsed.detach()
        return super().parallel(x, state, lengths=lengths, starts=starts, elapsed=gone)


class WrongWhenLong(Leaky):
    """Right for one chunk of 64."""

    def parallel(self, x, state, **_: Any):
        y, new = self.loop(x, state.h)
        return torch.cat([y[:, :64], 1.01 * y[:, 64:]], 1), new


class TipIgnored(Attention):
    """Writes into the shared buffer without asking who stands at its tip."""

    @classmethod
    def samples(cls):
        return (cls(4, n_heads=1),)

    def step(self, x, state, *, elapsed=None):
        if not torch.is_grad_enabled():
            state = state._replace(tip_B=state.fill_B.clone())
        return super().step(x, state)


class StateInPlace(Leaky):
    def step(self, x, state, *, elapsed=None):
        y, h = self.cell(x, state.h)
        if not torch.is_grad_enabled():
            state.h.copy_(h)
            return y, state
        return y, LeakyState(h)


class HiddenCounter(Leaky):
    """A position kept on the module, outside the state."""

    count = 0

    def cell(self, x, h):
        self.count += 1
        return super().cell(x * (1 + 0.01 * self.count), h)


class StateIsView(Mixer[LeakyState]):
    """Remembers the last input as a view of it."""

    def __init__(self, d_model: int = 3) -> None:
        super().__init__()
        self.d_model = d_model

    @classmethod
    def samples(cls):
        return (cls(),)

    def init_state(self, batch):
        return LeakyState(self.zeros(batch, self.d_model))

    def step(self, x, state, *, elapsed=None):
        return x + state.h, LeakyState(x)

    def parallel(self, x, state, **_: Any):
        return x + torch.cat([state.h[:, None], x[:, :-1]], 1), LeakyState(x[:, -1])


class OutputIsState(Leaky):
    """An output edited by its reader edits the memory."""

    def cell(self, x, h):
        h = self.decay * h + self.into(x).tanh()
        return h, h

    def parallel(self, x, state, **_: Any):
        y, _ = self.loop(x, state.h)
        return y, LeakyState(y[:, -1])


class Peek(Leaky):
    """Centred over time."""

    def parallel(self, x, state, **_: Any):
        return self.loop(x - 0.1 * x.mean(1, keepdim=True), state.h)


class PeekByRounding(Leaky):
    """A later input moves the rounding of earlier outputs."""

    def parallel(self, x, state, **_: Any):
        y, new = self.loop(x, state.h)
        total = x.flip(1).cumsum(1).flip(1).sum(-1, keepdim=True)
        return (y + total) - total, new


class MixesRows(Leaky):
    def cell(self, x, h):
        y, h = super().cell(x, h)
        return y, h - 0.1 * h.mean(0)


class FirstRowsState(Leaky):
    """All rows share the state of the first."""

    def parallel(self, x, state, **_: Any):
        return self.loop(x, state.h[:1].expand_as(state.h))


class Grows(Attention):
    """Says it is bounded, and is not."""

    @classmethod
    def samples(cls):
        grown = cls(4, n_heads=1)
        grown.bounded = True
        return (grown,)


class PaddingMoves(S4D):
    """Padding decays the state."""

    def parallel(self, x, state, *, lengths, starts, elapsed):
        return super().parallel(x, state, lengths=None, starts=starts, elapsed=elapsed)


class PositionOfPadding(Attention):
    """Positions advance over the padding too."""

    @classmethod
    def samples(cls):
        return (cls(4, n_heads=1),)

    def parallel(self, x, state, **options: Any):
        y, new = super().parallel(x, state, **options)
        return y, new._replace(seen_B=state.seen_B + x.shape[1])


class StartsIgnored(S4D):
    def parallel(self, x, state, *, lengths, starts, elapsed):
        return super().parallel(x, state, lengths=lengths, starts=None, elapsed=elapsed)


class MemoryElsewhere(Leaky):
    """Half of the memory is on the module, found again by the address of the state."""

    def __init__(self, d_model: int = 4) -> None:
        super().__init__(d_model)
        self.shelf: dict[int, torch.Tensor] = {}

    def step(self, x, state, *, elapsed=None):
        y, h = self.cell(x, self.shelf.get(state.h.data_ptr(), state.h))
        new = LeakyState(torch.zeros_like(h))
        self.shelf[new.h.data_ptr()] = h
        return y, new

    def parallel(self, x, state, **_: Any):
        y, new = self.loop(x, self.shelf.get(state.h.data_ptr(), state.h))
        kept = LeakyState(torch.zeros_like(new.h))
        self.shelf[kept.h.data_ptr()] = new.h
        return y, kept


class PlainBodyOff(S4D):
    """Kernel and plain body differ in the third digit."""

    def parallel(self, x, state, **options: Any):
        from conca.ops.bodies import kernel

        return super().parallel(x if kernel("diagonal_ssm", "cpu") else 1.001 * x, state, **options)


class ReadsWeight(Leaky):
    """A fused body reads the weight of a linear map."""

    def cell(self, x, h):
        h = self.decay * h + F.linear(x, self.into.weight, self.into.bias).tanh()
        return h.sin().to(x.dtype), h


class HookSeenByStepAlone(Leaky):
    def parallel(self, x, state, **_: Any):
        y, h = [], state.h
        for t in range(x.shape[1]):
            h = self.decay * h + F.linear(x[:, t], *self.into.parameters()).tanh()
            y.append(h.sin().to(x.dtype))
        return torch.stack(y, 1), LeakyState(h)


class OnceOnly(Leaky):
    """A backward written by hand that cannot be differentiated again."""

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            ctx.save_for_backward(h)
            return h.sin()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].cos()

    def cell(self, x, h):
        h = self.decay * h + self.into(x).tanh()
        return self.Sine.apply(h).to(x.dtype), h


class WrongCurvature(Leaky):
    """A backward whose derivative is wrong: its second derivatives are."""

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            ctx.save_for_backward(h)
            return h.sin()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].cos().detach()

    def cell(self, x, h):
        h = self.decay * h + self.into(x).tanh()
        return self.Sine.apply(h).to(x.dtype), h


class PlainOnly(S4D):
    """No fault: runs on plain bodies, so that no kernel is asked for."""

    def parallel(self, x, state, **options: Any):
        with plain_bodies():
            return super().parallel(x, state, **options)


FAULTS: dict[str, tuple[type[Mixer[Any]], ...]] = {
    "forms agree": (ColdState, StepOmitsActivation, FinalStateEarly, ElapsedIgnoredInStep, WrongWhenLong),
    "forms agree (float32)": (NarrowStateIn32,),
    "forms agree (bfloat16)": (NarrowStateIn16,),
    "split": (RestartsLongTexts,),
    "gradients agree": (DetachedState, FinalGradientDropped, ParameterDetached, ElapsedDetached),
    "pure": (TipIgnored, StateInPlace, HiddenCounter, StateIsView, OutputIsState),
    "causal": (Peek, PeekByRounding),
    "rows independent": (MixesRows, FirstRowsState),
    "bounded": (Grows,),
    "ragged": (PaddingMoves, PositionOfPadding),
    "packed": (StartsIgnored,),
    "kept": (MemoryElsewhere,),
    "bodies agree": (PlainBodyOff,),
    "honest modules": (ReadsWeight, HookSeenByStepAlone),
    "twice differentiable": (OnceOnly, WrongCurvature),
}

__all__ = ["FAULTS", "Leaky", "PlainOnly"]
