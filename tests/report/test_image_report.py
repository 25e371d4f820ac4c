"""The report of models of images: what it shows is what the run holds, and what went wrong is said in words."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import conca
from conca.report import drawing
from conca.report.image_page import facts, warnings
from conca.report.image_pictures import shown
from conca.report.page import Picture, Table
from conca.report.write import report, write_report

TITLES = ["How good it is, and what it is", "What it draws", "Chains", "Training", "How strange what was held out is"]


@pytest.fixture
def undrawn(monkeypatch):
    """Curves are left empty, which take most of the time; images are there."""
    monkeypatch.setattr(drawing, "drawn", lambda figure: "<svg></svg>")


def run_of(image_runs, name):
    return conca.load(image_runs / name).run_


def images(picture):
    """The pixels in a picture, (h, w)."""
    data = re.search(r"data:image/png;base64,([A-Za-z0-9+/=]+)", picture.svg)[1]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def cells(pixels, across):
    """What a grid of these with gaps of 1 is."""
    down = -(-len(pixels) // across)
    found = np.full((down * 9 + 1, across * 9 + 1), 128, np.uint8)
    for k, one in enumerate(pixels):
        top, left = k // across * 9 + 1, k % across * 9 + 1
        found[top : top + 8, left : left + 8] = one[0]
    return found


def chapter(page, title):
    return next(one for one in page.chapters if one.title == title)


def test_an_energy_is_shown_with_its_samples_moments_buffer_and_energies(image_runs, undrawn):
    model = conca.load(image_runs / "energy")
    kept, page = model.run_.kept, report(model)
    assert [one.title for one in page.chapters] == TITLES and page.title == "An energy of images"
    (drawn,) = chapter(page, "What it draws").parts
    assert (images(drawn) == cells(kept["samples"].numpy(), 8)).all() and "64 images" in drawn.caption
    moments, buffer, _, walk = chapter(page, "Chains").parts
    assert (images(moments) == cells(kept["moments"].flatten(0, 1).numpy(), 8)).all()
    assert "after 6, 12 updates" in moments.caption
    assert (images(buffer) == cells(kept["buffer"].numpy(), 8)).all()
    assert f"{kept['walk'][-1, 0]:.4g}" in walk.caption
    energies, slopes = (part for part in chapter(page, "Training").parts if isinstance(part, Picture))
    for picture, name in ((energies, "energy"), (slopes, "slope")):
        last = model.history_.iloc[-1]
        assert f"data {last[f'{name}/data']:.4g}" in picture.caption
        assert f"samples {last[f'{name}/samples']:.4g}" in picture.caption
    assert f"{np.median(kept['heights']):.4g}" in chapter(page, TITLES[-1]).parts[0].caption


def test_a_diffusion_is_shown_with_what_it_drew_along_the_training(image_runs, undrawn):
    model = conca.load(image_runs / "diffusion")
    page = report(model)
    along = "Samples along the training"
    assert [one.title for one in page.chapters] == [along if title == "Chains" else title for title in TITLES]
    (moments,) = chapter(page, along).parts
    assert (images(moments) == cells(model.run_.kept["moments"].flatten(0, 1).numpy(), 16)).all()
    assert "by 8 levels, after 6, 12 updates" in moments.caption
    assert page.title == "A diffusion of images"
    _, losses = chapter(page, "Training").parts
    last = model.history_.iloc[-1]
    assert f"training {last['train/loss']:.4g}, validation {last['val/loss']:.4g}" in losses.caption
    told = dict(next(part for part in page.chapters[0].parts if isinstance(part, Table)).rows)
    assert told["classes"] == "left, right" and told["schedule"] == "cosine, 8 levels" and told["updates"] == "12"
    assert "64 images drawn by 8 levels of the diffusion" in chapter(page, "What it draws").parts[0].caption


def test_scores_and_facts_are_those_of_the_run(image_runs, undrawn):
    model = conca.load(image_runs / "joint")
    known, scores = (part for part in report(model).chapters[0].parts if isinstance(part, Table))
    assert [row[0] for row in scores.rows] == ["noise", "constants", "shuffled"]
    assert [float(cell) for row in scores.rows for cell in row[1:]] == pytest.approx(
        model.scores_.to_numpy().ravel(), abs=6e-4
    )
    told = dict(known.rows)
    assert told["recipe"].startswith("jem (Grathwohl") and told["images"] == "8 x 8 grey" and told["updates"] == "12"


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("igebm", "95% in a buffer of 10,000"),
        ("improved_cd", "99.9% in a buffer of 10,000"),
        ("generative_convnet", "in a buffer"),
        ("short_run", "at noise, always"),
    ],
)
def test_where_chains_began_is_told(image_runs, recipe, words):
    run = run_of(image_runs, "energy")
    assert dict(facts(replace(run, config=replace(run.config, recipe=recipe))))["begin"] == words


def test_the_file_is_whole_and_needs_no_network(image_runs, tmp_path):
    """Also with real curves."""
    model = conca.load(image_runs / "energy")
    model._take(replace(model.run_, source='<script>alert("1")</script>: 60 images'))
    write_report(model, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<script" not in text and "&lt;script&gt;" in text
    assert text.count("data:image/png;base64,") == 3 and not re.search(r'(src|href)="(?!data:|#)', text)
    assert text.count("<svg") >= 6 and "image-rendering: pixelated" in text


def test_a_run_without_a_record_is_reported(image_runs, undrawn):
    model = conca.load(image_runs / "energy")
    kept = {"samples": model.run_.kept["samples"], "heights": torch.zeros(0, dtype=torch.float64)}
    model._take(replace(model.run_, history=pd.DataFrame(), scores=pd.DataFrame(), kept=kept, held_out=0))
    page = report(model)
    assert [one.title for one in page.chapters] == [TITLES[0], TITLES[1], TITLES[3]]
    assert not [*warnings(model.run_)] and "no record" in page.chapters[-1].parts[0]


def test_colour_is_shown_in_colour():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 4), dtype=np.uint8)
    found = images(shown(pixels, "a", "b", columns=2))
    assert (found[1:6, 1:5] == pixels[0].transpose(1, 2, 0)).all() and found.shape == (7, 11, 3)


def healthy(image_runs, kind):
    """A run whose record speaks for it."""
    run = run_of(image_runs, kind)
    n, draw = 8, np.random.default_rng(0)
    columns = {"epoch": range(n), "step": np.arange(1, n + 1) * 500, "train/loss": 0.1}
    if kind == "energy":
        columns |= {"energy/data": -0.1, "energy/samples": -0.09, "slope/data": 0.5, "slope/samples": 0.5}
    else:
        columns |= {"val/loss": np.linspace(0.9, 0.1, n)}
    scores = pd.DataFrame({"AUROC": [1.0, 1.0, 0.97]}, index=["noise", "constants", "shuffled"])
    samples = torch.from_numpy(draw.integers(0, 256, (64, 1, 8, 8), dtype=np.uint8))
    run = replace(run, history=pd.DataFrame(columns), scores=scores, kept=run.kept | {"samples": samples})
    return replace(run, config=replace(run.config, chain_steps=60)) if kind == "energy" else run


def late(run, **columns):
    """The same, with other numbers in the last quarter of the record."""
    history = run.history.copy()
    for name, value in columns.items():
        history.loc[6:, name.replace("_", "/")] = value
    return replace(run, history=history)


def alike(run):
    return replace(run, kept=run.kept | {"samples": run.kept["samples"][:1].expand(64, 1, 8, 8).contiguous()})


RULES = {
    "short energy": ("energy", lambda r: replace(r, history=r.history[:1]), "training was short: 500 updates"),
    "short diffusion": (
        "diffusion",
        lambda r: replace(r, history=r.history[3:4].assign(**{"val/loss": 0.2})),
        "was short: 2,000",
    ),
    "run away": ("energy", lambda r: late(r, energy_data=-400.0, energy_samples=300.0), "Energies have run away"),
    "above": ("energy", lambda r: late(r, energy_samples=0.2), "Samples stay far above the data"),
    "below": ("energy", lambda r: late(r, energy_data=0.1, energy_samples=-0.2), "Samples lie below the data"),
    "flat": ("energy", lambda r: late(r, slope_samples=1e-5), "Slopes are too flat to move the chains"),
    "collapsed energy": ("energy", alike, "All samples are the same image"),
    "collapsed diffusion": ("diffusion", alike, "All samples are the same image"),
    "single pixels": (
        "energy",
        lambda r: replace(r, scores=r.scores * 0.6),
        "hardly tells images from the same pixels",
    ),
    "no noise told": (
        "diffusion",
        lambda r: replace(r, history=r.history.assign(**{"val/loss": 0.8})),
        "tells hardly any noise",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_each_warning_comes_where_it_belongs_and_alone(image_runs, name):
    kind, spoil, words = RULES[name]
    found = [*warnings(spoil(healthy(image_runs, kind)))]
    assert len(found) == 1 and words in found[0], found
    assert re.search(r"--\w+|learnt single pixels", found[0])  # and what to do


@pytest.mark.parametrize("kind", ["energy", "diffusion"])
def test_a_healthy_training_is_not_suspected(image_runs, kind, undrawn):
    run = healthy(image_runs, kind)
    assert not [*warnings(run)]
    model = conca.load(image_runs / kind)
    model._take(run)
    assert report(model).chapters[0].parts[0].startswith("Nothing in the record of the training speaks against it")


def test_numbers_that_are_missing_are_not_judged(image_runs):
    run = healthy(image_runs, "energy")
    bare = replace(run, history=run.history[["epoch", "step", "train/loss"]], scores=pd.DataFrame())
    assert not [*warnings(bare)]
