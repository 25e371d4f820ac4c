"""ListOps: the published rules, values by an evaluator of its own, and a seed that is a split."""

import hashlib
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from conca.data import listops
from conca.data.labelled_source import read_labelled
from conca.data.listops import END, LONGEST, SYMBOLS, once, text_of, tree, value_of, write_arrays, write_tables
from conca.data.making import draws
from conca.types import BadInput

COUNT = 1000
CHECKSUM = "8f564207896cc3bbc492baffad50a6650ddd2534fdfafe5e29852ccec6f0e44e"


@pytest.fixture(scope="module")
def trees() -> list[tuple[bytes, int]]:
    return [made for block in listops.listops(COUNT, seed=3) for made in block]


def evaluated(text: str) -> int:
    """The value of the published form, its pairs read as functions: a list gathers values until it is closed."""
    words = iter(text.split())

    def read() -> int | list:
        word = next(words)
        if word != "(":
            return int(word) if word.isdigit() else [word] if word != "]" else []
        left, right = read(), read()
        assert next(words) == ")"
        assert isinstance(left, list)
        if right != []:
            return [*left, right]
        name, *values = left
        assert 2 <= len(values) <= 10
        middle = int(median(values))
        return {"[MIN": min(values), "[MAX": max(values), "[MED": middle, "[SM": sum(values) % 10}[name]

    value = read()
    assert isinstance(value, int) and not list(words)
    return value


def test_values_are_those_of_the_published_form(trees: list) -> None:
    assert evaluated("( ( ( [MAX 2 ) 9 ) ] )") == 9
    for symbols, value in trees[:100]:
        assert evaluated(text_of(symbols)) == value
        assert [SYMBOLS[s] for s in symbols] == [word for word in text_of(symbols).split() if word not in "()"]


@pytest.mark.parametrize(
    ("words", "value", "text"),
    [
        ("[MED 1 2 ]", 1, "( ( ( [MED 1 ) 2 ) ] )"),
        ("[MED 9 8 1 3 ]", 5, "( ( ( ( ( [MED 9 ) 8 ) 1 ) 3 ) ] )"),
        ("[MED 9 0 4 ]", 4, None),
        ("[SM 9 [MIN 8 7 ] 6 ]", 2, "( ( ( ( [SM 9 ) ( ( ( [MIN 8 ) 7 ) ] ) ) 6 ) ] )"),
        ("[MAX [MIN 3 4 ] 1 ]", 3, "( ( ( [MAX ( ( ( [MIN 3 ) 4 ) ] ) ) 1 ) ] )"),
        ("7", 7, "7"),
    ],
)
def test_single_trees(words: str, value: int, text: str | None) -> None:
    symbols = bytes(map(SYMBOLS.index, words.split()))
    assert value_of(symbols) == value == evaluated(text_of(symbols))
    assert text is None or text_of(symbols) == text


def test_lengths_depths_and_shares_are_the_published_ones(trees: list) -> None:
    lengths = np.array([len(symbols) for symbols, _ in trees])
    assert lengths.min() > 500 and lengths.max() < 2000
    assert abs(lengths.mean() - 1062) < 40
    depths = [np.cumsum([(10 <= s < END) - (s == END) for s in symbols]).max() for symbols, _ in trees]
    assert max(depths) == 9, "a node at depth 10 is a leaf"
    digits = Counter(value for _, value in trees)
    assert len(digits) == 10 and max(digits.values()) < 0.3 * COUNT
    random = draws("acceptance").random
    assert abs(np.mean([bool(tree(random)) for _ in range(6000)]) - 0.082) < 0.012


def test_an_operator_is_drawn_after_what_it_holds() -> None:
    numbers = iter([0.8, 0.0, 0.1, 0.35, 0.2, 0.95, 0.5])  # a node, of two: a leaf 3, a leaf 9, then MED
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listops, "LEAST", 1)
        assert bytes(tree(numbers.__next__)) == bytes([12, 3, 9, END])
    assert not list(numbers)


def test_bounds_are_strict() -> None:
    def of(leaves: list[int]) -> int:
        """A node of nodes of leaves, as numbers that are drawn."""
        drawn = [0.8, (len(leaves) - 2 + 0.5) / 9]
        for n in leaves:
            drawn += [0.8, (n - 2 + 0.5) / 9, *[0.1] * (2 * n), 0.0]
        return len(tree(iter([*drawn, 0.0]).__next__))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listops, "LEAST", 12)
        patch.setattr(listops, "LONGEST", 14)
        assert [of(n) for n in ([2, 2], [3, 3], [3, 4], [4, 4], [5, 4])] == [0, 12, 13, 14, 0]


def test_a_tree_comes_once() -> None:
    blocks = [[(b"a", 1), (b"b", 2), (b"a", 1)], [(b"b", 2), (b"c", 3)]]
    assert list(once(blocks)) == [[(b"a", 1), (b"b", 2)], [(b"c", 3)]]


def test_a_seed_is_a_split_in_any_number_of_processes(trees: list) -> None:
    digest = hashlib.sha256()
    for symbols, value in trees:
        digest.update(symbols + bytes([value]))
    assert digest.hexdigest() == CHECKSUM
    assert [made for block in listops.listops(450, seed=3, processes=2) for made in block] == trees[:450]
    other = next(listops.listops(1, seed=4))
    assert other[0] not in trees


def test_what_is_written_is_read(tmp_path: Path, trees: list) -> None:
    path = tmp_path / "lists.npz"
    moved: list[int] = []
    first = write_arrays(path, iter([trees[:60], trees[60:100]]), 100, moved.append)
    assert first == write_arrays(tmp_path / "again.npz", iter([trees[:100]]), 100)
    assert path.read_bytes() == (tmp_path / "again.npz").read_bytes() and moved == [60, 40]
    data = read_labelled(path)
    assert data.symbols == SYMBOLS and Counter(data.parts) == {"train": 96, "validation": 2, "test": 2}
    assert [bytes(data.sequence(i)[:, 0].tolist()) for i in range(100)] == [symbols for symbols, _ in trees[:100]]
    assert data.labels.tolist() == [value for _, value in trees[:100]]
    assert np.load(path)["X"].shape == (100, LONGEST)


def test_the_published_tables(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, trees: list) -> None:
    checksum = write_tables(tmp_path, iter([trees[:100]]), 100)
    lines = {path.name: path.read_text().splitlines() for path in tmp_path.iterdir()}
    assert {name: len(found) for name, found in lines.items()} == {
        "basic_train.tsv": 97,
        "basic_val.tsv": 3,
        "basic_test.tsv": 3,
    }
    assert {found[0] for found in lines.values()} == {"Source\tTarget"}
    body = [line for name in ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv") for line in lines[name][1:]]
    assert body == [f"{text_of(symbols)}\t{value}" for symbols, value in trees[:100]]
    assert checksum == hashlib.sha256("".join(line + "\n" for line in body).encode()).hexdigest()
    data = read_labelled(tmp_path)
    assert data.symbols == SYMBOLS and Counter(data.parts) == {"train": 96, "validation": 2, "test": 2}
    assert [bytes(data.sequence(i)[:, 0].tolist()) for i in range(100)] == [symbols for symbols, _ in trees[:100]]
    assert data.labels.tolist() == [value for _, value in trees[:100]]
    assert len(read_labelled(tmp_path / "basic_test.tsv")) == 2
    assert len(read_labelled(tmp_path / "basic_train.tsv")) == 100, "with its siblings, as in every set"
    packed = tmp_path_factory.mktemp("packed")
    assert len(read_labelled(Path(shutil.make_archive(str(packed / "lists"), "zip", tmp_path)))) == 100
    for ill in ("[MAX 2 x ]\t9", "[MAX 2 9 ]\t12", "[MAX 2 9 ] 9"):
        (tmp_path / "basic_test.tsv").write_text(f"Source\tTarget\n{ill}\n")
        with pytest.raises(BadInput, match=r"basic_test\.tsv, line 2: not a tree with its digit"):
            read_labelled(tmp_path)


def test_fewer_are_the_first_of_more() -> None:
    assert next(listops.listops(7, seed=3)) == next(islice(listops.listops(9, seed=3), 1))[:7]
