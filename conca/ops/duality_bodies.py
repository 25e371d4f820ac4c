"""The readable bodies of `conca.ops.duality.duality`: recurrence, chunked matrix form, masked attention; one signature.

S_t = a_t S_{t-1} + sum_r k_{t,r} v_{t,r}^T and y_{t,r} = S_t^T q_{t,r}, with a_t a positive number per head, give
  y_{t,r} = (a_1 .. a_t) S_0^T q_{t,r} + sum_{s <= t, r'} (a_{s+1} .. a_t) (q_{t,r} . k_{s,r'}) v_{s,r'},
attention under a mask of decays instead of a softmax (Dao and Gu 2024). Within chunks that is what the chunked form computes, and
between them it is the recurrence of the states before the chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.ops.doors import raised, rows_fit
from conca.ops.scan import scan_tree
from conca.types import BadInput

__all__ = [
    "CHUNK",
    "Aligned",
    "aligned",
    "duality_chunked",
    "duality_quadratic",
    "duality_recurrence",
    "emptied",
    "segment_sums",
    "steps_of",
]

CHUNK = 64
"""Rows of a chunk: steps times rank."""

Maybe = Tensor | None
Pair = tuple[Tensor, Tensor]


class Aligned(NamedTuple):
    """The arguments in one precision, the padding emptied, `log_a` minus infinity where a row begins anew."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_a: Tensor
    S: Tensor
    valid: Maybe
    """Which steps are not padding, (B, T), where any may be."""


def duality_recurrence(
    q_BTRGK: Tensor,
    k_BTRGK: Tensor,
    v_BTRHV: Tensor,
    log_a_BTH: Tensor,
    S_BHKV: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
    strict: bool = False,
    weight: Maybe = None,
) -> Pair:
    """`duality` as it is defined, one step after another."""
    args = aligned(q_BTRGK, k_BTRGK, v_BTRHV, log_a_BTH, S_BHKV, weight, lengths, starts)
    q, k, v, log_a, S, weight, lengths, starts = args
    v = v if weight is None else v * weight[:, :, None, :, None]
    heads, outputs = S.shape[1] // max(q.shape[3], 1), []
    for t in range(v.shape[1]):
        old = S if starts is None else torch.where(starts[:, t, None, None, None], 0, S)
        write = torch.einsum("brhk,brhv->bhkv", k[:, t].repeat_interleave(heads, 2), v[:, t])
        kept = log_a[:, t].exp()[..., None, None] * old
        new = kept + write
        y = torch.einsum("brhk,bhkv->brhv", q[:, t].repeat_interleave(heads, 2), kept if strict else new)
        valid = None if lengths is None else (t < lengths)[:, None, None, None]
        S = new if valid is None else torch.where(valid, new, S)
        outputs.append(y if valid is None else torch.where(valid, y, 0))
    return torch.stack(outputs, 1) if outputs else v.clone(), S


def duality_chunked(
    q_BTRGK: Tensor,
    k_BTRGK: Tensor,
    v_BTRHV: Tensor,
    log_a_BTH: Tensor,
    S_BHKV: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
    size: int | None = None,
    strict: bool = False,
    weight: Maybe = None,
) -> Pair:
    """`duality` by matrix products within chunks of `size` steps and a scan between them. Differentiable any number of times.

    Unlike the recurrence, what is not finite (and not padding) spreads over its chunk, and past a start.
    """
    args = aligned(q_BTRGK, k_BTRGK, v_BTRHV, log_a_BTH, S_BHKV, weight, lengths, starts)
    q, k, v, log_a, S, valid = emptied(*args)
    steps, size = v.shape[1], size or steps_of(*v.shape[1:3])
    if v.numel() == 0 or q.numel() == 0:
        return torch.zeros_like(v), S.clone()
    q, k, v, log_a = (_in_chunks(t, size) for t in (q, k, v, log_a))
    sums_BJHLL = segment_sums(log_a.mT)
    added = _written(k, v, sums_BJHLL[..., -1, :].exp())
    through_BJH = log_a.sum(2)
    after = scan_tree(through_BJH.exp()[..., None, None], added, S)
    before = torch.cat([S[:, None], after[:, :-1]], 1)
    y = _within(q, k, v, _mask(sums_BJHLL, strict)) + _read(q, before, log_a.cumsum(2).exp())
    y = y.flatten(1, 2)[:, :steps]
    return (y if valid is None else torch.where(valid[..., None, None, None], y, 0)), after[:, -1].clone()


def duality_quadratic(
    q_BTRGK: Tensor,
    k_BTRGK: Tensor,
    v_BTRHV: Tensor,
    log_a_BTH: Tensor,
    S_BHKV: Tensor,
    *,
    lengths: Maybe = None,
    starts: Maybe = None,
    strict: bool = False,
    weight: Maybe = None,
) -> Pair:
    """`duality` as attention under a mask, the theorem of Dao and Gu (2024): y = (mask * q k^T) v; H T^2 numbers of memory.

    mask_ts = a_{s+1} .. a_t for s <= t (s < t with `strict`), else 0. To this comes what the warm state gives, a_1 .. a_t S_0^T q_t.
    """
    args = aligned(q_BTRGK, k_BTRGK, v_BTRHV, log_a_BTH, S_BHKV, weight, lengths, starts)
    q, k, v, log_a, S, valid = emptied(*args)
    if v.numel() == 0 or q.numel() == 0:
        return torch.zeros_like(v), S.clone()
    q, k, v, log_a_HT = q[:, None], k[:, None], v[:, None], log_a.mT[:, None]
    sums_BJHTT = segment_sums(log_a_HT)
    y = _within(q, k, v, _mask(sums_BJHTT, strict)) + _read(q, S[:, None], log_a_HT.cumsum(-1).exp().mT)
    last = log_a.sum(1).exp()[..., None, None] * S + _written(k, v, sums_BJHTT[..., -1, :].exp())[:, 0]
    return (y[:, 0] if valid is None else torch.where(valid[..., None, None, None], y[:, 0], 0)), last


def steps_of(steps: int, rank: int) -> int:
    """Steps of a chunk, of a sequence of `steps`: no more than there are."""
    return max(1, min(steps, CHUNK // max(rank, 1)))


def segment_sums(x: Tensor) -> Tensor:
    """out[..., t, s] = x_{s+1} + .. + x_t for s <= t, and minus infinity above; x (..., T), out (..., T, T).

    Each sum is summed by itself: differences of cumulative sums would lose a small one after a large one.
    """
    steps = x.shape[-1]
    line = torch.arange(steps, device=x.device)
    terms = torch.where(line[:, None] > line, x[..., None], 0)
    return torch.where(line[:, None] >= line, terms.cumsum(-2), -torch.inf)


def aligned(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, S: Tensor, weight: Maybe, lengths: Maybe, starts: Maybe
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Maybe, Maybe, Maybe]:
    """The arguments of `duality` in one precision, their shapes checked. Raises BadInput."""
    given = {"q": q, "k": k, "v": v, "log_a": log_a, "S": S} | ({} if weight is None else {"weight": weight})
    axes = {"log_a": 3, "S": 4, "weight": 3}
    real = torch.float32
    for name, t in given.items():
        if t.ndim != axes.get(name, 5) or t.dtype.is_complex:
            raise BadInput(f"duality: {name} {tuple(t.shape)} {t.dtype} must be real and have {axes.get(name, 5)} axes")
        real = torch.promote_types(real, raised(t.dtype))
    (B, T, R, H, V), (G, K) = v.shape, q.shape[3:]
    if R < 1:
        raise BadInput(f"duality: v {tuple(v.shape)} has no row in a step; the third axis must be at least 1")
    if G < 1 or H % G:
        raise BadInput(f"duality: {G} groups of q and k do not divide {H} heads of v")
    keys = B, T, R, G, K
    want = {"q": keys, "k": keys, "v": v.shape, "log_a": (B, T, H), "S": (B, H, K, V), "weight": (B, T, H)}
    for name, t in given.items():
        if t.shape != want[name]:
            raise BadInput(f"duality: {name} has shape {tuple(t.shape)}, not {want[name]}, for v {tuple(v.shape)}")
    rows_fit("duality", v.shape, lengths, starts)
    ends = None if lengths is None else lengths.to(torch.int64)
    fresh = None if starts is None else starts.to(torch.bool)
    weight = None if weight is None else weight.to(real)
    return q.to(real), k.to(real), v.to(real), log_a.to(real), S.to(real), weight, ends, fresh


def emptied(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, S: Tensor, weight: Maybe, lengths: Maybe, starts: Maybe
) -> Aligned:
    """Values times their weights; padding of 0 that neither writes nor decays; `log_a` of minus infinity at starts."""
    valid = None
    if starts is not None:
        log_a = log_a.masked_fill(starts[..., None], -torch.inf)
    if lengths is not None:
        valid = torch.arange(v.shape[1], device=v.device) < lengths[:, None]
        q, k, v = (torch.where(valid[..., None, None, None], t, 0) for t in (q, k, v))
        log_a = torch.where(valid[..., None], log_a, 0)
        weight = None if weight is None else torch.where(valid[..., None], weight, 0)
    v = v if weight is None else v * weight[:, :, None, :, None]
    return Aligned(q, k, v, log_a, S, valid)


def _in_chunks(t: Tensor, size: int) -> Tensor:
    """(B, T, ...) as (B, chunks, size, ...), the last chunk filled up with 0."""
    short = -t.shape[1] % size
    return F.pad(t, (0, 0) * (t.ndim - 2) + (0, short)).reshape(t.shape[0], -1, size, *t.shape[2:])


def _grouped(t_BJLRHV: Tensor, groups: int) -> Tensor:
    """The heads of a group on an axis of their own: (B, chunks, L, R, G, heads of it, V)."""
    *axes, heads, width = t_BJLRHV.shape
    return t_BJLRHV.reshape(*axes, groups, heads // groups, width)


def _heads_of(t_BJHXY: Tensor, groups: int) -> Tensor:
    """The same of matrices of the heads: (B, chunks, G, heads of it, X, Y)."""
    B, J, H, X, Y = t_BJHXY.shape
    return t_BJHXY.reshape(B, J, groups, H // groups, X, Y)


def _mask(sums_BJHLL: Tensor, strict: bool) -> Tensor:
    """The mask of decays: what a step writes is seen by those from it on, or with `strict` by those after it."""
    mask = sums_BJHLL.exp()
    return mask.tril(-1) if strict else mask


def _within(q: Tensor, k: Tensor, v: Tensor, mask_BJHLL: Tensor) -> Tensor:
    """What the steps of a chunk give to its own outputs: scores once for each group, a mask for each head."""
    groups = q.shape[4]
    scores = torch.einsum("bjtrgk,bjsugk->bjgtrsu", q, k)[:, :, :, None]
    masked = scores * _heads_of(mask_BJHLL, groups)[..., :, None, :, None]
    return torch.einsum("bjghtrsu,bjsughv->bjtrghv", masked, _grouped(v, groups)).flatten(4, 5)


def _written(k: Tensor, v: Tensor, decay_BJHL: Tensor) -> Tensor:
    """What the steps of a chunk write into the state after it: (B, chunks, H, K, V)."""
    late = _grouped(v * decay_BJHL.mT[:, :, :, None, :, None], k.shape[4])
    return torch.einsum("bjsrgk,bjsrghv->bjghkv", k, late).flatten(2, 3)


def _read(q: Tensor, S_BJHKV: Tensor, decay_BJLH: Tensor) -> Tensor:
    """What the state before a chunk gives to its outputs."""
    y = torch.einsum("bjtrgk,bjghkv->bjtrghv", q, _heads_of(S_BJHKV, q.shape[4])).flatten(4, 5)
    return y * decay_BJLH[:, :, :, None, :, None]
