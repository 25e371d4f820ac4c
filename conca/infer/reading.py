"""Texts are read in one batch, in pieces, and only the logits after their last tokens are computed; then token after token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from conca.infer.decoder import Decoder
from conca.infer.past import Past
from conca.layers import states
from conca.models.language import LanguageNetwork, States, sides
from conca.types import BadInput

__all__ = ["Stepping", "check_tokens", "prompts_of", "quiet", "read", "several", "started", "stepping", "texts"]

PIECE = 2048
"""Tokens that are read at once, of all rows together."""
LEAST = 32
"""Tokens of each row that are read at once, at least."""

Tokens = Sequence[int] | Tensor | np.ndarray[Any, Any]


class Stepping(Protocol):
    """What makes one step of every text."""

    def step(self, ids: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """Tokens (B,) and the state give logits (B, V) and the next state."""
        ...


def stepping(network: LanguageNetwork) -> Stepping:
    """The fastest steps of a network: those of a `Decoder`, but where weights are in plain half precision its own."""
    table = network.embedding if network.head is None else network.head
    narrow = isinstance(table, nn.Linear | nn.Embedding) and table.weight.dtype.itemsize < 4
    if narrow or table.weight.device.type != "cpu":
        return network
    return Decoder(
        network.stack,
        embedding=cast(nn.Module, network.entered),
        norm=network.norm,
        head=table,
    )


@contextmanager
def quiet(network: nn.Module) -> Iterator[None]:
    """Without gradients and without dropout; what was training trains again afterwards."""
    training = [module for module in network.modules() if module.training] if network.training else []
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def texts(prompts: Tokens | Sequence[Tokens] | None, *, rows: int | None = None) -> list[Tensor]:
    """Prompts as a list of int64 vectors: of one vector, a matrix, or a sequence of vectors of unequal lengths.

    Args:
        prompts: tokens; None, or nothing at all, means nothing for each of `rows` texts.
        rows: how many texts there have to be.

    Raises:
        BadInput: for what are no tokens, and another number of texts than `rows`.
    """
    if prompts is None or len(prompts) == 0:
        found = [torch.empty(0, dtype=torch.int64) for _ in range(1 if rows is None else rows)]
    elif isinstance(prompts, Tensor | np.ndarray):
        found = [vector(row, n) for n, row in enumerate(prompts if prompts.ndim > 1 else prompts[None])]
    elif np.ndim(cast(Any, prompts[0])) == 0:
        found = [vector(cast(Tokens, prompts), 0)]
    else:
        found = [vector(row, n) for n, row in enumerate(cast("Sequence[Tokens]", prompts))]
    if rows is not None and len(found) != rows:
        raise BadInput(f"there are {len(found)} prompts for {rows} states; give one for each")
    return found


def check_tokens(ids: NDArray[Any], network: LanguageNetwork, where: str = "", begin: int = 0) -> None:
    """Raise BadInput unless all of the tokens (N,) are the network's; it says `where`, and at which place, counted from `begin`."""
    vocab_size = network.config.vocab_size
    for at in np.flatnonzero((ids < 0) | (ids >= vocab_size))[:1].tolist():
        said = f"{where}token {begin + at}: {ids[at]} is not among the {vocab_size} of the network"
        raise BadInput(f"{said}; is it another's tokenizer?")


def vector(tokens: Tokens, n: int) -> Tensor:
    """One text as an int64 vector on the CPU. Raises BadInput for anything but whole numbers."""
    found = torch.as_tensor(np.asarray(tokens) if not isinstance(tokens, Tensor) else tokens)
    if found.ndim != 1 or (
        len(found) and (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
    ):
        raise BadInput(
            f"prompt {n + 1}: expected tokens (whole numbers in a row), got {found.dtype} of shape {tuple(found.shape)}"
        )
    return found.detach().to("cpu", torch.int64)


def prompts_of(ids: Tensor, attention_mask: Tensor | None = None) -> list[Tensor]:
    """The rows (T,) of padded tokens (B, T), without the padding of one side.

    Args:
        ids: tokens.
        attention_mask: (B, T), 1 at tokens and 0 in the padding.

    Raises:
        BadInput: for a mask that is no padding of one side.
    """
    if attention_mask is None:
        return list(ids)
    left, lengths = sides(attention_mask, ids)
    return [row[len(row) - n :] if left else row[:n] for row, n in zip(ids, lengths.tolist())]


def read(network: LanguageNetwork, past: Past, steps: Stepping, told: Callable[[int], None] | None = None) -> Past:
    """The past after its tails were read, and nothing else: each token is read once.

    Rows that have no more tokens wait. A single token of each is a step.

    Args:
        network: what reads.
        past: of texts that may be of unequal lengths, and may have nothing new.
        steps: of the network.
        told: is given the number of tokens of each piece that was read.
    """
    lengths = torch.tensor([len(row) for row in past.tail], dtype=torch.int64)
    done = Past(
        past.state, past.logits, tuple(row[:0] for row in past.tail), past.seen, past.read + lengths, past.written
    )
    if not int(lengths.sum()):
        return done
    with quiet(network):
        if bool((lengths == 1).all()):
            logits, state = steps.step(torch.cat(past.tail).to(past.logits.device), past.state)
            if told is not None:
                told(len(past))
        else:
            state, logits = _pieces(network, past, lengths, told)
    return Past(state, logits, done.tail, done.seen, done.read, done.written)


def _pieces(
    network: LanguageNetwork, past: Past, lengths: Tensor, told: Callable[[int], None] | None
) -> tuple[States, Tensor]:
    """State and logits after all tokens of all tails, which are read in pieces of rows that have some left."""
    device, state = past.logits.device, past.state
    logits = past.logits.clone() if bool((lengths == 0).any()) else past.logits
    at = 0
    while bool((live := lengths > at).any()):
        rows = live.nonzero()[:, 0]
        size = max(LEAST, PIECE // len(rows))
        pieces = [past.tail[row][at : at + size] for row in rows.tolist()]
        ids = nn.utils.rnn.pad_sequence(pieces, batch_first=True).to(device)
        counts = torch.tensor([len(piece) for piece in pieces])
        whole, here = bool(live.all()), rows.to(device)
        ragged = None if bool((counts == ids.shape[1]).all()) else counts.to(device)
        h, new = network.read(ids, state if whole else states.take(state, here), lengths=ragged)
        ends = (lengths[rows] <= at + size).nonzero()[:, 0]
        if len(ends):
            last = network.logits(h[ends.to(device), (counts[ends] - 1).to(device)])
            logits = last if len(ends) == len(lengths) else _placed(logits, rows[ends].to(device), last)
        state = new if whole else states.put(state, here, new)
        at += size
        if told is not None:
            told(int(counts.sum()))
    return state, logits


def _placed(logits: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """Logits (B, V) with `new` in these rows, in the precision of `new`."""
    return logits.to(new.dtype).index_put((rows,), new)


def started(
    network: LanguageNetwork,
    prompts: Tokens | Sequence[Tokens] | None,
    past: Past | None,
    samples: int,
    bos: int | None,
) -> Past:
    """The past whose tails are what has to be read; those of one prompt stand one after the other.

    Raises:
        BadInput: for an empty prompt of which nothing was read, tokens that the network does not have, and numbers that do not fit.
    """
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise BadInput(f"samples must be a whole number from 1 on, not {samples!r}")
    found = texts(prompts, rows=None if past is None else len(past))
    past = Past.start(network, len(found)) if past is None else past
    for n, row in enumerate(found):
        if not len(row) and not len(past.tail[n]) and not int(past.read[n]):
            if bos is None:
                raise BadInput(f"prompt {n + 1} is empty; give at least one token, or a state to go on from")
            found[n] = torch.tensor([bos])
        check_tokens(found[n].numpy(), network, f"prompt {n + 1}, ")
    return past.followed(found)


def several(items: Iterable[Any], samples: int) -> list[Any]:
    """Each item so many times."""
    return [item for item in items for _ in range(samples)]
