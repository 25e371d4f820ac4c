"""What texts leave when nobody writes on: their state, the tokens that were kept and not yet read, and what is needed to go on alike."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from conca.layers import states
from conca.models.language import LanguageNetwork, States
from conca.types import BadInput, State

__all__ = ["Past", "joined"]


@dataclass(frozen=True)
class Past:
    """What B texts leave. It is never changed, and any number of texts may be written from it.

    state    of the network after the tokens that it has read
    logits   (B, V) of the token after those; of no meaning where none was read
    tail     tokens of each text that it has not read yet, int64
    seen     (B, V) bool, tokens that stand in each text
    read     (B,) tokens that it has read
    written  (B,) tokens of those and the tail that it has written itself
    """

    state: States
    logits: Tensor
    tail: tuple[Tensor, ...]
    seen: Tensor
    read: Tensor
    written: Tensor

    def __len__(self) -> int:
        return len(self.tail)

    @classmethod
    def start(cls, network: LanguageNetwork, batch: int) -> Past:
        """Of `batch` texts of which nothing was read."""
        vocab_size, device = network.config.vocab_size, network.norm.weight.device
        none = torch.zeros(batch, dtype=torch.int64)
        return cls(
            network.init_state(batch),
            torch.zeros(batch, vocab_size, device=device),
            tuple(none.new_empty(0) for _ in range(batch)),
            torch.zeros(batch, vocab_size, dtype=torch.bool, device=device),
            none,
            none,
        )

    def take(self, rows: Sequence[int]) -> Past:
        """The texts with these numbers, each as often as it is named."""
        at = torch.tensor(list(rows), dtype=torch.int64)
        here = at.to(self.logits.device)
        return Past(
            states.take(self.state, here),
            self.logits[here],
            tuple(self.tail[row] for row in rows),
            self.seen[here],
            self.read[at],
            self.written[at],
        )

    @classmethod
    def join(cls, parts: Sequence[Past]) -> Past:
        """All texts of several, in order."""
        return cls(
            joined([part.state for part in parts]),
            torch.cat([part.logits for part in parts]),
            tuple(row for part in parts for row in part.tail),
            torch.cat([part.seen for part in parts]),
            torch.cat([part.read for part in parts]),
            torch.cat([part.written for part in parts]),
        )

    def followed(self, tokens: Sequence[Tensor]) -> Past:
        """With these tokens of each text, not read yet, at the end."""
        return Past(
            self.state,
            self.logits,
            tuple(torch.cat(pair) for pair in zip(self.tail, tokens, strict=True)),
            marked(self.seen, tokens),
            self.read,
            self.written,
        )

    def tree(self, network: LanguageNetwork) -> State:
        """All of it as tensors, and which network it belongs to."""
        lengths = torch.tensor([len(row) for row in self.tail])
        tail = torch.nn.utils.rnn.pad_sequence([*self.tail], batch_first=True)
        mark = torch.full((len(self),), mark_of(network))
        return (self.state, self.logits, tail, lengths, self.seen, self.read, self.written, mark)

    def save(self, path: str | Path, network: LanguageNetwork) -> None:
        """Write it to a file (safetensors), whole or not at all."""
        states.save(self.tree(network), path)

    @classmethod
    def load(cls, path: str | Path, network: LanguageNetwork) -> Past:
        """What `save` wrote.

        Raises:
            BadInput: if the file is missing, broken, or of another network.
        """
        return cls.grown(states.load(path, cls.start(network, 1).tree(network)), path, network)

    @classmethod
    def grown(cls, tree: State, path: str | Path, network: LanguageNetwork) -> Past:
        """From the tensors of `tree`, read from a file. Raises BadInput if they are of another network, or do not fit together."""
        state, logits, tail, lengths, seen, read, written, mark = tree
        if not isinstance(mark, Tensor) or mark.numel() < 1 or bool((mark != mark_of(network)).any()):
            raise BadInput(f"{path}: holds the state of another model; give the model that wrote it")
        assert isinstance(tail, Tensor) and isinstance(lengths, Tensor) and isinstance(state, tuple)
        assert isinstance(logits, Tensor) and isinstance(seen, Tensor)
        assert isinstance(read, Tensor) and isinstance(written, Tensor)
        vectors = lengths, read, written, mark
        fit = fits(tree, network) and tail.ndim == 2 and all(vector.ndim == 1 for vector in vectors)
        own = len(mark), network.config.vocab_size
        if not fit or logits.shape != own or seen.shape != own or seen.dtype != torch.bool:
            raise BadInput(f"{path}: its tensors do not fit together; the file is damaged")
        rows = tuple(row[:length].clone() for row, length in zip(tail, lengths.tolist()))
        return cls(state, logits, rows, seen, read, written)


def fits(tree: State, network: LanguageNetwork) -> bool:
    """Whether the tensors of a past have the same rows, and its state has the types and the sizes of the network's."""
    found = tree[0]
    pairs = [*zip(states.leaves(found), states.leaves(network.init_state(1)), strict=True)]
    alike = all(a.dim() == b.dim() and a.is_floating_point() == b.is_floating_point() for a, b in pairs)
    sized = not network.bounded or all(a.shape[1:] == b.shape[1:] for a, b in pairs)
    return alike and sized and len({leaf.shape[:1] for leaf in states.leaves(tree)}) == 1


def marked(seen: Tensor, tokens: Sequence[Tensor]) -> Tensor:
    """A copy of `seen` (B, V) with the tokens of each row in it."""
    seen = seen.clone()
    for row, some in zip(seen, tokens):
        row[some.to(row.device)] = True
    return seen


def mark_of(network: LanguageNetwork) -> int:
    """A number by which the states of a network are known again: of its shape, and of its last norm.

    The norm is looked at in bfloat16: a model that was narrowed goes on where the stored one ended, and the reverse.
    """
    shape = json.dumps(network.config.as_dict(), sort_keys=True).encode()
    norm = network.norm.weight.detach().to("cpu", torch.bfloat16).contiguous()
    return zlib.crc32(norm.view(torch.uint8).numpy().tobytes(), zlib.crc32(shape))


def joined(parts: Sequence[States]) -> States:
    """The rows of several states one after the other, also at unequal capacity."""

    def cat(*leaves: Tensor) -> Tensor:
        sizes = [max(each) for each in zip(*(leaf.shape[1:] for leaf in leaves))]

        def padded(leaf: Tensor) -> Tensor:
            short = [size - have for size, have in zip(sizes, leaf.shape[1:])]
            return F.pad(leaf, [side for need in reversed(short) for side in (0, need)]) if any(short) else leaf

        return torch.cat([padded(leaf) for leaf in leaves])

    return parts[0] if len(parts) == 1 else states.tree_map(cat, parts[0], *parts[1:])
