"""Scoring: the log-likelihoods of the whole, whatever the blocks, the documents and the beginning."""

import math

import numpy as np
import pytest
import torch

from conca.infer.generating import generate
from conca.infer.past import Past
from conca.infer.sampling import Sampling
from conca.infer.scoring import Tally, score
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.types import BadInput


@pytest.fixture(params=[True, False], ids=["tied", "head"])
def net(request):
    torch.manual_seed(1)
    layers = "mamba2(d_head=4) attention(n_heads=2,window=3) s5(d_state=4)"
    return LanguageNetwork(LanguageConfig(14, 12, layers, 8, tied=request.param, std=1.0)).train()


def whole(net, ids, before=()):
    """Log-likelihoods of ids (N,) from all logits at once; NaN for a first one with nothing before it."""
    tokens = torch.tensor([*before, *ids])
    with torch.no_grad():
        chances = net(tokens[None])[0][0, :-1].log_softmax(-1)
    known = chances[torch.arange(len(tokens) - 1), tokens[1:]].numpy()
    return np.concatenate([[math.nan], known])[len(before) :]


def scored(net, source, **options):
    """All blocks in one: tokens, log-likelihoods."""
    blocks = list(score(net, source, **options))
    assert [block.begin for block in blocks] == np.cumsum([blocks[0].begin] + [len(b.ids) for b in blocks])[
        :-1
    ].tolist()
    return np.concatenate([b.ids for b in blocks]), np.concatenate([b.loglik for b in blocks])


class Documents:
    """Texts that lie one after the other."""

    def __init__(self, documents, masks=None, completions=False):
        self.ids = np.concatenate(documents).astype(np.uint8)
        self.firsts = np.concatenate([np.arange(len(d)) == 0 for d in documents])
        self.counts = ~self.firsts if masks is None else np.concatenate(masks)
        self.completions = completions

    def __len__(self):
        return len(self.ids)

    def read(self, begin, end):
        return self.ids[begin:end]

    def mask(self, begin, end):
        return self.counts[begin:end]

    def starts(self, begin, end):
        return self.firsts[begin:end]


def test_blocks_change_nothing(net):
    ids = torch.randint(12, (29,))
    want = whole(net, ids)
    for block in (1, 2, 7, 28, 29, 1000):
        for source in (ids, ids.tolist(), ids.numpy().astype(np.uint16)):
            tokens, loglik = scored(net, source, block=block)
            assert tokens.tolist() == ids.tolist()
            np.testing.assert_allclose(loglik, want, rtol=1e-9)
    assert np.isnan(want[0]) and not np.isnan(want[1:]).any()
    _, part = scored(net, ids, begin=5, end=17, block=4)
    np.testing.assert_allclose(part, whole(net, ids[5:17]), rtol=1e-9)
    tally = Tally()
    for block in score(net, ids, block=6):
        tally.add(block, sizes=np.full(len(block.ids), 3))
    assert (tally.tokens, tally.bytes) == (28, 84)
    assert tally.perplexity == pytest.approx(math.exp(-want[1:].mean()))
    assert tally.bits_per_byte == pytest.approx(-want[1:].sum() / math.log(2) / 84)
    assert tally.bits_per_token == pytest.approx(3 * tally.bits_per_byte)
    assert math.isnan(Tally().perplexity) and math.isnan(Tally().bits_per_byte)
    assert Tally(1, 800.0).perplexity == math.inf
    assert net.training


@pytest.mark.parametrize("block", [1, 4, 100])
def test_what_stands_before_the_first_token(net, block):
    ids = torch.randint(12, (9,))
    np.testing.assert_allclose(scored(net, ids, block=block, bos=7)[1], whole(net, ids, [7]), rtol=1e-9)
    past = generate(net, [3, 1, 4], Sampling(max_new_tokens=2)).past
    with_tail = [3, 1, 4, *generate(net, [3, 1, 4], Sampling(max_new_tokens=2)).rows[0].ids.tolist()]
    assert len(past.tail[0]) == 1
    np.testing.assert_allclose(scored(net, ids, block=block, past=past)[1], whole(net, ids, with_tail), rtol=1e-9)
    one = Documents([ids.numpy()])
    np.testing.assert_allclose(scored(net, one, block=block, past=past)[1], whole(net, ids, with_tail), rtol=1e-9)


@pytest.mark.parametrize("block", [1, 3, 5, 100])
@pytest.mark.parametrize("bos", [None, 7])
def test_documents_do_not_see_each_other(net, block, bos):
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 12, n) for n in (4, 1, 6, 2, 5)]
    before = [] if bos is None else [bos]
    want = np.concatenate([whole(net, document, before) for document in documents])
    np.testing.assert_allclose(scored(net, Documents(documents), block=block, bos=bos)[1], want, rtol=1e-9)
    assert np.isnan(want).sum() == (5 if bos is None else 0)
    every = Documents(documents, [np.full(len(d), True) for d in documents])
    np.testing.assert_allclose(scored(net, every, block=block, bos=bos)[1], want, rtol=1e-9)
    masks = [np.arange(len(d)) >= max(1, len(d) - 2) for d in documents]
    some = scored(net, Documents(documents, masks, completions=True), block=block, bos=bos)[1]
    np.testing.assert_allclose(some, np.where(np.concatenate(masks), want, np.nan), rtol=1e-9)


def test_a_text_without_end_is_scored_block_by_block(net):
    asked = []

    class Endless:
        def __len__(self):
            return 10**15

        def read(self, begin, end):
            asked.append((begin, end))
            return np.arange(begin, end) % 12

    blocks = score(net, Endless(), block=5)
    for n in range(3):
        assert next(blocks).begin == 5 * n
    assert asked == [(0, 5), (5, 10), (10, 15)]


def test_what_it_refuses(net):
    for match, source, options in (
        ("there are no tokens from 0 to 0 to score", [], {}),
        ("there are no tokens from 3 to 3", [1, 2, 3], {"begin": 3}),
        ("block must be", [1], {"block": 0}),
        ("expected tokens", [0.5], {}),
        ("the past is of 2", [1], {"past": Past.start(net, 2)}),
    ):
        with pytest.raises(BadInput, match=match):
            score(net, source, **options)
    with pytest.raises(BadInput, match="token 3: 14 is not among the 14 of the network"):
        list(score(net, [1, 2, 3, 14], block=3))
    with pytest.raises(BadInput, match="bos, token 0: 14 is not among the 14 of the network"):
        list(score(net, [1, 2], bos=14))


def test_a_broken_network_is_not_taken_for_a_perfect_one(net):
    with torch.no_grad():
        net.norm.weight.fill_(float("nan"))
    for ids in ([1, 2], [3] * 9):
        with pytest.raises(BadInput, match="not finite"):
            list(score(net, ids, block=4))
