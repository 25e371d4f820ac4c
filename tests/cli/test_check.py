"""`conca check` on the library, on a layer of one's own, and on a layer that breaks a law."""

from collections.abc import Callable
from pathlib import Path

import pytest

LAYER = '''
import torch
from torch import nn
from conca import Mixer

class Sum(Mixer[torch.Tensor]):
    """A running sum."""

    def __init__(self, d_model):
        super().__init__()
        self.d_model, self.c = d_model, nn.Parameter(torch.ones(d_model))

    def init_state(self, batch):
        return self.zeros(batch, self.d_model)

    def step(self, x, state, *, elapsed=None):
        return self.c * (state + x), state + x

    def parallel(self, x, state, **_):
        h = state[:, None] + x.cumsum(1)
        return self.c * h, h[:, -1]

class Amnesiac(Sum):
    """Its parallel form does not know what was read before."""

    def parallel(self, x, state, **_):
        h = x.cumsum(1)
        return self.c * h, h[:, -1]

class Choosy(Sum):
    """Cannot be built by its width alone."""

    def __init__(self, d_model, colour):
        super().__init__(d_model)
'''


@pytest.fixture
def mine(say: Callable) -> str:
    Path("mine.py").write_text(LAYER)
    return "mine.py"


def test_a_family_that_keeps_the_laws(say: Callable) -> None:
    status, out, err = say("check", "--family", "GatedMLP")
    assert (status, err) == (0, "")
    assert next(line for line in out.splitlines() if "gatedmlp" in line).split()[1:4] == ["ok", "ok", "ok"]
    assert "\x1b" not in out, "no colours in a pipe"
    from conca.laws.run import LAWS

    assert all(f"{number:>2} {law}" in out for number, law in enumerate(LAWS, 1))


@pytest.mark.parametrize(("name", "law"), [("hopfield", "update never raises"), ("descent", "known stays")])
def test_energies_and_samplers_have_laws_of_their_own(name: str, law: str, say: Callable) -> None:
    status, out, err = say("check", "--family", name)
    assert (status, err) == (0, "")
    assert name in out
    assert law in out


def test_quiet_prints_nothing_where_nothing_is_broken(say: Callable) -> None:
    assert say("check", "--family", "gatedmlp", "-q") == (0, "", "")


def test_a_layer_of_ones_own(mine: str, say: Callable) -> None:
    status, out, err = say("check", f"{mine}:Sum")
    assert (status, err) == (0, "")
    assert " ok " in out
    assert " NO " not in out


def test_a_broken_law_is_named_and_the_status_says_so(mine: str, say: Callable) -> None:
    status, out, err = say("check", f"{mine}:Amnesiac", "-q")
    assert status == 1
    assert " NO " in out
    assert "conca: amnesiac, sample 0: 'forms agree' is broken: " in err
    assert all(line.startswith("conca: ") for line in err.splitlines())


def test_warm_compiles_every_kernel_first(say: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conca.kernels.warm", lambda processes: ("scan", "diagonal_ssm"))
    status, _, err = say("check", "--family", "gatedmlp", "--warm")
    assert (status, err) == (0, "conca: compiled: scan, diagonal_ssm\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nothing.py:Sum"], "nothing.py"),
        (["mine.py:Sun"], "Sun"),
        (["mine.py:Choosy"], "colour"),
        (["broken.py:Sum"], "SyntaxError"),
        (["no.such.module:Sum"], "no.such.module"),
        (["s4dd"], "s4d"),
        (["--family", "lstn"], "lstm"),
        (["--family", "hopfeild"], "hopfield"),
        (["mine.py:Sum", "--family", "lstm"], "not both"),
    ],
)
def test_a_layer_that_cannot_be_judged(words: list[str], expected: str, mine: str, say: Callable) -> None:
    Path("broken.py").write_text("class Sum(:\n")
    status, out, err = say("check", *words)
    assert (status, out) == (2, "")
    assert err.startswith("conca: ") and err.count("\n") == 1
    assert expected in err
