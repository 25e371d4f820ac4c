"""A program as a kernel: it does what each instruction says in PyTorch, at odd sizes, with several sequences and threads."""

import os
import threading

import pytest
import torch
from torch.testing import assert_close

from conca.kernels import lanes, pool
from conca.ops import bodies
from conca.ops.one_row import quantised_rows
from conca.ops.program import (
    Convolve,
    Forget,
    Job,
    Norm,
    Phase,
    Product,
    Program,
    Select,
    Vector,
    run_plain,
    run_program,
)

DTYPES = [torch.float32] if lanes.CHECKED else [torch.float32, torch.float64]
"""Where bounds are checked the compiler takes long, and they do not depend on the type."""

WIDTH, E, N, H, P, G, R, W = 7, 18, 5, 6, 3, 2, 3, 4
"""Of the stream; channels and state of the scan; heads, their width, groups; rank; window."""


def program(dtype=torch.float32, output=0, window=W, gate=True):
    """Every instruction, in every kind of phase."""

    def w(*size):
        return torch.randn(*size, dtype=dtype)

    x, mine = Vector(0, 0, WIDTH), Vector(1, 0, WIDTH)
    wide = Vector(2, 0, 2 * E + R + 2 * N + 2 * G * N + H)
    u, z = wide.part(0, E), wide.part(E, E)
    low, B, C = wide.part(2 * E, R), wide.part(2 * E + R, N), wide.part(2 * E + R + N, N)
    keys, queries = (wide.part(2 * E + R + 2 * N + i * G * N, G * N) for i in (0, 1))
    step = wide.part(2 * E + R + 2 * N + 2 * G * N, H)
    v, dt, y, last = Vector(3, 0, E), Vector(4, 0, E), Vector(5, 0, E), Vector(6, 0, 11)
    small, scale = quantised_rows(w(E, R))
    rest = wide.part(E, wide.size - E)
    phases = (
        Phase(
            (
                Job((Product(mine, w(E, WIDTH), u, bias=w(E)), Convolve(u, w(window, E), w(E), 0, v, True)), E, WIDTH),
                Job((Product(mine, w(rest.size, WIDTH).bfloat16(), rest),), rest.size, WIDTH),
            ),
            (Norm(x, w(WIDTH), mine, 1e-5),),
        ),
        Phase(
            (
                Job(
                    (
                        Product(low, small, dt, scale, w(E)),
                        Select(v, dt, -w(E, N).exp(), B, C, w(E), z if gate else None, 1, y),
                    ),
                    E,
                    R + N,
                ),
            )
        ),
        Phase((Job((Convolve(y, w(1, E), None, 2, y, False),), E, 1),)),
        Phase(
            (
                Job(
                    (
                        Forget(
                            v, step, w(H), -w(H).exp(), keys, queries, w(H), z if gate else None, 3, v, G, (0.1, 0.9)
                        ),
                    ),
                    H,
                    N * P,
                    1,
                ),
            )
        ),
        Phase(
            (Job((Product(y, w(WIDTH, E), x, bias=w(WIDTH), adds=True),), WIDTH, E),),
            (Norm(v, w(E), Vector(7, 0, E), 1e-5, z, 3),),
        ),
        Phase(
            (Job((Product(Vector(7, 0, E), w(11, E), last),), 11, E),), (Norm(v, w(E), Vector(7, 0, E), 1e-5, z, 3),)
        ),
        Phase((Job((Norm(x, w(WIDTH), x, 1e-6),), 1, WIDTH),)),
    )
    rooms = WIDTH, WIDTH, wide.size, E, E, E, 11, E
    leaves = (window - 1, E), (E, N), (0, E), (H, N, P)
    return Program(phases, rooms, frozenset({1, 7}), output, leaves, dtype)


def inputs(made, batch):
    leaves = [torch.randn(batch, *shape, dtype=made.dtype) for shape in made.leaves]
    return torch.randn(batch, WIDTH, dtype=made.dtype), leaves


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_and_plain_agree(dtype, threads, monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(threads)
    tight = {"rtol": 1e-9, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    for output, window, gate in ((0, W, True), (6, 1, False), (6, 2, True)):
        made = program(dtype, output, window, gate)
        for batch in (1, 3):
            x, leaves = inputs(made, batch)
            before = [t.clone() for t in (x, *leaves)]
            with bodies.watched() as seen:
                got = run_program(made, x, leaves)
            assert seen == {"program"}
            assert all(torch.equal(now, was) for now, was in zip((x, *leaves), before))
            for one, other in zip((got[0], *got[1]), (lambda y, new: (y, *new))(*run_plain(made, x, leaves))):
                assert one.shape == other.shape
                assert_close(one, other, **tight)


def test_results_do_not_depend_on_threads_or_other_rows(monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    made = program(torch.float32, 6)
    x, leaves = inputs(made, 3)
    torch.set_num_threads(3)
    want = run_program(made, x, leaves)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for b in range(3):
            y, new = run_program(made, x[b : b + 1], [t[b : b + 1].contiguous() for t in leaves])
            assert torch.equal(y[0], want[0][b])
            assert all(torch.equal(a[0], c[b]) for a, c in zip(new, want[1]))


def test_nothing_is_written_over_what_was_given_before(monkeypatch):
    made = program()
    x, leaves = inputs(made, 2)
    y, new = run_program(made, x, leaves)
    kept = [t.clone() for t in (y, *new)]
    for _ in range(3):
        run_program(made, -x, new)
    assert all(torch.equal(now, was) for now, was in zip((y, *new), kept))


def test_more_threads_than_cores_and_several_callers_at_once(monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    made = program(torch.float32)
    x, leaves = inputs(made, 1)
    want = run_program(made, x, leaves)
    wrong = []

    def work():
        torch.set_num_threads(9)
        for _ in range(50):
            y, new = run_program(made, x, leaves)
            if not torch.equal(y, want[0]) or not all(torch.equal(a, b) for a, b in zip(new, want[1])):
                wrong.append(threading.get_ident())

    callers = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert not wrong


def test_a_helper_that_never_comes_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(3)
    made = program()
    x, leaves = inputs(made, 1)
    want = run_plain(made, x, leaves)[0]
    done, held = threading.Event(), [pool._workers(2).submit(lambda: done.wait(60)) for _ in range(pool._size)]
    try:
        assert_close(run_program(made, x, leaves)[0], want, rtol=1e-4, atol=1e-4)
    finally:
        done.set()
    assert all(future.result() for future in held)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_answers(monkeypatch):
    monkeypatch.setattr(pool, "SMALL", 0)
    torch.set_num_threads(2)
    made = program()
    x, leaves = inputs(made, 1)
    want = run_program(made, x, leaves)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if (run_program(made, x, leaves)[0].numpy() == want.numpy()).all() else 1)
    watch = threading.Timer(60, os.kill, (child, 9))
    watch.start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    watch.cancel()
    assert code == 0


def test_without_numba_the_plain_body_runs():
    made = program()
    x, leaves = inputs(made, 2)
    with bodies.plain_bodies():
        assert torch.equal(run_program(made, x, leaves)[0], run_plain(made, x, leaves)[0])
