"""Patterns, blocks and stacks."""

import copy
import pickle

import pytest
import torch

from conca.layers.attention import Attention
from conca.layers.s4d import S4D
from conca.models.stack import Block, Stack, family, pattern
from conca.types import BadInput


def test_a_pattern_names_a_hybrid():
    stack = pattern("s4d(d_state=8, dt=(0.01, 0.1))*2 attention(window=64) Short_Conv GatedMLP(expand=1.5)", 8)
    names = [type(block.inner).__name__ for block in stack.parts]
    assert names == ["S4D", "S4D", "Attention", "ShortConv", "GatedMLP"]
    assert stack.parts[0].inner.d_state == 8
    assert stack.timed
    assert stack.bounded
    assert not pattern("attention", 8).bounded
    assert not pattern("lstm", 8).timed


def test_a_layer_of_the_users_own(tmp_path):
    (tmp_path / "mine.py").write_text("from conca.layers.lstm import LSTM\nclass Mine(LSTM):\n    pass\n")
    stack = pattern(f"{tmp_path}/mine.py:Mine conca.layers.s4d:S4D(d_state=2)", 6)
    assert [type(block.inner).__name__ for block in stack.parts] == ["Mine", "S4D"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s4dd", "unknown layer 's4dd'; did you mean 's4d'"),
        ("s4d*", "cannot read the pattern"),
        ("s4d(", "cannot read the pattern"),
        ("s4d(8)", "cannot read the options of 's4d\\(8\\)'"),
        ("s4d(d_state=)", "cannot read the options"),
        ("s4d(d_state=x)", "cannot read the options"),
        ("s4d(state_size=8)", "no option 'state_size'; conca says 'd_state'"),
        ("s4d(d_stat=8)", "did you mean 'd_state'"),
        ("s4d(d_state=7)", "even"),
        ("", "names no layer"),
        ("s4d*0", "names no layer"),
        ("nowhere.py:Mine", "nowhere.py: no such file"),
        ("nowhere:Mine", "cannot import nowhere: ModuleNotFoundError"),
        ("mine.py", "mine.py: say which class of the file, as in mine.py:MyLayer"),
        ("conca.layers.s4d:S5", "no mixer named 'S5'"),
        ("torch.nn:Linear", "no mixer named 'Linear'"),
    ],
)
def test_bad_patterns_say_what_is_wrong(text, message):
    with pytest.raises(BadInput, match=message) as caught:
        pattern(text, 8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def broken(:", "SyntaxError"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, text, message):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(BadInput, match=f"bad.py: {message}") as caught:
        pattern(f"{tmp_path}/bad.py:Mine", 8)
    assert "\n" not in str(caught.value)


def test_a_users_file_may_have_neighbours_and_dataclasses_and_is_one_module(tmp_path):
    (tmp_path / "beside_mine.py").write_text("WIDTH = 4\n")
    (tmp_path / "own.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport beside_mine\n"
        "from conca.layers.lstm import LSTM\n@dataclass\nclass Options:\n    width: int = beside_mine.WIDTH\n"
        "class Own(LSTM):\n    pass\n"
    )
    stack = pattern(f"{tmp_path}/own.py:Own*2", 4)
    assert type(stack.parts[0].inner) is type(stack.parts[1].inner)
    assert torch.equal(copy.deepcopy(stack).parts[0].inner.core.weight_ih_l0, stack.parts[0].inner.core.weight_ih_l0)
    assert pickle.loads(pickle.dumps(stack)).d_model == 4


def test_a_module_beside_the_user_is_found_by_name(tmp_path, monkeypatch):
    (tmp_path / "beside_me.py").write_text("from conca.layers.lstm import LSTM\nclass Mine(LSTM):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    assert family("beside_me:Mine").__name__ == "Mine"


def test_family_names_forgive_capitals():
    assert family("S4D") is S4D
    assert family("attention") is Attention


def test_a_block_is_a_residual_of_its_norm():
    block = Block(S4D(4, d_state=4))
    x = torch.randn(2, 5, 4)
    torch.testing.assert_close(block(x)[0], x + block.inner(block.norm(x))[0])


def test_stacks_of_unequal_width_are_refused():
    with pytest.raises(ValueError, match="one width"):
        Stack([S4D(4), S4D(5)])
    with pytest.raises(ValueError, match="one width"):
        Stack([])
    with pytest.raises(ValueError, match="Linear is none"):
        Stack([torch.nn.Linear(4, 4)])


def test_elapsed_reaches_the_timed_parts_alone():
    stack = pattern("s4d(d_state=4) lstm", 4)
    x, elapsed = torch.randn(2, 5, 4), torch.rand(2, 5) + 0.5
    assert not torch.allclose(stack(x, elapsed=elapsed)[0], stack(x)[0])


def test_a_model_learns_through_its_pattern():
    stack = pattern("s4d(d_state=8) attention(n_heads=2, window=8)", 8)
    x = torch.randn(4, 20, 8)
    optimizer = torch.optim.Adam(stack.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = (stack(x)[0][:, 1:] - x[:, :-1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    "text",
    ["s4d*1000000", "s4d*" + "9" * 5000, "s4d*300 lstm*300", "s4d*0", "s4d(device='nowhere')", "s4d(device='cuda:99')"],
)
def test_patterns_beyond_all_bounds(text):
    with pytest.raises(BadInput) as error:
        pattern(text, 2)
    assert "\n" not in str(error.value)
