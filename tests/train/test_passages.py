"""Passages of text: every place once in a pass, rows that do not read each other, the same batch for the same step."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from conca.models.language import LanguageConfig, LanguageNetwork
from conca.train.passages import IGNORED, Passages, TextChecks, packed, pieces_of_rows
from conca.train.text_learner import lost


class Numbered:
    """Text whose token at each place is the place; of rows, all but the first token of each counts."""

    def __init__(self, count, offsets=None, vocab=None):
        self.count, self.vocab = count, vocab or count
        self.offsets = None if offsets is None else np.asarray(offsets)

    def __len__(self):
        return self.count

    def read(self, begin, end):
        assert 0 <= begin <= end <= self.count
        return (np.arange(begin, end) % self.vocab).astype(np.uint16)

    def mask(self, begin, end):
        places = np.arange(begin, end)
        return ~np.isin(places, [0] if self.offsets is None else self.offsets)

    def sizes(self, begin, end):
        return np.arange(begin, end)


OFFSETS = [0, 5, 6, 30, 33, 41, 60, 90]


def of_pass(passages, turn):
    """Tokens and targets that count, over the passages of a pass, none twice."""
    pairs = []
    for step in range(turn * passages.each, (turn + 1) * passages.each):
        batch = passages[step]
        rows = min(passages.batch_size, passages.count - step % passages.each * passages.batch_size)
        there = batch.target[:rows] != IGNORED
        pairs += zip(batch.ids[:rows][there].tolist(), batch.target[:rows][there].tolist())
    return sorted(pairs)


@pytest.mark.parametrize("tokens", [2, 3, 16, 17, 18, 100])
def test_every_place_comes_once_in_a_pass_and_is_cut_elsewhere_in_the_next(tokens):
    passages = Passages(Numbered(tokens + 7), 7, tokens + 7, length=16, batch_size=4, seed=3)
    every = [(7 + i, 8 + i) for i in range(tokens - 1)]
    cuts = set()
    for turn in range(3):
        assert of_pass(passages, turn) == every
        cuts |= {batch.ids[0, 0].item() for batch in [passages[turn * passages.each]]}
    assert tokens < 100 or len(cuts) == 3
    again = Passages(Numbered(tokens + 7), 7, tokens + 7, length=16, batch_size=4, seed=3)
    assert all(torch.equal(again[5].ids, t) for t in (passages[5].ids, passages[5].ids))
    other = Passages(Numbered(tokens + 7), 7, tokens + 7, length=16, batch_size=4, seed=4)
    assert tokens < 100 or not torch.equal(other[5].ids, again[5].ids)


def test_where_the_text_ends_inside_a_passage_another_begins():
    passages = Passages(Numbered(50), 0, 50, length=16, batch_size=4, seed=0)
    batch = passages[0]
    ends = [(row, at) for row, at in (batch.ids == 48).nonzero().tolist() if at < 15]
    assert ends and batch.starts is not None
    for row, at in ends:
        assert batch.starts[row, at + 1] and batch.ids[row, at + 1] == 0
    assert batch.starts.sum() == len(ends)


def test_rows_are_whole_where_they_fit_and_long_ones_are_cut():
    pieces = pieces_of_rows(np.array(OFFSETS), 0, 90, 16)
    assert [tuple(p) for p in pieces] == [
        (0, 4), (6, 22), (22, 29), (30, 32), (33, 40), (41, 57), (57, 59), (60, 76), (76, 89)
    ]  # fmt: skip
    assert [tuple(p) for p in pieces_of_rows(np.array(OFFSETS), 6, 41, 16)] == [(6, 22), (22, 29), (30, 32), (33, 40)]
    found = packed(pieces, 16)
    assert sorted(p for passage in found for p in passage) == pieces
    assert all(sum(p.end - p.begin for p in passage) <= 16 for passage in found)
    assert len(found) <= 6


def test_every_token_of_rows_comes_once_but_the_first():
    text = Numbered(90, OFFSETS)
    passages = Passages(text, 0, 90, text.offsets, length=16, batch_size=2, seed=0)
    every = [(i, i + 1) for i in range(89) if i + 1 not in OFFSETS]
    assert of_pass(passages, 0) == of_pass(passages, 1) == every


@pytest.mark.parametrize("layers", ["mamba2(d_state=4,d_head=4)", "lstm", "attention"])
@torch.no_grad()
def test_rows_that_share_a_passage_cost_what_they_cost_alone(layers):
    text = Numbered(90, OFFSETS, vocab=19)
    network = LanguageNetwork(LanguageConfig(19, 19, layers, 8))
    passages = Passages(text, 0, 90, text.offsets, length=40, batch_size=9, seed=0)
    batch = passages[0]
    assert batch.starts is not None and passages.each == 1
    alone = 0.0
    for begin, end in pairwise(OFFSETS):
        if end - begin > 1:
            ids = torch.arange(begin, end)[None] % 19
            alone += float(network.loss(network.read(ids[:, :-1])[0], ids[:, 1:], reduction="sum"))
    assert float(lost(network, batch)) == pytest.approx(alone, rel=1e-12)
    parts = [passages.batch(0, first, 2) for first in range(2)]
    assert {part.whole for part in parts} == {batch.whole}
    assert sum(float(lost(network, part)) for part in parts) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("offsets", [None, OFFSETS])
def test_what_validates_is_read_once_and_its_bytes_are_counted(offsets):
    text = Numbered(90, offsets)
    begin, end = 30, 90
    checks = [TextChecks(text, begin, end, text.offsets, length=16, batch_size=2, first=i, stride=2) for i in (0, 1)]
    batches = [part[i] for part in checks for i in range(len(part))]
    targets = sorted(t for batch in batches for t in batch.target[batch.target != IGNORED].tolist())
    assert targets == [i for i in range(31, 90) if offsets is None or i not in OFFSETS]
    assert sum(batch.bytes for batch in batches) == sum(targets)


def test_nothing_to_learn_is_an_error():
    with pytest.raises(ValueError, match="no token"):
        Passages(Numbered(9), 3, 4, length=4, batch_size=1, seed=0)
