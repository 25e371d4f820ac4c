"""Compressors: what they make of a text unpacks to it, whatever the blocks, and what is left out is said."""

import lzma
import sys

import numpy as np
import pytest

from conca.metrics.compressors import compressed

DATA = np.random.default_rng(0).integers(97, 101, 20_000, np.uint8).tobytes() + b"\0\xff" * 500


def in_blocks(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def test_bits_per_byte_are_those_of_the_files_that_the_commands_write() -> None:
    rows, told = compressed(in_blocks(DATA, 777), len(DATA))
    assert told == []
    assert [row.name for row in rows] == ["xz -9", "zstd -19"]
    assert rows[0].packed == len(lzma.compress(DATA, preset=9))
    assert rows == compressed([DATA], len(DATA))[0]
    for row in rows:
        assert row.n_bytes == len(DATA)
        assert 2 * 20 / 21 < row.bits_per_byte < 2.4, "two bits for one of four letters"
        assert row.bits_per_byte == 8 * row.packed / len(DATA)
    import zstandard

    whole = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(DATA)
    assert rows[1].packed == pytest.approx(len(whole), rel=1e-3)


def test_what_is_not_judged_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = iter(in_blocks(b"a" * (3 << 20), 1 << 19))
    rows, told = compressed(blocks, 3 << 20, limit=1 << 20)
    assert {row.n_bytes for row in rows} == {1 << 20}
    assert told == ["compressors are judged on the first 1 MiB of 3 MiB"]
    assert len(list(blocks)) == 4, "no more is read"
    monkeypatch.setitem(sys.modules, "zstandard", None)
    rows, told = compressed([b"a"], 1)
    assert [row.name for row in rows] == ["xz -9"]
    assert 'zstd -19 is left out: pip install zstandard, or "conca[all]"' in told
    for blocks, size, said in [([], 0, "no bytes"), ([b"ab"], 3, "2 bytes came where 3")]:
        with pytest.raises(ValueError, match=said):
            compressed(blocks, size)
