"""Run folders: whole or not at all, and read with care."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from conca.models import lock
from conca.models.lock import holder
from conca.models.run import (
    CHECKPOINT,
    FORMAT,
    UNFINISHED,
    check_free,
    check_keys,
    load_tensors,
    lock_of,
    new_folder,
    read_config,
    read_tensors,
    umask,
    write_config,
    write_tensors,
    write_whole,
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


def checkpoint(folder, text="whole"):
    (folder / CHECKPOINT).parent.mkdir()
    (folder / CHECKPOINT).write_text(text)


def killed(run, checkpoint=False):
    """A process that is killed while it writes a run."""
    code = "import os, sys; from pathlib import Path; from conca.models.run import CHECKPOINT, new_folder\n"
    code += "with new_folder(Path(sys.argv[1])) as folder:\n"
    if checkpoint:
        code += " (folder / CHECKPOINT).parent.mkdir(); (folder / CHECKPOINT).write_text('whole')\n"
    code += " os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(run)], cwd=ROOT, check=False)


def test_what_a_killed_process_left_is_removed(tmp_path):
    killed(tmp_path / "run")
    (left,) = (name for name in names(tmp_path) if name.endswith(".part"))
    (tmp_path / f"{left}.txt").write_text("dear")
    with new_folder(tmp_path / "other"):
        pass
    assert left in names(tmp_path)
    with new_folder(tmp_path / "run"), new_folder(tmp_path / "run2"):
        assert left not in names(tmp_path)
    assert names(tmp_path) == [f"{left}.txt", "other", "run", "run2"]


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(BadInput, match="exists"), new_folder(tmp_path / "run"):
        (tmp_path / "run").mkdir()
    assert names(tmp_path) == ["run"]


def test_an_unfinished_training_is_neither_dropped_nor_taken_up_unasked(tmp_path):
    killed(tmp_path / "run", checkpoint=True)
    for action in (check_free, lambda folder: new_folder(folder).__enter__()):
        with pytest.raises(BadInput, match=r"unfinished training.*--resume.*--force") as error:
            action(tmp_path / "run")
        assert "\n" not in str(error.value)
    check_free(tmp_path / "other")
    with new_folder(tmp_path / "run", resume=True) as folder:
        assert (folder / CHECKPOINT).read_text() == "whole"
        (folder / UNFINISHED).write_text("{}")
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["checkpoints"]


def test_force_drops_an_unfinished_training(tmp_path):
    killed(tmp_path / "run", checkpoint=True)
    with new_folder(tmp_path / "run", force=True) as folder:
        assert not (folder / CHECKPOINT).exists()
    assert names(tmp_path) == ["run"]


def test_resume_of_nothing_begins(tmp_path):
    killed(tmp_path / "run")
    with new_folder(tmp_path / "run", resume=True) as folder:
        assert names(folder) == []
    assert names(tmp_path) == ["run"]


def test_a_finished_run_is_not_resumed(tmp_path):
    make(tmp_path / "run")
    for action in (check_free, lambda folder, **words: new_folder(folder, **words).__enter__()):
        with pytest.raises(BadInput, match="finished"):
            action(tmp_path / "run", resume=True)
    check_free(tmp_path / "run", force=True, resume=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError, MemoryError])
def test_what_is_broken_off_stays_where_it_can_be_taken_up(tmp_path, error):
    with pytest.raises(error), new_folder(tmp_path / "deep" / "run") as folder:
        checkpoint(folder)
        raise error
    for _ in range(2):
        with pytest.raises(error), new_folder(tmp_path / "deep" / "run", resume=True) as folder:
            assert (folder / CHECKPOINT).read_text() == "whole"
            raise error
    assert len(names(tmp_path / "deep")) == 1
    with pytest.raises(BadInput), new_folder(tmp_path / "deep" / "run", resume=True):
        raise BadInput("other options than before")
    with new_folder(tmp_path / "deep" / "run", resume=True) as folder:
        assert (folder / CHECKPOINT).read_text() == "whole"


def test_bad_input_leaves_nothing_of_a_new_training(tmp_path):
    with pytest.raises(BadInput), new_folder(tmp_path / "run") as folder:
        checkpoint(folder)
        raise BadInput("it diverged")
    assert names(tmp_path) == []


def test_the_newest_of_several_is_taken_up_also_of_another_machine(tmp_path):
    for age, machine in enumerate(("00000001", "00000002", "00000003")):
        folder = tmp_path / f".run.{machine}-7.abc_{age}.part"
        folder.mkdir()
        checkpoint(folder, machine)
        os.utime(folder / CHECKPOINT, (100 - age, 100 - age))
    with pytest.raises(BadInput, match="unfinished"):
        check_free(tmp_path / "run")
    with new_folder(tmp_path / "run", resume=True) as folder:
        assert (folder / CHECKPOINT).read_text() == "00000001"


def test_one_name_has_one_writer(tmp_path):
    with new_folder(tmp_path / "run") as folder:
        for words in ({}, {"force": True}, {"resume": True}):
            for action in (check_free, lambda folder, **words: new_folder(folder, **words).__enter__()):
                with pytest.raises(BadInput, match=rf"another training \(process {os.getpid()}\) is writing it"):
                    action(tmp_path / "run", **words)
        (folder / "a.txt").write_text("a")
    assert names(tmp_path / "run") == ["a.txt"]
    assert names(tmp_path) == ["run"]


def test_another_process_is_named_and_not_disturbed(tmp_path):
    code = "import sys; from pathlib import Path; from conca.models.run import new_folder\n"
    code += "with new_folder(Path(sys.argv[1])) as folder:\n"
    code += " print(flush=True); sys.stdin.read(); (folder / 'a.txt').write_text('a')"
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(BadInput, match=rf"process {other.pid}\) is writing it"), new_folder(tmp_path / "run"):
            pass
        with new_folder(tmp_path / "run2"):
            pass
    assert names(tmp_path / "run") == ["a.txt"]
    assert names(tmp_path) == ["run", "run2"]


def test_of_many_at_once_exactly_one_wins(tmp_path):
    winners, losers = [], []
    every = threading.Barrier(8)

    def contend(number):
        every.wait()
        try:
            with new_folder(tmp_path / "run") as folder:
                (folder / "who.txt").write_text(str(number))
                while len(losers) < 7:
                    time.sleep(0.01)
            winners.append(number)
        except BadInput as error:
            losers.append(str(error))

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert all("another training" in line for line in losers)
    assert (tmp_path / "run" / "who.txt").read_text() == str(winners[0])
    assert names(tmp_path) == ["run"]


def test_looking_whether_it_is_free_keeps_nobody_out(tmp_path):
    done = threading.Event()

    def look():
        while not done.is_set():
            holder(lock_of(tmp_path / "run"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(20):
            with new_folder(tmp_path / "run", force=number > 0) as folder:
                write_config(folder, "forecast", {"number": number})
    finally:
        done.set()
        thread.join()
    assert read_config(tmp_path / "run")["number"] == 19


def test_on_a_disk_without_locks_the_process_that_lives_is_known(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", unknown)
    with new_folder(tmp_path / "run"):
        with pytest.raises(BadInput, match="another training"), new_folder(tmp_path / "run"):
            pass
        with pytest.raises(BadInput, match="another training"):
            check_free(tmp_path / "run")
    lock_of(tmp_path / "run2").write_text("1073741823")
    with new_folder(tmp_path / "run2"):
        pass
    assert names(tmp_path) == ["run", "run2"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch, shared):
    path = tmp_path / "file"
    write_whole(path, b"old", shared=shared)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as error:
        write_whole(path, b"new", shared=shared)
    assert error.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_where_nobody_holds_a_lock_no_other_file_is_touched(tmp_path):
    path, other = tmp_path / "file", tmp_path / "file.part"
    other.write_bytes(b"somebody's own")
    write_whole(path, b"new", shared=True)
    with pytest.raises(OSError) as error:
        write_whole(tmp_path / "no" / "file", b"new", shared=True)
    assert error.value.filename == str(tmp_path / "no" / "file")
    assert (path.read_bytes(), other.read_bytes()) == (b"new", b"somebody's own")
    assert names(tmp_path) == ["file", "file.part"]


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


def test_a_full_disk_is_told_as_one_though_torch_covers_it(tmp_path):
    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            if self.file.tell() + len(data) > 3000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(data)

        def flush(self):
            self.file.flush()

    path = tmp_path / "last.ckpt"
    with pytest.raises(OSError, match="No space left") as error:
        write_whole(path, lambda file: torch.save({"a": torch.zeros(5000)}, Full(file)))
    assert error.value.filename == str(path)
    assert not list(tmp_path.iterdir())
