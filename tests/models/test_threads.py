"""One thread for small recurrences, and the number that was there before afterwards."""

import threading

import pytest
import torch
from torch import nn

from conca.models.threads import few_threads


@pytest.fixture(autouse=True)
def three():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("part", "threads"), [(nn.LSTM(4, 8), 1), (nn.GRU(4, 256), 1), (nn.LSTM(4, 257), 3), (nn.Linear(4, 4), 3)]
)
def test_small_recurrences_take_one_thread(part, threads):
    with few_threads(nn.Sequential(nn.Linear(4, 4), part)):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 3


def test_an_error_gives_the_threads_back():
    with pytest.raises(ValueError, match="ill"), few_threads(nn.LSTM(2, 2)):
        raise ValueError("ill")
    assert torch.get_num_threads() == 3


def test_blocks_may_overlap():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with few_threads(nn.LSTM(2, 2)):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with few_threads(nn.LSTM(2, 2)):
        thread.start()
        assert inside.wait(10)
    assert torch.get_num_threads() == 1
    with few_threads(nn.LSTM(2, 2)):
        leave.set()
        thread.join()
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
