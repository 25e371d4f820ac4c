"""Everything written is run: the blocks of the pages, the doctests of the package, the examples; at a small size."""

import doctest
import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pandas as pd
import pytest
import tokenizers
import torch

import conca
from conca.bench import tour
from conca.cli.main import main
from conca.models.language import LanguageConfig, LanguageNetwork

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
MODULES = sorted(found.name for found in pkgutil.walk_packages(conca.__path__, "conca."))
DATA = "examples/data/beijing-air.csv.xz"
SMALL = {"layers": "s4d", "d_model": 8, "epochs": 1, "batch_size": 4, "max_minutes": 0.2}


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def commands(text: str) -> list[list[str]]:
    """The lines of the shell blocks that call conca."""
    lines = "".join(blocks("bash", text)).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("conca ")]


def run(command: list[str]) -> int:
    """Run a command as a shell would, with `<` and `>`."""
    words = small(command)
    if "<" not in words:
        return main([*words, "-q"] if words[0] != "info" else words)
    source, target = (words[words.index(mark) + 1] for mark in "<>")
    program = "import sys; from conca.cli.main import main; sys.exit(main())"
    with open(source, "rb") as rows, open(target, "wb") as found:
        words = [sys.executable, "-c", program, *words[: words.index("<")]]
        return subprocess.run(words, stdin=rows, stdout=found, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode


IMAGES = {"features": 8, "epochs": 1, "batch_size": 4, "max_minutes": 0.02}


def small(command: list[str]) -> list[str]:
    if command[0] == "fit" and {"energy", "diffusion"} & set(command):
        steps = ["--chain-steps", "2"] if "energy" in command else []
        return [
            *command,
            *steps,
            *(word for key, value in IMAGES.items() for word in (f"--{key.replace('_', '-')}", str(value))),
        ]
    if command[0] == "sample":
        return [*command, "--steps", "2", "-n", "2"]
    goes_on = ("layers", "d_model") if "--from" in command else ()
    given = {f"--{key.replace('_', '-')}": str(value) for key, value in SMALL.items() if key not in goes_on}
    options = [word for name, value in given.items() if name not in command for word in (name, value)]
    if command[0] == "data":
        return ["60" if before == "--count" else word for before, word in zip(["", *command], command)]
    return [*command, *options] if command[0] == "fit" else command


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the repository to the blocks: a piece of the data, and the layer of one's own."""
    torch.set_default_dtype(torch.float32)
    (tmp_path / "examples" / "data").mkdir(parents=True)
    pd.read_csv(ROOT / DATA, nrows=700).to_csv(tmp_path / DATA, index=False)
    (tmp_path / "mine.py").write_text(next(block for block in blocks("python") if block.startswith('"""mine.py"""')))
    pd.read_csv(tmp_path / DATA).tail(50).to_csv(tmp_path / "rows.csv", index=False)
    days = {"unique_id": "shop", "ds": pd.date_range("2023-01-01", periods=200), "y": range(200), "holiday": 0}
    pd.DataFrame(days).to_csv(tmp_path / "sales.csv", index=False)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "movements.py"))
    runpy.run_path(str(ROOT / "examples" / "shapes.py"), run_name="__main__")
    (tmp_path / "corpus.txt").write_text(README[:20000])
    (tmp_path / "later.txt").write_text(README[20000:22000])
    notes = [json.dumps({"prompt": f"{n} and 1 is", "completion": f" {n + 1}"}) for n in range(60)]
    (tmp_path / "notes.jsonl").write_text("\n".join(notes))
    monkeypatch.setattr(tour, "STOPS", tour.STOPS[:2])
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    published(tmp_path / "hub" / "models--state-spaces--mamba-130m-hf")
    return tmp_path


def published(home: Path) -> None:
    """A checkpoint as it lies in the cache of the hub, small and with random weights."""
    words = tokenizers.ByteLevelBPETokenizer()
    words.train_from_iterator([README], vocab_size=300, show_progress=False)
    folder = home / "snapshots" / ("0" * 40)
    config = LanguageConfig(vocab_size=304, n_tokens=300, layers="mamba(d_state=4)*2", d_model=16)
    model = conca.LanguageModel.around(LanguageNetwork(config).float(), generation={"eos_token_id": 0}, family="mamba")
    folder.parent.mkdir(parents=True)
    model.save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40)


@pytest.fixture(scope="module")
def air(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the README makes first."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("air") / "air"
    table = pd.read_csv(ROOT / DATA, nrows=700)
    conca.Forecaster(horizon=24, **SMALL).fit(
        table, target="pm2.5", time="time", out=folder, progress=False, refit=False
    )
    return folder


@pytest.mark.parametrize("block", blocks("python"))
def test_a_block_of_python_runs(block: str, desk: Path, air: Path) -> None:
    shutil.copytree(air, desk / "runs" / "air")
    options = ", ".join(f"{key}={value!r}" for key, value in SMALL.items())
    if "Forecaster" in block:
        assert "Forecaster(horizon=24)" in block
        block = block.replace("Forecaster(horizon=24)", f"Forecaster(horizon=24, {options})")
    block = block.replace("Classifier(epochs=10)", f"Classifier({options})")
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert (desk / "runs" / "mine" / "config.json").exists() == ("Forecaster" in block)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_commands_of_a_page_run(page: str, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = commands((ROOT / page).read_text())
    assert found
    for command in found:
        assert run(command) == 0, capfd.readouterr().err
    for name in (
        "forecast.csv",
        "novelty.csv",
        "strange.csv",
        "forecasts.csv",
        "air.state",
        "runs/air/report.html",
        "labels.csv",
        "said.csv",
        "tour.html",
        "runs/text/config.json",
        "runs/narrow/config.json",
        "runs/notes/adapter/adapter_model.safetensors",
        "paris.state",
    ):
        assert (desk / name).exists() == (page == "README.md")


def test_the_demo_runs_the_commands_of_the_readme() -> None:
    rule = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert rule
    lines = [line.replace("$(BIN)/", "").replace("$(DATA)", DATA) for line in rule[1].splitlines()]
    told = [["conca", *command] for command in commands(README)[:3]]
    assert [shlex.split(line) for line in lines] == [[*command, "--force"] for command in told]


def test_each_target_that_the_readme_names_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    told = set(re.findall(r"make (\w+)", "".join(blocks("bash")) + " ".join(re.findall(r"`([^`]*)`", README))))
    assert {"demo", "test", "lint", "bench"} <= told <= targets


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.failed == 0
    assert result.attempted or ">>>" not in inspect.getsource(module)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs_and_is_short(path: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert path.read_text().count("\n") < 100
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.syspath_prepend(ROOT / ".cache" / "data")
    missing = [
        name for name in re.findall(r"find_spec\(\"(\w+)\"\)", path.read_text()) if not importlib.util.find_spec(name)
    ]
    if missing and not os.environ.get("CI"):  # there everything is installed; elsewhere it has to say what is missing
        with pytest.raises(SystemExit, match=f"pip install .*{missing[0]}"):
            runpy.run_path(str(path), run_name="__main__")
        return
    runpy.run_path(str(path), run_name="__main__")
