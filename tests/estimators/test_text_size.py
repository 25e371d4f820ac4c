"""Text that is larger than it may weigh: what a training and a score of it take of the memory."""

import os
import tracemalloc
from pathlib import Path

import pytest

from conca.cli.score_text import judged
from conca.data.corpus import Corpus
from conca.data.tokenizer import ByteTokenizer
from conca.estimators.language import LanguageModel
from conca.estimators.text_config import TextConfig
from conca.estimators.text_fitting import fit_text
from conca.models.language import LanguageConfig, LanguageNetwork

STATUS = Path("/proc/self/status")
MB = 2**20
pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="nothing says what memory is taken")


def resident(key):
    """Bytes of memory: now (VmRSS), or at most (VmHWM)."""
    return 1024 * next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(key))


def growth(work):
    """What the memory grows by at most, while something is done."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def lines(path, size):
    """A file of text."""
    line = b"It was the best of times, it was the worst of times, it was the age of wisdom.\n"
    path.write_bytes((line * (size // len(line) + 1))[:size])
    return path


def test_four_gigabytes_are_learnt_in_few_megabytes(tmp_path):
    """64 for the order of the passages, and as many that xz -9 takes for any text."""
    one, many = lines(tmp_path / "one.txt", 32 * MB), tmp_path / "many"
    many.mkdir()
    for i in range(128):
        os.link(one, many / f"{i}.txt")
    config = TextConfig(layers="mamba(d_state=2)", d_model=8, test_fraction=1e-8, max_minutes=0.01)
    fit_text(one, config)
    assert growth(lambda: fit_text(many, config)) < 160 * MB


def test_a_score_takes_no_memory_for_what_was_read(tmp_path):
    network = LanguageNetwork(LanguageConfig(vocab_size=256, n_tokens=256, layers="shortconv", d_model=2))
    model = LanguageModel.around(network, ByteTokenizer())
    table = type("Table", (), {"writerows": staticmethod(lambda rows: [None for _ in rows] and None)})
    small, large = (Corpus.open(lines(tmp_path / f"{n}.txt", n), ByteTokenizer()) for n in (MB // 8, MB // 4))
    judged(model, small, table, quiet=True)
    tracemalloc.start()
    try:  # of arrays and lists alone, to a byte; with PyTorch's, by what the system says
        assert growth(lambda: judged(model, large, table, quiet=True)) < 64 * MB  # all logits would be 256
        assert tracemalloc.get_traced_memory()[1] < MB  # 24 bytes for each token would be 6
    finally:
        tracemalloc.stop()
