"""Texts are written token by token, as they come, in one batch: what each would say alone, and the state after exactly what was kept.

    logits_j, s_j = step(token_j, s_{j-1}),    token_{j+1} chosen from logits_j

Prompts are read once, however many texts are written from them. A row that has ended leaves the batch. The token that was written last is
kept unread, so that nothing is read that nobody goes on from; a later call reads it first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conca.infer.beams import beam_search, check_best
from conca.infer.past import Past, marked
from conca.infer.reading import Tokens, prompts_of, quiet, read, several, started, stepping
from conca.infer.sampling import Draws, Sampling, choose, processed
from conca.infer.stopping import Codec, TextOf
from conca.infer.written import Generation, Piece, Rate, Reason, Written
from conca.layers import states
from conca.models.language import LanguageNetwork, States
from conca.types import BadInput

__all__ = ["Generation", "Piece", "Rate", "Writer", "Written", "generate", "prompts_of"]


@dataclass(frozen=True)
class Moment:
    """The batch after `at` tokens were written and read: which rows are in it, its state and logits (R, V)."""

    at: int
    rows: tuple[int, ...]
    state: States
    logits: Tensor


class Writer:
    """Writes texts; iterating over it gives `Piece`s as they become certain: of beams, whole texts at the end.

    Args:
        network: what writes.
        prompts: tokens: one vector, a matrix, or a sequence of vectors of unequal lengths; with `past`, what follows each of its
            texts (None: nothing).
        sampling: how.
        past: what was left by texts that are gone on with.
        samples: texts for each prompt, which stand one after the other.
        tokenizer: for text and stop strings.
        bos: the token that an empty prompt is taken for.

    Raises:
        BadInput: for an empty prompt, tokens that the network does not have, and stop strings without a tokenizer.

    >>> from conca.models.language import LanguageConfig
    >>> network = LanguageNetwork(LanguageConfig(vocab_size=20, n_tokens=20, layers="mamba", d_model=8))
    >>> writer = Writer(network, [1, 2, 3], Sampling(max_new_tokens=4))
    >>> sum(len(piece.ids) for piece in writer), len(writer.result().past)
    (4, 1)
    """

    def __init__(
        self,
        network: LanguageNetwork,
        prompts: Tokens | Sequence[Tokens] | None,
        sampling: Sampling,
        *,
        past: Past | None = None,
        samples: int = 1,
        tokenizer: Codec | None = None,
        bos: int | None = None,
    ) -> None:
        self.found: Generation | None = None
        if sampling.num_beams > 1:
            check_best(samples, sampling)
        if sampling.stop and tokenizer is None:
            raise BadInput("stop strings need a tokenizer: without one there is no text")
        self.network, self.sampling, self.samples, self.tokenizer = network, sampling, samples, tokenizer
        self.before = started(network, prompts, past, samples, bos)
        self.steps = stepping(network)
        self.texts = [TextOf(tokenizer, sampling.stop) for _ in range(len(self.before) * samples)]
        self.reasons: dict[int, Reason] = {}
        self.pasts: dict[int, Past] = {}
        self.moments: deque[Moment] = deque()
        self.read_seconds = self.write_seconds = 0.0
        self.read_tokens = 0
        self.ready = False

    def __iter__(self) -> Iterator[Piece]:
        """Go on writing."""
        if self.sampling.num_beams > 1:
            yield from self._beams()
            return
        if not self.ready:
            self._read()
        while self.moments:
            yield from self._write()

    def result(self) -> Generation:
        """What there is, at any time; texts that have not ended are "interrupted"."""
        if self.sampling.num_beams > 1:
            list(self._beams())
        if self.found is not None:
            return self.found
        if not self.ready:
            self._read()
        rows, pasts = [], []
        for row, text in enumerate(self.texts):
            reason = self.reasons.get(row, "interrupted")
            if row not in self.pasts:
                text.finish()
                self._leave(row, len(text.ids), [])
            rows.append(Written(torch.tensor(text.ids, dtype=torch.int64), text.text, reason))
            pasts.append(self.pasts[row])
        self.moments.clear()
        written = sum(len(row.ids) for row in rows)
        rate = Rate(self.read_tokens, written, self.read_seconds, self.write_seconds)
        return Generation(tuple(rows), Past.join(pasts), rate)

    def _beams(self) -> Iterator[Piece]:
        """Search, once."""
        if self.found is None:
            past, best = self.before, self.samples
            self.found = beam_search(
                self.network, None, self.sampling, past=past, n_best=best, tokenizer=self.tokenizer
            )
            for row, text in enumerate(self.found.rows):
                yield Piece(row, tuple(text.ids.tolist()), text.text or "")

    def _read(self) -> None:
        """Read the prompts, and copy what they leave for each sample."""
        begin = time.perf_counter()
        self.read_tokens = sum(map(len, self.before.tail))
        before = read(self.network, self.before, self.steps)
        if self.samples > 1:
            before = before.take(several(range(len(before)), self.samples))
        self.before, self.ready = before, True
        rows = tuple(range(len(before)))
        self.moments.append(Moment(0, rows, before.state, before.logits))
        self.seen = before.seen if self.sampling.repetition_penalty != 1 else None
        self.draws = None
        if not self.sampling.greedy:
            seed = self.sampling.seed
            seed = int(torch.randint(2**62, (1,))) if seed is None else seed
            self.draws = Draws(seed, rows, before.written.tolist())
        self.read_seconds = time.perf_counter() - begin

    def _write(self) -> list[Piece]:
        """One token of each text that has not ended, and the step that reads it."""
        begin = time.perf_counter()
        now = self.moments[-1]
        with torch.no_grad():
            n_tokens = self.network.config.n_tokens
            tokens = choose(processed(now.logits, self.seen, self.sampling, n_tokens), self.sampling, self.draws)
        pieces, going = [], []
        for place, (row, token) in enumerate(zip(now.rows, tokens.tolist())):
            piece = self._push(row, token, now.at + 1)
            if piece.ids or piece.text:
                pieces.append(piece)
            if row not in self.reasons:
                going.append(place)
        if not going:
            self.moments.clear()
        else:
            self._step(now, tokens, going)
        self.write_seconds += time.perf_counter() - begin
        return pieces

    def _push(self, row: int, token: int, count: int) -> Piece:
        """A token more of a row, its `count`-th, and what has become certain by it."""
        text, sampling = self.texts[row], self.sampling
        safe, parts = text.safe, len(text.parts)
        ends = token in sampling.eos
        cut = text.push(token, silent=ends)
        if cut is not None:
            self.reasons[row] = "stop"
            self._leave(row, cut.kept, cut.rest)
        elif ends or count == sampling.max_new_tokens:
            self.reasons[row] = "eos" if ends else "length"
            text.finish()
            self._leave(row, count, [])
        end = len(text.ids) if row in self.reasons else text.safe
        return Piece(row, tuple(text.ids[safe:end]), "".join(text.parts[parts:]))

    def _leave(self, row: int, kept: int, rest: list[int]) -> None:
        """Keep what a row leaves: after `kept` of the tokens that were written, and `rest`."""
        moment = next(m for m in reversed(self.moments) if m.at <= kept)
        one = torch.tensor([moment.rows.index(row)], device=moment.logits.device)
        ids = torch.tensor(self.texts[row].ids, dtype=torch.int64)
        before = self.before
        self.pasts[row] = Past(
            states.take(moment.state, one),
            moment.logits[one],
            (ids[moment.at :],),
            marked(before.seen[row : row + 1], [ids]),
            before.read[row : row + 1] + moment.at,
            before.written[row : row + 1] + len(ids),
        )

    def _step(self, now: Moment, tokens: Tensor, going: list[int]) -> None:
        """Read the tokens of the rows that go on, and forget moments that none of them can go back to."""
        state, seen = now.state, self.seen
        if len(going) < len(now.rows):
            at = torch.tensor(going, device=tokens.device)
            state, tokens = states.take(state, at), tokens[at]
            seen = None if seen is None else seen[at]
            if self.draws is not None:
                self.draws.take(going)
        rows = tuple(now.rows[place] for place in going)
        with quiet(self.network):
            logits, state = self.steps.step(tokens, state)
            self.seen = None if seen is None else seen.scatter(1, tokens[:, None], True)
        self.moments.append(Moment(now.at + 1, rows, state, logits))
        least = min(self.texts[row].safe for row in rows)
        while len(self.moments) > 1 and self.moments[1].at <= least:
            self.moments.popleft()


def generate(
    network: LanguageNetwork,
    prompts: Tokens | Sequence[Tokens] | None,
    sampling: Sampling,
    *,
    past: Past | None = None,
    samples: int = 1,
    tokenizer: Codec | None = None,
    bos: int | None = None,
) -> Generation:
    """All that `Writer` writes, with the same arguments; where several beams are followed, the best `samples` texts of each prompt."""
    writer = Writer(network, prompts, sampling, past=past, samples=samples, tokenizer=tokenizer, bos=bos)
    for _ in writer:
        pass
    return writer.result()
