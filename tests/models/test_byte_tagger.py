"""A published bidirectional Mamba, put together in examples/byte_tagger.py: its numbers are those of the published code.

The weights and that code lie in the package typeseg, which `make test` fetches into .cache/data.
"""

import argparse
import importlib.util
import os
import runpy
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "byte_tagger.py"
BLOCK = "CheckpointMambaBlock1D"
D, N, R, LABELS, DEPTH = 256, 16, 16, 35, 6
DENSE = {0: (D, 2 * D), 1: (D, R + 2 * N), 2: (R, D), 3: (D, D)}


def module(path):
    """A file as a module, without the package around it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def package(monkeypatch):
    """The folder of typeseg, which is not imported."""
    monkeypatch.syspath_prepend(ROOT / ".cache" / "data")
    spec = importlib.util.find_spec("typeseg")
    if spec is None and os.environ.get("CI"):
        pytest.fail("typeseg has to be there: make .cache/data")
    if spec is None:
        pytest.skip("typeseg is not installed: make .cache/data")
    return Path(spec.origin).parent


@pytest.fixture
def arrays():
    """Random weights under the published names and in the published shapes."""
    random = np.random.default_rng(0)

    def normal(*shape):
        return random.normal(size=shape, scale=shape[0] ** -0.5)

    found = {"Embed_0__embedding": random.normal(size=(130, D)), "Dense_0__kernel": normal(D, LABELS)}
    found["Dense_0__bias"] = normal(LABELS)
    norms = ["LayerNorm_0"]
    for block in (f"{BLOCK}_{i}" for i in range(DEPTH)):
        for i, shape in DENSE.items():
            found |= {f"{block}__Dense_{i}__kernel": normal(*shape), f"{block}__Dense_{i}__bias": normal(shape[1])}
        found |= {f"{block}__Conv_0__kernel": normal(4, 1, D), f"{block}__Conv_0__bias": normal(D)}
        found |= {f"{block}__A_log": random.normal(size=(D, N)), f"{block}__D": random.normal(size=D)}
        norms.append(f"{block}__LayerNorm_0")
    for name in norms:
        found |= {f"{name}__scale": random.normal(size=D, loc=1), f"{name}__bias": random.normal(size=D)}
    return found


def plain(arrays, tokens):
    """The network as it is said in words, one byte after another."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return scaled * arrays[f"{name}__scale"] + arrays[f"{name}__bias"]

    def dense(x, name):
        return x @ arrays[f"{name}__kernel"] + arrays[f"{name}__bias"]

    def silu(x):
        return x / (1 + np.exp(-x))

    x, T = arrays["Embed_0__embedding"][tokens], len(tokens)
    for block in (f"{BLOCK}_{i}" for i in range(DEPTH)):
        u, gate = np.split(dense(norm(x, f"{block}__LayerNorm_0"), f"{block}__Dense_0"), 2, -1)
        seen, w = np.concatenate([np.zeros((1, D)), u, np.zeros((2, D))]), arrays[f"{block}__Conv_0__kernel"][:, 0]
        u = silu(sum(seen[k : k + T] * w[k] for k in range(4)) + arrays[f"{block}__Conv_0__bias"])
        dt, B, C = np.split(dense(u, f"{block}__Dense_1"), [R, R + N], -1)
        dt, y = np.log1p(np.exp(dense(dt, f"{block}__Dense_2"))) + 1e-4, np.zeros((T, D))
        for order in (range(T), reversed(range(T))):
            h = np.zeros((D, N))
            for t in order:
                h = np.exp(-np.exp(arrays[f"{block}__A_log"]) * dt[t, :, None]) * h + np.outer(dt[t] * u[t], B[t])
                y[t] += h @ C[t] + arrays[f"{block}__D"] * u[t]
        x = x + dense(y * silu(gate), f"{block}__Dense_3")
    return dense(norm(x, "LayerNorm_0"), "Dense_0")


@pytest.mark.parametrize("length", [1, 2, 5, 33])
def test_random_weights_give_what_a_plain_loop_gives(arrays, length):
    tokens = np.random.default_rng(length).integers(130, size=(2, length))
    with torch.no_grad():
        found = module(EXAMPLE).tagger(arrays)(torch.from_numpy(tokens))
    for row, want in zip(found.numpy(), tokens):
        np.testing.assert_allclose(row, plain(arrays, want), rtol=0, atol=1e-10)


def test_no_array_is_missing_left_over_or_of_another_shape(arrays):
    tagger, name = module(EXAMPLE).tagger, f"{BLOCK}_3__Dense_1__bias"
    for wrong in ({name: arrays[name][1:]}, {"more": arrays[name]}):
        with pytest.raises(RuntimeError, match=r"layers\.3\.x_proj\.bias|more"):
            tagger(arrays | wrong)
    del arrays[name]
    with pytest.raises(RuntimeError, match=r"layers\.3\.x_proj\.bias"):
        tagger(arrays)


def test_published_weights_give_what_the_published_code_gives(package):
    """Real text, up to 2,000 bytes. Twice: with its arithmetic in float64, where nothing but rounding may differ, and as it is."""
    example, theirs = module(EXAMPLE), module(package / "_mamba_kernel.py")
    with np.load(package / "data" / "mamba_al.npz") as stored:
        arrays = dict(stored)
    wide = SimpleNamespace(**{**vars(np), "float32": np.float64})
    weights = {name.replace("__", "/"): array for name, array in arrays.items()}
    exactly = {name: array.astype(np.float64) for name, array in weights.items()}
    text, model = Path(argparse.__file__).read_bytes(), example.tagger(arrays)
    for begin, end in pairwise([0, 1, 3, 372, 2372]):
        tokens = np.array([*text[begin:end].translate(example.TOKENS)])
        with torch.inference_mode():
            exact = model.double()(torch.from_numpy(tokens)[None])[0].numpy()
            found = model.float()(torch.from_numpy(tokens)[None])[0]
        np.testing.assert_allclose(exact, theirs.mamba_forward(wide, exactly, tokens), rtol=0, atol=1e-12)
        want = torch.from_numpy(theirs.mamba_forward(np, weights, tokens))
        assert found.dtype == want.dtype == torch.float32
        assert (found.softmax(-1) - want.softmax(-1)).abs().max() < 1e-5
        assert (found - want).abs().max() < 1e-5 * want.abs().max()


def test_the_example_finds_prose_sql_html_and_python(package, tmp_path, monkeypatch, capsys):
    text = tmp_path / "text.bin"
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(package)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    spans = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert [span[2] for span in spans] == ["text", "sql", "html", "python"]
    assert [span[0] for span in spans] == ["0", *(span[1] for span in spans[:-1])]
    text.write_bytes(b"\xff\x00 def f(x):\n    return x\n")
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(package), str(text)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1].split()[1] == str(text.stat().st_size)
    assert "typeseg" not in sys.modules


def test_the_example_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path)])
    with pytest.raises(SystemExit, match=f"no weights in {tmp_path}.*pip install"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
