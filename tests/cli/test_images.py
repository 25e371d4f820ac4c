"""Images at the prompt: fit, sample, complete, score, info, report; and what is refused, each in one line."""

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from conca.data.image_grid import png_of
from conca.estimators.image_config import DiffusionConfig, EnergyConfig
from conca.train import keeper

Say = Callable[..., tuple[int, str, str]]
WALK = "--features", 4, "--epochs", 1, "--batch-size", 8, "--chain-steps", 1
TOLD = "--features", 8, "--epochs", 1, "--batch-size", 8, "--schedule", "cosine", "--levels", 4


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of three updates."""
    monkeypatch.setattr(EnergyConfig, "epoch", 3)
    monkeypatch.setattr(DiffusionConfig, "epoch", 3)


def one_line(said: tuple[int, str, str], *expected: str) -> None:
    status, out, err = said
    assert (status, out) == (2, ""), err
    assert err.startswith("conca: ") and err.count("\n") == 1, err
    for word in expected:
        assert word in err, err


def picture(path: str, pixels: np.ndarray) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(png_of(pixels))


def bomb() -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 40000, 40000, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")


def files() -> None:
    """Good files, and bad ones of every kind."""
    draw = np.random.default_rng(0)
    grey = draw.integers(0, 256, (24, 1, 8, 8), dtype=np.uint8)
    for k, one in enumerate(grey):
        for folder in ("good", "broken", "mixed", "bombed"):
            picture(f"{folder}/{'ab'[k % 2]}/{k:02}.png", one)
    Path("broken/a/x.png").write_bytes(png_of(grey[0])[:-40])
    Path("bombed/a/x.png").write_bytes(bomb())
    picture("mixed/a/x.png", grey[0, :, :5])
    colour = draw.integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
    np.savez("rgb.npz", X=colour.transpose(0, 2, 3, 1))
    np.savez("nan.npz", X=np.where(np.arange(24)[:, None, None] == 5, np.nan, grey[:, 0] / 255))
    np.savez("small.npz", X=grey[:, 0, :7])
    picture("image.png", grey[0])
    picture("rgb.png", colour[0])
    mask = np.zeros((1, 8, 8), np.uint8)
    mask[:, :, 4:] = 255
    picture("mask.png", mask)
    picture("small-mask.png", mask[:, :7])
    picture("black.png", mask * 0)
    Path("there.png").write_text("mine")
    Path("there.csv").write_text("mine")


@pytest.mark.parametrize("task", ["energy", "diffusion"])
def test_from_pictures_to_a_page(task: str, say: Say, tmp_path: Path) -> None:
    files()
    options = WALK if task == "energy" else TOLD
    one_line(say("fit", "broken", "--task", task, "--out", "run", *options), "broken/a/x.png", "--skip-broken")
    assert not Path("run").exists()
    status, out, err = say("fit", "broken", "--task", task, "--labels", "--out", "run", "--skip-broken", *options)
    assert status == 0 and "AUROC" in out and "shuffled" in out
    assert "1 broken file passed over" in err and "broken/a/x.png: " in err and "wrote run" in err
    assert {"config.json", "model.safetensors", "metrics.csv", "report.html"} <= {p.name for p in Path("run").iterdir()}
    assert Path("run/report.html").read_text().count("data:image/png") == (3 if task == "energy" else 2)
    status, out, _ = say("info", "run")
    assert status == 0 and "images of 8 x 8 pixels, grey" in out and "a, b" in out and "AUROC" in out
    assert say("sample", "run:a", "-n", 5, "--columns", 3, "--out", "grid.png", "-q") == (0, "", "")
    assert np.asarray(Image.open("grid.png")).shape == (2 * 10 + 2, 3 * 10 + 2)
    assert say("report", "run", "--out", "page.html") == (0, "", "conca: wrote page.html\n")
    assert Path("page.html").read_text().count("data:image/png") == (3 if task == "energy" else 2)
    again = say("fit", "good", "--task", task, "--out", "run", *options)
    one_line(again, "run", "--force")


def test_samples_are_those_of_the_seed_and_go_where_they_are_told(image_runs: Path, say: Say) -> None:
    run = image_runs / "energy"
    assert say("sample", run, "-n", 3, "--out", "a.npz") == (0, "", "conca: wrote a.npz\n")
    say("sample", run, "-n", 3, "--out", "b.npz", "-q")
    say("sample", run, "-n", 3, "--seed", 1, "--out", "c.npz", "-q")
    a, b, c = (np.load(f"{name}.npz")["X"] for name in "abc")
    assert a.shape == (3, 1, 8, 8) and (a == b).all() and (a != c).any()
    assert say("sample", run, "-n", 1, "--scale", 3, "--out", "one.png", "-q")[0] == 0
    one = np.asarray(Image.open("one.png"))
    assert one.shape == (24, 24) and (one[::3, ::3] == one[1::3, 2::3]).all()
    assert say("sample", run, "-n", 3, "--steps", 1, "--out", "a.npz", "--force", "-q")[0] == 0
    assert (np.load("a.npz")["X"] != b).any()


@pytest.mark.parametrize(
    "words",
    [
        ["energy", "+", "0.5*energy"],
        ["joint:left", "-", "0.5*joint:right"],
        ["energy", "or", "3*energy"],
        ["diffusion:left", "+", "scalar", "--corrections", 2],
        ["scalar", "or", "scalar", "--corrector", "mala", "--ratio", 0.05],
        ["energy + 0.5*energy"],
        ["diffusion", "--kernel", "ddpm", "--variance", "small"],
        ["diffusion", "--eta", 1, "--steps", 3, "--schedule", "geometric", "--levels", 5],
        ["scalar", "--kernel", "langevin", "--corrections", 2],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_sums_and_ways_to_draw(
    words: list[object], image_runs: Path, say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "drawn.npz"
    monkeypatch.chdir(image_runs)
    assert say("sample", *words, "-n", 2, "--out", out, "-q") == (0, "", "")
    assert np.load(out)["X"].shape == (2, 1, 8, 8)


@pytest.mark.parametrize("name", ["energy", "diffusion"])
def test_what_is_known_stays(name: str, image_runs: Path, say: Say) -> None:
    files()
    assert say("complete", image_runs / name, "image.png", "--mask", "mask.png", "--out", "out.png", "-q") == (
        0,
        "",
        "",
    )
    before, after = (np.asarray(Image.open(path)) for path in ("image.png", "out.png"))
    assert (before[:, :4] == after[:, :4]).all() and (before[:, 4:] != after[:, 4:]).any()
    words = "--mask", "mask.png", "-n", 4, "--steps", 2, "--out", "ways.npz"  # longer chains may all end in one place
    assert say("complete", image_runs / name, "image.png", *words) == (0, "", "conca: wrote ways.npz\n")
    ways = np.load("ways.npz")["X"]
    assert (ways[:, 0, :, :4] == before[:, :4]).all() and (ways[0] != ways[1]).any()


@pytest.mark.parametrize("name", ["energy", "diffusion"])
def test_scores_say_how_strange_each_is_and_tell_others_apart(name: str, image_runs: Path, say: Say) -> None:
    files()
    words = "--against", "good", "--out", "scores.csv", "--quantile", 0.5
    status, out, err = say("score", image_runs / name, image_runs / "bars.npz", *words)
    assert status == 0 and "wrote scores.csv" in err and all(word in out for word in ("AUROC", "AUPR", "FPR95"))
    found = pd.read_csv("scores.csv")
    assert list(found) == ["set", "image", "novelty", "rank", "alarm"]
    assert found.set.tolist() == ["data"] * 60 + ["against"] * 24 and found.image[60] == 0
    assert (found.alarm == (found["rank"] >= 0.5)).all()
    own, other = (found.novelty[found.set == part].to_numpy() for part in ("data", "against"))
    auroc = (own[:, None] < other).mean()
    line = next(line for line in out.splitlines() if line.strip().startswith("against"))
    assert f"{auroc:.3f}"[:4] in line
    one_line(say("score", image_runs / name, "good", "--out", "scores.csv"), "scores.csv", "--force")
    status, out, err = say("score", image_runs / name, "good", "-q")
    assert status == 0 and err == "" and "AUROC" not in out
    one_line(say("score", image_runs / name, "broken"), "broken/a/x.png", "--skip-broken")
    status, _, err = say("score", image_runs / name, "broken", "--skip-broken")
    assert status == 0 and "broken/a/x.png" in err


ILL_FITS = {
    "sizes mixed": (["mixed"], ["mixed", "--size"]),
    "a bomb": (["bombed"], ["bombed/a/x.png", "too many pixels", "--skip-broken"]),
    "a NaN": (["nan.npz"], ["nan.npz"]),
    "no such file": (["nothing"], ["nothing", "there is no such file"]),
    "classes where there are none": (["nan.npz", "--labels"], ["nan.npz"]),
    "a size too large": (["good", "--size", 65], ["size", "64"]),
    "an unknown recipe": (["good", "--recipe", "igbm"], ["recipe", "igebm"]),
    "an unknown colour": (["good", "--colour", "red"], ["colour", "grey"]),
    "several devices": (["good", "--devices", "cpu:2"], ["cpu:2", "one device"]),
    "options of a forecast": (["good", "--horizon", 3], ["--horizon belongs to --task forecast", "leave it out"]),
    "options of a diffusion": (["good", "--levels", 9], ["--levels belongs to --task diffusion"]),
    "options of text": (["good", "--lora", 9], ["--lora belongs to --task text"]),
    "a picture for a folder": (["good", "--out", "image.png"], ["image.png"]),
}


@pytest.mark.parametrize("name", ILL_FITS)
def test_what_is_not_fitted(name: str, say: Say, tmp_path: Path) -> None:
    files()
    words, expected = ILL_FITS[name]
    before = {str(path): path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    one_line(say("fit", *words, "--task", "energy", *WALK, *([] if "--out" in words else ["--out", "run"])), *expected)
    after = {str(path): path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    assert before == {name: content for name, content in after.items() if not name.endswith(".lock")}


def test_options_of_an_energy_are_not_those_of_a_diffusion_or_a_forecast(say: Say) -> None:
    files()
    words = "fit", "good", "--out", "run", "--task"
    one_line(say(*words, "diffusion", "--chain-steps", 3), "--chain-steps belongs to --task energy")
    one_line(say(*words, "energy", "--scalar"), "--scalar belongs to --task diffusion")
    one_line(say(*words, "classify", "--recipe", "jem"), "--recipe belongs to --task energy")
    one_line(say(*words, "forecast", "--horizon", 3, "--skip-broken"), "--skip-broken belongs to --task energy")
    one_line(say(*words, "enregy"), "unknown task 'enregy'", "energy")


@pytest.mark.parametrize("written", [False, True])
def test_a_training_that_diverges_is_one_line_and_says_what_is_left(
    written: bool, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    files()
    monkeypatch.setattr(EnergyConfig, "epoch", 12)
    if written:
        monkeypatch.setattr(keeper, "PAUSE", 0.0)
        monkeypatch.setattr(keeper, "SHARE", 0)
    wild = "fit", "good", "--task", "energy", *WALK, "--l2", 0, "--no-spectral", "--lr", 900, "--out", "run"
    said = say(*wild)
    one_line(said, "run: ", "diverged" if "diverged" in said[2] else "left the finite numbers")
    assert not Path("run").exists()
    if not written:
        assert "nothing was kept" in said[2]
        return
    assert "its last checkpoint leads here again: begin anew with --force" in said[2]
    status, out, err = say(*wild, "--resume")
    assert (status, out) == (2, "") and err.count("\n") == 1, err
    one_line(say("fit", "good", "--task", "energy", *WALK, "--out", "run"), "--force")
    assert say("fit", "good", "--task", "energy", *WALK, "--out", "run", "--force", "-q", "--epochs", 1)[0] == 0


SAMPLES = {
    "no run": (["nothing"], ["nothing: there is no such folder"]),
    "no run of a hub": (["nobody/nothing"], ["nobody/nothing: there is no such folder"]),
    "a forecaster": (["forecaster"], ["forecaster: is no run on images", "--task forecast"]),
    "a language model": (["writer"], ["writer: is no run on images", "--task text"]),
    "a file for a run": (["image.png"], ["image.png"]),
    "no sum": (["{energy}", "{energy}"], ["as a sum of runs"]),
    "a sum with a forecaster": (["{energy}", "+", "forecaster"], ["forecaster: is no run on images"]),
    "mixed kinds": (["{energy}", "+", "{diffusion}"], ["of different kinds"]),
    "weights of nothing": (["0*{energy}"], ["a weight of 0"]),
    "an endless weight": (["{energy}", "+", "1e999*{energy}"], ["weight"]),
    "slopes as alternatives": (["{diffusion}", "or", "{diffusion}"], ["--scalar"]),
    "an unknown class": (["{joint}:up"], ["unknown class 'up'; known: left, right"]),
    "a class of none": (["{energy}:left"], ["unknown class 'left'", "without labels"]),
    "no image": (["{energy}", "-n", 0], ["--number"]),
    "no step": (["{energy}", "--steps", 0], ["--steps must be 1 or more"]),
    "a kernel of an energy": (["{energy}", "--kernel", "ddpm"], ["--kernel belongs to a diffusion"]),
    "an unknown kernel": (["{diffusion}", "--kernel", "euler"], ["--kernel is one of ddim, ddpm, langevin"]),
    "an unknown schedule": (["{diffusion}", "--schedule", "sine"], ["--schedule is one of"]),
    "levels too few": (["{diffusion}", "--schedule", "linear", "--levels", 9], ["9 levels are too few"]),
    "no level": (["{diffusion}", "--levels", 0], ["--levels must be 1 or more"]),
    "too much noise": (["{diffusion}", "--eta", 2], ["eta lies between 0"]),
    "the variance of no ddpm": (["{diffusion}", "--variance", "small"], ["--variance belongs to --kernel ddpm"]),
    "a variance that is none": (["{diffusion}", "--kernel", "ddpm", "--variance", "tiny"], ["'large'", "tiny"]),
    "no correction": (["{diffusion}", "--corrections", 0], ["--corrections must be 1 or more"]),
    "no ratio": (["{diffusion}", "--corrector", "ula", "--ratio", 0], ["--ratio must be a positive number"]),
    "the ratio of nothing": (["{diffusion}", "--ratio", 0.1], ["--ratio belongs to --corrector"]),
    "mala on slopes": (["{diffusion}", "--corrector", "mala"], ["--corrector mala", "--scalar"]),
    "mala on a sum with slopes": (["{scalar}", "+", "{diffusion}", "--corrector", "mala"], ["--scalar"]),
    "a file that is there": (["{energy}", "--out", "there.png"], ["there.png", "--force"]),
    "another ending": (["{energy}", "--out", "grid.jpg"], ["grid.jpg", ".png or .npz"]),
    "nowhere": (["{energy}", "--out", "none/grid.png"], ["none"]),
    "a chain that runs away": (["{wild}"], ["left the finite numbers"]),
}


def others(fitted: Path, image_runs: Path) -> None:
    """Runs that draw no images: of other tasks, and one whose slopes are beyond numbers."""
    shutil.copytree(fitted / "run", "forecaster")
    shutil.copytree(fitted / "run", "writer")
    config = json.loads(Path("writer/config.json").read_text())
    Path("writer/config.json").write_text(json.dumps(config | {"kind": "text"}))
    from safetensors.torch import load_file, save_file

    shutil.copytree(image_runs / "joint", "wild")
    weights = load_file("wild/model.safetensors")
    save_file({name: tensor * 1e30 for name, tensor in weights.items()}, "wild/model.safetensors")


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_not_drawn(name: str, say: Say, image_runs: Path, fitted: Path) -> None:
    files()
    others(fitted, image_runs)
    words, expected = SAMPLES[name]
    runs = {kind: image_runs / kind for kind in ("energy", "joint", "diffusion", "scalar")} | {"wild": Path("wild")}
    given = [word.format(**runs) if isinstance(word, str) else word for word in words]
    one_line(say("sample", *given, *([] if "--out" in given else ["--out", "grid.png"])), *expected)
    assert not Path("grid.png").exists() and Path("there.png").read_text() == "mine"


COMPLETIONS = {
    "a mask of another size": (
        ["image.png", "--mask", "small-mask.png"],
        ["small-mask.png: the mask is 7 x 8", "8 x 8"],
    ),
    "a black mask": (["image.png", "--mask", "black.png"], ["black.png", "nothing is damaged"]),
    "no mask": (["image.png", "--mask", "none.png"], ["none.png: there is no such file"]),
    "colour against grey": (["rgb.png", "--mask", "mask.png"], ["rgb.png"]),
    "an image of another size": (["small-mask.png", "--mask", "mask.png"], ["small-mask.png", "7 x 8"]),
    "a broken image": (
        ["broken/a/x.png", "--mask", "mask.png"],
        ["broken/a/x.png: the picture is broken or cut short"],
    ),
    "a bomb": (["bombed/a/x.png", "--mask", "mask.png"], ["bombed/a/x.png", "too many pixels"]),
    "an unknown class": (["image.png", "--mask", "mask.png", "--label", "up"], ["unknown class 'up'"]),
    "a kernel of a diffusion": (["image.png", "--mask", "mask.png", "--eta", 1], ["--eta belongs to a diffusion"]),
    "a file that is there": (["image.png", "--mask", "mask.png", "--out", "there.png"], ["there.png", "--force"]),
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_what_is_not_completed(name: str, say: Say, image_runs: Path) -> None:
    files()
    words, expected = COMPLETIONS[name]
    out = [] if "--out" in words else ["--out", "out.png"]
    one_line(say("complete", image_runs / "energy", *words, *out), *expected)
    assert not Path("out.png").exists() and Path("there.png").read_text() == "mine"


def test_runs_of_other_tasks_do_not_complete(say: Say, image_runs: Path, fitted: Path) -> None:
    files()
    others(fitted, image_runs)
    for run in ("forecaster", "writer"):
        words = "complete", run, "image.png", "--mask", "mask.png", "--out", "out.png"
        one_line(say(*words), f"{run}: is no run on images")


SCORES = {
    "colour against grey": (["rgb.npz"], ["rgb.npz: images are 8 x 8 in colour, and 8 x 8 in grey was fitted"]),
    "others in colour": (["good", "--against", "rgb.npz"], ["rgb.npz: images are 8 x 8 in colour"]),
    "another size": (["small.npz"], ["small.npz: images are 7 x 8"]),
    "a NaN": (["nan.npz"], ["nan.npz"]),
    "a bomb": (["bombed"], ["bombed/a/x.png"]),
    "no such file": (["good", "--against", "nothing"], ["nothing"]),
    "a file that is there": (["good", "--out", "there.csv"], ["there.csv", "--force"]),
    "what it reads": (["nan.npz", "--out", "nan.npz", "--force"], ["nan.npz: is read by this command"]),
    "a rank that none reaches": (["good", "--quantile", 0.99], ["6 images held out", "0.99"]),
    "rows of forecasts": (["good", "--rows"], ["--rows belongs to forecasts and classifiers"]),
    "labels of sequences": (["good", "--label", "x"], ["--label belongs to classifiers"]),
    "tokens of text": (["good", "--tokens", "t.csv"], ["--tokens belongs to language models"]),
}


@pytest.mark.parametrize("name", SCORES)
def test_what_is_not_scored(name: str, say: Say, image_runs: Path) -> None:
    files()
    words, expected = SCORES[name]
    one_line(say("score", image_runs / "energy", *words), *expected)
    assert Path("there.csv").read_text() == "mine"


def test_a_run_of_images_does_nothing_else(say: Say, image_runs: Path, fitted: Path) -> None:
    files()
    run, table = image_runs / "diffusion", fitted / "air.csv.xz"
    for words in (
        ["predict", run, table, "--out", "p.csv"],
        ["stream", run],
        ["generate", run, "-p", "x"],
        ["chat", run],
    ):
        one_line(say(*words), str(run), "image")
    one_line(say("score", fitted / "run", table, "--against", table), "--against belongs to runs on images")
    one_line(say("score", fitted / "run", table, "--skip-broken"), "--skip-broken belongs to runs on images")
