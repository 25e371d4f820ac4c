"""The first contract: a sequence layer is a machine (x, state) -> (y, state) whose forms are one function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from conca.layers.options import whole
from conca.layers.rows import inside, segments, stairs
from conca.layers.states import batch_of, leaves, tree_map, where
from conca.ops.doors import transformed
from conca.types import S, State, nearest

__all__ = ["Mixer", "Output", "Role", "Work"]

FINAL = ("forward", "recurrent", "chunked")

FOREIGN = {
    "hidden_size": "d_model", "hidden_dim": "d_model", "input_size": "d_model", "embed_dim": "d_model", "dim": "d_model",
    "n_embd": "d_model", "state_size": "d_state", "ssm_state_size": "d_state", "N": "d_state", "conv_kernel": "d_conv",
    "conv_size": "d_conv", "conv_kernel_size": "d_conv", "kernel_size": "d_conv", "expand_ratio": "expand",
    "hidden_ratio": "expand", "nheads": "n_heads d_head", "num_heads": "n_heads d_head", "num_attention_heads": "n_heads d_head",
    "nhead": "n_heads d_head", "n_heads": "d_head", "headdim": "d_head", "head_dim": "d_head", "ngroups": "n_groups",
    "num_groups": "n_groups",
    "sliding_window": "window", "window_size": "window", "attention_dropout": "dropout", "attn_dropout": "dropout",
    "dropout_p": "dropout", "use_bias": "bias", "qkv_bias": "bias", "time_step_rank": "dt_rank", "mimo_rank": "rank",
    "dt_min": "steps.dt decay.dt dt", "dt_max": "steps.dt decay.dt dt", "dt_init_floor": "steps.floor decay.dt_floor",
    "dt_init": "steps.init", "dt_scale": "steps.scale", "dt_limit": "decay.limit", "time_step_limit": "decay.limit",
    "A_init_range": "decay.a", "A_floor": "decay.floor", "norm_before_gate": "gate.norm_first", "rmsnorm": "gate.norm",
    "rope_fraction": "rotation.fraction", "is_mimo": "rank",
}  # fmt: skip


_kinds: WeakKeyDictionary[nn.Module, type[Any]] = WeakKeyDictionary()

WHOLE = "d_model", "d_state", "d_conv", "n_heads", "d_head", "n_groups", "window", "channels", "copies"
"""Options that are whole numbers from 1 on, or None where that is what they are if nothing is said."""


class Role(NamedTuple):
    """How a parameter wants to be trained and kept."""

    decay: bool = True
    """Weight decay applies."""
    rate: float | None = None
    """A learning rate of its own, as a multiple of the common one; None follows the common rate."""
    float32: bool = False
    """Stays in float32 (or better) through `.bfloat16()` and `.half()`."""


class Work(NamedTuple):
    """What one token costs."""

    multiply_adds: int
    """Multiplications with addition, per token of one sequence."""
    bytes: int
    """Bytes of parameters and state that one step of one sequence reads."""


class Mixer(nn.Module, Generic[S]):
    """A sequence layer: `step` defines it, `parallel` is the theorem, the other forms are folds of these two.

    Every form takes a warm state (a missing one is `init_state`), gives the state after the last valid token, and computes the
    same numbers as every other form; `conca.laws` holds it to that. Input and output have shape (B, T, d_model).
    """

    d_model: int
    bounded: bool = True
    """The state does not grow with the number of tokens."""
    timed: bool = False
    """`elapsed`, the time since the previous sample in nominal steps, is understood."""
    resets: bool = False
    """`parallel` understands `starts`."""
    ragged: bool = False
    """`parallel` understands `lengths`."""
    convolves: bool = False
    """`parallel` is a convolution: later inputs may move the rounding of earlier outputs, and nothing more."""

    def __new__(cls, *first: Any, **options: Any) -> Self:
        known = inspect.signature(cls.__init__).parameters
        for name, value in (*zip([*known][1:2], first), *options.items()):
            wanted = name in known and known[name].default is not None
            if name in WHOLE and not whole(value) and (wanted or value is not None):
                raise ValueError(f"{cls.__name__}: {name} must be a whole number from 1 on, got {value!r}")
        if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            for name in options:
                if name not in known:
                    raise TypeError(f"{cls.__name__} has no option {name!r}; {_hint(name, known)}")
        return super().__new__(cls)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in FINAL:
            if name in cls.__dict__:
                raise TypeError(f"{cls.__name__}.{name}: this form belongs to Mixer; write step and parallel")
        if "step" in cls.__dict__:
            cls.step = _guarded_step(cls.__dict__["step"])  # type: ignore[method-assign]

    @classmethod
    def samples(cls) -> tuple[Self, ...]:
        """Small instances that reach every branch: tests, laws and `conca check` use them."""
        return (cls(8),)

    def init_state(self, batch: int) -> S:
        """The state of `batch` sequences of which nothing has been read."""
        raise NotImplementedError(f"{type(self).__name__} does not define init_state")

    def step(self, x: Tensor, state: S, *, elapsed: Tensor | None = None) -> tuple[Tensor, S]:
        """One token of every sequence: x (B, D) and its state give y (B, D) and the next state.

        Args:
            elapsed: time since the previous token in nominal steps, shape (B,), for layers that are `timed`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def parallel(
        self, x: Tensor, state: S, *, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, S]:
        """All tokens at once: x (B, T, D), T > 0. Receives only what the flags claim; padding in x is 0."""
        raise NotImplementedError(f"{type(self).__name__} does not define parallel")

    def canonical(self, state: S) -> State:
        """What of a state counts when two are compared (a growing cache has room that does not)."""
        return state

    def roles(self) -> dict[str, Role]:
        """The parameters that are not to be trained or kept in the common way, by name."""
        return {}

    def work(self) -> Work:
        """What one token costs; by default each parameter is read and used once."""
        count = sum(p.numel() for p in self.parameters())
        size = sum(p.numel() * p.element_size() for p in self.parameters())
        return Work(count, size)

    def zeros(self, batch: int, *size: int, half: bool = False) -> Tensor:
        """Zeros on the device of the parameters for a state, float32 or better unless `half` allows less."""
        like = next((p for p in self.parameters() if p.is_floating_point()), None)
        dtype = torch.get_default_dtype() if like is None else like.dtype
        if not half:
            dtype = torch.promote_types(dtype, torch.float32)
        return torch.zeros(batch, *size, dtype=dtype, device=None if like is None else like.device)

    def forward(
        self,
        x: Tensor,
        state: S | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        elapsed: Tensor | None = None,
    ) -> tuple[Tensor, S]:
        """Read a batch of sequences; the same for every family, never overridden.

        Args:
            x: shape (B, T, D); B and T may be 0.
            state: what was read before; None is `init_state(B)`.
            lengths: (B,) integers. Rows are right-padded: past its length a row's output is 0, whatever stands in the padding
                (NaN too), and its state is that after the last valid token.
            starts: (B, T) bool. A new sequence begins here inside a packed row: the past is forgotten.
            elapsed: (B, T), time since the previous sample in nominal steps; it counts as 1 where a sequence starts.

        Returns:
            The output (B, T, D) and the state after the last valid token.

        Raises:
            ValueError: for shapes that do not fit, and for `elapsed` given to a family that is not timed.
        """
        x, state, lengths, starts, elapsed = self._checked(x, state, lengths, starts, elapsed)
        if x.numel() == 0:
            return x.clone(), state
        if starts is not None and not self.resets:
            return segments(self, x, state, lengths, starts, elapsed)
        if lengths is not None and not self.ragged:
            return stairs(self, x, state, lengths, starts, elapsed)
        y, state = self.parallel(x, state, lengths=lengths, starts=starts, elapsed=elapsed)
        return (y if lengths is None else y.masked_fill(~inside(x, lengths)[..., None], 0)), state

    if TYPE_CHECKING:
        __call__ = forward

    @final
    def recurrent(
        self,
        x: Tensor,
        state: S | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        elapsed: Tensor | None = None,
    ) -> tuple[Tensor, S]:
        """The fold of `step`: the slow truth, with the signature of `forward`."""
        x, state, lengths, starts, elapsed = self._checked(x, state, lengths, starts, elapsed)
        if x.numel() == 0:
            return x.clone(), state
        outputs: list[Tensor] = []
        for t, x_BD in enumerate(x.unbind(1)):  # a slice at every step would make the backward quadratic
            if starts is not None and bool(starts[:, t].any()):
                state = where(starts[:, t], self.init_state(len(x)), state)
            y, new = self.step(x_BD, state, elapsed=None if elapsed is None else elapsed[:, t])
            if lengths is not None:
                live = t < lengths
                y, new = y.masked_fill(~live[:, None], 0), where(live, new, state)
            state = new
            outputs.append(y)
        return torch.stack(outputs, 1), state

    @final
    def chunked(
        self,
        x: Tensor,
        state: S | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        elapsed: Tensor | None = None,
        size: int = 64,
    ) -> tuple[Tensor, S]:
        """The fold of `forward` over pieces of `size` tokens: the same numbers in the memory of one piece."""
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        x, state, lengths, starts, elapsed = self._checked(x, state, lengths, starts, elapsed)
        if x.numel() == 0:
            return x.clone(), state
        outputs: list[Tensor] = []
        for t in range(0, x.shape[1], size):
            piece = x[:, t : t + size]
            y, state = self(
                piece,
                state,
                lengths=None if lengths is None else (lengths - t).clamp(0, piece.shape[1]),
                starts=None if starts is None else starts[:, t : t + size],
                elapsed=None if elapsed is None else elapsed[:, t : t + size],
            )
            outputs.append(y)
        return torch.cat(outputs, 1), state

    def _checked(
        self, x: Tensor, state: S | None, lengths: Tensor | None, starts: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, S, Tensor | None, Tensor | None, Tensor | None]:
        name = type(self).__name__
        for word, tensor in (("x", x), ("lengths", lengths), ("starts", starts), ("elapsed", elapsed)):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise ValueError(f"{name}: {word} must be a tensor, got {type(tensor).__name__}")
        if x.dim() != 3 or x.shape[2] != self.d_model:
            raise ValueError(f"{name}: expected x of shape (batch, time, {self.d_model}), got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"{name}: expected floating-point x, got {x.dtype}")
        if elapsed is not None and not self.timed:
            raise ValueError(f"{name} does not understand elapsed: it takes every step as one nominal step")
        for word, tensor, shape in (
            ("lengths", lengths, x.shape[:1]),
            ("starts", starts, x.shape[:2]),
            ("elapsed", elapsed, x.shape[:2]),
        ):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"{name}: expected {word} of shape {tuple(shape)}, got {tuple(tensor.shape)}")
        if starts is not None and starts.dtype != torch.bool:
            raise ValueError(f"{name}: expected starts of dtype bool, got {starts.dtype}")
        state = self.init_state(x.shape[0]) if state is None else _fitting(self, x, state, name)
        if lengths is not None:
            given, lengths = lengths.dtype, lengths.to(torch.int64)  # which narrower integers would wrap around
            if given.is_floating_point or given.is_complex or given == torch.bool or not _within(lengths, x.shape[1]):
                raise ValueError(f"{name}: lengths must be integers from 0 to {x.shape[1]}")
            live = inside(x, lengths)
            x = x.masked_fill(~live[..., None], 0)
            starts = None if starts is None else starts & live
            elapsed = None if elapsed is None else elapsed.masked_fill(~live, 1)
        if elapsed is not None and starts is not None:
            elapsed = elapsed.masked_fill(starts, 1)
        if elapsed is not None and _negative(elapsed):
            raise ValueError(f"{name}: elapsed is time since the previous sample, so it must not be negative")
        return x, state, lengths, starts, elapsed

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        own = dict(self.named_parameters())  # a pruned or parametrised weight is not among them under its name
        kept = [own[name] for name, role in self.roles().items() if role.float32 and name in own]
        ids = {id(t) for p in kept for t in (p, p.grad) if t is not None}

        def guarded(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrowed = id(tensor) in ids and moved.is_floating_point() and moved.element_size() < 4
            return tensor.to(moved.device) if narrowed else moved

        super()._apply(guarded, recurse)  # type: ignore[no-untyped-call]
        return self


def _hint(name: str, known: Mapping[str, inspect.Parameter]) -> str:
    """What to say about an unknown option: ours of the same meaning, that group of options in which it stands, or the nearest one."""
    within = [f"{group}.{name}" for group, p in known.items() if name in getattr(p.default, "__dataclass_fields__", ())]
    for ours in [*FOREIGN.get(name, "").split(), *within]:
        group, _, key = ours.partition(".")
        if group in known:
            return f"conca says {group}={{{key!r}: ...}}" if key else f"conca says {ours!r}"
    return nearest(name, set(known) - {"self"})


def _guarded_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """A family's step behind the checks of the contract."""

    @functools.wraps(step)
    def guarded(self: Mixer[Any], x: Tensor, state: Any, *, elapsed: Tensor | None = None) -> Any:
        name = type(self).__name__
        if x.dim() != 2 or x.shape[1] != self.d_model:
            raise ValueError(f"{name}.step: expected x of shape (batch, {self.d_model}), got {tuple(x.shape)}")
        state = _fitting(self, x, state, f"{name}.step")
        if elapsed is None:
            return step(self, x, state)
        if not self.timed:
            raise ValueError(f"{name} does not understand elapsed: it takes every step as one nominal step")
        if elapsed.shape != x.shape[:1]:
            raise ValueError(f"{name}.step: expected elapsed of shape ({len(x)},), got {tuple(elapsed.shape)}")
        return step(self, x, state, elapsed=elapsed)

    return guarded


def _fitting(mixer: Mixer[S], x: Tensor, state: S, name: str) -> S:
    """A state that fits x. Raises ValueError for one of another kind, batch or device."""
    if torch.compiler.is_compiling():
        return state
    if not isinstance(state, kind := _kind(mixer)):
        raise ValueError(f"{name}: expected the state to be a {kind.__name__}, got {type(state).__name__}")
    if batch_of(state) not in (None, len(x)):
        raise ValueError(f"{name}: the state has {batch_of(state)} rows, x has {len(x)}")
    place = next((leaf.device for leaf in leaves(state) if leaf.device != x.device), None)
    if place is not None:
        raise ValueError(f"{name}: the state is on {place}, x on {x.device}")
    return tree_map(_usable, state) if torch.is_grad_enabled() else state


def _kind(mixer: Mixer[Any]) -> type[Any]:
    """The class of a mixer's states."""
    if mixer not in _kinds:
        found = type(mixer.init_state(0))
        _kinds[mixer] = Tensor if issubclass(found, Tensor) else found
    return _kinds[mixer]


def _negative(elapsed: Tensor) -> bool:
    """Whether some time is negative."""
    return _asked(elapsed) and bool((elapsed < 0).any())


def _usable(leaf: Tensor) -> Tensor:
    """What was made in inference mode, copied, so that it can be part of a graph."""
    return leaf.clone() if leaf.is_inference() and not torch.is_inference_mode_enabled() else leaf


def _within(lengths: Tensor, limit: int) -> bool:
    """Whether all lengths are possible."""
    if not _asked(lengths):
        return True
    low, high = torch.aminmax(lengths)
    return int(low) >= 0 and int(high) <= limit


def _asked(values: Tensor) -> bool:
    """Whether values can be looked at: not while a graph is being compiled, nor by the transforms of torch.func."""
    return not transformed() and values.numel() > 0


class Output(nn.Module):
    """The output of a mixer alone, without its state, for `nn.Sequential`.

    >>> from conca.layers.s4d import S4D
    >>> net = nn.Sequential(nn.Linear(3, 8), Output(S4D(8)), nn.Linear(8, 1))
    >>> net(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 5, 1])
    """

    def __init__(self, layer: Mixer[Any]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, **options: Tensor | None) -> Tensor:
        """y (B, T, D) of `layer(x, **options)`."""
        y: Tensor = self.layer(x, **options)[0]
        return y
