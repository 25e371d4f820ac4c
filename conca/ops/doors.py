"""What the door of every operation asks before it opens: is there a kernel, is a gradient wanted, which precision.

A door is an inner `torch.library.custom_op` without autograd, and an `autograd.Function` outside it. The Function is skipped
where nobody can ask for a gradient. Where there is no kernel the door calls the plain body, and no op is involved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function

from conca.ops import bodies
from conca.types import BadInput

__all__ = [
    "apply",
    "has_kernel",
    "opened",
    "plain_wanted",
    "raised",
    "real_of",
    "rows_fit",
    "rows_of_all",
    "traced",
    "transformed",
]

F = TypeVar("F", bound=Callable[..., Any])

# dtype.to_real is not known to torch.compile
_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


def _constant(function: F) -> F:
    """As `torch.compiler.assume_constant_result`, which would import the compiler: that doubles the price of an import."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant
def has_kernel(operation: str, device: str) -> bool:
    """Whether a kernel of `operation` runs on `device` now (a constant to torch.compile)."""
    return bodies.kernel(operation, device) is not None


@_constant
def plain_wanted() -> bool:
    """Whether the caller asked for plain bodies (a constant to torch.compile)."""
    return bodies.plain_wanted()


def rows_fit(operation: str, shape: Sequence[int], lengths: Tensor | None, starts: Tensor | None = None) -> None:
    """Raises BadInput unless lengths (B,) and starts (B, T) are those of rows of a shape (B, T, ...)."""
    for name, found, want in (("lengths", lengths, shape[:1]), ("starts", starts, shape[:2])):
        if found is not None and found.shape != tuple(want):
            raise BadInput(f"{operation}: {name} has shape {tuple(found.shape)}, not {tuple(want)}")


def transformed() -> bool:
    """Whether the compiler or a transform of torch.func is at work: values cannot be looked at, and derivatives are asked for later."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def traced() -> bool:
    """Whether calls are written down instead of, or beside, being run: by the compiler, a tracer, or a dispatch mode."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )


def opened(*tensors: Tensor) -> bool:
    """Whether the autograd Function is needed: gradients are on and wanted, or a torch.func transform is at work.

    A batched tensor inside `torch.func.grad` does not say that it is differentiated, hence the second question.
    """
    if torch._C._are_functorch_transforms_active():
        return True
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def raised(dtype: torch.dtype) -> torch.dtype:
    """The type an operation computes in: half precisions and integers become float32, complex half complex64."""
    if dtype == torch.complex32:
        return torch.complex64
    if dtype.is_complex:
        return dtype
    return torch.promote_types(dtype, torch.float32)


def real_of(dtype: torch.dtype) -> torch.dtype:
    """The real type of a complex one; a real one is its own."""
    return _REAL.get(dtype, dtype)


def rows_of_all(
    op: Any, size: int, dims: Sequence[int | None], args: Sequence[Any], shared: Sequence[int]
) -> tuple[Any, Any]:
    """What the vmap rule of `op` gives: its results, and where their batch axis is.

    That axis joins the rows; where it is on a `shared` argument, which has no rows, the op runs once for each.
    """
    if any(dims[i] is not None for i in shared):
        each = [_all(op(*(t if d is None else t.select(d, i) for t, d in zip(args, dims)))) for i in range(size)]
        results = [torch.stack(t) for t in zip(*each)]
    else:
        keep = [i in shared or args[i] is None for i in range(len(args))]
        folded = op(*(t if k else _folded(size, t, d) for t, d, k in zip(args, dims, keep)))
        results = [t.unflatten(0, (size, -1)) for t in _all(folded)]
    return (results[0], 0) if len(results) == 1 else (tuple(results), (0,) * len(results))


def _folded(size: int, tensor: Tensor, dim: int | None) -> Tensor:
    """The batch axis of a vmap joined with the rows of `tensor`; an unbatched one is repeated."""
    batched = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return batched.flatten(0, 1)


def _all(found: Any) -> Sequence[Any]:
    """The results of an op, of which one is not in a tuple."""
    return (found,) if isinstance(found, Tensor) else found


def apply(function: type[Function], *args: Any) -> Any:
    """`function.apply`, which PyTorch leaves without types."""
    return function.apply(*args)  # type: ignore[no-untyped-call]
