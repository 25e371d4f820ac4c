"""A training on text that was killed ends with the same bits, with an average of the weights and without."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from conca.models.language import LanguageConfig, LanguageNetwork
from conca.train import keeper
from conca.train.averaged import moving
from conca.train.passages import Passages, TextChecks
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.train.text_learner import lost
from conca.train.text_lesson import train_text

RECIPE = Recipe(
    lr=1e-2,
    weight_decay=0.1,
    epochs=3,
    steps=4,
    patience=3,
    max_minutes=None,
    seed=0,
    devices="cpu",
    precision="32-true",
)


class Pairs:
    """A text of 400 tokens, of which each stands for two bytes."""

    ids = (np.arange(400) ** 2 % 7).astype(np.uint8)

    def __len__(self):
        return len(self.ids)

    def read(self, begin, end):
        return self.ids[begin:end].copy()

    def mask(self, begin, end):
        return np.ones(end - begin, dtype=bool)

    def sizes(self, begin, end):
        return np.full(end - begin, 2)


def train(folder, recipe, resume=False, frozen=False):
    folder.mkdir(exist_ok=True)
    with seeded(0):
        network = LanguageNetwork(LanguageConfig(7, 7, "mamba2(d_state=4,d_head=4)", 8, dropout=0.2)).float()
    if frozen:
        network.embedding.requires_grad_(False)
    passages = Passages(Pairs(), 0, 300, length=32, batch_size=4, seed=0)
    trained = train_text(network, Pairs(), passages, (300, 400), None, recipe, folder, progress=False, resume=resume)
    return network, trained


def broken_off(folder, recipe, step, frozen):
    end = keeper.Keeper.on_train_batch_end

    def press(self, *rest):
        end(self, *rest)
        if self.course.step == step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(keeper.Keeper, "on_train_batch_end", press)
        train(folder, recipe, resume=True, frozen=frozen)


@pytest.mark.parametrize(("average", "frozen"), [(True, False), (False, False), (False, True)])
def test_interrupted_it_ends_with_the_same_bits(tmp_path, monkeypatch, average, frozen):
    monkeypatch.setattr(keeper, "PAUSE", 0.0)
    monkeypatch.setattr(keeper, "SHARE", 0)
    recipe = replace(RECIPE, average=average)
    one, whole = train(tmp_path / "whole", recipe, frozen=frozen)
    for step in (3, 6):
        broken_off(tmp_path / "run", recipe, step, frozen)
    two, resumed = train(tmp_path / "run", recipe, resume=True, frozen=frozen)
    assert whole == resumed
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    three, again = train(tmp_path / "run", recipe, resume=True, frozen=frozen)
    assert whole == again
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), three.state_dict().values(), strict=True))
    assert ("embedding.weight" in moving(one)) is not frozen
    checks = TextChecks(Pairs(), 300, 400, length=32, batch_size=4)
    with torch.no_grad():
        bits = sum(float(lost(one, checks[i])) for i in range(len(checks))) / math.log(2) / (2 * 99)
    best = min(row["val/loss"] for row in whole.history)
    assert bits == pytest.approx(best, rel=1e-5)
    assert whole.history[-1]["train/loss"] < whole.history[0]["train/loss"]


def test_where_time_decides_the_rate_falls_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper.time, "monotonic", iter(range(10**6)).__next__)
    recipe = replace(RECIPE, epochs=1000, max_minutes=1.0)
    _, trained = train(tmp_path / "run", recipe)
    rates = [row["lr"] for row in trained.history]
    assert 2 < len(rates) < 20
    assert rates[-1] < 0.2 * max(rates) and rates[3:] == sorted(rates[3:], reverse=True)
