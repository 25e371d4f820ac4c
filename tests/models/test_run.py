"""Run folders: whole or not at all, and read with care."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conca.models.run import (
    FORMAT,
    check_free,
    check_keys,
    load_tensors,
    new_folder,
    read_config,
    read_tensors,
    write_config,
    write_tensors,
)
from conca.types import BadInput

ROOT = Path(__file__).resolve().parents[2]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_the_block_ends(tmp_path):
    with new_folder(tmp_path / "deep" / "run") as folder:
        (folder / "a.txt").write_text("a")
        assert not (tmp_path / "deep" / "run").exists()
    assert names(tmp_path / "deep") == ["run"]
    assert names(tmp_path / "deep" / "run") == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_remains_of_a_failure(tmp_path, error):
    with pytest.raises(error), new_folder(tmp_path / "deep" / "run") as folder:
        (folder / "a.txt").write_text("a")
        raise error
    assert names(tmp_path) == []


def test_an_existing_folder_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(BadInput, match="exists"), new_folder(tmp_path / "run"):
        pass


def make(folder, **parts):
    folder.mkdir()
    write_config(folder, "forecast", parts)


def test_force_replaces_a_run_when_the_new_one_is_good(tmp_path):
    make(tmp_path / "run", old=1)
    with pytest.raises(ValueError), new_folder(tmp_path / "run", force=True):
        raise ValueError
    assert read_config(tmp_path / "run")["old"] == 1
    with new_folder(tmp_path / "run", force=True) as folder:
        write_config(folder, "forecast", {"new": 1})
    assert read_config(tmp_path / "run") == {"kind": "forecast", "new": 1}
    assert names(tmp_path) == ["run"]


def test_force_does_not_replace_what_is_no_run(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(BadInput, match="not a run folder"):
        check_free(tmp_path / "home", force=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="not a run folder"):
        check_free(tmp_path / "file", force=True)
    with pytest.raises(BadInput, match="not a directory"):
        check_free(tmp_path / "file" / "run")


@pytest.mark.parametrize("text", ['{"my": "project"}', "[1]", "no json", ""])
def test_force_spares_the_config_of_another_program(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadInput, match="not a run folder"):
        check_free(tmp_path, force=True)


def test_force_spares_a_run_with_files_of_the_user(tmp_path):
    make(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("dear")
    with pytest.raises(BadInput, match=r"run/notes\.txt: is no part of a run"):
        check_free(tmp_path / "run", force=True)


def test_force_replaces_a_damaged_run_and_an_empty_folder(tmp_path):
    (tmp_path / "run").mkdir()
    check_free(tmp_path / "run", force=True)
    for name in ("model.safetensors", "latest.safetensors", "scores.csv"):
        (tmp_path / "run" / name).write_text("broken")
    check_free(tmp_path / "run", force=True)
    (tmp_path / "run" / "config.json").write_text("{")
    check_free(tmp_path / "run", force=True)


def test_what_a_killed_process_left_is_removed(tmp_path):
    code = "import os, sys; from pathlib import Path; from conca.models.run import new_folder\n"
    code += "with new_folder(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], cwd=ROOT, check=False)
    left = names(tmp_path)
    assert len(left) == 1
    (tmp_path / f"{left[0]}.txt").write_text("dear")
    with new_folder(tmp_path / "other"):
        pass
    assert left[0] in names(tmp_path)
    with new_folder(tmp_path / "run"), new_folder(tmp_path / "run2"):
        assert left[0] not in names(tmp_path)
        with pytest.raises(BadInput, match="exists"), new_folder(tmp_path / "run"):
            (tmp_path / "run").mkdir()
        (tmp_path / "run").rmdir()
    assert names(tmp_path) == [f"{left[0]}.txt", "other", "run", "run2"]


def test_configuration_comes_back(tmp_path):
    make(tmp_path / "run", a=[1, 2.5, "ü"], b={"c": None})
    assert read_config(tmp_path / "run") == {"kind": "forecast", "a": [1, 2.5, "ü"], "b": {"c": None}}


def test_numbers_that_json_lacks_are_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_config(tmp_path, "forecast", {"a": float("nan")})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "not the description of a run"),
        ("[" * 100_000, "cannot be read"),
        ('{"format": 1, "kind": "forecast", "a": NaN}', "NaN is no number"),
        ('{"format": true, "kind": "forecast"}', "not the description of a run"),
        ('{"format": 0, "kind": "forecast"}', "not the description of a run"),
        ('{"kind": "forecast"}', "not the description of a run"),
        ('{"format": 1}', "not the description of a run"),
        (json.dumps({"format": FORMAT + 1, "kind": "forecast"}), "newer"),
    ],
)
def test_broken_configurations(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadInput, match=words) as error:
        read_config(tmp_path)
    assert "\n" not in str(error.value)


def test_what_is_no_run(tmp_path):
    with pytest.raises(BadInput, match="no such folder"):
        read_config(tmp_path / "nothing")
    with pytest.raises(BadInput, match=r"config\.json is missing"):
        read_config(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="not a folder"):
        read_config(tmp_path / "file")


def test_keys_are_checked(tmp_path):
    with pytest.raises(BadInput, match="did you mean 'schema'"):
        check_keys(tmp_path, {"kind": "forecast", "shema": 1}, ("schema",))
    with pytest.raises(BadInput, match="'schema' is missing"):
        check_keys(tmp_path, {"kind": "forecast"}, ("schema",))


def test_tensors_keep_their_bits(tmp_path):
    layer, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    write_tensors(tmp_path / "m.safetensors", layer.state_dict())
    load_tensors(other, tmp_path / "m.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), other.parameters()))


def test_tensors_that_do_not_fit(tmp_path):
    path = tmp_path / "m.safetensors"
    layer = torch.nn.Linear(3, 2)
    for tensors, words in (
        ({"weight": torch.zeros(2, 3)}, "'bias' is missing"),
        ({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, r"'weight' is \(2, 4\)"),
        ({"weight": torch.zeros(2, 3, dtype=torch.float16), "bias": torch.zeros(2)}, "float16"),
        (layer.state_dict() | {"more": torch.zeros(1)}, "unknown tensor 'more'"),
    ):
        write_tensors(path, tensors)
        before = layer.weight.clone()
        with pytest.raises(BadInput, match=words):
            load_tensors(layer, path)
        assert torch.equal(layer.weight, before)


def test_truncated_or_foreign_files(tmp_path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(BadInput, match="is missing"):
        read_tensors(path)
    write_tensors(path, {"weight": torch.zeros(20, 30)})
    whole = path.read_bytes()
    for text in (b"", whole[:4], whole[:100], whole[:-1], b"PK\x03\x04" + whole, b"\x80\x04pickle"):
        path.write_bytes(text)
        with pytest.raises(BadInput, match="not a whole safetensors file") as error:
            read_tensors(path)
        assert "\n" not in str(error.value)
