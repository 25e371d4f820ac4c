"""Where compiled kernels are kept, when they are compiled anew, and that the library does without."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest
import torch
from numba import types
from numba.core.caching import IndexDataCacheFile
from torch.testing import assert_close

from conca.kernels import compiled, diagonal, dplr, warm
from conca.kernels import scan as scans
from conca.ops import bodies
from conca.ops.diagonal import diagonal_ssm, diagonal_ssm_recurrence
from conca.ops.scan import scan, scan_recurrence

ROOT = Path(__file__).resolve().parents[2]


def test_the_key_depends_on_the_sources_and_on_the_switches(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("x = 1")
    first = compiled.key(tmp_path)
    assert first == compiled.key(tmp_path)
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "7")
    assert compiled.key(tmp_path) != first
    monkeypatch.undo()
    (tmp_path / "a.py").write_text("x = 2")
    assert compiled.key(tmp_path) != first


def test_folders_are_tried_in_turn(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    places = [blocked, blocked / "below", tmp_path / "new" / "er"]
    monkeypatch.setattr(compiled, "_parents", lambda: iter(places))
    chosen = compiled.folder()
    assert chosen == tmp_path / "new" / "er" / f"conca-{compiled.key()}"
    assert chosen.is_dir()
    monkeypatch.setattr(compiled, "_parents", lambda: iter(places[:2]))
    assert compiled.folder() is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no owners of folders")
def test_a_folder_that_others_can_write_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_parents", lambda: iter([tmp_path]))
    chosen = compiled.folder()
    chosen.chmod(0o777)
    assert compiled.folder() is None
    chosen.chmod(0o700)
    assert compiled.folder() == chosen


def test_the_order_of_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "first"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
    places = list(compiled._parents())
    assert places[0] == tmp_path / "first"
    assert places[1] == ROOT / "conca" / "kernels" / "__pycache__"
    assert places[2] == tmp_path / "third"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert len(list(compiled._parents())) == 2


USE = """
import torch
from conca.kernels import scan
x = torch.ones(1, 3, 2)
assert scan.forward(x, x, x[0, :1])[0, :, 0].tolist() == [2, 3, 4]
"""


def run(code, **env):
    env = os.environ | env
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )


def test_one_line_while_something_compiles_and_none_after(tmp_path):
    first = run(USE, NUMBA_CACHE_DIR=str(tmp_path))
    assert first.returncode == 0, first.stderr
    assert first.stderr.startswith("conca: compiling ")
    assert first.stderr.count("\n") == 1
    assert not first.stdout
    second = run(USE, NUMBA_CACHE_DIR=str(tmp_path))
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    half, *_ = sorted(tmp_path.rglob("*.nbi"))  # as a power cut leaves it
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    third = run(USE, NUMBA_CACHE_DIR=str(tmp_path))
    assert third.returncode == 0, third.stderr
    assert third.stderr == first.stderr


def twice(x):
    return 2 * x


def test_two_at_once_take_two_numbers(tmp_path, monkeypatch):
    """Numba alone lets both see an empty index, and call what they keep by the first number."""
    monkeypatch.setattr(compiled, "_chosen", [tmp_path])
    kernels = {kind: compiled.compiled(twice) for kind in (types.int64, types.float64)}
    for kind, kernel in kernels.items():
        kernel.compile((kind,))
        kernel._cache.flush()
    look, both = IndexDataCacheFile._load_index, Barrier(2)

    def slowly(file):
        found = look(file)
        with suppress(BrokenBarrierError):
            both.wait(0.5)  # until the other has looked, too
        return found

    def keep(kind):
        kernels[kind]._cache.save_overload((kind,), next(iter(kernels[kind].overloads.values())))

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(IndexDataCacheFile, "_load_index", slowly)
        list(pool.map(keep, kernels))
    assert len(set(kernel._cache._cache_file._load_index().values())) == 2


def test_only_what_is_half_written_is_taken_away(tmp_path):
    whole = b"\x80\x04N." * 2
    for name, content in {"a.nbi": whole, "b.nbc": whole[:-1], "c.nbi": b"", "d.txt": b"\x80"}.items():
        (tmp_path / name).write_bytes(content)
    compiled._mend(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nbi", "d.txt"]


def test_nowhere_to_write_is_no_error():
    nowhere = "from conca.kernels import compiled; compiled._parents = lambda: iter([])"
    done = run(nowhere + USE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1


def test_without_numba_operations_are_right(monkeypatch):
    def loader():
        raise ImportError("no numba here")

    monkeypatch.setattr(bodies, "_loaders", dict.fromkeys(bodies.registered(), loader))
    monkeypatch.setattr(bodies, "_loaded", {})
    x, h = torch.randn(2, 70, 3, requires_grad=True), torch.zeros(2, 3)
    assert_close(scan(x, x, h), scan_recurrence(x, x, h))
    a, state = torch.rand(3, 2).to(torch.complex128), torch.zeros(2, 3, 2, dtype=torch.complex128)
    assert_close(diagonal_ssm(x, a, a, a, state), diagonal_ssm_recurrence(x, a, a, a, state))
    scan(x, x, h).sum().backward()


def test_warm_compiles_all():
    assert {"scan", "scan_backward", "diagonal_ssm", "diagonal_ssm_backward", "dplr_ssm"} <= set(warm())
    kernels = [kernel for module in (scans, diagonal, dplr) for kernel in (module.forward_tasks, module.backward_tasks)]
    assert all(len(kernel.signatures) == 2 for kernel in kernels)


def test_registering_imports_nothing_heavy():
    done = run("import conca.kernels, sys; print([n for n in ('numba', 'llvmlite', 'torch') if n in sys.modules])")
    assert done.stdout == "[]\n", done.stderr
