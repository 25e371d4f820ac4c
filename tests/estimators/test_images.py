"""Models of images as estimators: from arrays and paths, kept and loaded, drawn, completed, judged, and added up."""

import json
import pickle
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import conca
from conca.data.images import load_images
from conca.energy.langevin import mala, ula
from conca.energy.reverse import ddpm
from conca.estimators.image_config import DiffusionConfig, EnergyConfig
from conca.estimators.image_diffusion import ImageDiffusion
from conca.estimators.image_energy import ImageEnergy
from conca.estimators.image_model import ROUNDING
from conca.infer import images
from conca.models.run import read_tensors, write_tensors
from conca.types import BadInput

NAMES = "energy", "joint", "diffusion", "scalar"
FAST = {"features": 4, "epochs": 1, "batch_size": 8, "chain_steps": 1}


@pytest.fixture
def few(monkeypatch):
    """Trainings of three updates, in the default precision of users."""
    monkeypatch.setattr(EnergyConfig, "epoch", 3)
    monkeypatch.setattr(DiffusionConfig, "epoch", 3)
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def pixels(image_runs):
    return np.load(image_runs / "bars.npz")["X"]


def loaded(image_runs, name):
    return conca.load(image_runs / name)


def refused(match, call, *args, **options):
    with pytest.raises(BadInput, match=match) as error:
        call(*args, **options)
    assert "\n" not in str(error.value)


def test_arrays_and_paths_are_the_same_images(image_runs, pixels, few, monkeypatch):
    monkeypatch.setattr(EnergyConfig, "epoch", 6)
    config = loaded(image_runs, "energy").get_params()
    again = ImageEnergy(**config).fit(image_runs / "bars.npz")
    for name, tensor in loaded(image_runs, "energy").network_.state_dict().items():
        assert torch.equal(tensor, again.network_.state_dict()[name]), name
    for X in (pixels, pixels[:, 0], pixels.transpose(0, 2, 3, 1), pixels / 255, load_images(image_runs / "bars.npz")):
        assert (again.read(X).pixels == pixels).all()
    other = ImageEnergy(**config | {"random_state": 1, "epochs": 1}).fit(pixels)
    assert not torch.equal(other.network_.head.bias, again.network_.head.bias)


@pytest.mark.parametrize("cls", [ImageEnergy, ImageDiffusion])
def test_another_default_precision_is_no_hindrance(cls, pixels, few):
    torch.set_default_dtype(torch.float64)
    options = {"schedule": "cosine", "levels": 4, "features": 8} if cls is ImageDiffusion else {"chain_steps": 1}
    model = cls(**{"features": 4, "epochs": 1, "batch_size": 8} | options).fit(pixels)
    assert model.sample(2).shape == (2, 1, 8, 8) and model.novelty(pixels[:2]).novelty.notna().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_kept_is_the_model(image_runs, pixels, tmp_path, name):
    model = loaded(image_runs, name)
    again = conca.load(model.save(tmp_path / "again") and tmp_path / "again")
    assert type(again) is type(model) and again.config == model.config and again.get_params() == model.get_params()
    assert again.history_.equals(model.history_) and again.scores_.equals(model.scores_)
    assert list(model.scores_.index) == ["noise", "constants", "shuffled"]
    assert (again.sample(3) == model.sample(3)).all()
    assert again.novelty(pixels[:5]).equals(model.novelty(pixels[:5]))
    assert again.run_.kept.keys() == model.run_.kept.keys() and len(again.history_) == 2
    refused("again.*exists", model.save, tmp_path / "again")
    model.save(tmp_path / "again", force=True)


@pytest.mark.parametrize("name", NAMES)
def test_draws_are_those_of_the_seed(image_runs, name):
    model = loaded(image_runs, name)
    one = model.sample(3, random_state=5)
    assert one.shape == (3, 1, 8, 8) and one.dtype == np.uint8
    assert (model.sample(3, random_state=5) == one).all() and (model.sample(3, random_state=6) != one).any()
    assert (one[0] != one[1]).any()
    refused("the number of images must be a whole number, 1 or more", model.sample, 0)


@pytest.mark.parametrize("name", ["diffusion", "scalar"])
def test_without_noise_on_the_way_the_first_images_do_not_depend_on_how_many(image_runs, name):
    model = loaded(image_runs, name)
    many = model.sample(5).astype(int)
    assert abs(model.sample(2).astype(int) - many[:2]).max() <= 1  # rounding


def test_ways_to_walk_a_diffusion(image_runs):
    model, scalar = loaded(image_runs, "diffusion"), loaded(image_runs, "scalar")
    plain = model.sample(2)
    for options in (
        {"kernel": ddpm("large", bounds=(-1.0, 1.0))},
        {"steps": 3},
        {"schedule": model.schedule_of("geometric", 5)},
        {"corrector": lambda noise: ula(0.05 * noise**2), "corrections": 2},
        {"kernel": "langevin", "corrector": lambda noise: ula(0.05 * noise**2)},
    ):
        assert (model.sample(2, **options) != plain).any(), options
    assert scalar.sample(2, corrector=lambda noise: mala(0.05 * noise**2)).shape == (2, 1, 8, 8)
    with pytest.raises(TypeError, match="accepts by differences of energy"):
        model.sample(2, corrector=lambda noise: mala(0.05 * noise**2))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_known_does_not_move(image_runs, pixels, name):
    model, image = loaded(image_runs, name), pixels[0]
    mask = np.zeros((8, 8), bool)
    mask[:, 3:] = True
    found = model.complete(image, mask, 3, steps=2)  # chains that are longer may all end in one place
    assert found.shape == (3, 1, 8, 8)
    assert (found[:, :, ~mask] == image[:, ~mask]).all()
    assert (found[:, :, mask] != image[:, mask]).mean() > 0.5 and (found[0] != found[1]).any()
    assert (model.complete(image[0], mask, 3, steps=2) == found).all()
    assert (model.complete(image, np.zeros((8, 8), bool)) == image).all()
    assert (model.complete(image, mask, 3, steps=2, random_state=1) != found).any()
    for ill, hole in ((image / 255, mask), (image[:, :7], mask), (pixels[:2], mask)):
        refused("the image must be bytes of shape", model.complete, ill, hole)
    for hole in (mask[:7], mask.astype(int), mask[None]):
        refused("the mask must be bool of shape", model.complete, image, hole)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_are_among_what_was_held_out(image_runs, pixels, name):
    model = loaded(image_runs, name)
    draw = np.random.default_rng(1)
    strange = draw.integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
    found = model.novelty(np.concatenate([pixels[:20], strange]))
    assert list(found) == ["novelty", "rank", "alarm"] and found.novelty.is_unique
    heights = np.sort(model.run_.kept["heights"].numpy())
    assert len(heights) == 6 == model.run_.held_out
    rounding = ROUNDING * (found.novelty.abs() + heights.std())  # as much is lost where others are scored beside it
    np.testing.assert_allclose(found["rank"], np.searchsorted(heights, found.novelty - rounding) / 7)
    held = model.run_.kept["heights"].numpy()
    own = pixels[[int(np.abs(model.novelty(pixels).novelty - height).argmin()) for height in held]]
    assert model.novelty(own)["rank"].tolist() == [float(model.novelty(x[None])["rank"].iloc[0]) for x in own]
    assert (found.alarm == (found["rank"] >= 6 / 7)).all()
    lower = model.novelty(pixels, quantile=0.4)
    assert (lower.alarm == (lower["rank"] >= 0.4)).all() and lower.alarm.any()
    refused("6 images held out rank up to 0.8571, so none would reach 0.95", model.novelty, pixels, quantile=0.95)
    alone = model.novelty(pixels[7:8])
    np.testing.assert_allclose(alone.novelty, model.novelty(pixels).novelty[7:8], rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_two_threads_draw_from_one_model_and_it_can_be_pickled(image_runs, pixels, name):
    model = loaded(image_runs, name)
    alone = [model.sample(3, steps=4, random_state=k) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: model.sample(3, steps=4, random_state=k), range(4)))
    assert all(np.array_equal(a, b) for a, b in zip(alone, found))
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.sample(3, steps=4), alone[0])
    assert again.novelty(pixels[:4]).equals(model.novelty(pixels[:4]))


def test_without_a_held_out_part_nothing_is_ranked(image_runs, pixels):
    model = loaded(image_runs, "energy")
    model._take(replace(model.run_, kept=model.run_.kept | {"heights": torch.zeros(0)}, held_out=0))
    found = model.novelty(pixels[:3])
    assert found["rank"].isna().all() and found.alarm.isna().all() and found.novelty.notna().all()
    refused("nothing was held out when this run was fitted", model.novelty, pixels[:3], quantile=0.9)


@pytest.mark.parametrize("name", ["joint", "diffusion"])
def test_classes_are_drawn_by_name(image_runs, pixels, name):
    model = loaded(image_runs, name)
    assert list(model.classes_) == ["left", "right"] and model.run_.classes == ("left", "right")
    left, right, any_ = (model.sample(2, label=label) for label in ("left", "right", None))
    assert (left != right).any() and (left != any_).any()
    mask = np.ones((8, 8), bool)
    mask[0] = False
    ways = [model.complete(pixels[0], mask, label=label) for label in ("left", "right")]
    assert (ways[0] != ways[1]).any()
    for call in (model.sample, lambda **options: model.complete(pixels[0], mask, **options)):
        refused("unknown class 'up'; known: left, right", call, label="up")
    refused("known: none: it was fitted without labels", loaded(image_runs, "energy").sample, label="left")
    assert not hasattr(loaded(image_runs, "energy"), "classes_")


def test_a_joint_model_tells_classes(image_runs, pixels):
    model = loaded(image_runs, "joint")
    how, found = model.recipe_, model.predict_proba(pixels)
    with torch.no_grad():
        logits = model.network_(how.low + (how.high - how.low) / 255 * torch.from_numpy(pixels).float())
    np.testing.assert_allclose(found, logits.double().softmax(1).numpy(), rtol=1e-5)
    assert (model.predict(pixels) == model.classes_[logits.argmax(1)]).all()
    for call in (loaded(image_runs, "energy").predict, loaded(image_runs, "energy").predict_proba):
        refused("no classes were learnt; fit with labels", call, pixels)
    with pytest.raises(NotFittedError):
        ImageEnergy(labels=True).predict(pixels)


def test_who_waits_is_told_how_far_it_is(image_runs, pixels, monkeypatch):
    monkeypatch.setattr(images, "ROWS", 2)
    mask = np.zeros((8, 8), bool)
    mask[0] = True
    for name in ("energy", "scalar"):
        shares = []
        loaded(image_runs, name).sample(3, watch=shares.append)
        assert shares == sorted(shares) and 0 < shares[0] < shares[-1] == 1.0 and len(shares) > 3
        loaded(image_runs, name).complete(pixels[0], mask, 3, watch=shares.append)
        assert shares[-1] == 1.0


@pytest.mark.parametrize("cls", [ImageEnergy, ImageDiffusion])
def test_scikit_learn_knows_its_way(cls, pixels):
    model = cls(features=8, epochs=3, random_state=7)
    other = clone(model)
    assert other is not model and other.get_params() == model.get_params()
    assert other.set_params(epochs=4).config.epochs == 4 and model.epochs == 3
    for call in (
        model.sample,
        lambda: model.novelty(pixels),
        lambda: model.complete(pixels[0], np.ones((8, 8), bool)),
        lambda: model.save("none"),
        lambda: model.run_,
        lambda: model.landscape(),
    ):
        with pytest.raises(NotFittedError):
            call()
    assert {*cls().get_params()} <= {*cls.options.__dataclass_fields__}


ILL = {
    "no images": (lambda p: np.zeros((0, 8, 8), np.uint8), {}, "image"),
    "a NaN": (lambda p: np.where(np.arange(60)[:, None, None, None] == 7, np.nan, p / 255), {}, "7"),
    "numbers above 1": (lambda p: p / 2.0, {}, "0 to 1|0 and 1"),
    "one axis": (lambda p: p[0, 0, 0], {}, "shape"),
    "large ones": (lambda p: np.zeros((4, 65, 8), np.uint8), {}, "64"),
    "labels of others": (lambda p: p, {"y": np.zeros(59)}, "60 images and 59 labels; give one for each"),
    "no labels": (lambda p: p, {"labels": True}, "no two classes; leave --labels out|leave"),
    "one class": (lambda p: p, {"labels": True, "y": np.zeros(60)}, "no two classes"),
    "no such path": (lambda p: "nothing-here", {}, "there is no such file or folder"),
    "an unknown recipe": (lambda p: p, {"recipe": "igbm"}, "recipe must be one of igebm"),
    "a size of nothing": (lambda p: p, {"size": 0}, "size must be a whole number from 1 to 64"),
    "an unknown colour": (lambda p: p, {"colour": "red"}, "colour must be 'grey' or 'rgb'"),
    "a seed below 0": (lambda p: p, {"random_state": -1}, "random_state"),
    "chains of several devices": (lambda p: p, {"devices": "cpu:2"}, "one device, not on 2"),
    "a word for a switch": (lambda p: p, {"skip_broken": "yes"}, "skip_broken"),
}


@pytest.mark.parametrize("name", ILL)
def test_what_cannot_be_fitted_is_one_line_and_leaves_nothing(pixels, few, tmp_path, name):
    change, options, words = ILL[name]
    own = {key: options.pop(key) for key in ("y", "skip_broken") if key in (options := dict(options))}
    refused(words, ImageEnergy(**FAST | options).fit, change(pixels), out=tmp_path / "run", **own)
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".lock")]


def test_labels_are_not_given_twice(image_runs, pixels):
    y = np.zeros(60)
    refused("labels are read with the images", ImageEnergy().fit, image_runs / "bars.npz", y)
    refused("labels are a part of Images", ImageEnergy().fit, load_images(image_runs / "bars.npz"), y)


def test_other_images_are_refused(image_runs):
    model = loaded(image_runs, "energy")
    refused("X: images are 9 x 9 in grey, and 8 x 8 in grey was fitted", model.novelty, np.zeros((2, 9, 9), np.uint8))
    refused("8 x 8 in colour, and 8 x 8 in grey", model.novelty, np.zeros((2, 3, 8, 8), np.uint8))


def config(change):
    def spoil(run):
        found = json.loads((run / "config.json").read_text())
        change(found)
        (run / "config.json").write_text(json.dumps(found))

    return spoil


def evaluation(change):
    def spoil(run):
        found = read_tensors(run / "evaluation.safetensors")
        change(found)
        write_tensors(run / "evaluation.safetensors", found)

    return spoil


DAMAGED = {
    "half of the weights": (lambda run: cut(run / "model.safetensors"), "model.safetensors"),
    "no weights": (lambda run: (run / "model.safetensors").unlink(), "model.safetensors"),
    "weights of another": (config(lambda c: c["network"].update(features=16)), "model.safetensors"),
    "no evaluation": (lambda run: (run / "evaluation.safetensors").unlink(), "evaluation.safetensors"),
    "half an evaluation": (lambda run: cut(run / "evaluation.safetensors"), "evaluation.safetensors"),
    "no heights": (evaluation(lambda t: t.pop("heights")), "evaluation.safetensors"),
    "other heights": (evaluation(lambda t: t.update(heights=torch.zeros(3, 2))), "evaluation.safetensors"),
    "no samples": (evaluation(lambda t: t.pop("samples")), "evaluation.safetensors"),
    "other samples": (config(lambda c: c["network"].update(height=7)), "evaluation.safetensors"),
    "a broken table": (lambda run: (run / "scores.csv").write_text("against,AUROC\nnoise,x\n"), "scores.csv"),
    "half a description": (lambda run: cut(run / "config.json"), "config.json"),
    "an unknown option": (config(lambda c: c["options"].update(recpie="x")), "config.json.*recpie"),
    "an ill option": (config(lambda c: c["options"].update(epochs=0)), "config.json.*epochs"),
    "a part too many": (config(lambda c: c.update(more=1)), "config.json.*more"),
    "a part missing": (config(lambda c: c.pop("spread")), "config.json.*spread"),
    "a spread of nothing": (config(lambda c: c.update(spread=0)), "config.json.*spread is 0"),
    "a noise that is no number": (config(lambda c: c.update(highest="50")), "config.json.*highest is '50'"),
    "less than none held out": (config(lambda c: c.update(held_out=-1)), "config.json.*held_out"),
    "classes that are none": (config(lambda c: c.update(classes=[3])), "config.json.*classes are no texts"),
    "a class too many": (config(lambda c: c.update(classes=["up"] * 3)), "config.json.*3 classes, and the network"),
    "a source of numbers": (config(lambda c: c.update(source=3)), "config.json.*source"),
    "a network too large": (config(lambda c: c["network"].update(width=2**40)), "config.json.*width"),
    "another kind": (config(lambda c: c.update(kind="energies")), "config.json: unknown kind.*energy"),
    "a newer format": (config(lambda c: c.update(format=99)), "config.json.*newer"),
}


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_run_is_one_line_that_names_the_file(image_runs, tmp_path, name):
    spoil, words = DAMAGED[name]
    for kind in ("energy", "diffusion"):
        shutil.copytree(image_runs / kind, tmp_path / kind)
        spoil(tmp_path / kind)
        refused(f"^{re.escape(str(tmp_path / kind))}/{words}", conca.load, tmp_path / kind)


def test_a_run_without_its_record_is_whole(image_runs, tmp_path):
    run = shutil.copytree(image_runs / "energy", tmp_path / "run")
    (run / "metrics.csv").unlink()
    (run / "scores.csv").unlink()
    model = conca.load(run)
    assert not len(model.history_) and not len(model.scores_) and len(model.sample(1)) == 1


def test_an_energy_is_not_loaded_as_a_diffusion(image_runs):
    refused(
        "config.json: a run of kind 'energy', not a diffusion of images", ImageDiffusion.load, image_runs / "energy"
    )
    refused("takes no option 'dtype'", conca.load, image_runs / "energy", dtype="float32")
