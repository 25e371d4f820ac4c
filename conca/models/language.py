"""A language model: an embedding, a stack of blocks, a norm, and a number for every token that may come next.

    h_t, state = stack(W[id_t], state),   logits_t = V norm(h_t)                    V = W where the table is tied

Whatever the blocks are (Mamba, S5, an LSTM, attention, several of them), what has been read is a state that goes in and comes out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from conca.layers.narrow import Narrow
from conca.layers.narrow_embedding import NarrowEmbedding
from conca.layers.norm import RMSNorm
from conca.layers.options import whole
from conca.layers.quantised import NarrowLinear
from conca.layers.rows import left_to_right, right_to_left
from conca.layers.tied_embedding import TiedEmbedding
from conca.models.description import Description
from conca.models.stack import pattern
from conca.ops.cross_entropy import Reduction, linear_cross_entropy
from conca.ops.doors import raised
from conca.types import BadInput, State

__all__ = ["LanguageConfig", "LanguageNetwork"]

States = tuple[State, ...]


@dataclass(frozen=True)
class LanguageConfig(Description):
    """What a language model is made of.

    vocab_size  rows of the table
    n_tokens    tokens that exist; the rows from there on are padding, which is never written
    layers      pattern of the stack, such as "mamba2(d_state=64)*4 attention(window=64)"; each name in it is a pre-norm block
    d_model     its width
    tied        whether the table is also the head
    eps         what the norms add to the mean of squares
    dropout     on what a block adds
    std         standard deviation of the first values of table and head

    Raises:
        BadInput: for what is out of range, and more tokens than rows.
    """

    vocab_size: int
    n_tokens: int
    layers: str
    d_model: int
    tied: bool = True
    eps: float = 1e-5
    dropout: float = 0.0
    std: float = 0.02

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_tokens", "d_model"):
            if not whole(getattr(self, name)):
                raise BadInput(f"network: {name} must be a whole number from 1 on, not {getattr(self, name)!r}")
        if not isinstance(self.layers, str):
            raise BadInput(f"network: layers must be a pattern such as 'mamba2*4', not {self.layers!r}")
        if not isinstance(self.tied, bool):
            raise BadInput(f"network: tied must be true or false, not {self.tied!r}")
        for name, most in (("eps", math.inf), ("dropout", 1.0), ("std", math.inf)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < most:
                limit = "" if most == math.inf else f" and less than {most:g}"
                raise BadInput(f"network: {name} must be a number of at least 0{limit}, not {value!r}")
        if self.n_tokens > self.vocab_size:
            raise BadInput(
                f"network: n_tokens {self.n_tokens} is more than the vocab_size {self.vocab_size} that the table has"
            )


class LanguageNetwork(nn.Module):
    """Logits of the next token, of whole texts or token by token; state goes in and comes out.

    In half precision the sum that the blocks add to stays float32.

    Args:
        config: see `LanguageConfig`.

    Raises:
        BadInput: for a pattern that cannot be built.

    >>> network = LanguageNetwork(LanguageConfig(vocab_size=50, n_tokens=50, layers="mamba*2", d_model=8))
    >>> logits, state = network(torch.tensor([[1, 2, 3]]))
    >>> logits.shape, network.step(torch.tensor([4]), state)[0].shape
    (torch.Size([1, 3, 50]), torch.Size([1, 50]))
    """

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding: TiedEmbedding | NarrowEmbedding = TiedEmbedding(
            config.vocab_size, config.d_model, std=config.std
        )
        self.stack = pattern(config.layers, config.d_model, dropout=config.dropout, eps=config.eps)
        self.norm = RMSNorm(config.d_model, eps=config.eps)
        self.head: nn.Linear | NarrowLinear | None = None
        if not config.tied:
            self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
            nn.init.normal_(self.head.weight, std=config.std)

    @property
    def bounded(self) -> bool:
        """Whether the state does not grow."""
        return self.stack.bounded

    def init_state(self, batch: int) -> States:
        """The state of `batch` texts of which nothing has been read."""
        return self.stack.init_state(batch)

    def read(
        self,
        ids: Tensor,
        state: States | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, States]:
        """What the layers say (B, T, D), after the last norm, and the state.

        Args:
            ids: tokens (B, T); in the padding of rows they may be anything from 0 to V - 1.
            state: what was read before.
            lengths: (B,) of right-padded rows.
            starts: (B, T) where a new text begins.

        Raises:
            IndexError: for tokens that the table does not have.
        """
        h, state = self.stack(self.entered(ids), state, lengths=lengths, starts=starts)
        return self.norm(h), state

    def entered(self, ids: Tensor) -> Tensor:
        """Vectors (..., D) of tokens (...), in float32 or better."""
        x: Tensor = self.embedding(ids)
        return x.to(raised(x.dtype))

    def logits(self, h: Tensor) -> Tensor:
        """A number for each token (..., V), of what `read` gave (..., D)."""
        table = self.embedding if self.head is None else self.head
        narrow = getattr(table.weight, "dtype", h.dtype)
        if narrow.is_floating_point and isinstance(table, nn.Linear | nn.Embedding):
            h = h.to(narrow)
        return self.embedding.logits(h) if self.head is None else self.head(h)

    def loss(self, h: Tensor, target: Tensor, *, ignore: int = -100, reduction: Reduction = "mean") -> Tensor:
        """Cross entropy of the logits of h (..., D) at the tokens `target` (...), which never keeps all of them.

        Args:
            h: what `read` gave.
            target: the tokens that came; where it is `ignore`, nothing counts.
            reduction: "mean", "sum", or "none" (one number for each).
        """
        table = self.embedding if self.head is None else self.head
        if isinstance(table, TiedEmbedding | Narrow):
            return table.loss(h, target, ignore=ignore, reduction=reduction)
        return linear_cross_entropy(h, table.weight, target, ignore=ignore, reduction=reduction)

    def step(self, ids: Tensor, state: States) -> tuple[Tensor, States]:
        """One token of each text: ids (B,) give logits (B, V)."""
        h, state = self.stack.step(self.entered(ids), state)
        return self.logits(self.norm(h)), state

    def forward(
        self,
        ids: Tensor,
        state: States | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, States]:
        """Logits (B, T, V) of the token after each, and the state; arguments as in `read`.

        Args:
            attention_mask: (B, T), 1 at tokens and 0 in the padding, on the left or on the right, in place of `lengths`. Logits in the
                padding are those of nothing.

        Raises:
            BadInput: for a mask that is no padding of one side, and for one beside `lengths` or `starts`.
        """
        if attention_mask is None:
            h, state = self.read(ids, state, lengths=lengths, starts=starts)
            return self.logits(h), state
        if lengths is not None or starts is not None:
            raise BadInput("attention_mask says where rows end; leave lengths and starts out")
        left, lengths = sides(attention_mask, ids)
        h, state = self.read(left_to_right(ids, lengths) if left else ids, state, lengths=lengths)
        return self.logits(right_to_left(h, lengths) if left else h), state


def sides(mask: Tensor, ids: Tensor) -> tuple[bool, Tensor]:
    """Whether rows are padded on the left, and how many tokens (B,) each has. Raises BadInput for any other mask."""
    if mask.shape != ids.shape:
        raise BadInput(f"attention_mask is {tuple(mask.shape)}, the tokens are {tuple(ids.shape)}")
    there = mask != 0
    lengths, every = there.sum(1), torch.arange(mask.shape[1], device=mask.device)
    if torch.equal(there, every < lengths[:, None]):
        return False, lengths
    if torch.equal(there, every >= mask.shape[1] - lengths[:, None]):
        return True, lengths
    raise BadInput("attention_mask has holes; padding must stand on one side, the left or the right of all rows")
