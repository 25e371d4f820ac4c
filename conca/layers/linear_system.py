"""Linear systems with m inputs and n outputs: a state that sums up the past, stepped, recurrent, convolved.

    x' = A x + B u,  y = C x + D u                          in continuous time
    x_t = a x_{t-1} + b u_t,  y_t = C x_t + D u_t           over steps of length dt, by any transform of `ops.discretise`

A is how the state evolves alone, B how the input enters, C how it is read, D the direct path. x_t has already read u_t: an input
shows in the output of the same sample. (Kalman 1960; Gu et al., LSSL, 2021, for the three views.)

M inputs, O outputs, N states.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from conca.ops import linear_system as ops
from conca.types import BadInput, nearest

__all__ = ["LinearSystem"]


class LinearSystem(nn.Module):
    """A linear system, x' = A x + B u and y = C x + D u, or one that is discrete from the start.

    The tub: two litres a minute come in, half of what is there leaves every minute, and we look once a minute. From an empty
    tub, step by step and summed at once; and of what came in five minutes ago 1/32 is left.

    >>> tub = LinearSystem.discrete(A=torch.tensor([[0.5]]), B=torch.tensor([[1.0]]))
    >>> litres, state = tub(torch.full((1, 5, 1), 2.0))
    >>> [0.0, *litres.flatten().tolist()]
    [0.0, 2.0, 3.0, 3.5, 3.75, 3.875]
    >>> at_once, same_state = tub.convolution(torch.full((1, 5, 1), 2.0))
    >>> torch.allclose(at_once, litres), torch.allclose(same_state, state)
    (True, True)
    >>> tub.kernel(6)[-1].item() == 1 / 32
    True

    Args:
        A, B, C, D: (N, N), (N, M), (O, N), (O, M); without C the state is the output, without D there is no direct path. A
            `nn.Parameter` is trained, any other tensor is kept as it is. With a time axis in front, (T, N, N) and so on, they vary.
        dt: length of a step, above 0; a tensor (T,) varies. Only for continuous systems.
        transform: from continuous to discrete time: "zoh" (the input is held over the step), "forward_euler", "backward_euler",
            "bilinear"; None where A and B are discrete already.
        alpha: the generalised bilinear transform with this alpha (0..1), in the place of `transform`.

    Raises:
        BadInput: for shapes, precisions or devices that do not fit each other, an unknown transform, alpha outside 0..1, a step that
            is not above 0.
    """

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    dt: Tensor

    def __init__(
        self,
        A: Tensor,
        B: Tensor,
        C: Tensor | None = None,
        D: Tensor | None = None,
        *,
        dt: float | Tensor = 1.0,
        transform: str | None = "zoh",
        alpha: float | None = None,
    ) -> None:
        super().__init__()
        if transform is not None and transform not in ops.TRANSFORMS:
            raise BadInput(f"LinearSystem: unknown transform {transform!r}; {nearest(transform, ops.TRANSFORMS)}")
        if alpha is not None and not (transform in ("zoh", "bilinear") and 0 <= alpha <= 1):
            raise BadInput(f"LinearSystem: alpha is {alpha}, with transform {transform!r}; give alpha alone, in 0..1")
        for name, given in {"A": A, "B": B, "C": C, "D": D}.items():
            if not isinstance(given, Tensor) and (given is not None or name in "AB"):
                raise BadInput(f"LinearSystem: {name} must be a tensor, got {type(given).__name__}")
        if C is None:
            C = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        self.transform, self.alpha = transform, alpha
        for name, value in {"A": A, "B": B, "C": C, "D": D, "dt": time_step(dt, A)}.items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)
        self._fitting()

    @classmethod
    def discrete(cls, A: Tensor, B: Tensor, C: Tensor | None = None, D: Tensor | None = None) -> Self:
        """A system that is discrete already: x_t = A x_{t-1} + B u_t, y_t = C x_t + D u_t."""
        return cls(A, B, C, D, transform=None)

    @property
    def n_inputs(self) -> int:
        """M."""
        return self.B.shape[-1]

    @property
    def n_outputs(self) -> int:
        """O."""
        return self.C.shape[-2]

    @property
    def n_states(self) -> int:
        """N."""
        return self.A.shape[-1]

    def varying(self) -> list[str]:
        """The names of what has a time axis."""
        found = [n for n in ("A", "B", "C", "D") if (value := getattr(self, n)) is not None and value.dim() > 2]
        return [*found, "dt"] if self.dt.dim() else found

    def init_state(self, batch: int) -> Tensor:
        """Zeros (B, N)."""
        return torch.zeros(batch, self.n_states, dtype=self.A.dtype, device=self.A.device)

    def discretised(self, elapsed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(a, b) of x_t = a x_{t-1} + b u_t, with the time axes of A, B and dt, or batch and time for `elapsed` (B, T).

        Raises:
            BadInput: for `elapsed` given to a system that is discrete already.
        """
        return self._discretised(elapsed, 0)

    def step(self, u: Tensor, x: Tensor, *, elapsed: Tensor | None = None, time: int = 0) -> tuple[Tensor, Tensor]:
        """One sample: u (B, M) and the state x (B, N) before it give y (B, O) and the state after it.

        Args:
            elapsed: (B,), time since the previous sample in units of dt.
            time: which sample this is, where parameters vary.
        """
        y, x = self.recurrence(u[:, None], x, elapsed=None if elapsed is None else elapsed[:, None], time=time)
        return y[:, 0], x

    def recurrence(
        self, u: Tensor, x: Tensor | None = None, *, elapsed: Tensor | None = None, time: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Sample after sample: u (B, T, M) and the state (B, N) before it give y (B, T, O) and the last state.

        Args:
            x: where it begins; None is a state of zeros.
            elapsed: (B, T), time since the previous sample in units of dt, not below 0: steps that differ by row.
            time: number of the first sample, where parameters vary.

        Raises:
            BadInput: for shapes that do not fit, for `elapsed` given to a discrete system, and where a time axis is too short.
        """
        x = self._state(u, x)
        self._timed(u, elapsed)
        a, b = self._discretised(elapsed, time, u.shape[1])
        c = self._section(self.C, time, u.shape[1])
        d = None if self.D is None else self._section(self.D, time, u.shape[1])
        return ops.recur(a, b, c, d, u, x)

    forward = recurrence

    def convolution(
        self, u: Tensor, x: Tensor | None = None, *, elapsed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same all at once: u (B, T, M) is convolved with the kernel, and the first state decays beside it.

        Fourier transforms round against the largest number of the whole. Where a system grows, early outputs, which are small
        beside the last ones, lose as many digits as lie between them; read such a system by `recurrence`.

        Raises:
            BadInput: for shapes that do not fit, and where anything varies in time: then there is no one kernel.
        """
        self._invariant("convolution", elapsed)
        a, b = self.discretised()
        return ops.convolve(a, b, self.C, self.D, u, self._state(u, x))

    def kernel(self, length: int) -> Tensor:
        """The outputs 0, 1, ... samples after a unit input: C b + D, C a b, C a^2 b, ...: (length, O, M).

        Raises:
            BadInput: where anything varies in time, and for a negative length.
        """
        self._invariant("kernel", None)
        if length < 0:
            raise BadInput(f"LinearSystem.kernel: length must be at least 0, got {length}")
        a, b = self.discretised()
        return ops.kernel(a, b, self.C, self.D, length)

    def extra_repr(self) -> str:
        """Sizes and transform, for printing."""
        how = "discrete" if self.transform is None else self.transform if self.alpha is None else f"alpha={self.alpha}"
        return f"inputs={self.n_inputs}, states={self.n_states}, outputs={self.n_outputs}, {how}"

    def _discretised(self, elapsed: Tensor | None, time: int, length: int | None = None) -> tuple[Tensor, Tensor]:
        A, B, dt = (self._section(v, time, length, axes) for v, axes in ((self.A, 2), (self.B, 2), (self.dt, 0)))
        if self.transform is None:
            if elapsed is not None:
                raise BadInput(
                    "LinearSystem: a discrete system knows no time between its samples, so it cannot use elapsed; "
                    "build it from continuous A and B with a transform"
                )
            return A, B
        step = dt if elapsed is None else dt * elapsed.to(dt.dtype)
        try:
            return ops.discretised(A, B, step, self.transform, self.alpha)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise BadInput(
                "LinearSystem: the transform has a pole where dt times an eigenvalue of A is one over its alpha (1 for backward "
                "Euler, 2 for bilinear), and one is there; take another dt, or the zero-order hold"
            ) from error

    def _section(self, value: Tensor, time: int, length: int | None, axes: int = 2) -> Tensor:
        """The samples from `time` on of what varies; a constant as it is."""
        if value.dim() == axes or length is None:
            return value
        if time < 0 or time + length > len(value):
            raise BadInput(
                f"LinearSystem: {', '.join(self.varying())} vary over {len(value)} samples, and samples {time} to "
                f"{time + length - 1} are read; give them for all samples, or say with time= where this piece begins"
            )
        return value[time : time + length]

    def _invariant(self, form: str, elapsed: Tensor | None) -> None:
        moving = self.varying() + ([] if elapsed is None else ["elapsed"])
        if moving:
            raise BadInput(
                f"LinearSystem.{form}: {', '.join(moving)} vary in time, so what an input leaves behind depends on when it "
                "came, and no one kernel says it (the system is not time-invariant); use recurrence or step"
            )

    def _timed(self, u: Tensor, elapsed: Tensor | None) -> None:
        """Raises BadInput for times that are none, or not those of u."""
        if elapsed is None:
            return
        if not isinstance(elapsed, Tensor) or elapsed.shape != u.shape[:2]:
            shape = tuple(elapsed.shape) if isinstance(elapsed, Tensor) else type(elapsed).__name__
            raise BadInput(f"LinearSystem: expected elapsed of shape {tuple(u.shape[:2])}, got {shape}")
        if not bool((elapsed >= 0).all()):
            raise BadInput("LinearSystem: elapsed is time since the previous sample, so it must be a number from 0 on")

    def _state(self, u: Tensor, x: Tensor | None) -> Tensor:
        """The state to begin with, in the precision of the system, after a look at the shapes."""
        for name, value in (("u", u), ("the state", x)):
            if value is not None and not isinstance(value, Tensor):
                raise BadInput(f"LinearSystem: {name} must be a tensor, got {type(value).__name__}")
            if value is not None and value.device != self.A.device:
                raise BadInput(f"LinearSystem: {name} is on {value.device}, the system on {self.A.device}")
        if u.dim() != 3 or u.shape[2] != self.n_inputs:
            raise BadInput(f"LinearSystem: expected u of shape (batch, time, {self.n_inputs}), got {tuple(u.shape)}")
        if u.dtype != self.A.dtype:
            raise BadInput(
                f"LinearSystem: u is {u.dtype}, the system {self.A.dtype}; bring one to the other with .to(dtype)"
            )
        if x is None:
            return self.init_state(len(u))
        if x.shape != (len(u), self.n_states):
            raise BadInput(f"LinearSystem: expected a state of shape ({len(u)}, {self.n_states}), got {tuple(x.shape)}")
        x = x.to(u.dtype)
        if torch.compiler.is_compiling():
            return x
        return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x

    def _fitting(self) -> None:
        """Raises BadInput for matrices that do not fit each other."""
        N, M, O = self.A.shape[-1], self.B.shape[-1], self.C.shape[-2]  # noqa: E741
        for name, shape in {"A": (N, N), "B": (N, M), "C": (O, N), "D": (O, M)}.items():
            value = getattr(self, name)
            if value is not None and (value.shape[-2:] != shape or value.dim() not in (2, 3)):
                raise BadInput(
                    f"LinearSystem: {name} has shape {tuple(value.shape)}, expected {shape}, or a time axis before it"
                )
        if not all(v is None or v.is_floating_point() for v in (self.A, self.B, self.C, self.D)) or self.dt.dim() > 1:
            raise BadInput("LinearSystem: the matrices must be floating point, and dt one number or one per sample")
        for name in ("B", "C", "D", "dt"):
            value = getattr(self, name)
            if value is not None and (value.dtype, value.device) != (self.A.dtype, self.A.device):
                raise BadInput(
                    f"LinearSystem: {name} is {value.dtype} on {value.device}, A {self.A.dtype} on {self.A.device}; bring one to "
                    "the other with .to(...)"
                )
        spans = {len(v) for v in (self.A, self.B, self.C, self.D) if v is not None and v.dim() == 3}
        if len(spans | {len(self.dt)} if self.dt.dim() else spans) > 1:
            raise BadInput(f"LinearSystem: {', '.join(self.varying())} vary over different numbers of samples")


def time_step(dt: float | Tensor, like: Tensor) -> Tensor:
    """dt in the precision of `like`. Raises BadInput unless all of it is above 0 and finite."""
    if isinstance(dt, bool) or not isinstance(dt, (int, float, Tensor)):
        raise BadInput(f"LinearSystem: dt must be a number or a tensor, got {type(dt).__name__}")
    if not isinstance(dt, Tensor):
        dt = torch.tensor(float(dt), dtype=like.dtype, device=like.device)
    if not dt.is_meta and not bool(((dt > 0) & (dt < math.inf)).all()):
        raise BadInput("LinearSystem: dt is the length of a step, so it must be above 0 and finite")
    return dt if isinstance(dt, nn.Parameter) else dt.to(like.dtype if like.is_floating_point() else dt.dtype)
