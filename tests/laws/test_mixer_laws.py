"""The laws hold for every mixer that is found, and each law is broken by the faults seeded for it."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from conca.laws.run import LAWS, check, mixers

spec = importlib.util.spec_from_file_location("faults", Path(__file__).with_name("faults.py"))
faults = importlib.util.module_from_spec(spec)
sys.modules["faults"] = faults
spec.loader.exec_module(faults)


@pytest.mark.parametrize("name", mixers())
def test_every_mixer_obeys_the_laws(name):
    verdicts = list(check(mixers()[name]))
    assert {v.law for v in verdicts} == set(LAWS)
    assert [v for v in verdicts if v.outcome == "broken"] == []
    assert sum(v.outcome == "holds" for v in verdicts) > len(verdicts) / 2


def test_the_walk_finds_layers_and_models():
    assert {"attention", "gatedmlp", "lstm", "s4d", "shortconv", "block", "stack"} <= set(mixers())


def test_a_sound_toy_obeys_the_laws():
    outcomes = {v.law: v.outcome for v in check(faults.Leaky)}
    assert outcomes.pop("bodies agree") == "does not apply"
    assert set(outcomes.values()) == {"holds"}


def test_every_law_has_a_fault():
    assert set(faults.FAULTS) == set(LAWS)


@pytest.mark.parametrize(("law", "fault"), [(law, fault) for law, some in faults.FAULTS.items() for fault in some])
def test_each_fault_is_caught(law, fault):
    verdicts = list(check(fault, laws=(law,)))
    assert "broken" in [v.outcome for v in verdicts]
    assert all(v.message for v in verdicts if v.outcome == "broken")


def test_a_law_that_says_nothing_says_so():
    (verdict,) = check(faults.PlainOnly(4, d_state=2), laws=("bodies agree",))
    assert verdict.outcome == "does not apply"


def test_an_instance_is_checked_on_a_copy():
    toy = faults.Leaky().float().train()
    assert [v.outcome for v in check(toy, laws=("split",))] == ["holds"]
    assert toy.training
    assert toy.decay.dtype.itemsize == 4


def test_checking_leaves_the_settings_of_torch_alone():
    torch.set_default_dtype(torch.float32)
    seed = torch.initial_seed()
    for _ in check(faults.Leaky, laws=("split", "causal")):
        assert torch.get_default_dtype() == torch.float32
        assert torch.initial_seed() == seed
