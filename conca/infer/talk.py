"""A talk: messages in turn, one state for all that was said, and the past is never read twice.

The chat template renders all messages anew for each answer; only what is new at the end of its text is read. Old states stay valid, so a
talk can go back. Where a template writes the past anew (some leave out what a model thought), the talk goes back to the last state from
which it still holds, reads on from there, and says so. White space around an answer that the template strips is no other past.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conca.infer.chat_template import ChatTemplate
from conca.infer.generating import Writer
from conca.infer.past import Past
from conca.infer.sampling import Sampling
from conca.infer.stopping import Speech
from conca.infer.written import Piece, Rate, Written
from conca.layers import states
from conca.models.language import LanguageNetwork
from conca.models.tensor_files import line_of
from conca.types import BadInput, path_of

__all__ = ["Talk"]

MOST = 64
"""States that a talk keeps to go back to; beyond that it goes back by reading again."""


@dataclass(frozen=True)
class Place:
    """Where a talk can go back to: after so many characters of its text and so many tokens.

    messages  that had been said, where a turn began; None in the middle of one
    past      None where nothing was read
    """

    messages: int | None
    end: int
    count: int
    past: Past | None


@dataclass
class Turn:
    """An answer that is being written: to which messages, in which text, after which place, which tokens were new."""

    writer: Writer
    messages: list[dict[str, Any]]
    text: str
    place: Place
    new: list[int]


class Talk:
    """A talk with a network.

    Args:
        network: who answers.
        tokenizer: its tokens.
        template: its chat template.
        sampling: how it answers.
        system: what it is told before all.
        variables: what the template may name beside the special tokens of the tokenizer.

    Raises:
        BadInput: for a template that cannot be read.

    messages  what was said
    notice    what the last answer has to say about the past; None where all went as it should
    rate      of the last answer
    """

    def __init__(
        self,
        network: LanguageNetwork,
        tokenizer: Speech,
        template: str,
        sampling: Sampling,
        *,
        system: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        tokens = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos, "pad_token": tokenizer.pad}
        special = {name: tokenizer.decode([token], special=True) for name, token in tokens.items() if token is not None}
        self.network, self.tokenizer, self.sampling = network, tokenizer, sampling
        self.template = ChatTemplate(template, special | dict(variables or {}))
        self.messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self.text, self.ids = "", list[int]()
        self.past: Past | None = None
        self.places: list[Place] = []
        self.turn: Turn | None = None
        self.notice: str | None = None
        self.rate: Rate | None = None
        self.files: set[Path] = set()

    def reply(self, message: str, *, sampling: Sampling | None = None) -> Iterator[Piece]:
        """Say something; the answer comes in pieces. One that is broken off is kept as far as it came.

        Raises:
            BadInput: where the template refuses the message; nothing has been said then.
        """
        self.settle()
        messages = [*self.messages, {"role": "user", "content": message}]
        text = self.template.render(messages, add_generation_prompt=True)
        place = self._place(text)
        new = self._new(text, place)
        some = self.sampling if sampling is None else sampling
        writer = Writer(self.network, [new], some, past=place.past, tokenizer=self.tokenizer)
        self.notice = self._notice(place)
        self.turn = Turn(writer, messages, text, place, new)
        return self._said(writer)

    def _said(self, writer: Writer) -> Iterator[Piece]:
        """The pieces of an answer; at its end, or where it is broken off, it becomes part of the talk."""
        try:
            yield from writer
        finally:
            if self.turn is not None and self.turn.writer is writer:
                self.settle()

    def settle(self) -> None:
        """Take what has been written so far of an answer into the talk, and end it. A question that was not read is forgotten."""
        turn, self.turn = self.turn, None
        if turn is None or not turn.writer.ready:
            return
        generation = turn.writer.result()
        (row,), past, before = generation.rows, generation.past, turn.writer.before
        said = [*turn.messages, {"role": "assistant", "content": row.text or ""}]
        self._go_back(turn.place)
        count = len(self.ids) + len(turn.new)
        self.places += [
            replace(turn.place, messages=len(self.messages)),
            Place(None, len(turn.text), count, before),
        ]
        self.text, ended = self._rendered(turn.text, said, row)
        self.ids += [*turn.new, *row.ids.tolist()]
        if row.reason == "eos" and not ended:
            past = without_last(past, self.ids)
        self.past, self.messages, self.rate = past, said, generation.rate
        self._thin()

    def undo(self) -> bool:
        """Take back the last question and its answer; False where there is none."""
        self.settle()
        while self.places:
            place = self.places.pop()
            if place.messages is not None:
                self._go_back(place)
                self.messages = self.messages[: place.messages]
                return True
        return False

    def save(self, path: str | Path) -> None:
        """Write the talk, its state and all, to a file (safetensors), whole or not at all.

        Raises:
            BadInput: if there is a file of this name that this talk has neither read nor written.
        """
        if path_of(path).exists() and path_of(path).resolve() not in self.files:
            raise BadInput(f"{path}: exists and is not of this talk; name another file")
        self.settle()
        turns = [place.messages for place in self.places if place.messages is not None]
        known = {"messages": self.messages, "text": self.text, "ids": self.ids, "turns": turns}
        known["now"] = self.template.now.isoformat()
        past = Past.start(self.network, 1) if self.past is None else self.past
        page = torch.frombuffer(bytearray(json.dumps(known).encode()), dtype=torch.uint8)
        states.save((past.tree(self.network), page), path)
        self.files.add(path_of(path).resolve())

    def load(self, path: str | Path) -> None:
        """Go on with the talk that `save` wrote, in place of this one. What is taken back of it is read again.

        Raises:
            BadInput: if the file is missing, broken, or of another network; this talk is as it was then.
        """
        like = Past.start(self.network, 1).tree(self.network), torch.zeros(0, dtype=torch.uint8)
        tree, page = states.load(path, like)
        try:
            past = Past.grown(tree, path, self.network)
            known = json.loads(bytes(page.tolist()))
            messages, text, ids, turns = (known[key] for key in ("messages", "text", "ids", "turns"))
            now = datetime.fromisoformat(known["now"])
        except BadInput:
            raise
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise BadInput(f"{path}: is no talk ({line_of(error)}); name a file that /save wrote") from None
        if not fits(messages, text, ids, turns, past, self.network.config.vocab_size):
            raise BadInput(f"{path}: is no talk, or damaged: its parts do not fit together; name another file")
        self.turn = None
        self.template = ChatTemplate(self.template.text, self.template.variables, now)
        self.messages, self.text, self.ids = messages, text, ids
        self.past = past if ids else None
        self.places = [Place(turn, 0, 0, None) for turn in turns]
        self.notice = self.rate = None
        self.files.add(path_of(path).resolve())

    def _place(self, text: str) -> Place:
        """The last place from which `text` goes on."""
        here = Place(None, len(self.text), len(self.ids), self.past)
        places = [Place(None, 0, 0, None), *self.places, here]
        return max((p for p in places if text.startswith(self.text[: p.end])), key=lambda p: p.end)

    def _notice(self, place: Place) -> str | None:
        """What there is to say about going on from a place."""
        if place.count < len(self.ids):
            lost = len(self.ids) - place.count
            return f"the chat template writes the past anew: its last {lost} tokens are read again"
        if place.past is None and any(message["role"] == "assistant" for message in self.messages):
            return "the state of the past was not kept: all of it is read again"
        return None

    def _new(self, text: str, place: Place) -> list[int]:
        """The tokens of `text` after a place: as those of the whole text, if they begin with what was read."""
        whole = tokens_of(self.tokenizer, text)
        if whole[: place.count] == self.ids[: place.count]:
            return whole[place.count :]
        return tokens_of(self.tokenizer, text[place.end :])

    def _go_back(self, place: Place) -> None:
        """Forget what comes after a place. Turns that began later begin there."""
        self.text, self.ids, self.past = self.text[: place.end], self.ids[: place.count], place.past
        self.places = [
            p if p.end <= place.end else replace(place, messages=p.messages)
            for p in self.places
            if p.end <= place.end or p.messages is not None
        ]

    def _rendered(self, before: str, said: Sequence[Mapping[str, Any]], row: Written) -> tuple[str, bool]:
        """The text after an answer, and whether the token that ended it stands in it: if the template ends answers so."""
        answer = row.text or ""
        try:
            whole = self.template.render(said)
        except BadInput:
            return before + answer, False
        if not whole.startswith(before):
            return before + answer, False
        rest = whole[len(before) :]
        shown = shown_as(answer, rest)
        if shown is None or row.reason != "eos":
            return before + (answer if shown is None else shown), False
        end = self.tokenizer.decode([int(row.ids[-1])], special=True)
        ended = bool(end) and rest[len(shown) :].startswith(end)
        return before + shown + (end if ended else ""), ended

    def _thin(self) -> None:
        """Forget the states of the oldest places; those in the middle of turns altogether."""
        old = [replace(p, end=0, count=0, past=None) for p in self.places[:-MOST] if p.messages is not None]
        self.places = old + self.places[-MOST:]


def fits(messages: Any, text: Any, ids: Any, turns: Any, past: Past, vocab_size: int) -> bool:
    """Whether what was read from a file is a talk, of this network and with this past."""

    def numbers(found: Any, end: int) -> bool:
        return isinstance(found, list) and all(type(number) is int and 0 <= number < end for number in found)

    said = isinstance(messages, list) and all(
        isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        for message in messages
    )
    listed = numbers(ids, vocab_size) and said and numbers(turns, len(messages) + 1)
    whole = {past.read.dtype, past.written.dtype, *(row.dtype for row in past.tail)} == {torch.int64}
    if not (listed and whole and isinstance(text, str) and len(past) == 1):
        return False
    read = int(past.read[0])
    return 0 <= read <= len(ids) and ids[read:] == past.tail[0].tolist()


def shown_as(answer: str, rest: str) -> str | None:
    """How an answer stands at the beginning of what a template makes of it, but for white space around it; None where it does not.

    >>> shown_as(" Yes.", "Yes.</s>"), shown_as("Yes. ", " Yes.</s>"), shown_as("Yes", "No")
    ('Yes.', ' Yes.', None)
    """
    if rest.startswith(answer):
        return answer
    body, begin = answer.strip(), len(rest) - len(rest.lstrip())
    if not rest.startswith(body, begin):
        return None
    end, after = begin + len(body), answer[len(answer.rstrip()) :]
    return rest[: end + len(after)] if rest.startswith(after, end) else rest[:end]


def tokens_of(tokenizer: Speech, text: str) -> list[int]:
    """The tokens of a text."""
    return [int(token) for token in tokenizer.encode(text)]


def without_last(past: Past, ids: list[int]) -> Past:
    """The past of one text without its last token, which was not read; `ids`, all its tokens, lose it too."""
    token = ids.pop()
    seen: Tensor = past.seen.clone()
    seen[0, token] = token in ids
    return replace(past, tail=(past.tail[0][:-1],), seen=seen)
