"""Beams: the likeliest texts are followed side by side, their states picked anew after every token.

    score(w_1 ... w_n) = sum_i log p(w_i | before) / n^penalty

Which texts end, and when the search does, is as in transformers since its beams became vectors (2025); there the states of these networks
were not reordered until 2026. A beam ends at a token of `eos` or at the greatest length; only what is among the best `num_beams` candidates
of a token may end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from conca.infer.past import Past, marked
from conca.infer.reading import Stepping, Tokens, quiet, read, started, stepping
from conca.infer.sampling import BROKEN, Sampling, processed
from conca.infer.stopping import Codec, plain
from conca.infer.written import Generation, Rate, Reason, Written
from conca.models.language import LanguageNetwork
from conca.ops.doors import raised
from conca.types import BadInput

__all__ = ["beam_search", "check_best"]


@dataclass(frozen=True)
class Ended:
    """A text that has ended: its score, its tokens, and what it leaves."""

    score: float
    ids: tuple[int, ...]
    past: Past


@dataclass
class Search:
    """The texts that go on (`past`, a row for each; the best first) and those that have ended, of one prompt."""

    sampling: Sampling
    past: Past
    sums: Tensor
    ids: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    ended: list[Ended] = field(default_factory=list)
    over: bool = False

    @property
    def full(self) -> bool:
        """Whether as many texts have ended as are followed."""
        return len(self.ended) == self.sampling.num_beams

    def spread(self, n_tokens: int) -> list[tuple[int, int, float]]:
        """The best candidates for one more token: which text, which token, the sum; the best first."""
        some, past = self.sampling, self.past
        chances = processed(past.logits.to(raised(past.logits.dtype)).log_softmax(-1), past.seen, some, n_tokens)
        sums = (self.sums[:, None] + chances).flatten()
        count = max(2, 1 + len(some.eos)) * some.num_beams
        best = sums.topk(min(count, len(sums)))
        if bool(best.values.isnan().any()):
            raise BadInput(BROKEN)
        rows, tokens = best.indices // chances.shape[1], best.indices % chances.shape[1]
        found = zip(rows.tolist(), tokens.tolist(), best.values.tolist())
        return [candidate for candidate in found if candidate[2] > -torch.inf]

    def advance(self, n_tokens: int) -> Tensor:
        """Follow the best candidates; the tokens (R,) that they add, which are still to be read."""
        some, length = self.sampling, len(self.ids[0]) + 1
        going: list[tuple[int, int, float]] = []
        stopped = some.early_stopping is True and self.full
        candidates = self.spread(n_tokens)
        for rank, (row, token, total) in enumerate(candidates):
            if token not in some.eos and length < some.max_new_tokens:
                going.append((row, token, total))
            elif rank < some.num_beams and not stopped:
                self.end(row, token, total / length**some.length_penalty)
        going = going[: some.num_beams]
        self.over = not going or (some.early_stopping is True and self.full) or not self.hopeful(going[0][2], length)
        if self.over:
            return torch.empty(0, dtype=torch.int64)
        self.ids = [(*self.ids[row], token) for row, token, _ in going]
        self.sums = self.sums.new_tensor([total for *_, total in going])
        self.past = self.past.take([row for row, *_ in going])
        return torch.tensor([token for _, token, _ in going], device=self.sums.device)

    def hopeful(self, best: float, length: int) -> bool:
        """Whether a text that goes on, the best of which has this sum, may still be better than the worst that has ended."""
        some = self.sampling
        far = some.early_stopping == "never" and some.length_penalty > 0
        reach = some.max_new_tokens if far else length
        return not self.full or best / reach**some.length_penalty > min(text.score for text in self.ended)

    def end(self, row: int, token: int, score: float) -> None:
        """A text ends with this token, and is kept if it is among the best."""
        if self.full and score <= min(text.score for text in self.ended):
            return
        past = self.past.take([row]).followed([torch.tensor([token])])
        past = Past(past.state, past.logits, past.tail, past.seen, past.read, past.written + 1)
        self.ended.append(Ended(score, (*self.ids[row], token), past))
        self.ended = sorted(self.ended, key=lambda text: -text.score)[: self.sampling.num_beams]


def beam_search(
    network: LanguageNetwork,
    prompts: Tokens | Sequence[Tokens] | None,
    sampling: Sampling,
    *,
    past: Past | None = None,
    n_best: int = 1,
    tokenizer: Codec | None = None,
    bos: int | None = None,
) -> Generation:
    """The best texts that beams find for each prompt, one prompt after the other.

    Args:
        network, prompts, past, tokenizer, bos: as in `Writer`.
        sampling: its beams, the penalties, eos and the greatest length.
        n_best: texts for each prompt, the best first, with their scores.

    Raises:
        BadInput: as in `Writer`, and for more texts than beams.
    """
    check_best(n_best, sampling)
    begin = time.perf_counter()
    steps, before = stepping(network), started(network, prompts, past, 1, bos)
    tokens = sum(map(len, before.tail))
    before = read(network, before, steps)
    middle = time.perf_counter()
    rows, pasts = [], []
    for row in range(len(before)):
        for text in searched(network, before.take([row]), sampling, steps)[:n_best]:
            ids = torch.tensor(text.ids, dtype=torch.int64)
            by_token = text.ids[-1] in sampling.eos
            reason: Reason = "eos" if by_token else "length"
            said = None if tokenizer is None else plain(tokenizer, text.ids[: len(ids) - by_token])
            rows.append(Written(ids, said, reason, text.score))
            pasts.append(text.past)
    written = sum(len(row.ids) for row in rows)
    rate = Rate(tokens, written, middle - begin, time.perf_counter() - middle)
    return Generation(tuple(rows), Past.join(pasts), rate)


def check_best(n_best: int, sampling: Sampling) -> None:
    """Raise BadInput unless beams give so many texts."""
    if not 1 <= n_best <= sampling.num_beams:
        raise BadInput(f"{sampling.num_beams} beams give from 1 to {sampling.num_beams} texts, not {n_best}")


def searched(network: LanguageNetwork, past: Past, sampling: Sampling, steps: Stepping) -> list[Ended]:
    """The texts that ended, the best first, from the past of one prompt."""
    search = Search(sampling, past, torch.zeros(1, dtype=past.logits.dtype, device=past.logits.device))
    while True:
        with quiet(network):
            tokens = search.advance(network.config.n_tokens)
            if search.over:
                return search.ended
            before = search.past
            logits, state = steps.step(tokens, before.state)
        one = torch.ones_like(before.read)
        seen = marked(before.seen, list(tokens[:, None]))
        search.past = Past(state, logits, before.tail, seen, before.read + one, before.written + one)
