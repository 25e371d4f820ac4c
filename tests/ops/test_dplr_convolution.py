"""The kernel of a DPLR state space from its generating function: against single steps, dense matrices, the formulas as published."""

from math import pi

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from conca.ops import dplr_kernel as generating
from conca.ops.bodies import plain_bodies
from conca.ops.cauchy import cauchy
from conca.ops.discretise import dense_generalised_bilinear
from conca.ops.dplr_kernel import (
    DPLR,
    advanced,
    dense,
    doubled,
    dplr_kernel,
    dplr_kernel_recurrence,
    nodes,
    state_inputs,
    truncate,
    untruncate,
)
from conca.ops.hippo import transition
from conca.ops.hippo_forms import diagonal_plus_low_rank
from conca.types import BadInput

LENGTHS = [1, 2, 3, 64, 257]


def z(*shape):
    return torch.randn(*shape, dtype=torch.complex128)


def system(D=3, N=4, R=1):
    """Stable: what q reads is nearly what p writes."""
    p = 0.5 * z(R, D, N)
    return DPLR(
        torch.complex(-torch.rand(D, N) - 0.1, 3 * torch.randn(D, N)),
        p,
        2 * p.conj() + 0.05 * z(R, D, N),
        0.1 + torch.rand(D),
    )


def hippo(measure="legs", size=64, dt=(1e-3, 1e-2, 1e-1)):
    """A HiPPO memory for every dt, and its input (1, D, N)."""
    form = diagonal_plus_low_rank(measure, size)
    D = len(dt)
    p = form.p_RN[:, None].expand(-1, D, -1)
    eigenvalues = form.eigenvalues_N.expand(D, -1)
    return DPLR(eigenvalues, p, 2 * p.conj(), torch.tensor(dt)), form.b_N.expand(1, D, -1)


def steps(sys, h):
    """The state of every channel after one step without input."""
    a, p, q, _ = sys.discretised(h[:1])
    return a * h - (p[:, None] * (q[:, None] * h).sum(-1, keepdim=True).real).sum(0)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("R", [0, 1, 2, 3])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_kernel_is_what_single_steps_give(length, R, plain):
    sys, b, c = system(R=R), z(2, 3, 4), z(3, 3, 4)
    want = dplr_kernel_recurrence(sys, b, c, length)
    tilde = truncate(sys, c, length)
    if plain:
        with plain_bodies():
            got = dplr_kernel(sys, b, c, length)
    else:
        got = dplr_kernel(sys, b, c, length)
    assert got.shape == (3, 2, 3, length)
    assert_close(got, want, rtol=1e-9, atol=1e-10)
    assert_close(dplr_kernel(sys, b, tilde, length, truncated=True), want, rtol=1e-9, atol=1e-10)
    assert_close(dplr_kernel_recurrence(sys, b, tilde, length, truncated=True), want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("measure", "length"), [("legs", 64), ("legs", 257), ("lagt", 64), ("legt", 63)])
def test_the_kernel_of_a_hippo_memory_is_that_of_its_dense_matrix(measure, length):
    """C Abar^l Bbar with A as published, by the dense bilinear transform."""
    form, (A, B) = diagonal_plus_low_rank(measure, 16), transition(measure, 16)
    p = form.p_RN[:, None]
    sys = DPLR(form.eigenvalues_N[None], p, 2 * p.conj(), torch.tensor([0.05]))
    C = torch.randn(16)
    c = 2 * (C.to(form.vectors_NN.dtype) @ form.vectors_NN)[None, None]
    a, b = dense_generalised_bilinear(A, B[:, None], torch.tensor(0.05))
    want, h = [], b
    for _ in range(length):
        want.append(C @ h[:, 0])
        h = a @ h
    got = dplr_kernel(sys, form.b_N[None, None], c, length)[0, 0, 0]
    assert_close(got, torch.stack(want), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("R", [1, 2])
def test_the_formulas_as_published(R):
    """Nodes z = 2 (1 - omega) / (1 + omega), r00 - r01 (1 + r11)^-1 r10 times 2 / (1 + omega), and the Nyquist limit by itself."""
    length, D, N = 10, 2, 3
    sys, b, c = system(D, N, R), z(D, N), z(D, N)
    tilde = truncate(sys, c[None], length)[0]
    eigenvalues, p, q, dt = sys
    omega = torch.exp(-2j * pi * torch.arange(length // 2) / length)
    node = 2 * (1 - omega) / (1 + omega)
    assert_close(node.real, torch.zeros(length // 2))

    def sums(left, right):
        return cauchy((dt[:, None] * left * right / 2)[:, None], dt[:, None] * eigenvalues, node.imag)[:, 0]

    r00 = sums(tilde, b)
    r01, r10 = torch.stack([sums(tilde, t) for t in p], -1), torch.stack([sums(t, b) for t in q], -1)
    r11 = torch.stack([torch.stack([sums(left, right) for right in p], -1) for left in q], -2)
    inner = torch.linalg.solve(torch.eye(R) + r11, r10[..., None])
    spectrum = 2 / (1 + omega) * (r00 - (r01[..., None, :] @ inner)[..., 0, 0])
    nyquist = dt / 2 * (tilde * b).sum(-1).real
    spectrum = torch.cat([spectrum, nyquist[:, None]], -1)
    got = dplr_kernel(sys, b[None], c[None], length)[0, 0]
    assert_close(torch.fft.irfft(spectrum, length), got)
    assert_close(torch.fft.rfft(got)[:, -1].real, nyquist)


def test_without_the_nyquist_value_the_kernel_is_wrong(monkeypatch):
    sys, b, c = system(), z(1, 3, 4), z(1, 3, 4)
    want = dplr_kernel_recurrence(sys, b, c, 8)
    assert_close(dplr_kernel(sys, b, c, 8), want)

    with monkeypatch.context() as patch:
        patch.setattr(generating, "nodes", lambda length, like: tuple(t[:-1] for t in nodes(length, like)))
        wrong = dplr_kernel(sys, b, c, 8)  # irfft takes what is not there as 0
    error = wrong - want
    assert error.abs().max() > 1e-2
    assert_close(error, error[..., :1] * torch.tensor([1.0, -1.0]).repeat(4))  # the fastest wave, at full strength


def test_nodes_are_exact_at_both_ends():
    for length in (1, 2, 7, 8, 4096):
        sin, cos = nodes(length, torch.zeros(1, dtype=torch.float32))
        assert len(sin) == length // 2 + 1
        assert (sin[0], cos[0]) == (0, 1)
        if length % 2 == 0:
            assert (sin[-1], cos[-1]) == (1, 0)
        else:
            assert (cos > 0).all()


def test_length_zero_and_no_inputs():
    sys = system()
    assert dplr_kernel(sys, z(2, 3, 4), z(1, 3, 4), 0).shape == (1, 2, 3, 0)
    assert dplr_kernel_recurrence(sys, z(2, 3, 4), z(1, 3, 4), 0).shape == (1, 2, 3, 0)
    assert dplr_kernel(sys, z(0, 3, 4), z(1, 3, 4), 5).shape == (1, 0, 3, 5)


@pytest.mark.parametrize("R", [0, 1, 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_truncation(length, R):
    sys, c = system(R=R), z(2, 3, 4)
    tilde = truncate(sys, c, length)
    a, p, q, _ = sys.discretised(c[:1])
    power = torch.linalg.matrix_power(dense(a, p, q), length)
    row = torch.view_as_real(c.conj().resolve_conj()).flatten(-2)
    want = row - torch.einsum("vdi,dik->vdk", row, power)
    assert_close(torch.view_as_real(tilde.conj().resolve_conj()).flatten(-2), want)
    assert_close(untruncate(sys, tilde, length), c)
    assert_close(doubled(sys, tilde, length), truncate(sys, c, 2 * length))
    assert_close(advanced(sys, advanced(sys, c, length), 3), advanced(sys, c, length + 3))
    assert_close(advanced(sys, c, 0), c)


def test_the_dense_matrix_does_what_a_step_does():
    sys, h = system(R=2), z(5, 3, 4)
    a, p, q, _ = sys.discretised(h[:1])
    pairs = torch.view_as_real(h).flatten(-2)
    got = torch.einsum("dik,bdk->bdi", dense(a, p, q), pairs)
    assert_close(torch.view_as_complex(got.reshape(5, 3, 4, 2)), steps(sys, h))
    c = z(2, 3, 4)
    ahead = (advanced(sys, c, 1)[:, None] * h).sum(-1).real
    assert_close(ahead, (c[:, None] * steps(sys, h)).sum(-1).real)


@pytest.mark.parametrize("R", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 6, 33])
def test_the_response_to_states_comes_from_the_same_sums(length, R):
    sys, b, c, h = system(R=R), z(1, 3, 4), z(2, 3, 4), z(2, 3, 4)
    got = dplr_kernel(sys, torch.cat([b, state_inputs(sys, h)]), c, length)
    assert_close(got[:, :1], dplr_kernel_recurrence(sys, b, c, length))
    want = []
    for _ in range(length):
        h = steps(sys, h)
        want.append((c[:, None] * h).sum(-1).real)
    assert_close(got[:, 1:], torch.stack(want, -1))


def test_another_sampling_rate():
    """Twice the step on a kernel of slow change gives every second number of it, twice as large."""
    sys, b = hippo(size=8, dt=(1e-3, 2e-3))
    c = z(1, 2, 4)
    assert_close(sys.at(0.5).dt_D, torch.tensor([5e-4, 1e-3]))
    fine, coarse = dplr_kernel(sys.at(0.5), b, c, 400), dplr_kernel(sys, b, c, 200)
    between = fine[..., ::2] + fine[..., 1::2]
    assert_close(coarse, between, rtol=0, atol=2e-3 * float(coarse.abs().max()))


@pytest.mark.parametrize("R", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 5, 8])
def test_derivatives_to_everything(length, R):
    leaves = [t.detach().clone().requires_grad_() for t in (*system(2, 2, R), z(1, 2, 2), z(1, 2, 2))]

    def kernel(*args):
        return dplr_kernel(DPLR(*args[:4]), *args[4:], length)

    weight = torch.randn(1, 1, 2, length)
    slow = dplr_kernel_recurrence(DPLR(*leaves[:4]), *leaves[4:], length)
    want = torch.autograd.grad((slow * weight).sum(), leaves, allow_unused=True, materialize_grads=True)
    got = torch.autograd.grad((kernel(*leaves) * weight).sum(), leaves, allow_unused=True, materialize_grads=True)
    assert_close(got, want, rtol=1e-7, atol=1e-7)
    assert gradcheck(kernel, leaves, fast_mode=True)
    if length == 5:
        assert gradgradcheck(kernel, leaves, fast_mode=True)


def test_derivatives_through_states_and_the_given_truncation():
    sys, h = system(2, 2, 1), z(1, 2, 2).requires_grad_()
    tilde = truncate(sys, z(1, 2, 2), 6).detach().requires_grad_()

    def kernel(h, tilde):
        return dplr_kernel(sys, state_inputs(sys, h), tilde, 6, truncated=True)

    assert gradcheck(kernel, (h, tilde))
    assert gradcheck(lambda tilde: untruncate(sys, doubled(sys, tilde, 6), 12), tilde)


def test_compiled_and_transformed():
    args = [t.detach().resolve_conj() for t in (*system(2, 3), z(1, 2, 3), z(2, 2, 3))]

    def loss(*args):
        return dplr_kernel(DPLR(*args[:4]), *args[4:], 6).square().sum()

    every = tuple(range(6))
    want = torch.func.grad(loss, every)(*args)
    many = [torch.stack([t, t / 2]) for t in args]
    each = [torch.func.grad(loss, every)(*(t[i] for t in many)) for i in range(2)]
    assert_close(torch.vmap(torch.func.grad(loss, every))(*many), tuple(map(torch.stack, zip(*each))))
    leaves = [t.requires_grad_() for t in args]
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(fast(*leaves), leaves), want)
    torch._dynamo.reset()


@pytest.mark.parametrize("length", [64, 1001, 4096])
def test_single_precision(length):
    """64 modes of HiPPO-LegS at three time scales, as exact as steps in single precision are: frequencies reach 1300."""
    sys, b = hippo()
    c = z(1, 3, 32)
    single = DPLR(*(t.to(torch.complex64 if t.is_complex() else torch.float32) for t in sys))
    want = dplr_kernel(sys, b, c, length)
    got = dplr_kernel(single, b.to(torch.complex64), c.to(torch.complex64), length)
    assert got.dtype == torch.float32
    worst = want.abs().amax(-1, keepdim=True)
    assert ((got - want).abs() / worst).max() < 5e-5


def test_shapes_that_do_not_fit():
    sys, b, c = system(), z(1, 3, 4), z(1, 3, 4)
    for bad in (sys._replace(p_RDN=z(1, 3, 5)), sys._replace(q_RDN=z(2, 3, 4)), sys._replace(dt_D=torch.ones(2))):
        with pytest.raises(BadInput, match="dplr kernel"):
            dplr_kernel(bad, b, c, 4)
    for bad in (z(3, 4), z(1, 2, 4)):
        with pytest.raises(BadInput, match="b has shape"):
            dplr_kernel(sys, bad, c, 4)
        with pytest.raises(BadInput, match="c has shape"):
            dplr_kernel_recurrence(sys, b, bad, 4)
