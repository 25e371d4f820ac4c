"""One door for an operation that has kernels: what PyTorch must be told so that it differentiates, batches and compiles it.

From the names of its arguments and its readable body an `Operation` makes two inner ops without autograd, `conca::name` and
`conca::name_backward` (fake bodies, vmap rules), and around them a pair of `autograd.Function`s: the backward of the first is the
backward kernel, the backward of the second the vjp of the readable body's vjp. The kernels are registered with `conca.ops.bodies` as
    name(*inputs, *options, saved) -> outputs,   name_backward(*inputs, *options, saved, *gradients) -> gradients of the inputs
(without `saved` where nothing is kept for the backward pass). Rows, the batch, are axis 0 of every tensor that is not `shared`; the
gradient of a shared input comes from its kernel row by row, (B, *shape), and is summed outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from conca.ops import bodies
from conca.ops.doors import apply, opened, rows_of_all

__all__ = ["Operation"]

Arguments = Sequence[Any]

_made: dict[str, Operation] = {}
"""Every operation by its name: torch.compile reads a global, and would not take an operation out of a closure."""


class Operation:
    """An operation with kernels, called with all its arguments in order: a tensor, or a tuple of its outputs.

    Args:
        name: of the operation.
        plain: its readable body, plain(*inputs, *options), differentiable twice.
        inputs: what is differentiated, as a schema: "Tensor x, Tensor? bias". The first has rows and tells device and type.
        options: what is not: "Tensor? lengths, float eps".
        shared: names of the tensors among both that have no rows.
        outputs: for each, the name of the input whose shape and type it has, or a function of (*inputs, *options) that gives a new
            tensor like it.
        room: room(*inputs, *options, save) gives the tensor (B, ...) in which the forward kernel keeps what the backward one needs,
            of shape (B, 0) unless `save`; None where nothing is kept.

    Raises:
        RuntimeError: when called where no kernel is registered; `conca.ops.doors.has_kernel` says so before.
    """

    def __init__(
        self,
        name: str,
        plain: Callable[..., Any],
        *,
        inputs: str,
        options: str = "",
        shared: Sequence[str] = (),
        outputs: Sequence[str | Callable[..., Tensor]],
        room: Callable[..., Tensor] | None = None,
    ) -> None:
        names, more = _names(inputs), _names(options)
        self.name, self.plain, self.room, self.count = name, plain, room, len(names)
        self.like = tuple(names.index(n) if isinstance(n, str) else n for n in outputs)
        tensors = [p for p in (inputs, options) if p]
        by_hand = [i for i, text in enumerate(_parts(inputs) + _parts(options)) if not text.startswith("Tensor")]
        self.shared = (*((names + more).index(n) for n in shared), *by_hand)
        kept = ["bool save"] if room else []
        results = len(outputs) + len(kept)
        self.forward = self._op(name, [*tensors, *kept], results, self._run, self._fake)
        gradients = [f"Tensor g{i}" for i in range(len(outputs))]
        saved = ["Tensor saved"] if room else []
        self.backward = self._op(
            f"{name}_backward", [*tensors, *saved, *gradients], len(names), self._back, self._fake_back
        )
        total = len(names) + len(more) + len(saved) + len(outputs)
        self.function, self.again = _functions(name, len(self.like), len(saved), total)
        _made[name] = self

    def __call__(self, *args: Any) -> Any:
        """The outputs for (*inputs, *options); on the way back the backward kernel runs."""
        if opened(*(t for t in args[: self.count] if t is not None)):
            results = apply(self.function, *args)
        else:
            results = self.forward(*args, False) if self.room else self.forward(*args)
        return results if len(self.like) == 1 and not self.room else _one(results[: len(self.like)])

    def _op(
        self, name: str, arguments: list[str], results: int, body: Callable[..., Any], fake: Callable[..., Any]
    ) -> Any:
        """A custom op with its fake body and its vmap rule."""
        returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
        schema = f"({', '.join(arguments)}) -> {returns}"
        op = torch.library.custom_op(f"conca::{name}", body, mutates_args=(), schema=schema)
        op.register_fake(fake)
        flag = (len(_parts(", ".join(arguments))) - 1,) if arguments[-1] == "bool save" else ()

        def rule(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
            return rows_of_all(op, info.batch_size, dims, args, (*self.shared, *flag))

        op.register_vmap(rule)
        return op

    def _run(self, *args: Any) -> Any:
        body = bodies.required(self.name, args[0].device.type)
        if self.room is None:
            return body(*args)
        saved = self.room(*args)
        results = body(*args[:-1], saved)
        return (*results, saved) if isinstance(results, tuple) else (results, saved)

    def _fake(self, *args: Any) -> Any:
        outputs = [self._output(i, args[:-1] if self.room else args) for i in range(len(self.like))]
        return _one([*outputs, *([self.room(*args)] if self.room else [])])

    def _output(self, i: int, args: Arguments) -> Tensor:
        """A new tensor like output number i of (*inputs, *options)."""
        like = self.like[i]
        return like(*args) if callable(like) else torch.empty_like(args[like], memory_format=torch.contiguous_format)

    def whole(self, args: Arguments, grads: Arguments) -> list[Tensor]:
        """The gradients into the outputs for (*inputs, *options, ...): zeros for what nobody asked of."""
        given = args[:-1] if self.room else args
        return [self._output(i, given).zero_() if grads[i] is None else grads[i] for i in range(len(self.like))]

    def _back(self, *args: Any) -> Any:
        found = bodies.required(f"{self.name}_backward", args[0].device.type)(*args)
        found = found if isinstance(found, tuple) else (found,)
        return _one([_nothing(args[0]) if g is None else g for g in found])

    def _fake_back(self, *args: Any) -> Any:
        return _one(list(self._like_inputs(args)))

    def _like_inputs(self, args: Arguments) -> Iterator[Tensor]:
        rows = args[0].shape[0]
        for i, t in enumerate(args[: self.count]):
            if t is None:
                yield _nothing(args[0])
            else:
                yield t.new_empty((rows, *t.shape) if i in self.shared else t.shape)

    def summed(self, args: Arguments) -> tuple[Tensor, ...]:
        """The gradients of all inputs, those of shared ones summed over rows; empty ones for inputs that are None."""
        found = self.backward(*args)
        found = (found,) if isinstance(found, Tensor) else found
        return tuple(g.sum(0) if i in self.shared and args[i] is not None else g for i, g in enumerate(found))

    def twice(self, args: Arguments, grads: Arguments) -> list[Tensor | None]:
        """The gradients of (*inputs, *options, *gradients of the outputs) from those of the inputs' gradients, by the plain body."""
        primal, gs = args[: self.count], args[len(args) - len(self.like) :]
        options = args[self.count : len(args) - len(self.like)]
        given = [i for i, t in enumerate(primal) if t is not None]

        def plain(*tensors: Tensor) -> Any:
            filled = dict(zip(given, tensors))
            return self.plain(*(filled.get(i) for i in range(self.count)), *options)

        def first(*tensors: Tensor) -> tuple[Tensor, ...]:
            return torch.func.vjp(plain, *tensors[: len(given)])[1](_one(tensors[len(given) :]))  # type: ignore[no-any-return]

        found = torch.func.vjp(first, *(primal[i] for i in given), *gs)[1](tuple(grads[i] for i in given))
        back = dict(zip(given, found))
        return [*(back.get(i) for i in range(self.count)), *(None for _ in options), *found[len(given) :]]


def _functions(name: str, outputs: int, kept: int, backward: int) -> tuple[type[Function], type[Function]]:
    """The pair of Functions around the two inner ops of an operation, the outer one first."""

    def keep(ctx: Any, args: Arguments) -> None:
        ctx.save_for_backward(*(t if isinstance(t, Tensor) else None for t in args))
        ctx.others = tuple(None if isinstance(t, Tensor) else t for t in args)

    def kept_by(ctx: Any) -> list[Any]:
        return [other if t is None else t for t, other in zip(ctx.saved_tensors, ctx.others)]

    class Backward(Function):
        """The backward kernel; its own derivative is that of the plain body's vjp."""

        generate_vmap_rule = True

        @staticmethod
        def forward(*args: Any) -> Any:
            return _made[name].summed(args)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            keep(ctx, inputs)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            args, at = kept_by(ctx), len(ctx.others) - outputs
            place = at - kept
            found = _made[name].twice([*args[:place], *args[at:]], grads)
            return (*found[:place], *([None] * kept), *found[place:])

    class Forward(Function):
        """The forward kernel, whose derivative is the backward one."""

        generate_vmap_rule = True

        @staticmethod
        def forward(*args: Any) -> Any:
            return _made[name].forward(*args, True) if kept else _made[name].forward(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.set_materialize_grads(False)  # zeros of the size of what was saved would be made and thrown away
            if kept:
                ctx.mark_non_differentiable(output[-1])
            keep(ctx, (*inputs, output[-1]) if kept else inputs)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            args = kept_by(ctx)
            found = apply(_made[name].again, *args, *_made[name].whole(args, grads))
            back = tuple(None if t is None else g for t, g in zip(args, found))
            return (*back, *(None for _ in range(len(args) - kept - _made[name].count)))

    # torch.compile counts the parameters to see whether a context comes first
    names = (Parameter(f"a{i}", Parameter.POSITIONAL_ONLY) for i in range(backward))
    Backward.forward.__signature__ = Signature([*names])  # type: ignore[attr-defined]
    Forward.__name__, Backward.__name__ = name, f"{name}_backward"
    return Forward, Backward


def _parts(schema: str) -> list[str]:
    return [part.strip() for part in schema.split(",") if part.strip()]


def _names(schema: str) -> list[str]:
    return [part.split()[-1] for part in _parts(schema)]


def _one(found: Sequence[Any]) -> Any:
    """The only one, or all as a tuple."""
    return found[0] if len(found) == 1 else tuple(found)


def _nothing(like: Tensor) -> Tensor:
    """What stands for the gradient of an input that is None."""
    return like.new_empty(like.shape[0], 0)
