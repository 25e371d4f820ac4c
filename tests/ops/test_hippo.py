"""HiPPO matrices and forms: written-out small cases, what the states are coefficients of, normal plus low rank."""

import math

import pytest
import torch

from conca.ops.hippo import LAGUERRE, MEASURES, legs, legs_normal, transition
from conca.ops.hippo_forms import diagonal, diagonal_plus_low_rank, low_rank, normal
from conca.ops.hippo_memory import gauss
from conca.ops.hippo_rebuild import basis, chebyshev, legendre
from conca.types import BadInput

SIZES = (2, 4, 16, 64)
FORMS = {
    "legs": 1,
    "legt": 2,
    "lagt": 1,
    "tlagt": 1,
    "glagt": 1,
    "fourier": 1,
    "fourier_decay": 1,
    "foud": 0,
    "legsd": 0,
}


def response(measure, size, s, **options):
    """exp(A s) B: what the state keeps of a pulse that came s ago."""
    A, B = transition(measure, size, **options)
    return torch.linalg.matrix_exp(A * s[:, None, None]) @ B


def test_matrices_written_out():
    r3, r5, r15 = math.sqrt(3), math.sqrt(5), math.sqrt(15)
    written = {
        "legs": ([[-1, 0, 0], [-r3, -2, 0], [-r5, -r15, -3]], [1, r3, r5]),
        "legt": ([[-0.5, r3 / 2, -r5 / 2], [-r3 / 2, -1.5, r15 / 2], [-r5 / 2, -r15 / 2, -2.5]], [0.5, r3 / 2, r5 / 2]),
        "lmu": ([[-1, -1, -1], [3, -3, -3], [-5, 5, -5]], [1, -3, 5]),
        "lagt": ([[-0.5, 0, 0], [-1, -0.5, 0], [-1, -1, -0.5]], [1, 1, 1]),
        "chebt": (
            [[-3, -2 * math.sqrt(2), -3 * math.sqrt(2)], [0, 0, 4], [-3 * math.sqrt(2), -6, -6]],
            [3, 0, 3 * math.sqrt(2)],
        ),
    }
    for measure, (A, B) in written.items():
        torch.testing.assert_close(transition(measure, 3), (torch.tensor(A).double(), torch.tensor(B).double()))
    A, B = transition("fourier", 4)
    pi = math.pi
    assert torch.allclose(
        A, torch.tensor([[-1, 0, -math.sqrt(2), 0], [0] * 4, [-math.sqrt(2), 0, -2, -pi], [0, 0, pi, 0]])
    )
    torch.testing.assert_close(B, torch.tensor([1, 0, math.sqrt(2), 0]))


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("size", [2, 4, 32])
def test_every_memory_is_stable_in_float64(measure, size):
    A, B = transition(measure, size)
    assert A.shape == (size, size) and B.shape == (size,) and A.dtype == B.dtype == torch.float64
    assert float(torch.linalg.eigvals(A).real.max()) <= 1e-9


def unit(alpha, beta):
    """The weight s^-alpha exp(-beta s), its integral made 1."""
    return lambda s: s**-alpha * torch.exp(-beta * s) * beta ** (1 - alpha) / math.gamma(1 - alpha)


@pytest.mark.parametrize(
    ("measure", "options", "weight"),
    [
        ("legs", {}, unit(0, 1)),
        ("lagt", {}, torch.ones_like),
        ("tlagt", {}, unit(0, 1)),
        ("tlagt", {"beta": 0.3}, lambda s: 0.09 * torch.exp(-0.3 * s)),
        ("glagt", {}, unit(0, 0.01)),
        ("glagt", {"alpha": 0.4, "beta": 0.2}, unit(0.4, 0.2)),
        ("glagt", {"alpha": -0.5}, unit(-0.5, 0.01)),
    ],
)
def test_the_response_to_a_pulse_is_the_weight_times_what_rebuilds(measure, options, weight):
    """So the state of an infinite memory is a projection, with nothing left out: c_n = integral of u(t - s) g_n(s) weight(s)."""
    s = torch.tensor([0.05, 0.4, 1.0, 3.0])
    expected = basis(measure, 6, s, **options) * weight(s)[:, None]
    torch.testing.assert_close(response(measure, 6, s, **options), expected, atol=1e-12, rtol=1e-10)


def chebyshev_coefficients(u, size):
    """Of u (x), -1 <= x <= 1, onto 1, sqrt(2) T_1, ... under Chebyshev's weight: his quadrature, exact below degree 2 * 64."""
    x = torch.cos((torch.arange(64.0) + 0.5) * math.pi / 64)
    e = torch.full((size,), math.sqrt(2))
    e[0] = 1
    return (u(x)[:, None] * e * chebyshev(x, size)).mean(0)


def legendre_coefficients(u, size):
    nodes, weights = gauss(64)
    return (
        u(2 * nodes - 1)[:, None]
        * torch.sqrt(2 * torch.arange(size) + 1.0)
        * legendre(2 * nodes - 1, size)
        * weights[:, None]
    ).sum(0)


@pytest.mark.parametrize(
    ("measure", "coefficients"), [("chebt", chebyshev_coefficients), ("legt", legendre_coefficients)]
)
@pytest.mark.parametrize("size", [3, 4, 7])
def test_a_window_over_a_polynomial_moves_exactly(measure, coefficients, size):
    """u is a polynomial in time; d/dt of its coefficients over the window, by quadrature, is A c + B u to rounding."""
    A, B = transition(measure, size)
    degree = size if measure == "chebt" else size - 1
    powers = torch.randn(degree + 1)

    def u(t):
        return sum(p * t**k for k, p in enumerate(powers))

    def slope(t):
        return sum(k * p * t ** (k - 1) for k, p in enumerate(powers) if k)

    now = 0.3  # the window is now - 2 .. now, the place in it x = 1 - s, the time now - s = now - 1 + x
    c = coefficients(lambda x: u(now - 1 + x), size)
    torch.testing.assert_close(
        A @ c + B * u(now), coefficients(lambda x: slope(now - 1 + x), size), atol=1e-10, rtol=1e-10
    )
    if measure == "chebt":  # of one degree more it is not
        c = coefficients(lambda x: (now - 1 + x) ** (size + 1), size)
        moved = coefficients(lambda x: (size + 1) * (now - 1 + x) ** size, size)
        assert float((A @ c + B * now ** (size + 1) - moved).abs().max()) > 1e-4


@pytest.mark.parametrize("measure", ["fourier", "fourier_decay"])
def test_a_window_over_its_own_waves_moves_exactly(measure):
    A, B = transition(measure, 8)
    c = torch.randn(8)
    c[1] = 0

    def u(t):  # of period 2
        return basis(measure, 8, (-t) % 2 * torch.ones(1)) @ c

    now = torch.tensor(0.7)
    turned = torch.linalg.matrix_exp(
        math.pi * (A / math.pi + torch.outer(B, B) / math.pi * (1 if measure == "fourier" else 2)) * now
    )
    state = turned @ c
    torch.testing.assert_close(basis(measure, 8, torch.zeros(1)) @ state, u(now))
    generator = A + torch.outer(B, B) * (1 if measure == "fourier" else 2)
    torch.testing.assert_close(A @ state + B * u(now), generator @ state)


def test_lmu_is_legt_in_other_units():
    A, B = transition("legt", 9)
    n = torch.arange(9.0)
    units = torch.diag((-1.0) ** n * torch.sqrt(2 * n + 1))  # P_n from the far end, and the window half as long
    other, entered = transition("lmu", 9)
    torch.testing.assert_close(other, 2 * units @ A @ units.inverse())
    torch.testing.assert_close(entered, 2 * units @ B)


def closure(functions):
    """How far (y f_n)' lies from the span of f_0 .. f_{N-1} on 0..1, at most, relative: what dilating the past does to them."""
    y = torch.linspace(0, 1, 400, requires_grad=True)
    f = functions(y)
    slopes = [torch.autograd.grad(column.sum(), y, retain_graph=True, materialize_grads=True)[0] for column in f.T]
    f, moved = f.detach(), (f + y[:, None] * torch.stack(slopes, 1)).detach()
    left = moved - f @ torch.linalg.lstsq(f, moved).solution
    return float(left.norm(dim=0).max() / moved.norm(dim=0).max())


@pytest.mark.parametrize("size", [2, 4])
def test_what_closes_when_the_past_is_dilated(size):
    """Scaled forms: Legendre and Chebyshev polynomials under a uniform weight close, Laguerre functions and waves do not."""
    assert closure(lambda y: legendre(2 * y - 1, size)) < 1e-12
    assert closure(lambda y: chebyshev(2 * y - 1, size)) < 1e-12
    assert closure(lambda y: basis("lagt", size, 1 - y)) > 1e-5
    assert closure(lambda y: basis("tlagt", size, 1 - y, beta=0.5)) > 1e-5
    assert closure(lambda y: basis("fourier", 2 * size, 2 * (1 - y))[:, [0, *range(2, 2 * size)]]) > 1e-2


def test_scaled_chebyshev_under_a_uniform_weight_is_legs_in_other_units():
    """Its functions are T_n on all of the past: the same polynomials, so the same eigenvalues, and the same past rebuilt."""
    size = 6
    nodes, weights = gauss(size)
    turn = (chebyshev(2 * nodes - 1, size) * weights[:, None]).mT @ (
        torch.sqrt(2 * torch.arange(6.0) + 1) * legendre(2 * nodes - 1, size)
    )
    A, _ = legs(size)
    other = turn @ A @ turn.inverse()
    assert torch.linalg.matrix_rank(turn) == size
    torch.testing.assert_close(
        torch.linalg.eigvals(other).real.sort().values, -torch.arange(6.0, 0, -1), atol=1e-9, rtol=0
    )
    assert not torch.allclose(other, A, atol=0.1)
    places = torch.rand(5)  # T_n integrated against the polynomial that LegS keeps
    c = torch.randn(size)
    kept = turn @ c
    again = torch.linalg.solve(
        (chebyshev(2 * nodes - 1, size) * weights[:, None]).mT @ chebyshev(2 * nodes - 1, size), kept
    )
    direct = (torch.sqrt(2 * torch.arange(6.0) + 1) * legendre(2 * places - 1, size)) @ c
    torch.testing.assert_close(chebyshev(2 * places - 1, size) @ again, direct)


@pytest.mark.parametrize("measure", FORMS)
@pytest.mark.parametrize("size", SIZES)
def test_the_system_is_rebuilt_from_its_complex_half(measure, size):
    A, B = transition(measure, size)
    eigenvalues, p, b, V = diagonal_plus_low_rank(measure, size)
    assert p.shape == (FORMS[measure], size // 2) and V.shape == (size, size // 2)
    P = 2 * (V @ p.mT).real
    tight = {"atol": 1e-10, "rtol": 0}
    torch.testing.assert_close(2 * ((V * eigenvalues) @ V.mH).real - P @ P.T, A, **tight)
    torch.testing.assert_close(2 * (V @ b).real, B, **tight)
    torch.testing.assert_close(P.T, low_rank(measure, size), **tight)
    both = torch.cat([V, V.conj()], 1)
    torch.testing.assert_close(both.mH @ both, torch.eye(size).to(both.dtype), **tight)
    assert (eigenvalues.imag[1:] > eigenvalues.imag[:-1]).all() and float(eigenvalues.imag[0]) >= 0
    assert float(b.imag.abs().max()) == 0 and float(b.real.min()) > 0
    x, u = torch.randn(size), 0.7  # the real system and the complex one move alike
    z = V.mH @ x.to(V.dtype)
    moved = eigenvalues * z - (2 * (p.conj() * z).sum(1).real).to(p.dtype) @ p + b * u
    torch.testing.assert_close(2 * (V @ moved).real, A @ x + B * u, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("measure", FORMS)
@pytest.mark.parametrize("size", SIZES)
def test_the_normal_part_is_skew_and_a_multiple_of_one(measure, size):
    S = normal(measure, size)
    torch.testing.assert_close(S @ S.T, S.T @ S, atol=1e-9, rtol=1e-12)
    skew = S - S.diagonal().mean() * torch.eye(size)
    torch.testing.assert_close(skew, -skew.T, atol=1e-12, rtol=1e-12)
    decay = {"legs": -0.5, "legsd": -0.5, "foud": -0.5, "tlagt": -0.5, "glagt": -0.005}.get(measure, 0.0)
    assert (diagonal(measure, size)[0].real == decay).all()


def test_only_the_waves_have_a_frequency_of_zero():
    for measure in FORMS:
        least = float(diagonal(measure, 16)[0].imag[0])
        assert (least == 0) == (measure in ("fourier", "fourier_decay", "foud"))


def test_the_diagonal_of_legs_is_where_s4d_starts():
    torch.testing.assert_close(diagonal("legs", 16), legs_normal(16))
    torch.testing.assert_close(diagonal("foud", 6)[0].imag, 2 * math.pi * torch.arange(3.0))


def test_more_rank_is_zeros():
    wide = diagonal_plus_low_rank("legs", 8, rank=3).p_RN
    torch.testing.assert_close(wide[:1], diagonal_plus_low_rank("legs", 8).p_RN)
    assert wide.shape == (3, 4) and float(wide[1:].abs().max()) == 0


def test_the_eigenvectors_of_legs_are_useless_and_those_of_its_normal_part_perfect():
    """Condition 1e10 at N = 16, a hundredfold more with each two numbers of memory: hence normal plus low rank."""
    conditions = {}
    for size in (8, 12, 16):
        values, vectors = torch.linalg.eig(legs(size)[0])
        torch.testing.assert_close(values.real.sort().values, -torch.arange(size, 0.0, -1), atol=1e-8, rtol=0)
        conditions[size] = float(torch.linalg.cond(vectors))
    assert 1e10 < conditions[16] < 1e12
    assert conditions[16] / conditions[8] > 1e5
    assert float(torch.linalg.cond(torch.linalg.eig(normal("legs", 16)).eigenvectors)) == pytest.approx(1, abs=1e-9)


def test_chebyshev_is_not_normal_plus_low_rank():
    A, _ = transition("chebt", 16)
    values = torch.linalg.eigvalsh(A + A.T)
    assert int(((values - values.median()).abs() > 1e-3 * values.abs().max()).sum()) > 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: transition("lgs", 4), "did you mean 'legs'"),
        (lambda: transition("legs", 0), "positive"),
        (lambda: transition("fourier", 5), "even"),
        (lambda: transition("legt", 4, beta=0.5), "beta"),
        (lambda: transition("tlagt", 4, beta=0.0), "positive"),
        (lambda: transition("tlagt", 4, alpha=0.5), "alpha"),
        (lambda: transition("glagt", 4, alpha=1.0), "between -1 and 1"),
        (lambda: diagonal_plus_low_rank("legs", 5), "even"),
        (lambda: diagonal_plus_low_rank("legt", 4, rank=1), "needs 2"),
        (lambda: diagonal_plus_low_rank("lmu", 4), "legt"),
        (lambda: diagonal("chebt", 4), "dense"),
        (lambda: normal("glagt", 4, alpha=0.5), "alpha"),
        (lambda: normal("nothing", 4), "known"),
    ],
)
def test_what_does_not_exist_is_refused(call, message):
    with pytest.raises(BadInput, match=message):
        call()


def test_names():
    assert set(LAGUERRE) < set(MEASURES) and set(FORMS) < set(MEASURES)


def test_the_far_end_of_a_legendre_window_is_a_delay_by_pade():
    """What leaves the window, sum_n c_n r_n P_n(-1), answers a wave as Pade's approximant of exp(-theta s) of degrees N-1 over N."""
    z = 1j * torch.tensor([0.3, 1.0, 4.0], dtype=torch.complex128)
    A, B = transition("legt", 2)
    far = basis("legt", 2, torch.tensor([2.0]))[0].to(z.dtype)
    got = torch.linalg.solve(z[:, None, None] * torch.eye(2) - A, B.to(z.dtype).expand(3, 2)) @ far
    w = 2 * z  # the window is 2 long
    torch.testing.assert_close(got, (1 - w / 3) / (1 + 2 * w / 3 + w * w / 6))
    A, B = transition("lmu", 12)  # of many numbers: the delay itself
    far = basis("lmu", 12, torch.tensor([1.0]))[0].to(z.dtype)
    got = torch.linalg.solve(z[:, None, None] * torch.eye(12) - A, B.to(z.dtype).expand(3, 12)) @ far
    torch.testing.assert_close(got, torch.exp(-z), atol=1e-10, rtol=0)
