"""Sampling: the logits of transformers, draws that follow the distribution, options from a file."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from conca.infer import sampling
from conca.infer.sampling import Draws, Sampling, at_least, choose, cooled, likeliest, nucleus, penalised, processed
from conca.types import BadInput


def test_logits_are_those_of_transformers():
    logits = 3 * torch.randn(4, 40)
    logits[1] = logits[1].round()  # equal ones
    ids = torch.randint(40, (4, 6))
    halves = torch.tensor([[0.125, 0.5, 0.25, 0.125]]).log()  # the mass of all but the likeliest is just what may go
    seen = torch.zeros(4, 40, dtype=torch.bool).scatter(1, ids, True)
    for ours, theirs in (
        (penalised(logits, seen, 1.7), RepetitionPenaltyLogitsProcessor(1.7)),
        (cooled(logits, 0.6), TemperatureLogitsWarper(0.6)),
        (likeliest(logits, 5), TopKLogitsWarper(5)),
        (likeliest(logits, 99), TopKLogitsWarper(99)),
        (nucleus(logits, 0.7), TopPLogitsWarper(0.7)),
        (nucleus(logits, 1e-9), TopPLogitsWarper(1e-9)),
        (nucleus(halves, 0.5), lambda ids, _: halves.masked_fill(halves < halves.max(), -torch.inf)),
        (at_least(logits, 0.2), MinPLogitsWarper(0.2)),
        (at_least(logits, 1.0), MinPLogitsWarper(1.0)),
    ):
        assert torch.equal(ours, theirs(ids, logits.clone()))
    every = Sampling(do_sample=True, temperature=0.6, top_k=9, top_p=0.9, min_p=0.1, repetition_penalty=1.7)
    want = logits.clone()
    want[:, 37:] = -torch.inf
    for step in (
        RepetitionPenaltyLogitsProcessor(1.7),
        TemperatureLogitsWarper(0.6),
        TopKLogitsWarper(9),
        TopPLogitsWarper(0.9),
        MinPLogitsWarper(0.1),
    ):
        want = step(ids, want)
    assert torch.equal(processed(logits, seen, every, 37), want[:, :37])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("numpy", [True, False])
def test_ties_of_many_tokens_are_those_of_transformers(numpy, dtype, monkeypatch):
    """Of equal ones at the edge some go and some stay; whole rows are equal; most are -inf; NumPy sorts, or PyTorch does."""
    if not numpy:
        monkeypatch.setattr(sampling, "by_numpy", lambda logits: False)
    logits = torch.randn(6, 5003, dtype=dtype)
    logits[1] = logits[1].mul(3).round()
    logits[2] = logits[2].round().clamp(min=1)
    logits[3] = -4.0
    logits[4, 7:] = -torch.inf
    logits[5] = logits[5].sign() * 0.0
    for some in (logits, *logits.split(1)):
        for top_p in (1e-9, 0.05, 0.3, 0.5, 0.9, 0.999, 1 - 1e-9):
            assert torch.equal(nucleus(some, top_p), TopPLogitsWarper(top_p)(None, some))
        for top_k in (1, 2, 50, 5002, 5003, 6000):
            assert torch.equal(likeliest(some, top_k), TopKLogitsWarper(top_k)(None, some))
        few = likeliest(some, 40)
        assert torch.equal(nucleus(few, 0.7), TopPLogitsWarper(0.7)(None, few))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-37, 1e-40, 1e-50, 1e-307, 5e-324])
def test_the_coldest_take_the_likeliest(temperature, dtype):
    """Also where logits divided by the temperature are no numbers; of a row that it leaves numbers nothing is lost."""
    cold = Sampling(do_sample=True, temperature=temperature, top_k=5, top_p=0.9, min_p=0.1)
    logits = torch.tensor(
        [[1.0, 300.0, -2.0, 299.9], [-50.0, -9.0, -8.0, -700.0], [0.0, -1.0, -2.0, -3.0]], dtype=dtype
    )
    assert choose(processed(logits, None, cold), cold, Draws(1, range(3))).tolist() == [1, 2, 0]
    equal = torch.tensor([[7.0, 9.0, 9.0, 8.0]], dtype=dtype).expand(40, -1)
    assert set(choose(processed(equal, None, cold), cold, Draws(1, range(40))).tolist()) == {1, 2}
    small = torch.tensor([[1.0, 2.0, 1.5]], dtype=dtype) * 1e-30
    both = cooled(torch.cat((small, torch.full_like(small, 1e10))), 1e-30)
    assert torch.equal(both[:1], small / 1e-30)
    broken = torch.tensor([[1.0, torch.nan, 2.0]], dtype=dtype)
    with pytest.raises(BadInput, match="not finite"):
        choose(processed(broken, None, cold), cold, Draws(1, [0]))


@pytest.mark.parametrize("penalty", [1e-40, 1e40])
def test_a_penalty_beyond_numbers(penalty):
    logits, seen = torch.tensor([[3.0, -2.0, 5.0, -torch.inf]]), torch.tensor([[True, True, False, True]])
    found = penalised(logits, seen, penalty)
    assert found[0, :3].isfinite().all() and found[0, 2:].tolist() == [5, -torch.inf]
    likeliest = int(choose(processed(logits, seen, Sampling(repetition_penalty=penalty)), Sampling(), Draws(1, [0])))
    assert likeliest == (0 if penalty < 1 else 2)


def test_draws_follow_the_distribution_and_nothing_else():
    free = Sampling(do_sample=True)
    logits = torch.tensor([[0.0, -torch.inf, 1.0, 2.0, -torch.inf]])
    draws = Draws(3, range(20_000))
    tokens = choose(logits.expand(20_000, -1), free, draws)
    counts = tokens.bincount(minlength=5) / 20_000
    assert_close(counts, logits[0].softmax(0), atol=0.012, rtol=0)
    assert counts[[1, 4]].sum() == 0
    first, later = Draws(5, [0, 1]), Draws(5, [1], begin=[2])
    numbers = torch.stack([first.uniform() for _ in range(3)])
    assert numbers.unique().numel() == 6
    assert later.uniform() == numbers[2, 1]
    with pytest.raises(BadInput, match="not finite"):
        choose(torch.full((1, 3), torch.nan), free, draws)


class Always:
    def uniform(self):
        return torch.tensor([1 - 2.0**-53])


def test_a_number_near_one_draws_no_token_that_is_not_there():
    logits = torch.full((1, 9), -torch.inf)
    logits[0, 2:6] = torch.tensor([0.1, 0.3, 0.7, 0.5])
    assert choose(logits, Sampling(do_sample=True), Always()) == 5


def test_a_generation_config_says_how():
    saved = {
        "eos_token_id": [3, 5],
        "temperature": 0.5,
        "do_sample": True,
        "top_p": 1,
        "bos_token_id": 1,
        "max_length": 20,
    }
    got = Sampling.from_generation_config(
        saved | {"transformers_version": "5", "min_p": None}, max_new_tokens=7, top_p=None
    )
    assert got == Sampling(max_new_tokens=7, do_sample=True, temperature=0.5, top_k=50, eos=(3, 5))
    assert Sampling.from_generation_config(saved, top_k=3).top_k == 3
    assert Sampling.from_generation_config(saved, temperature=0).greedy
    assert Sampling.from_generation_config(saved, num_beams=3).greedy
    assert Sampling.from_generation_config(saved, do_sample=False, stop=["x"]).stop == ("x",)
    assert Sampling.from_generation_config({"eos_token_id": 4, "temperature": 0.7, "stop_strings": "a"}) == Sampling(
        eos=(4,), temperature=0.7, stop=("a",)
    )
    assert not Sampling.from_generation_config({}, temperature=0.7).greedy
    assert Sampling.from_generation_config({}, temperature=0.7).top_k is None
    found = Sampling.from_generation_config({}, temperature=np.float32(0.5), eos=np.int64(3), stop="ab")
    assert (found.temperature, found.eos, found.stop) == (0.5, (3,), ("ab",))


def test_options_that_are_refused():
    for match, options in {
        "max_new_tokens must be a whole number from 1 on, not 0": {"max_new_tokens": 0},
        "temperature must be 0 or more, not -1": {"temperature": -1},
        "temperature must be a number, not 'hot'": {"temperature": "hot"},
        "top_p must be above 0 and at most 1, not None": {"top_p": None},
        "temperature must be 0 or more, not nan": {"temperature": float("nan")},
        "top_k must be a whole number from 1 on, or 0 for all tokens, not -2": {"top_k": -2},
        "top_p must be above 0 and at most 1, not 0": {"top_p": 0},
        "top_p must be above 0 and at most 1, not 1.1": {"top_p": 1.1},
        "min_p must be from 0 to 1, not 2": {"min_p": 2},
        "repetition_penalty must be above 0": {"repetition_penalty": 0.0},
        "a stop string is empty": {"stop": ("",)},
        "eos must be tokens": {"eos": ("x",)},
        "eos must be tokens .* not .1000": {"eos": (10**30,)},
        "seed must be": {"seed": -1},
        "num_beams must be": {"num_beams": 0},
        "early_stopping must be": {"early_stopping": "always"},
        "beams follow the likeliest tokens": {"num_beams": 2, "do_sample": True},
        "beams do not look for stop strings": {"num_beams": 2, "stop": ("x",)},
    }.items():
        with pytest.raises(BadInput, match=match):
            Sampling(**options)
    with pytest.raises(BadInput, match="eos must be tokens"):
        Sampling.from_generation_config({"eos_token_id": 1.5})
    with pytest.raises(BadInput, match="unknown option 'temp'"):
        Sampling.from_generation_config({}, temp=1)
    for theirs, ours in {
        "max_tokens": "max_new_tokens",
        "num_return_sequences": "samples",
        "eos_token_id": "eos",
    }.items():
        with pytest.raises(BadInput, match=f"unknown option '{theirs}' of writing; conca says '{ours}'"):
            Sampling.from_generation_config({}, **{theirs: 1})
