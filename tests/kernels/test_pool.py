"""The pool of threads: every piece once, errors come back, several callers at once, and a child of a fork."""

import os
import threading
from collections import Counter

import pytest
import torch

from conca.kernels import pool
from conca.ops.scan import scan, scan_recurrence

BIG = pool.SMALL


@pytest.mark.parametrize("total", [0, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_piece_once(total, threads):
    torch.set_num_threads(threads)
    seen, where = Counter(), set()

    def task(first, end):
        where.add(threading.get_ident())
        seen.update(range(first, end))

    pool.spread(task, total, BIG)
    assert seen == Counter(range(total))
    assert len(where) <= threads


def test_small_work_stays_on_the_calling_thread():
    torch.set_num_threads(4)
    where = []
    pool.spread(lambda first, end: where.append((threading.get_ident(), first, end)), 100, BIG - 1)
    assert where == [(threading.get_ident(), 0, 100)]


def test_work_is_shared():
    torch.set_num_threads(2)
    meet = threading.Barrier(2, timeout=30)
    pool.spread(lambda first, end: meet.wait() if first == 0 or end == 2 else None, 2, BIG)


@pytest.mark.parametrize("bad", [0, 7])
def test_an_error_comes_back_and_the_pool_lives(bad):
    torch.set_num_threads(2)

    def task(first, end):
        if first <= bad < end:
            raise ArithmeticError("piece")

    with pytest.raises(ArithmeticError, match="piece"):
        pool.spread(task, 8, BIG)
    test_every_piece_once(20, 2)


def test_several_callers_at_once():
    torch.set_num_threads(2)
    x, a, h = torch.randn(6, 300, 3, 128), torch.rand(6, 300, 1, 1), torch.zeros(6, 3, 128)
    want, failures = scan_recurrence(a, x, h), []

    def work():
        torch.set_num_threads(2)
        for _ in range(5):
            leaf = x.clone().requires_grad_()
            states = scan(a, leaf, h)
            states.sum().backward()
            if not torch.allclose(states, want) or not leaf.grad.isfinite().all():
                failures.append(threading.get_ident())

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not failures
    assert not any(caller.is_alive() for caller in callers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_of_a_fork_answers(threads):
    torch.set_num_threads(2)
    a, x, h = torch.rand(4, 200, 400), torch.randn(4, 200, 400), torch.zeros(4, 400)
    want = scan(a, x, h)
    assert pool._pool is not None
    child = os.fork()
    if child == 0:
        torch.set_num_threads(threads)
        fine = pool._pool is None and (scan(a, x, h).numpy() == want.numpy()).all()  # PyTorch's own pool may hang here
        os._exit(0 if fine else 1)
    reaped = threading.Event()
    code = []

    def wait():
        code.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        reaped.set()

    threading.Thread(target=wait, daemon=True).start()
    if not reaped.wait(60):
        os.kill(child, 9)
    assert code == [0]
