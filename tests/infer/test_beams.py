"""Beams: those of transformers, those of every text there is, and those of a search that reads everything again."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from conca.infer.beams import beam_search
from conca.infer.generating import generate
from conca.infer.sampling import Sampling
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.types import BadInput


def network(
    vocab_size, n_tokens, layers="mamba2(d_head=4,d_state=3) attention(n_heads=2,window=3) attention(n_heads=2) lstm"
):
    torch.manual_seed(2)
    return LanguageNetwork(LanguageConfig(vocab_size, n_tokens, layers, 8, std=1.0)).eval()


def loglik(net, prompt, ids):
    """The log-likelihoods of tokens after a prompt."""
    with torch.no_grad():
        every = net(torch.tensor([[*prompt, *ids]]))[0][0, len(prompt) - 1 : -1].log_softmax(-1)
    return every[torch.arange(len(ids)), torch.tensor(ids)]


def test_enough_beams_find_the_best_of_all_texts():
    net, prompt = network(6, 5), [3, 1]
    all_texts = sorted(product(range(5), repeat=3), key=lambda ids: -float(loglik(net, prompt, ids).sum()))
    got = beam_search(net, prompt, Sampling(max_new_tokens=3, num_beams=25, length_penalty=0.0), n_best=7)
    assert [tuple(row.ids.tolist()) for row in got.rows] == all_texts[:7]
    for row in got.rows:
        assert row.score == pytest.approx(float(loglik(net, prompt, row.ids.tolist()).sum()))


def test_a_broken_network_is_named():
    net = network(6, 5)
    with torch.no_grad():
        net.norm.weight.fill_(float("nan"))
    with pytest.raises(BadInput, match="not finite"):
        beam_search(net, [3, 1], Sampling(max_new_tokens=3, num_beams=2))


def searched_again(net, prompt, beams, count):
    """The search by its definition: all texts, each read from the beginning for every token."""
    texts = [()]
    for _ in range(count):
        longer = [(*text, token) for text in texts for token in range(net.config.n_tokens)]
        texts = sorted(longer, key=lambda ids: -float(loglik(net, prompt, ids).sum()))[:beams]
    return texts


def test_states_go_with_their_texts():
    """The beams of several prompts, of unequal lengths, and the state that each text leaves."""
    net, prompts = network(9, 9), [[3, 1], [5], [8, 2, 2, 7]]
    got = generate(net, prompts, Sampling(max_new_tokens=6, num_beams=4, length_penalty=1.0), samples=4)
    texts = [tuple(row.ids.tolist()) for row in got.rows]
    for n, prompt in enumerate(prompts):
        want = searched_again(net, prompt, 4, 6)
        assert texts[4 * n : 4 * n + 4] == want
        assert len({text[:2] for text in want}) > 1
        for place in range(4 * n, 4 * n + 4):
            past, ids = got.past.take([place]), [*prompt, *texts[place]]
            assert past.tail[0].tolist() == ids[-1:]
            with torch.no_grad():
                logits, _ = net.step(past.tail[0], past.state)
                assert_close(logits, net(torch.tensor([ids]))[0][:, -1])
            assert (int(past.read), int(past.written)) == (len(ids) - 1, 6)
            assert past.seen[0].nonzero()[:, 0].tolist() == sorted(set(ids))
    more = generate(net, None, Sampling(max_new_tokens=3), past=got.past)
    again = generate(net, [[*prompts[0], *texts[0]]], Sampling(max_new_tokens=3))
    assert torch.equal(more.rows[0].ids, again.rows[0].ids)


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_beams_are_those_of_transformers(kind, theirs):
    torch.manual_seed(3)
    model, net = theirs(kind)
    ids = torch.tensor([[5, 9, 4], [13, 12, 3], [7, 7, 7]])
    model.generation_config.max_length = None
    ends = set()
    for some in (
        {"num_beams": 3},
        {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True},
        {"num_beams": 3, "length_penalty": -1.0, "repetition_penalty": 1.5},
        {"num_beams": 5, "length_penalty": 1.5, "early_stopping": "never", "eos_token_id": [2, 6]},
        {"num_beams": 2, "length_penalty": 0.0, "early_stopping": "never"},
    ):
        options = {"max_new_tokens": 9, "do_sample": False} | some
        beams = some["num_beams"]
        want = model.generate(
            ids, **options, num_return_sequences=beams, output_scores=True, return_dict_in_generate=True
        )
        saved = model.generation_config.to_dict() | options
        got = beam_search(net, ids, Sampling.from_generation_config(saved), n_best=beams)
        for row, text, score in zip(got.rows, want.sequences[:, 3:], want.sequences_scores, strict=True):
            assert row.ids.tolist() == text[: len(row.ids)].tolist()
            assert row.score == pytest.approx(float(score), rel=1e-4)
            assert set(text[len(row.ids) :].tolist()) <= {0, 2}
            ends.add((row.reason, len(row.ids) < 9))
    assert ends >= {("eos", True), ("length", False)}
