"""How models of images learn: killed and taken up again they end with the same bits; averages, measures, and divergence."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conca.energy.chain import Divergence
from conca.energy.recipes import igebm, short_run
from conca.energy.schedule import Schedule
from conca.models.image_energy import ImageEnergyConfig, ImageEnergyNetwork
from conca.models.run import CHECKPOINT
from conca.models.unet import UNet, UNetConfig
from conca.train import image_learner, keeper
from conca.train.averaged import averaged_of
from conca.train.checkpoint import read_checkpoint
from conca.train.image_batches import ImageChecks, ImagePieces
from conca.train.image_lesson import train_diffusion, train_energy
from conca.train.recipe import Recipe
from conca.train.seeds import seeded
from conca.types import BadInput

RECIPE = Recipe(
    lr=1e-3,
    weight_decay=0.0,
    epochs=3,
    steps=4,
    patience=10**6,
    max_minutes=None,
    seed=0,
    devices="cpu",
    precision="32-true",
    decay=0.5,
)
HOW = replace(igebm(), steps=3, size=40, restart=0.3)


@pytest.fixture(autouse=True)
def _briefly(monkeypatch):
    """Pictures of what a diffusion draws take few levels."""
    monkeypatch.setattr(image_learner, "DRAWN_BY", 2)


def images(n=20, classes=0):
    draw = np.random.default_rng(0)
    pixels = np.zeros((n, 1, 8, 8), np.uint8)
    rows = draw.integers(0, 8, n)
    pixels[np.arange(n), 0, rows] = 255
    return pixels, rows % classes if classes else None


def energy(folder, recipe=RECIPE, how=HOW, classes=0, resume=False, checks=True):
    folder.mkdir(exist_ok=True)
    pixels, y = images(classes=classes)
    with seeded(0):
        net = ImageEnergyNetwork(ImageEnergyConfig(1, 8, 8, features=4, outputs=max(classes, 1), spectral=how.spectral))
    pieces = ImagePieces(pixels, y, batch_size=6, seed=recipe.seed)
    validation = (pixels[:9], None if y is None else y[:9]) if checks else None
    trained, kept = train_energy(net, pieces, validation, how, recipe, folder, progress=False, resume=resume)
    return net, trained, kept


def diffusion(folder, recipe=RECIPE, classes=0, resume=False, checks=True, scalar=False):
    folder.mkdir(exist_ok=True)
    pixels, y = images(classes=classes)
    with seeded(0):
        net = UNet(UNetConfig(1, 8, 8, features=8, blocks=1, classes=classes, dropout=0.1))
    pieces = ImagePieces(pixels, y, batch_size=6, seed=recipe.seed)
    validation = (pixels[:9], None if y is None else y[:9]) if checks else None
    options = {"scalar": scalar, "spread": 0.5, "progress": False, "resume": resume}
    return net, *train_diffusion(net, pieces, validation, Schedule.cosine(20), recipe, folder, **options)


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def broken_off(train, folder, steps, **options):
    """An end in the middle, after so many steps, all ends counted; with a checkpoint after every step."""
    end = keeper.Keeper.on_train_batch_end

    def press(self, *rest):
        end(self, *rest)
        if self.course.step == steps:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(keeper.Keeper, "on_train_batch_end", press)
        patch.setattr(keeper, "PAUSE", 0.0)
        patch.setattr(keeper, "SHARE", 0)
        train(folder, resume=True, **options)


CASES = {
    "energy": (energy, {}),
    "joint": (energy, {"classes": 3, "how": replace(HOW, noise=0.03)}),
    "short runs": (energy, {"how": replace(short_run(), steps=3)}),
    "diffusion": (diffusion, {"classes": 3}),
}


@pytest.mark.parametrize("name", ["joint", "short runs", "diffusion"])
def test_broken_off_it_ends_with_the_same_bits(tmp_path, name):
    train, options = CASES[name]
    one, whole, kept = train(tmp_path / "whole", **options)
    for steps in (3, 5):  # within an epoch, and right after its end
        broken_off(train, tmp_path / "run", steps, **options)
    two, resumed, again = train(tmp_path / "run", resume=True, **options)
    assert same(one, two)
    assert resumed == whole and len(whole.history) == 3
    assert kept.keys() == again.keys()
    for key, value in kept.items():
        for a, b in zip(value, again[key], strict=True):
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b)), key
    tables = [(tmp_path / place / "metrics.csv").read_text() for place in ("whole", "run")]
    assert tables[0] == tables[1]


def test_what_an_energy_keeps(tmp_path):
    _, trained, kept = energy(tmp_path / "run")
    assert kept["places"].shape == (40, 1, 8, 8) and 0 <= kept["places"].min() <= kept["places"].max() <= 1
    assert kept["at"] == [4, 8, 12] == [row["step"] for row in trained.history]
    assert {(m.dtype, m.shape) for m in kept["moments"]} == {(torch.uint8, (6, 1, 8, 8))}
    _, _, none = energy(tmp_path / "short", how=replace(short_run(), steps=2))
    assert "places" not in none and len(none["moments"]) == 3


def test_few_pictures_are_kept_of_a_long_training(tmp_path, monkeypatch):
    monkeypatch.setattr(image_learner, "MOMENTS", 4)
    monkeypatch.setattr(image_learner, "SHOWN", 2)
    _, _, kept = energy(tmp_path, replace(RECIPE, epochs=12, steps=1), replace(HOW, steps=1), checks=False)
    at = kept["at"]
    assert len(at) == len(kept["moments"]) <= 4 and at[0] == 1 and at[-1] >= 11
    assert at == sorted(set(at)) and {len(m) for m in kept["moments"]} == {2}


ENERGIES = ["energy/data", "slope/data", "energy/samples", "slope/samples"]
FIRST = ["epoch", "step", "lr", "train/loss"]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("energy", [*ENERGIES, "energy/validation"]),
        ("joint", [*ENERGIES, "energy/validation", "val/accuracy"]),
        ("diffusion", ["val/loss"]),
    ],
)
def test_what_is_measured(tmp_path, name, more):
    train, options = CASES[name]
    _, trained, _ = train(tmp_path, replace(RECIPE, epochs=2), **options)
    for row in trained.history:
        assert list(row) == [*FIRST, *more] and np.isfinite([*row.values()]).all()
    assert (tmp_path / "metrics.csv").read_text().splitlines()[0] == ",".join([*FIRST, *more])


def test_what_validates_are_the_weights_that_are_kept(tmp_path):
    net, trained, _ = energy(tmp_path, replace(RECIPE, epochs=1), classes=3)
    pixels, y = images(classes=3)
    with torch.no_grad():
        logits = net(torch.from_numpy(pixels[:9] / 255).float())
    row = trained.history[-1]
    assert row["val/accuracy"] == float((logits.argmax(1).numpy() == y[:9]).mean())
    assert abs(row["energy/validation"] + float(logits.logsumexp(1).mean())) < 1e-5


@pytest.mark.parametrize(("train", "chosen"), [(energy, False), (diffusion, True)])
def test_only_a_diffusion_keeps_what_validated_best(tmp_path, monkeypatch, train, chosen):
    """Energies tell nothing about which epoch was best: the last one is kept."""
    found = iter((3.0, 1.0, 2.0))
    learner = image_learner.NoiseLearner if chosen else image_learner.EnergyLearner
    measured = learner.measured
    monkeypatch.setattr(
        learner, "measured", lambda self: {k: next(found) if k == "val/loss" else v for k, v in measured(self).items()}
    )
    net, trained, _ = train(tmp_path / "run")
    assert (trained.steps, trained.epochs) == ((8, 2) if chosen else (12, 3))
    saved = read_checkpoint(tmp_path, (tmp_path / "run" / CHECKPOINT).read_bytes())
    last = {name.removeprefix("module."): t for name, t in saved["averaged"].items() if name.startswith("module.")}
    assert all(torch.equal(tensor, last[name]) for name, tensor in net.state_dict().items()) is not chosen


def test_batches_are_a_function_of_the_seed_and_the_step():
    pixels = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1).repeat(1, axis=1)
    y = np.arange(10)

    def order(steps, seed=0, **options):
        pieces = ImagePieces(pixels, y, batch_size=3, seed=seed)
        return {step: pieces.batch(step, **options).x.flatten().tolist() for step in steps}

    forward, backward = order(range(9)), order(reversed(range(9)))
    assert forward == backward and forward != order(range(9), seed=1)
    for begin in (0, 3, 6):  # each image at most once in a pass, and each pass in another order
        seen = [k for step in range(begin, begin + 3) for k in forward[step]]
        assert len(seen) == len(set(seen)) == 9
    assert [forward[k] for k in (0, 1, 2)] != [forward[k] for k in (3, 4, 5)]
    pieces = ImagePieces(pixels, y, batch_size=4, seed=0)
    whole = pieces.batch(5)
    parts = [pieces.batch(5, first, 3) for first in range(3)]
    assert sorted(k for part in parts for k in part.y.tolist()) == sorted(whole.y.tolist())
    assert {part.whole for part in parts} == {4} and (whole.x.flatten() == whole.y).all()
    assert len(ImagePieces(pixels, None, batch_size=64, seed=0).batch(7).x) == 10


def test_all_images_validate_once_whoever_counts():
    pixels, y = np.arange(11, dtype=np.uint8).reshape(11, 1, 1, 1), np.arange(11)
    parts = [ImageChecks(pixels, y, batch_size=3, first=first, stride=2) for first in range(2)]
    seen = [k for part in parts for place in range(len(part)) for k in part[place].x.flatten().tolist()]
    assert sorted(seen) == list(range(11))
    numbers = [part[place].number for part in parts for place in range(len(part))]
    assert len(set(numbers)) == len(numbers)  # noise is by the batch


def test_the_average_decays_as_it_is_told():
    net = torch.nn.Linear(1, 1, bias=False)
    kept = averaged_of(net, True, 0.9)
    means = []
    for step in range(200):
        with torch.no_grad():
            net.weight.fill_(0.0 if step < 150 else 1.0)
        kept.update_parameters(net)
        means.append(float(kept.module.weight))
    np.testing.assert_allclose(means[150:], 1 - 0.9 ** np.arange(1, 51), rtol=1e-5)
    early = averaged_of(net, True, 0.9)  # the first steps weigh less: after the second, (1 + 1) / (1 + 10) are old
    for value in (0.0, 1.0):
        with torch.no_grad():
            net.weight.fill_(value)
        early.update_parameters(net)
    assert abs(float(early.module.weight) - (1 - 2 / 11)) < 1e-6
    assert averaged_of(net, False, 0.9).module is net


def test_what_is_kept_is_the_average_by_the_decay_of_the_recipe(tmp_path):
    few = replace(RECIPE, epochs=1, steps=3)
    plain, _, _ = diffusion(tmp_path / "plain", replace(few, average=False), checks=False)
    slow, _, _ = diffusion(tmp_path / "slow", replace(few, decay=0.999), checks=False)
    fast, _, _ = diffusion(tmp_path / "fast", replace(few, decay=0.0), checks=False)
    other, _, _ = diffusion(tmp_path / "other", replace(few, decay=0.0, seed=1), checks=False)
    assert same(plain, fast) and not same(plain, slow) and not same(fast, other)


def test_a_training_that_runs_away_says_so(tmp_path):
    wild = replace(HOW, l2=0.0, spectral=False, limit=1e4)
    with pytest.raises(Divergence, match=r"the training diverged: .* Take a lower rate, squares of the energies"):
        energy(tmp_path, replace(RECIPE, lr=10.0, steps=50), wild, checks=False)
    with pytest.raises((Divergence, BadInput), match=r"diverged|not finite"):
        diffusion(tmp_path / "noise", replace(RECIPE, lr=1e30, steps=50), checks=False)


@pytest.mark.parametrize(
    ("train", "precision"), [(energy, "64-true"), (diffusion, "64-true"), (diffusion, "bf16-mixed")]
)
def test_it_learns_in_the_precision_that_is_asked_for(tmp_path, train, precision):
    recipe = replace(RECIPE, precision=precision, epochs=1, steps=2)
    one, trained, _ = train(tmp_path / "a", recipe)
    two, _, _ = train(tmp_path / "b", replace(recipe, precision="32-true"))
    assert {t.dtype for t in one.state_dict().values()} == {torch.float32} and not same(one, two)
    assert np.isfinite([*trained.history[-1].values()]).all()


@pytest.mark.parametrize("devices", ["2", "cpu:2"])
def test_the_chains_of_an_energy_stay_on_one_device(tmp_path, devices):
    with pytest.raises(BadInput, match=f"devices '{devices}': .*one device, not on 2; name one") as error:
        energy(tmp_path, replace(RECIPE, devices=devices))
    assert "\n" not in str(error.value) and not [*tmp_path.iterdir()]


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    broken_off(energy, tmp_path / "run", 3)
    for changed in ({"recipe": replace(RECIPE, lr=0.1)}, {"how": replace(HOW, size=50)}, {"classes": 2}):
        with pytest.raises(BadInput, match="checkpoint") as error:
            energy(tmp_path / "run", resume=True, **changed)
        assert "\n" not in str(error.value)
