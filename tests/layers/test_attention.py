"""Softmax attention: against PyTorch's own, its cache, its window."""

import os
import signal
import threading
import time
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conca.layers import attention
from conca.layers.attention import Attention
from conca.layers.states import size_in_bytes, take


def test_full_attention_is_pytorchs():
    layer = Attention(8, n_heads=2, rope_base=None)
    x = torch.randn(3, 7, 8)
    q, k, v = (part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (layer.q, layer.k, layer.v))
    expected = layer.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x)[0], expected)


class Largest(TorchDispatchMode):
    """The most numbers that one tensor had."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return result


@pytest.mark.parametrize("lengths", [None, torch.tensor([100, 300])])
def test_a_fresh_text_makes_no_square(lengths):
    layer, x = Attention(4, n_heads=1), torch.randn(2, 300, 4)
    with Largest() as largest:
        layer(x, lengths=lengths)[0].sum().backward()
    assert largest.numbers < 300 * 300


def test_only_differences_of_positions_count():
    layer = Attention(8, n_heads=2)
    x = torch.randn(1, 5, 8)
    late = layer.init_state(1)._replace(seen_B=torch.tensor([1000]))
    torch.testing.assert_close(layer(x, late)[0], layer(x)[0])


def test_positions_matter():
    layer = Attention(8, n_heads=2)
    x = torch.randn(1, 3, 8)
    swapped = x[:, [1, 0, 2]]
    assert not torch.allclose(layer(x)[0][:, 2], layer(swapped)[0][:, 2])
    blind = Attention(8, n_heads=2, rope_base=None)
    torch.testing.assert_close(blind(x)[0][:, 2], blind(swapped)[0][:, 2])


def test_a_window_forgets_what_left_it():
    layer = Attention(6, n_heads=2, window=4)
    x = torch.randn(2, 20, 6)
    other = x.clone()
    other[:, :16] = torch.randn(2, 16, 6)
    torch.testing.assert_close(layer(x)[0][:, -1], layer(other)[0][:, -1])


@pytest.mark.parametrize("window", [1, 2, 5])
def test_long_texts_run_in_pieces(window, monkeypatch):
    monkeypatch.setattr("conca.layers.attention.PIECE", 3)
    layer = Attention(4, n_heads=1, window=window)
    x = torch.randn(2, 23, 4)
    for lengths in (None, torch.tensor([23, 7])):
        y, state = layer(x, lengths=lengths)
        y_slow, slow = layer.recurrent(x, lengths=lengths)
        torch.testing.assert_close(y, y_slow)
        torch.testing.assert_close(layer.canonical(state), layer.canonical(slow))


def test_decoding_writes_in_place_and_old_states_stay_valid():
    layer = Attention(4, n_heads=1).eval()
    x = torch.randn(2, 40, 4)
    with torch.no_grad():
        expected = layer(x)[0]
        _, state = layer(x[:, :4])
        kept, buffers = [state], set()
        for t in range(4, 40):
            y, state = layer.step(x[:, t], state)
            torch.testing.assert_close(y, expected[:, t])
            buffers.add(state.k_BCHK.data_ptr())
            kept.append(state)
        assert len(buffers) <= 3
        for t, old in enumerate(kept[:-1], start=4):
            torch.testing.assert_close(layer.step(x[:, t], old)[0], expected[:, t])


def test_beams_do_not_disturb_each_other():
    layer = Attention(4, n_heads=1).eval()
    x = torch.randn(1, 6, 4)
    with torch.no_grad():
        _, state = layer(x)
        _, state = layer.step(x[:, 0], state)
        beams = take(state, torch.tensor([0, 0, 0]))
        tokens = torch.randn(3, 4)
        y, _ = layer.step(tokens, beams)
        for i in range(3):
            torch.testing.assert_close(y[i : i + 1], layer.step(tokens[i : i + 1], state)[0])


def test_decoding_in_inference_mode_grows_seldom_and_goes_on_outside():
    layer = Attention(4, n_heads=1).eval()
    x = torch.randn(1, 30, 4)
    expected, _ = layer(x)
    with torch.inference_mode():
        state, buffers = layer.init_state(1), set()
        for t in range(20):
            y, state = layer.step(x[:, t], state)
            buffers.add(state.k_BCHK.data_ptr())
    assert len(buffers) <= 3
    with torch.no_grad():
        y, state = layer.step(x[:, 20], state)
    torch.testing.assert_close(y, expected[:, 20])
    y, _ = layer(x[:, 21:], state)
    y.sum().backward()
    torch.testing.assert_close(y, expected[:, 21:])


def test_two_threads_step_from_one_state():
    layer = Attention(4, n_heads=1).eval()
    x = torch.randn(1, 5, 4)
    with torch.no_grad():
        _, start = layer(x)
        _, start = layer.step(x[:, 0], start)
        tokens = torch.randn(2, 200, 4)
        expected = [layer.recurrent(tokens[i : i + 1], start)[0] for i in range(2)]
    results: dict[int, torch.Tensor] = {}

    def run(i: int) -> None:
        with torch.no_grad():
            results[i] = layer.recurrent(tokens[i : i + 1], start)[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):
        torch.testing.assert_close(results[i], expected[i])


def test_the_state_of_a_window_does_not_grow_and_that_of_full_attention_does():
    x = torch.randn(1, 50, 4)
    windowed, full = Attention(4, n_heads=1, window=8), Attention(4, n_heads=1)
    assert size_in_bytes(windowed(x)[1]) == size_in_bytes(windowed.init_state(1))
    assert size_in_bytes(full(x)[1]) > 10 * size_in_bytes(full.init_state(1))
    assert windowed.bounded
    assert not full.bounded


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="n_heads=3 does not divide d_model=8"):
        Attention(8, n_heads=3)
    for options in ({"window": 0}, {"n_heads": 0}, {"n_heads": -2}, {"window": 2.5}, {"d_head": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be a whole number from 1 on"):
            Attention(8, **options)


def test_the_cache_stays_in_proportion_when_rows_end_early():
    layer = Attention(4, n_heads=1).eval()
    with torch.no_grad():
        _, state = layer.recurrent(torch.randn(2, 40, 4), lengths=torch.tensor([40, 3]))
    assert state.k_BCHK.shape[1] <= 80


@pytest.mark.parametrize("window", [None, 8])
def test_a_beam_of_nan_does_not_poison_its_siblings(window):
    layer = Attention(8, n_heads=2, window=window).eval()
    x = torch.randn(1, 8)
    with torch.no_grad():
        _, state = layer.step(x, layer.init_state(1))
        _, state = layer.step(x, state)
        other = state
        for _ in range(3):
            _, other = layer.step(x * torch.nan, other)
        assert torch.isfinite(layer.step(x, state)[0]).all()
        assert torch.isfinite(layer(x[:, None], state)[0]).all()


def test_nan_that_left_the_window_is_forgotten():
    layer = Attention(4, n_heads=1, window=2).eval()
    x = torch.randn(1, 8, 4)
    x[:, 1] = torch.nan
    with torch.no_grad():
        y = layer.recurrent(x)[0]
    assert y.isnan().any(-1)[0].tolist() == [False, True, True] + 5 * [False]


@pytest.mark.parametrize(("before", "after"), [(None, 3), (5, 3), (3, 5)])
def test_a_cache_of_another_window_goes_on(before, after):
    one, other = Attention(8, n_heads=2, window=before), Attention(8, n_heads=2, window=after)
    other.load_state_dict(one.state_dict())
    _, state = one(torch.randn(1, 9, 8))
    x = torch.randn(1, 6, 8)
    with torch.no_grad():
        torch.testing.assert_close(other(x, state)[0], other.recurrent(x, state)[0])


def test_a_fork_in_the_middle_of_a_step_does_not_hang():
    layer = Attention(4, n_heads=1).eval()
    stop = threading.Event()

    def decode() -> None:
        with torch.no_grad():
            state = layer.init_state(1)
            while not stop.is_set():
                _, state = layer.step(torch.zeros(1, 4), state._replace(fill_B=state.fill_B % 8))

    thread = threading.Thread(target=decode, daemon=True)
    thread.start()
    try:
        assert attention._claim.acquire(timeout=10)  # as if the fork came in the middle of a claim
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of any fork beside threads
            child = os.fork()
        if child == 0:
            with torch.no_grad():
                layer.step(torch.zeros(1, 4), layer.init_state(1))
            os._exit(0)
        attention._claim.release()
        for _ in range(100):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.1)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert done == child
        assert status == 0
    finally:
        stop.set()
        thread.join()
