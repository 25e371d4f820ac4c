"""The package hands its names on lazily, is right without its kernels, and names what installs a missing extra."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import conca

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "numba", "pandas", "pyarrow", "lightning", "sklearn", "matplotlib", "pydantic", "typer", "rich")


def python(code: str, *, folder: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_conca_imports_nothing_heavy() -> None:
    found = python(f"import conca, sys; print([name for name in {HEAVY} if name in sys.modules])")
    assert found == "[]\n"


def test_layers_and_energies_need_no_extra() -> None:
    names = sorted(set(conca.__all__) - {"Classifier", "Forecaster", "ImageDiffusion", "ImageEnergy", "load"})
    extras = [name for name in (*HEAVY, "torch._dynamo", "sympy") if name != "torch"]
    found = python(
        f"from conca import {', '.join(names)}; import sys; print([n for n in {extras} if n in sys.modules])"
    )
    assert found == "[]\n"


@pytest.mark.parametrize("name", conca.__all__)
def test_every_name_exists(name: str) -> None:
    assert getattr(conca, name) is not None
    assert name in dir(conca)


def test_a_family_that_is_not_listed_is_found_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    family = conca.LSTM
    monkeypatch.delitem(conca._WHERE, "LSTM")
    monkeypatch.delitem(vars(conca), "LSTM")
    assert conca.LSTM is family


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "THP_MEM_ALLOC_ENABLE"])
def test_variables_of_pytorch_are_set_before_it_is_loaded_and_the_users_choice_stays(name: str) -> None:
    code = f"import os; os.environ.pop('{name}', None); {{}}; import conca; print(os.environ.get('{name}'))"
    assert python(code.format("pass")) in ("passive\n", "1\n")
    assert python(code.format(f"os.environ['{name}'] = 'mine'")) == "mine\n"
    assert python(code.format("import sys; sys.modules['torch'] = sys")) == "None\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Mamba9'"):
        _ = conca.Mamba9


def test_a_missing_extra_is_named_with_what_installs_it() -> None:
    code = """
import sys
sys.modules["lightning"] = sys.modules["pandas"] = None
import conca
try:
    conca.Forecaster
except ImportError as error:
    print(error)
"""
    line = python(code)
    assert line.count("\n") == 1
    assert line.startswith("conca.Forecaster needs ")
    assert line.endswith('is not installed: pip install "conca[all]"\n')


WITHOUT_KERNELS = """
import sys, torch, conca
from conca.ops.bodies import registered
assert conca.__file__.startswith({folder!r}), conca.__file__
assert not registered()
torch.manual_seed(0)
layer = conca.S4D(8).double().eval()
x = torch.randn(2, 37, 8, dtype=torch.float64)
y, state = layer(x)
z, last = layer.recurrent(x)
torch.testing.assert_close(y, z)
y.square().sum().backward()
assert all(p.grad is not None for p in layer.parameters())
assert "numba" not in sys.modules
print("right")
"""


def test_without_the_folder_of_kernels_the_library_is_right(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "conca", tmp_path / "conca", ignore=shutil.ignore_patterns("kernels", "__pycache__"))
    assert python(WITHOUT_KERNELS.format(folder=str(tmp_path)), folder=tmp_path) == "right\n"


def test_without_numba_the_library_is_right() -> None:
    code = WITHOUT_KERNELS.format(folder=str(ROOT)).replace("assert not registered()", "")
    code = code.replace('assert "numba" not in sys.modules', "")
    assert python('import sys; sys.modules["numba"] = None\n' + code) == "right\n"
