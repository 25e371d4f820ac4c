"""Tokenizers: every byte comes back, streams tell whole characters, ends and templates come from the files beside them."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from conca.data.decoding import TokenStream
from conca.data.tokenizer import ByteTokenizer, FileTokenizer, check_vocab, read_tokenizer, with_end
from conca.types import BadInput

TEXT = "Il mare, 5€ 😀😀\n\n  è già sera\r\n\x00\tnaïve 👩‍👩‍👧 end"
END = "<|end|>"


def byte_level(folder: Path) -> Path:
    """A small BPE over bytes, whose file also says to cut off and fill up."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=[END], show_progress=False)
    inner.train_from_iterator(["hello world\n\n the sea  is there\n" * 5], trainer)
    inner.enable_truncation(4)
    inner.enable_padding(length=8)
    inner.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def fallen_back(folder: Path) -> Path:
    """In the manner of SentencePiece: a space before all, bytes for what is unknown, a begin before each text."""
    known = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a", "c", "ab", "▁ab", "\n"]
    merges = [("▁", "a"), ("a", "b"), ("▁", "ab")]
    model = models.BPE({token: i for i, token in enumerate(known)}, merges, unk_token="<unk>", byte_fallback=True)
    inner = Tokenizer(model)
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens(["<s>", "</s>"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    inner.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("make", [None, byte_level, fallen_back], ids=["bytes", "byte level", "fallen back"])
def test_text_comes_back_and_streams_tell_whole_characters(make, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(make(tmp_path)) if make else ByteTokenizer()
    text = TEXT if make is not fallen_back else TEXT + " ab  ab c"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.dtype == tokenizer.dtype
    assert ids.max() < tokenizer.size
    assert np.array_equal(ids, tokenizer.encode(text.encode()))
    stream, told = tokenizer.stream(), ""
    for token in ids.tolist():
        piece = stream.push([token])
        assert "\ufffd" not in piece
        told += piece
        assert text.startswith(told)
    assert told + stream.flush() == text
    whole = tokenizer.stream()
    assert whole.push(ids.tolist()) + whole.flush() == text
    measured, sizes = tokenizer.measured(text)
    assert np.array_equal(measured, ids)
    assert sizes.sum() == len(text.encode())
    assert len(tokenizer.encode("")) == 0 and tokenizer.decode([]) == "" and tokenizer.stream().flush() == ""


@pytest.mark.parametrize("make", [None, byte_level], ids=["bytes", "byte level"])
def test_broken_characters_are_told_as_such_once_nothing_can_mend_them(make, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(make(tmp_path)) if make else ByteTokenizer()
    of_byte = {tokenizer.decode([i]): i for i in range(tokenizer.size) if len(tokenizer.decode([i])) == 1}
    first, *_, last = tokenizer.encode("😀").tolist()
    a = of_byte["a"]
    stream = tokenizer.stream()
    assert [stream.push([token]) for token in (a, first, a, first)] == ["a", "", "\ufffda", ""]
    assert stream.flush() == "\ufffd"
    stream = tokenizer.stream()
    told = stream.push([last] * 500)
    assert len(told) > 400, "it does not wait for ever"
    assert stream.push([a]).endswith("a")


def test_ids_without_text_are_not_held_for_ever(tmp_path: Path) -> None:
    """Rows of a table that no token stands for; what came before them still says that a space is to be told."""
    tokenizer = read_tokenizer(fallen_back(tmp_path))
    lengths: list[int] = []
    stream = TokenStream(lambda ids: lengths.append(len(ids)) or tokenizer.decode(ids, special=True), ())
    nothing, some = [tokenizer.size + 5] * 500, tokenizer.encode("a ab").tolist()
    assert stream.push([*nothing, some[0], *nothing, *some[1:]]) == "a ab"
    assert max(lengths) < 200


def test_a_tokenizer_is_told_by_the_files_beside_it_and_written_back(tmp_path: Path) -> None:
    source, copy, again = (tmp_path / name for name in ("source", "copy", "again"))
    for folder in (source, copy, again):
        folder.mkdir()
    fallen_back(source)
    assert read_tokenizer(source).eos is None
    (source / "generation_config.json").write_text('{"eos_token_id": [2, 7], "bos_token_id": 1}')
    template = [{"name": "other", "template": "no"}, {"name": "default", "template": "{{ messages }}"}]
    (source / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": {"content": "<unk>"}, "eos_token": None, "chat_template": template})
    )
    tokenizer = read_tokenizer(source)
    assert (tokenizer.eos, tokenizer.bos, tokenizer.pad, tokenizer.opening) == (2, 1, 0, (1,))
    assert tokenizer.chat_template == "{{ messages }}"
    assert tokenizer.encode("ab", special=True).tolist() == [1, *tokenizer.encode("ab").tolist()]
    assert tokenizer.decode([1, *tokenizer.encode("ab"), 2]) == "ab"
    assert "</s>" in tokenizer.decode([1, *tokenizer.encode("ab"), 2], special=True)
    tokenizer.write(copy)
    bare = FileTokenizer(tokenizer.inner, "made", eos=2, bos=1, pad=0, chat_template="{{ messages }}")
    bare.write(again)
    for folder in (copy, again):
        read = read_tokenizer(folder)
        assert (read.eos, read.bos, read.pad, read.opening, read.chat_template) == (2, 1, 0, (1,), "{{ messages }}")
        assert np.array_equal(read.encode(TEXT), tokenizer.encode(TEXT))
    (copy / "chat_template.jinja").write_text("newer")
    (copy / "tokenizer_config.json").write_text('{"bos_token": "<s>", "add_bos_token": false}')
    assert (read_tokenizer(copy).chat_template, read_tokenizer(copy).opening) == ("newer", ())


@pytest.mark.parametrize("template", [5, [5], {"a": 1}, [{"name": "default"}]])
@pytest.mark.parametrize("number", [10**30, -3, 1.5, True, "x", [[1]]])
def test_ends_and_templates_that_are_none_are_passed_over(tmp_path: Path, number: object, template: object) -> None:
    fallen_back(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": number}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = read_tokenizer(tmp_path)
    assert (tokenizer.eos, tokenizer.chat_template) == (None, None)


def test_bytes_are_written_into_a_folder_with_their_end(tmp_path: Path) -> None:
    for tokenizer in (ByteTokenizer(), with_end(ByteTokenizer())):
        tokenizer.write(tmp_path)
        read = read_tokenizer(tmp_path)
        assert isinstance(read, ByteTokenizer)
        assert (read.eos, read.fingerprint()) == (tokenizer.eos, tokenizer.fingerprint())
    assert read_tokenizer("bytes").eos is None
    assert read.decode(list(b"ab\0")) == "ab"
    assert read.decode(list(b"ab\0"), special=True) == "ab\0"
    assert read.decode_bytes(np.arange(256)) == bytes(range(256))
    assert read.encode("caff\udce8").tolist() == list(b"caff\xe8"), "an argument of a command line that was no UTF-8"
    with pytest.raises(ValueError, match="256"):
        read.decode([256])
    for eos in (300, "x", True):
        said = {"tokenizer_class": "conca.ByteTokenizer", "eos_token_id": eos}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
        with pytest.raises(BadInput, match="eos_token_id must be a byte"):
            read_tokenizer(tmp_path)


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    good, empty, old, broken = (tmp_path / name for name in ("good", "empty", "old", "broken"))
    for folder in (good, empty, old, broken):
        folder.mkdir()
    mine = read_tokenizer(byte_level(good))
    (old / "tokenizer.model").write_bytes(b"\x0a")
    (broken / "tokenizer.json").write_text("{}")
    for place, said in [
        (tmp_path / "nowhere", "no such tokenizer"),
        (empty, "holds no tokenizer.json"),
        (old, r"save_pretrained\('.*old'\)"),
        (old / "tokenizer.model", "only a tokenizer.json is read"),
        (broken, "no tokenizer can be read"),
    ]:
        with pytest.raises(BadInput, match=said) as error:
            read_tokenizer(place)
        assert "\n" not in str(error.value)
    (good / "tokenizer_config.json").write_text("{")
    with pytest.raises(BadInput, match=r"tokenizer_config\.json: cannot be read as JSON"):
        read_tokenizer(good)
    with pytest.raises(BadInput, match=r"not UTF-8 at byte 2 \(0xff\)"):
        mine.encode(b"ab\xff")
    for tokenizer in (mine, ByteTokenizer()):
        with pytest.raises(BadInput, match="surrogate"):
            tokenizer.encode("\ud800")
    with pytest.raises(BadInput, match="names no end of a text"):
        with_end(mine)
    check_vocab(mine, mine.size)
    check_vocab(mine, mine.size + 16)
    less = mine.size - 1
    for tokenizer, vocab_size, said in [
        (mine, less, f"{mine.size} ids.* {less} tokens"),
        (ByteTokenizer(), 50280, "256 ids.* 50280 tokens"),
    ]:
        with pytest.raises(BadInput, match=f"a tokenizer that does not match the vocabulary.*{said}"):
            check_vocab(tokenizer, vocab_size)
