"""The Cauchy sum over conjugate pairs, sum_n v / (z - w) + conj(v) / (z - conj(w)), at many nodes z of the imaginary axis.

Doors: `cauchy`, many numerators that share the poles; `low_rank_cauchy`, which takes a term of low rank in as well: what a state space
of diagonal plus low rank costs when its kernel is computed from its generating function (Gu, Goel and Re, Efficiently Modeling Long
Sequences with Structured State Spaces, 2022). Neither they nor their gradients ever hold (D, N, J) numbers. The readable bodies are
in `conca.ops.cauchy_bodies`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from conca.ops import bodies
from conca.ops.cauchy_bodies import aligned, cauchy_blocks, cauchy_blocks_backward, cauchy_definition
from conca.ops.doors import apply, has_kernel, opened, rows_of_all
from conca.types import BadInput

__all__ = ["cauchy", "cauchy_blocks", "cauchy_definition", "low_rank_cauchy"]

Pair = tuple[Tensor, Tensor]


def cauchy(v_DVN: Tensor, w_DN: Tensor, y_J: Tensor, x_J: Tensor | None = None) -> Tensor:
    """sum_n v / (i y - x w) + conj(v) / (i y - x conj(w)): (D, V, J) complex, for V numerators that share N poles.

    v (D, V, N) and w (D, N) complex (real ones are taken as complex); y and x real (J,). The node is z = i y / x, and the sum
    at it is divided by x: so x = 1, the default, gives the plain sum, and x = 0 is the point at infinity. Sine and cosine of an
    angle make nodes that neither overflow nor lose digits. No pole may be a node: with Re w < 0 none is.
    Differentiable in all four; v and w by kernels. Raises BadInput where the shapes do not fit.
    """
    if v_DVN.ndim != 3:
        raise BadInput(f"cauchy: v has shape {tuple(v_DVN.shape)}, it must be (D, V, N)")
    return low_rank_cauchy(v_DVN[:, :, None], w_DN, y_J, x_J)[:, :, 0]


def low_rank_cauchy(v_DVMN: Tensor, w_DN: Tensor, y_J: Tensor, x_J: Tensor | None = None, *, rank: int = 0) -> Tensor:
    """The Cauchy sums of V left and M right vectors, the last `rank` of both taken in: (D, V - rank, M - rank, J) complex.

    v[d, i, k] is the product of left vector i and right vector k, mode by mode. Their sums S are as in `cauchy`; with the last `rank`
    rows and columns as the second part of each axis, the result is S00 - x S01 (1 + x S11)^-1 S10 (Woodbury's formula). For sums of
    left / (i y - x A) right it is the same with A - (right of the last) (left of the last) for A. They are taken in one by one,
    so the system must have no pole at a node after each of them, as none has whose terms all take energy out.
    Differentiable in all tensors. Raises BadInput where the shapes do not fit.
    """
    v, w, y, x = aligned(v_DVMN, w_DN, y_J, x_J)
    if v.ndim != 4 or not 0 <= rank <= min(v.shape[1:3]):
        raise BadInput(f"cauchy: v {tuple(v.shape)} must be (D, V, M, N), with V and M at least the rank, {rank}")
    count = v.numel() * y.numel() * (v.shape[1] - rank) * (v.shape[2] - rank)
    plain = count == 0 or not has_kernel("cauchy", v.device.type)
    return cast(
        Tensor, apply(_Cauchy, v, w, y, x, rank, plain) if opened(v, w, y, x) else _run(v, w, y, x, rank, plain)
    )


def _run(v: Tensor, w: Tensor, y: Tensor, x: Tensor, rank: int, plain: bool) -> Tensor:
    return cauchy_blocks(v, w, y, x, rank=rank) if plain else cast(Tensor, _cauchy(v, w, y, x, rank))


@torch.library.custom_op("conca::cauchy", mutates_args=())
def _cauchy(v: Tensor, w: Tensor, y: Tensor, x: Tensor, rank: int) -> Tensor:
    return cast(Tensor, bodies.required("cauchy", v.device.type)(v, w, y, x, rank))


@_cauchy.register_fake
def _(v: Tensor, w: Tensor, y: Tensor, x: Tensor, rank: int) -> Tensor:
    return v.new_empty(v.shape[0], v.shape[1] - rank, v.shape[2] - rank, y.shape[0])


@_cauchy.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    return rows_of_all(_cauchy, info.batch_size, dims, args, (2, 3, 4))


@torch.library.custom_op("conca::cauchy_backward", mutates_args=())
def _cauchy_backward(v: Tensor, w: Tensor, y: Tensor, x: Tensor, g: Tensor, rank: int) -> Pair:
    """Gradients to v and w from g, that into the sums."""
    return cast(Pair, bodies.required("cauchy_backward", v.device.type)(v, w, y, x, g, rank))


@_cauchy_backward.register_fake
def _(v: Tensor, w: Tensor, y: Tensor, x: Tensor, g: Tensor, rank: int) -> Pair:
    dv, dw = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (v, w))
    return dv, dw


@_cauchy_backward.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    return rows_of_all(_cauchy_backward, info.batch_size, dims, args, (2, 3, 5))


class _Cauchy(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, w: Tensor, y: Tensor, x: Tensor, rank: int, plain: bool) -> Tensor:
        return _run(v, w, y, x, rank, plain)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.rank, ctx.plain = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        v, w, y, x = ctx.saved_tensors
        dv, dw = apply(_CauchyBackward, v, w, y, x, g, ctx.rank, ctx.plain)
        if not any(ctx.needs_input_grad[2:4]):
            return dv, dw, None, None, None, None
        # nodes seldom move: what they get comes from the definition
        dy, dx = torch.func.vjp(lambda y, x: cauchy_definition(v, w, y, x, rank=ctx.rank), y, x)[1](g)
        return dv, dw, dy, dx, None, None


class _CauchyBackward(Function):
    """The gradient to v and w; its own derivative is that of the definition's vjp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, w: Tensor, y: Tensor, x: Tensor, g: Tensor, rank: int, plain: bool) -> Pair:
        back = cauchy_blocks_backward if plain else _cauchy_backward
        return cast(Pair, back(v, w, y, x, g, rank))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
        ctx.rank = inputs[5]
        ctx.save_for_backward(*inputs[:5])

    @staticmethod
    def backward(ctx: Any, gv: Tensor, gw: Tensor) -> tuple[Tensor | None, ...]:
        def first(v: Tensor, w: Tensor, y: Tensor, x: Tensor, g: Tensor) -> Pair:
            return cast(Pair, torch.func.vjp(lambda v, w: cauchy_definition(v, w, y, x, rank=ctx.rank), v, w)[1](g))

        return *torch.func.vjp(first, *ctx.saved_tensors)[1]((gv, gw)), None, None
