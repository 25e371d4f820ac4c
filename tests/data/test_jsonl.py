"""Rows of JSON: their ids, what of them is judged, and errors that name file and line."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from conca.data import jsonl
from conca.data.corpus import open_text
from conca.data.jsonl import Rows
from conca.data.tokenizer import ByteTokenizer, FileTokenizer
from conca.types import BadInput

BYTES = ByteTokenizer()
ROWS = [
    {"text": "première 😀", "id": 7},
    {"prompt": "2 + 2 = ", "completion": "4"},
    {"completion": "nothing before", "prompt": ""},
    {"prompt": "half of a wo", "completion": "rd\r\n"},
    {"text": "x"},
]


def words() -> FileTokenizer:
    """A small tokenizer over bytes, with a begin and an end of texts, which puts the begin before them by itself."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    inner.train_from_iterator(["half of a word, nothing before, première 😀 2 + 2"] * 3, trainer)
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return FileTokenizer(inner, "tokenizer.json", eos=1, bos=0)


def written(path: Path, rows: list[object], between: str = "\n") -> Path:
    path.write_bytes(b"\xef\xbb\xbf" + between.join(json.dumps(row) for row in rows).encode())
    return path


@pytest.mark.parametrize("tokenizer", [BYTES, words()], ids=lambda tokenizer: tokenizer.name)
def test_rows_are_texts_of_their_own_judged_as_they_say(tokenizer, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(jsonl, "AT_ONCE", 2)
    monkeypatch.setattr(jsonl, "BLOCK", 7)
    path = written(tmp_path / "rows.jsonl", ROWS, between="\r\n\n")
    told: list[tuple[int, int]] = []
    rows = open_text(path, tokenizer, tmp_path / "cache", progress=lambda *at: told.append(at))
    assert isinstance(rows, Rows)
    size = path.stat().st_size
    assert all(total == size for _, total in told)
    assert size - 16 < told[-1][0] <= size
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert (rows.rows, rows.completions, len(rows.offsets)) == (5, True, 6)
    assert rows.tokenizer.eos == (0 if tokenizer is BYTES else 1)
    ids, mask = rows.read(0, len(rows)), rows.mask(0, len(rows))
    assert np.flatnonzero(rows.starts(0, len(rows))).tolist() == rows.offsets[:-1].tolist()
    n, counted = len(tokenizer.opening), 0
    for row, begin, end in zip(ROWS, rows.offsets, rows.offsets[1:]):
        prompt, rest = row.get("prompt", ""), row.get("text") or row["completion"]
        asked = tokenizer.encode(prompt, special=True).tolist()
        part = ids[begin:end].tolist()
        assert part[: len(asked)] == asked, "as a prompt is encoded when the model is used"
        assert part[-1] == rows.tokenizer.eos
        assert tokenizer.decode(part[len(asked) : -1]) == rest
        judged = max(1, len(asked))
        assert mask[begin:end].tolist() == [i >= judged for i in range(end - begin)]
        assert rows.raw(begin, end) == (prompt + rest + "\n").encode()
        assert rows.sizes(begin, end)[:n].tolist() == [0] * n
        here = len(rest.encode()) + 1 - (tokenizer is BYTES and not prompt)
        assert rows.bytes_between(begin, end, counted=True) == here
        counted += here
    assert rows.bytes_between(0, len(rows), counted=True) == counted
    assert rows.n_bytes == len(rows.raw(0, len(rows)))
    for begin, end in np.sort(np.random.default_rng(0).integers(0, len(rows) + 1, (40, 2))):
        assert np.array_equal(rows.mask(begin, end), mask[begin:end])
        assert np.flatnonzero(rows.starts(begin, end)).tolist() == [
            at - begin for at in rows.offsets[:-1] if begin <= at < end
        ]
    for fraction in (0.01, 0.3, 0.5, 0.99):
        train, held = rows.split(fraction)
        assert train.stop == held.start in rows.offsets[1:-1]
    assert rows.split(0)[0] == range(len(rows))


def test_what_a_tokenizer_passes_over_counts_to_the_end_of_its_row(tmp_path: Path) -> None:
    inner = Tokenizer(models.WordLevel({"<unk>": 0, "sea": 1, "</s>": 2}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    path = written(tmp_path / "rows.jsonl", [{"prompt": "sea", "completion": "  "}, {"text": "sea sea"}])
    rows = Rows.open(path, FileTokenizer(inner, "tokenizer.json", eos=2), tmp_path / "cache")
    assert rows.read(0, len(rows)).tolist() == [1, 2, 1, 1, 2]
    assert rows.sizes(0, len(rows)).tolist() == [3, 3, 3, 4, 1]
    assert rows.raw(2, 5) == b"sea sea\n"


def test_files_of_rows_come_packed_and_in_folders(tmp_path: Path) -> None:
    folder, cache = tmp_path / "rows", tmp_path / "cache"
    folder.mkdir()
    one = written(folder / "a.jsonl", ROWS[:2])
    (folder / "b.ndjson.gz").write_bytes(gzip.compress(json.dumps(ROWS[4]).encode()))
    rows = open_text(folder, BYTES, cache)
    assert isinstance(rows, Rows)
    assert rows.raw(rows.offsets[2], len(rows)) == b"x\n"
    assert "3 rows" in rows.source
    text = written(folder / "c.jsonl", [{"text": "alone"}])
    alone = Rows.open(text, BYTES, cache)
    assert not alone.completions
    with pytest.raises(BadInput, match="one row"):
        alone.split(0.5)
    stamp = Rows.open(one, BYTES, cache).stamp()
    assert stamp == Rows.open(one, BYTES, tmp_path / "other").stamp() != alone.stamp()
    (folder / "words.txt").write_text("running text")
    for places in (folder, [folder / "words.txt", one]):
        with pytest.raises(BadInput, match=r"a\.jsonl has rows and .*words\.txt running text"):
            open_text(places, BYTES, cache)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{text: 1}", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'"text"', "not a JSON object"),
        (b"{}", "no keys"),
        (b'{"texts": "a"}', "neither .*did you mean 'text'"),
        (b'{"prompt": "a"}', "it has 'prompt'; a row has"),
        (b'{"prompt": "a", "completion": "b", "text": "c"}', "'text' and 'prompt' and 'completion'"),
        (b'{"messages": []}', "chat template"),
        (b'{"text": 5}', "'text' is not a string but 5"),
        (b'{"prompt": null, "completion": "a"}', "'prompt' is not a string but null"),
        (b'{"prompt": "a", "completion": ""}', "'completion' is empty"),
        (b'{"text": ""}', "'text' is empty"),
        (b'{"text": "caf\xe9"}', r"not UTF-8 at byte 13 of the line \(0xe9\)"),
        (b'{"text": "\\ud83d"}', "surrogate"),
        (b'{"text": "a\\u0000b"}', "the byte 0 in the text"),
    ],
)
def test_a_bad_row_is_one_line_that_names_it(line: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + line)
    with pytest.raises(BadInput, match=f"line 3: .*{said}") as error:
        Rows.open(path, BYTES, tmp_path / "cache")
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    assert not list((tmp_path / "cache").iterdir()), "nothing half stays"


def test_files_without_rows_and_tokenizers_without_end_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n \r\n")
    with pytest.raises(BadInput, match="holds no rows"):
        Rows.open(path, BYTES, tmp_path / "cache")
    with pytest.raises(BadInput, match="name a cache"):
        Rows.open(path, BYTES)
    endless = FileTokenizer(words().inner, "tokenizer.json")
    with pytest.raises(BadInput, match="names no end"):
        Rows.open(path, endless, tmp_path / "cache")
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 99)[:-9])
    with pytest.raises(BadInput, match="cannot be read"):
        Rows.open(tmp_path / "rows.jsonl.gz", BYTES, tmp_path / "cache")
