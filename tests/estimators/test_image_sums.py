"""Sums of models of images: how they are written, and what they come to."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import conca
from conca.energy.energy import Energy
from conca.estimators.image_sums import Part, composed, parts_of
from conca.types import BadInput


@pytest.fixture
def pixels(image_runs):
    return np.load(image_runs / "bars.npz")["X"]


def loaded(image_runs, name):
    return conca.load(image_runs / name)


def refused(match, call, *args):
    with pytest.raises(BadInput, match=match) as error:
        call(*args)
    assert "\n" not in str(error.value)


SUMS = {
    "A": ([Part("A", None, 1.0)], False),
    "A + B": ([Part("A", None, 1.0), Part("B", None, 1.0)], False),
    "A + 0.5*B": ([Part("A", None, 1.0), Part("B", None, 0.5)], False),
    "2*A - .5*B": ([Part("A", None, 2.0), Part("B", None, -0.5)], False),
    "A - 1e-1*B + 3*C": ([Part("A", None, 1.0), Part("B", None, -0.1), Part("C", None, 3.0)], False),
    "A or B OR C": ([Part(name, None, 1.0) for name in "ABC"], True),
    "A:3 + 2*B:left": ([Part("A", "3", 1.0), Part("B", "left", 2.0)], False),
    "a/b:c:3": ([Part("a/b:c", "3", 1.0)], False),
}
NO_SUMS = {
    "": "cannot read ''",
    "A +": "cannot read 'A \\+' as a sum",
    "A B": "cannot read 'A B' as a sum",
    "A * B": "not '\\*'",
    "A and B": "not 'and'",
    "A + B or C": "'or' stands alone",
    "0*A + B": "0\\*A: a weight of 0 leaves nothing",
    "A - 0.0*B": "a weight of 0",
}


@pytest.mark.parametrize("words", SUMS)
def test_sums_are_read(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parts_of(words.split()) == SUMS[words]


@pytest.mark.parametrize("words", NO_SUMS)
def test_what_is_no_sum_is_refused(words):
    refused(NO_SUMS[words], parts_of, words.split())


def test_a_folder_that_is_there_is_meant_whatever_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("2*A", "A:3"):
        (tmp_path / name).mkdir()
        assert parts_of([name]) == ([Part(name, None, 1.0)], False)


def total(models, words):
    parts, either = parts_of(words.split())
    return composed([models[part.run] for part in parts], parts, either)


def test_energies_add_up(image_runs, pixels):
    models = {"A": loaded(image_runs, "energy"), "B": loaded(image_runs, "energy")}
    torch.manual_seed(1)
    for parameter in models["B"].network_.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.from_numpy(pixels[:4] / 255).float()
    with torch.no_grad():
        a, b = (models[name].energy_(x) for name in "AB")
        assert (a - b).abs().min() > 1e-3
        for words, wanted in (
            ("A", a),
            ("A + B", a + b),
            ("A - 0.5*B", a - 0.5 * b),
            ("2*A + B - A", a + b),
            ("A or B", -torch.logaddexp(-a, -b)),
            ("3*A or B", -torch.logaddexp(math.log(3) - a, -b)),
        ):
            torch.testing.assert_close(
                total(models, words)(x), wanted, msg=lambda line, words=words: f"{words}: {line}"
            )
    drawn = models["A"].sample(2, energy=total(models, "A + B"))
    assert drawn.shape == (2, 1, 8, 8) and (drawn != models["A"].sample(2)).any()


def test_classes_of_a_joint_model_add_up(image_runs, pixels):
    models = {"A": loaded(image_runs, "joint")}
    how = models["A"].recipe_
    x = how.low + (how.high - how.low) / 255 * torch.from_numpy(pixels[:4]).float()
    with torch.no_grad():
        logits = models["A"].network_(x)
        torch.testing.assert_close(total(models, "A:left + A:right")(x), -logits.sum(1))
        torch.testing.assert_close(total(models, "A")(x), -logits.logsumexp(1))
    refused("unknown class '3'; known: left, right", total, models, "A:3")


def test_slopes_add_up_and_are_no_alternatives(image_runs):
    models = {"A": loaded(image_runs, "diffusion"), "B": loaded(image_runs, "scalar")}
    x = torch.rand(2, 1, 8, 8, dtype=torch.float32)
    a, b = (models[name].score_.at(5).score(x) for name in "AB")
    torch.testing.assert_close(total(models, "A - 0.5*B").at(5).score(x), a - 0.5 * b)
    left = models["A"].landscape("left").at(5).score(x)
    torch.testing.assert_close(total(models, "A:left + A").at(5).score(x), left + a)
    assert isinstance(total(models, "B or B"), Energy)
    refused(r"alternatives \('or'\) are of energies.*--scalar", total, models, "A or B")
    assert models["A"].sample(2, score=total(models, "A + B")).shape == (2, 1, 8, 8)


def test_what_does_not_go_together(image_runs):
    def energy():
        return loaded(image_runs, "energy")

    large, other, short = energy(), loaded(image_runs, "diffusion"), energy()
    large.shape_ = (1, 9, 9)
    config = replace(short.run_.config, recipe="short_run")
    short._take(replace(short.run_, config=config))
    models = {"A": energy(), "large": large, "other": other, "short": short}
    for name, words in (
        ("large", r"A and large are of images \(1, 8, 8\) and \(1, 9, 9\); fit both with one size"),
        ("other", "A and other are of different kinds"),
        ("short", r"A and short read pixels from \(0.0, 1.0\) and \(-1.0, 1.0\); fit both by one recipe"),
    ):
        refused(words, total, models, f"A + {name}")
