"""How likely a network finds a text: the log-likelihood of every token, in the memory of one block, however long the text is.

    l_t = log p(w_t | w_1 ... w_{t-1}),   perplexity = exp(-mean of l),   bits per byte = -sum of l / (ln 2 * bytes)

Blocks hand the state on, so their size changes nothing but rounding. The first token of a text has nothing before it: it is read, and not
scored, unless a token to begin with or a past is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from conca.infer.past import Past
from conca.infer.reading import check_tokens, quiet, read, stepping
from conca.infer.sampling import BROKEN
from conca.layers.options import whole
from conca.models.language import LanguageNetwork
from conca.types import BadInput

__all__ = ["Ids", "Scored", "Tally", "score"]


class Ids(Protocol):
    """Tokens that lie somewhere."""

    def __len__(self) -> int: ...

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """The tokens from `begin` up to `end`."""
        ...


@runtime_checkable
class Texts(Protocol):
    """Tokens of several texts, of which not all count."""

    def mask(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Whether each token counts, where it is what has to be foretold."""
        ...

    def starts(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Whether a text begins at each token, which must not see the one before."""
        ...


class Lying:
    """Tokens in memory, as `Ids`. Raises BadInput for anything but whole numbers in a row."""

    def __init__(self, ids: Tensor | NDArray[Any] | Sequence[int]) -> None:
        self.ids = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
        if self.ids.ndim != 1 or (len(self.ids) and not np.issubdtype(self.ids.dtype, np.integer)):
            raise BadInput(f"expected tokens (whole numbers in a row), got {self.ids.dtype} of shape {self.ids.shape}")

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """The tokens from `begin` up to `end`."""
        return self.ids[begin:end]


@dataclass(frozen=True)
class Scored:
    """A block of a text: where it begins, its tokens (N,) and their log-likelihoods (N,) in nats, NaN where a token is not scored."""

    begin: int
    ids: NDArray[np.int64]
    loglik: NDArray[np.float64]


@dataclass
class Tally:
    """What blocks come to.

    tokens  that were scored
    nats   that they cost
    bytes  that they stand for

    >>> tally = Tally()
    >>> tally.add(Scored(0, np.array([3, 4]), np.array([np.nan, -math.log(2)])), sizes=np.array([1, 2]))
    >>> tally.tokens, tally.perplexity, tally.bits_per_byte
    (1, 2.0, 0.5)
    """

    tokens: int = 0
    nats: float = 0.0
    bytes: int = 0

    def add(self, scored: Scored, sizes: NDArray[np.integer[Any]] | None = None) -> None:
        """One block more; `sizes` (N,): bytes that each of its tokens stands for."""
        counts = ~np.isnan(scored.loglik)
        self.tokens += int(counts.sum())
        self.nats -= float(scored.loglik[counts].sum())
        self.bytes += 0 if sizes is None else int(sizes[counts].sum())

    @property
    def perplexity(self) -> float:
        """exp of the nats for each token; NaN without tokens."""
        return _exp(self.nats / self.tokens) if self.tokens else math.nan

    @property
    def bits_per_token(self) -> float:
        """Bits for each token; NaN without tokens."""
        return self.nats / math.log(2) / self.tokens if self.tokens else math.nan

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte; NaN where bytes were not counted."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan


def _exp(value: float) -> float:
    """exp, infinity where it is too large."""
    return math.exp(value) if value < 709 else math.inf


def score(
    network: LanguageNetwork,
    source: Ids | Tensor | NDArray[Any] | Sequence[int],
    *,
    begin: int = 0,
    end: int | None = None,
    block: int = 2048,
    past: Past | None = None,
    bos: int | None = None,
) -> Iterator[Scored]:
    """The log-likelihoods of the tokens from `begin` up to `end`, block by block, each while it is asked for.

    Args:
        network: what reads.
        source: tokens in memory, or what has `read(begin, end)`; where it also has `mask` and `starts`, texts begin where these say, and
            only tokens of the mask are scored, and the first of a text where `bos` is given (unless only completions count).
        begin, end: which tokens.
        block: tokens that are read at once.
        past: one text that these tokens follow.
        bos: a token that stands before each text, and is not scored.

    Raises:
        BadInput: for no tokens, tokens that the network does not have, several pasts, and a network that gives no numbers.
    """
    if not whole(block):
        raise BadInput(f"block must be a whole number from 1 on, not {block!r}")
    if past is not None and len(past) != 1:
        raise BadInput(f"one text is scored, and the past is of {len(past)}; take one of them")
    found: Ids = source if hasattr(source, "read") else Lying(source)
    end = len(found) if end is None else min(end, len(found))
    if begin < 0 or begin >= end:
        raise BadInput(f"there are no tokens from {begin} to {end} to score")
    return _blocks(network, found, begin, end, block, past, bos)


def _blocks(
    network: LanguageNetwork, source: Ids, begin: int, end: int, block: int, past: Past | None, bos: int | None
) -> Iterator[Scored]:
    """What `score` gives."""
    scorer = Scorer(network, past, bos)
    for first in range(begin, end, block):
        last = min(first + block, end)
        ids = np.asarray(source.read(first, last)).astype(np.int64)
        check_tokens(ids, network, begin=first)
        if not isinstance(source, Texts):
            yield Scored(first, ids, scorer.block(ids, None))
            continue
        starts = np.array(source.starts(first, last), dtype=bool)
        opens = starts & (bos is not None)
        if past is not None and first == begin:  # whoever gives a past says that the first token follows it
            opens[0], starts[0] = True, False
        counts = np.array(source.mask(first, last), dtype=bool)
        if not getattr(source, "completions", False):
            counts |= opens
        yield Scored(first, ids, np.where(counts, scorer.block(ids, starts), np.nan))


class Scorer:
    """Reads one text on and on; what it holds is the state and the last vector, or the logits, of what was read.

    Args:
        network: what reads.
        past: what was read before.
        bos: stands before each text.
    """

    def __init__(self, network: LanguageNetwork, past: Past | None, bos: int | None) -> None:
        self.network = network
        self.device = network.norm.weight.device
        start = Past.start(network, 1) if past is None else past
        self.bos = None
        if bos is not None:
            check_tokens(np.array([bos]), network, "bos, ")
            self.bos = read(network, Past.start(network, 1).followed([torch.tensor([bos])]), stepping(network))
            start = self.bos if past is None else past
        start = read(network, start, stepping(network))
        self.state = start.state
        self.logits: Tensor | None = start.logits if int(start.read) else None
        self.h: Tensor | None = None

    def block(self, ids: NDArray[np.int64], starts: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        """Log-likelihoods (N,) of the next tokens (N,), NaN where nothing stands before; `starts` (N,): where a text begins."""
        tokens = torch.from_numpy(ids).to(self.device)
        with quiet(self.network):
            loglik = torch.full((len(ids),), math.nan, dtype=torch.float64)
            cuts = [0, len(ids)] if starts is None else [0, *np.flatnonzero(starts).tolist(), len(ids)]
            if self.bos is None:
                flags = None if starts is None or not starts.any() else torch.from_numpy(starts)
                self._run(tokens, loglik, flags)
            else:  # what stands before each text is no token of the block
                for a, b in pairwise(cuts):
                    if starts is not None and a < len(ids) and starts[a]:
                        self.state, self.logits, self.h = self.bos.state, self.bos.logits, None
                    if a < b:
                        self._run(tokens[a:b], loglik[a:b], None)
        return loglik.numpy()

    def _run(self, tokens: Tensor, loglik: Tensor, starts: Tensor | None) -> None:
        """Read tokens (N,), and write their log-likelihoods into `loglik` (N,)."""
        flags = None if starts is None else starts.to(self.device)[None]
        h, self.state = self.network.read(tokens[None], self.state, starts=flags)
        if self.logits is not None:
            loglik[:1] = -cross_entropy(self.logits.to(h.dtype), tokens[:1])
        elif self.h is not None:
            loglik[:1] = -self.network.loss(self.h, tokens[:1], reduction="none")
        if len(tokens) > 1:
            loglik[1:] = -self.network.loss(h[0, :-1], tokens[1:], reduction="none")
        if bool(loglik[int(self.logits is None and self.h is None) :].isnan().any()):
            raise BadInput(BROKEN)
        if starts is not None:
            loglik[starts] = math.nan
        self.logits, self.h = None, h[0, -1:].clone()
