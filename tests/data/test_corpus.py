"""Text of files and folders: the same bytes whatever the tokenizer, read in any part, encoded in pieces without a trace."""

import gzip
import lzma
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from conca.data import cutting, token_file
from conca.data.corpus import Corpus, open_text
from conca.data.cutting import pieces_of
from conca.data.text_files import find_text
from conca.data.tokenizer import ByteTokenizer, FileTokenizer
from conca.types import BadInput

BYTES = ByteTokenizer()
END = "<|end|>"
LINES = [
    "The sea, 😀😀 and 5€.",
    "",
    "    four  spaces before",
    "\ttab\r",
    "  \t ",
    "naïve café 👩‍👩‍👧" * 3,
    "x" * 50,
    "",
    "",
]
TEXT = "\n".join(LINES * 30)


def trained(kind: str) -> FileTokenizer:
    """A small tokenizer: "bytes", as of GPT, with an end; "prefixed", as of Llama, which puts a space before every text;
    "words", which passes over all space."""
    if kind == "words":
        inner = Tokenizer(models.WordLevel({"<unk>": 0, "The": 1, "sea": 2, ",": 3}, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.Whitespace()
        return FileTokenizer(inner, "tokenizer.json")
    if kind == "bytes":
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
        )
        inner.train_from_iterator([TEXT], trainer)
        return FileTokenizer(inner, "tokenizer.json", eos=0)
    words = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "e", "\n", "▁▁", "s", "e▁", "T", "\nT"]
    model = models.BPE(
        {w: i for i, w in enumerate(words)},
        [("▁", "▁"), ("e", "▁"), ("\n", "T")],
        unk_token="<unk>",
        byte_fallback=True,
    )
    inner = Tokenizer(model)
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return FileTokenizer(inner, "tokenizer.json")


WORDS = {kind: trained(kind) for kind in ("bytes", "prefixed", "words")}


def folder_of_text(root: Path) -> Path:
    """Text of all kinds, and what is passed over."""
    (root / "sub" / ".git").mkdir(parents=True)
    for name, data in {
        "b.txt": b"second\r\nno end of line",
        "a.md": "première 😀\n".encode(),
        "sub/code.py": b"print(1)\n",
        "sub/latin.txt": b"caf\xe9 na\xefve, which is no UTF-8",
        "empty.txt": b"",
        "picture.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        ".hidden": b"hidden",
        "sub/.git/config": b"hidden",
        "z.gz": gzip.compress(b"packed\n", mtime=0),
        "zz.xz": lzma.compress(b"packed too"),
    }.items():
        (root / name).write_bytes(data)
    (root / "gone, not empty").symlink_to(root / "nowhere")
    os.mkfifo(root / "pipe")
    return root


def test_a_folder_is_one_run_of_bytes_read_in_any_part(tmp_path: Path) -> None:
    folder = folder_of_text(tmp_path / "texts")
    corpus = Corpus.open(folder, BYTES, tmp_path / "cache")
    names = ["a.md", "b.txt", "sub/code.py", "sub/latin.txt", "z.gz", "zz.xz"]
    said = [(folder / name).read_bytes() for name in names[:4]] + [b"packed\n", b"packed too"]
    whole = b"\n".join(said)
    assert corpus.raw(0, len(corpus)) == whole
    assert len(corpus) == corpus.n_bytes == len(whole)
    rng = np.random.default_rng(0)
    for begin, end in [(0, 0), (len(whole), len(whole)), *np.sort(rng.integers(0, len(whole) + 1, (60, 2)))]:
        assert corpus.read(begin, end).tobytes() == whole[begin:end]
        assert corpus.bytes_between(begin, end) == end - begin
    assert b"".join(corpus.blocks(3, 50, size=7)) == whole[3:50]
    assert "6 files" in corpus.source and f"{len(whole)} bytes" in corpus.source
    for word in ("empty.txt: empty", "picture.png: not text", "gone, not empty: cannot be read"):
        assert word in " ".join(find_text(folder).passed_over)
    assert "hidden" not in corpus.source
    assert corpus.mask(0, 3).tolist() == [False, True, True]
    assert corpus.starts(0, 3).tolist() == [True, False, False]
    assert np.array_equal(pickle.loads(pickle.dumps(corpus)).read(2, 9), corpus.read(2, 9))
    with pytest.raises(ValueError, match="no part"):
        corpus.read(0, len(whole) + 1)
    two = Corpus.open([folder / "b.txt", folder / "a.md"], ByteTokenizer(eos=0))
    assert two.raw(0, len(two)) == said[1] + b"\0" + said[0]


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("size", [1 << 20, 600, 97])
def test_ids_of_pieces_are_those_of_the_whole(kind: str, size: int, tmp_path: Path, monkeypatch) -> None:
    tokenizer = WORDS[kind]
    monkeypatch.setattr(cutting, "LEAD", 64)
    monkeypatch.setattr(pieces_of, "__defaults__", (size,))
    monkeypatch.setattr(token_file, "STRIDE", 64)
    texts = {"one": TEXT, "three": "no end", "blank": " \n ", "two": TEXT[5:] + "\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, newline="")
    told: list[tuple[int, int]] = []
    corpus = Corpus.open(
        [tmp_path / name for name in texts], tokenizer, tmp_path / "cache", progress=lambda *at: told.append(at)
    )
    joint = [0] if tokenizer.eos == 0 else tokenizer.encode("\n").tolist()
    expected = [word for text in texts.values() for word in [*tokenizer.encode(text).tolist(), *joint]]
    expected = expected[: len(expected) - len(joint)]
    assert corpus.read(0, len(corpus)).tolist() == expected
    assert corpus.dtype == np.uint16
    whole = "\n".join(texts.values()).encode()
    assert told[-1] == (len(whole) - 3, len(whole) - 3)
    assert len(told) > len(whole) // (3 * size) / 2, "in pieces"
    assert corpus.n_bytes == len(whole)
    assert corpus.raw(0, len(corpus)) == whole
    cuts = np.sort(np.random.default_rng(0).integers(0, len(corpus) + 1, (20, 2)))
    for begin, end in cuts:
        assert corpus.bytes_between(begin, end) == corpus.sizes(begin, end).sum() == len(corpus.raw(begin, end))
    for byte in range(0, len(whole), 7):
        at = corpus.cut_at(byte)
        assert corpus.bytes_between(0, at) >= byte
        assert at == 0 or corpus.bytes_between(0, at - 1) < byte
    if kind == "bytes":  # what ids are decoded to is what they stand for, where characters are whole
        middle = expected.index(0)
        assert corpus.raw(0, middle).decode() == TEXT == tokenizer.decode(corpus.read(0, middle))


def test_what_is_held_out_is_the_same_text_for_every_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    corpora = [Corpus.open(tmp_path / "text", words, tmp_path / "cache") for words in (BYTES, *WORDS.values())]
    ends = []
    for corpus in corpora:
        train, held = corpus.split(0.1)
        assert train.start == 0 and train.stop == held.start and held.stop == len(corpus)
        ends.append(corpus.raw(held.start, held.stop))
    n = len(TEXT.encode())
    assert len(ends[0]) == -(-n // 10)
    assert all(0 <= len(ends[0]) - len(end) < 60 and TEXT.encode().endswith(end) for end in ends)
    assert corpora[0].split(0)[1] == range(n, n)
    for fraction in (-0.1, 1, float("nan")):
        with pytest.raises(BadInput, match="less than 1"):
            corpora[0].split(fraction)
    (tmp_path / "one").write_bytes(b"x")
    one = Corpus.open(tmp_path / "one", BYTES)
    assert one.read(0, 1).tolist() == [120]
    with pytest.raises(BadInput, match="too little"):
        one.split(0.5)


def test_encoding_is_done_once_and_what_a_killed_one_left_is_made_again(tmp_path: Path, monkeypatch) -> None:
    file, cache, words = tmp_path / "text", tmp_path / "cache", WORDS["bytes"]
    file.write_text(TEXT)
    Corpus.open(file, words, cache)
    (made,) = cache.iterdir()
    left = made.rename(cache / f"{made.name}.0123.partial")
    (left / "ids.bin").write_bytes(b"half")
    for path in (left, *left.iterdir()):
        os.utime(path, (1, 1))
    again = Corpus.open(file, words, cache)
    assert np.array_equal(again.read(0, len(again)), words.encode(TEXT))
    assert [path.name for path in cache.iterdir()] == [made.name]

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Corpus.open(file, words, tmp_path / "other", progress=broken)
    assert not list((tmp_path / "other").iterdir())
    monkeypatch.setattr("conca.data.corpus.encode_files", broken)
    assert len(Corpus.open(file, words, cache)) == len(again), "it is found"
    stamps = {corpus.stamp() for corpus in (again, Corpus.open(file, words, cache))}
    assert len(stamps) == 1
    assert Corpus.open(file, BYTES).stamp() not in stamps
    os.utime(file, (1, 1))
    with pytest.raises(KeyboardInterrupt):
        Corpus.open(file, words, cache)
    with pytest.raises(BadInput, match="cannot be written"):
        Corpus.open(file, words, file / "cache")
    stamp = Corpus.open(file, BYTES).stamp()
    file.write_text(TEXT.replace("sea", "see"))
    corpus = Corpus.open(file, BYTES)
    assert corpus.stamp() != stamp
    file.write_text("short")
    with pytest.raises(BadInput, match="shorter"):
        corpus.read(len(corpus) - 3, len(corpus))


def test_two_that_encode_the_same_at_once_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(TEXT.encode()))
    cache, words = tmp_path / "cache", WORDS["bytes"]
    others = []

    def meanwhile(*_: int) -> None:
        if not others:
            others.append(None)
            others[0] = Corpus.open(tmp_path / "text.gz", words, cache)

    one = Corpus.open(tmp_path / "text.gz", words, cache, progress=meanwhile)
    for corpus in (one, *others):
        assert np.array_equal(corpus.read(0, len(corpus)), words.encode(TEXT))
    assert sorted(path.name.partition("-")[0] for path in cache.iterdir()) == ["ids", "unpacked"]
    (tmp_path / "damaged.gz").write_bytes(gzip.compress(TEXT.encode())[:-9])
    with pytest.raises(BadInput, match="cannot be unpacked"):
        Corpus.open(tmp_path / "damaged.gz", words, cache)
    assert not list(cache.glob("*.partial"))


def test_what_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch) -> None:
    words, cache = WORDS["bytes"], tmp_path / "cache"
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "bad").write_bytes(b"good line\n" * 40 + b"caf\xe9\n")
    (tmp_path / "half").write_bytes("half a 😀".encode()[:-1])
    (tmp_path / "damaged.gz").write_bytes(gzip.compress(b"packed" * 99)[:-9])
    (tmp_path / "hollow.gz").write_bytes(gzip.compress(b""))
    os.mkfifo(tmp_path / "pipe")
    for name, tokenizer, place, said in [
        ("nowhere", BYTES, None, "no such file"),
        ("empty", BYTES, None, "the file is empty"),
        ("nothing", BYTES, None, "no file of text"),
        ("pipe", BYTES, None, "a pipe"),
        ("bad", words, cache, r"bad: not UTF-8 at byte 403 \(0xe9\)"),
        ("half", words, cache, r"half: not UTF-8 at byte 7 \(0xf0\)"),
        ("bad", words, None, "name a cache"),
        ("damaged.gz", BYTES, cache, "cannot be unpacked"),
        ("hollow.gz", BYTES, cache, "nothing in it"),
        ("damaged.gz", BYTES, None, "name a cache"),
    ]:
        with pytest.raises(BadInput, match=said) as error:
            open_text(tmp_path / name, tokenizer, place)
        assert "\n" not in str(error.value)
        assert name in str(error.value)
    monkeypatch.setattr(pieces_of, "__defaults__", (64,))
    with pytest.raises(BadInput, match="byte 403"):
        Corpus.open(tmp_path / "bad", words, cache)
    (tmp_path / "long").write_text("ACGT" * 3000)
    with pytest.raises(BadInput, match="no place where this text can be cut"):
        Corpus.open(tmp_path / "long", words, cache)
    assert len(Corpus.open(tmp_path / "bad", BYTES)) == 405
