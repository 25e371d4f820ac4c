"""LinearSystem: every transform against the kernel written out, all forms, what varies, what is refused."""

import math

import pytest
import torch

from conca import LinearSystem
from conca.layers import families
from conca.types import BadInput

TRANSFORMS = [
    {"transform": "zoh"},
    {"transform": "forward_euler"},
    {"transform": "backward_euler"},
    {"transform": "bilinear"},
    {"alpha": 0.3},
    {"alpha": 0.8},
    {"transform": None},
]
STEP = 0.2


def names(options):
    return "-".join(map(str, options.values()))


def matrices(N=4, M=2, O=3):  # noqa: E741
    """A stable system whose eigenvalues are partly complex, and which is no worse for being taken as a discrete one."""
    A = torch.randn(N, N)
    A = A - A.T - 0.5 * torch.eye(N)
    return 0.9 * A / torch.linalg.matrix_norm(A, 2), torch.randn(N, M), torch.randn(O, N), torch.randn(O, M)


def by_hand(A, B, transform="zoh", alpha=None):
    """(a, b), each transform by its textbook formula, with an inverse."""
    if transform is None:
        return A, B
    eye = torch.eye(len(A))
    if alpha is None and transform == "zoh":
        a = torch.matrix_exp(STEP * A)
        return a, torch.linalg.inv(A) @ (a - eye) @ B
    alpha = (
        {"forward_euler": 0.0, "bilinear": 0.5, "backward_euler": 1.0}.get(transform, alpha) if alpha is None else alpha
    )
    below = torch.linalg.inv(eye - alpha * STEP * A)
    return below @ (eye + (1 - alpha) * STEP * A), below @ (STEP * B)


@pytest.mark.parametrize("options", TRANSFORMS, ids=names)
def test_the_kernel_is_c_a_to_the_l_b(options):
    A, B, C, D = matrices()
    a, b = by_hand(A, B, **options)
    expected = [C @ torch.linalg.matrix_power(a, lag) @ b for lag in range(33)]
    expected[0] = expected[0] + D
    found = LinearSystem(A, B, C, D, dt=STEP, **options).kernel(33)
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("length", [0, 1, 2, 13, 64])
@pytest.mark.parametrize("options", TRANSFORMS, ids=names)
def test_step_recurrence_and_convolution_are_one(options, length):
    A, B, C, D = matrices()
    system = LinearSystem(A, B, C, D, dt=STEP, **options)
    u, x = torch.randn(2, length, 2), torch.randn(2, 4)
    y, last = system(u, x)
    z, same = system.convolution(u, x)
    torch.testing.assert_close(z, y, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(same, last, atol=1e-12, rtol=1e-10)
    state = x
    for t in range(length):
        out, state = system.step(u[:, t], state)
        torch.testing.assert_close(out, y[:, t])
    torch.testing.assert_close(state, last)
    assert y.shape == (2, length, 3)


def test_which_sample_the_update_uses():
    """x_t from u_t, then y_t from x_t and u_t: an input shows at once, through C b and through D."""
    system = LinearSystem.discrete(
        torch.tensor([[0.5]]), torch.tensor([[3.0]]), torch.tensor([[2.0]]), torch.tensor([[1.0]])
    )
    y, x = system(torch.tensor([[[1.0], [0.0], [0.0]]]), torch.tensor([[8.0]]))
    assert y.flatten().tolist() == [2 * (4 + 3) + 1, 2 * 3.5, 2 * 1.75]
    assert x.item() == 1.75


def test_without_c_and_d_the_state_is_read():
    A, B, _, _ = matrices()
    y, x = LinearSystem(A, B, dt=STEP)(torch.randn(2, 9, 2))
    torch.testing.assert_close(y[:, -1], x)


@pytest.mark.parametrize("form", ["forward", "convolution"])
def test_a_run_may_be_split_anywhere(form):
    A, B, C, D = matrices()
    system = LinearSystem(A, B, C, D, dt=STEP)
    u, x = torch.randn(2, 11, 2), torch.randn(2, 4)
    y, last = getattr(system, form)(u, x)
    for cut in range(12):
        first, middle = getattr(system, form)(u[:, :cut], x)
        second, end = getattr(system, form)(u[:, cut:], middle)
        torch.testing.assert_close(torch.cat([first, second], 1), y)
        torch.testing.assert_close(end, last)


@pytest.mark.parametrize("options", TRANSFORMS, ids=names)
def test_gradients_reach_everything_and_agree_between_the_forms(options):
    A, B, C, D = matrices(3, 1, 2)
    u, x, dt = torch.randn(2, 7, 1), torch.randn(2, 3), torch.tensor(STEP)
    parts = [part.requires_grad_() for part in (A, B, C, D, dt, u, x)]

    def outcome(A, B, C, D, dt, u, x, form="forward"):
        y, last = getattr(LinearSystem(A, B, C, D, dt=dt, **options), form)(u, x)
        return y.square().sum() + last.sin().sum()

    assert torch.autograd.gradcheck(outcome, parts)
    recurrent = torch.autograd.grad(outcome(*parts), parts, allow_unused=True)
    convolved = torch.autograd.grad(outcome(*parts, form="convolution"), parts, allow_unused=True)
    assert [g is None for g in recurrent] == [p is dt and options.get("transform", "zoh") is None for p in parts]
    for one, other in zip(recurrent, convolved):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-9)


def test_a_parameter_is_trained_and_a_tensor_is_kept():
    A, B, C, D = matrices()
    system = LinearSystem(torch.nn.Parameter(A), B, C, torch.nn.Parameter(D))
    assert {name for name, _ in system.named_parameters()} == {"A", "D"}
    assert {name for name, _ in system.named_buffers()} == {"B", "C", "dt"}
    copy = LinearSystem(torch.nn.Parameter(0 * A), 0 * B, 0 * C, torch.nn.Parameter(0 * D))
    copy.load_state_dict(system.state_dict())
    u = torch.randn(1, 5, 2)
    assert torch.equal(copy(u)[0], system(u)[0])


def test_two_half_steps_under_a_held_input_are_one_step():
    A, B, C, D = matrices()
    u, x = torch.randn(2, 6, 2), torch.randn(2, 4)
    once, last = LinearSystem(A, B, C, D, dt=STEP)(u, x)
    twice, same = LinearSystem(A, B, C, D, dt=STEP / 2)(u.repeat_interleave(2, 1), x)
    torch.testing.assert_close(twice[:, 1::2], once)
    torch.testing.assert_close(same, last)


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({"transform": "forward_euler"}, 1),
        ({"transform": "backward_euler"}, 1),
        ({"alpha": 0.3}, 1),
        ({"transform": "bilinear"}, 2),
        ({"alpha": 0.5}, 2),
    ],
    ids=str,
)
def test_transforms_approach_the_zero_order_hold_with_their_order(options, order):
    A, B, C, _ = matrices()

    def error(steps):
        held = torch.ones(1, steps, 2)
        exact = LinearSystem(A, B, C, dt=1.0 / steps)(held)[0][:, -1]
        return float((LinearSystem(A, B, C, dt=1.0 / steps, **options)(held)[0][:, -1] - exact).norm())

    assert math.log2(error(64) / error(128)) == pytest.approx(order, abs=0.06)


def test_a_singular_a_integrates():
    system = LinearSystem(torch.zeros(1, 1), torch.ones(1, 1), dt=0.25)
    y, _ = system(torch.ones(1, 8, 1))
    torch.testing.assert_close(y.flatten(), 0.25 * torch.arange(1.0, 9.0))


def test_matrices_may_vary_in_time():
    T = 6
    A, B, C, D = torch.randn(T, 3, 3), torch.randn(T, 3, 2), torch.randn(T, 2, 3), torch.randn(T, 2, 2)
    dt = torch.rand(T)
    system = LinearSystem(A, B, C, D, dt=dt)
    u, x = torch.randn(2, T, 2), torch.randn(2, 3)
    y, last = system(u, x)
    state, cut = x, 4
    for t in range(T):
        alone = LinearSystem(A[t], B[t], C[t], D[t], dt=dt[t])
        expected, state = alone.step(u[:, t], state)
        torch.testing.assert_close(y[:, t], expected)
    torch.testing.assert_close(last, state)
    _, middle = system(u[:, :cut], x)
    stepped, _ = system.step(u[:, cut], middle, time=cut)
    torch.testing.assert_close(stepped, y[:, cut])
    rest, _ = system(u[:, cut:], middle, time=cut)
    torch.testing.assert_close(rest, y[:, cut:])
    with pytest.raises(BadInput, match="vary over 6 samples, and samples 4 to 9"):
        system(u, x, time=cut)


@pytest.mark.parametrize("name", ["A", "B", "C", "D"])
def test_one_matrix_alone_may_vary(name):
    parts = dict(zip("ABCD", matrices()))
    parts[name] = parts[name] + 0.1 * torch.randn(5, *parts[name].shape)
    u = torch.randn(2, 5, 2)
    everything = {key: value.expand(5, *value.shape[-2:]) for key, value in parts.items()}
    for transform in ("zoh", "bilinear", None):
        one = LinearSystem(**parts, dt=STEP, transform=transform)(u)[0]
        torch.testing.assert_close(one, LinearSystem(**everything, dt=STEP, transform=transform)(u)[0])


def test_elapsed_reads_a_held_input_at_irregular_times():
    A, B, C, D = matrices()
    system = LinearSystem(A, B, C, D, dt=STEP)
    gaps = torch.tensor([[1, 3, 2, 1], [2, 1, 1, 4]])
    u, x = torch.randn(2, 4, 2), torch.randn(2, 4)
    y, last = system(u, x, elapsed=gaps.double())
    for row in range(2):
        dense = u[row : row + 1].repeat_interleave(gaps[row], 1)
        z, end = system(dense, x[row : row + 1])
        torch.testing.assert_close(y[row], z[0, gaps[row].cumsum(0) - 1])
        torch.testing.assert_close(last[row], end[0])
    stepped, _ = system.step(u[:, 0], x, elapsed=gaps[:, 0])
    torch.testing.assert_close(stepped, y[:, 0])


@pytest.mark.parametrize("name", ["A", "B", "C", "D", "dt"])
def test_the_convolution_is_refused_where_something_varies(name):
    parts = dict(zip("ABCD", matrices())) | {"dt": torch.tensor(STEP)}
    parts[name] = parts[name].expand(5, *parts[name].shape)
    system = LinearSystem(**parts)
    for call in (lambda: system.convolution(torch.randn(1, 5, 2)), lambda: system.kernel(5)):
        with pytest.raises(BadInput, match=rf"{name} vary in time.*no one kernel.*use recurrence or step"):
            call()


def test_the_convolution_is_refused_with_elapsed():
    A, B, C, D = matrices()
    with pytest.raises(BadInput, match=r"elapsed vary in time.*not time-invariant"):
        LinearSystem(A, B, C, D).convolution(torch.randn(1, 5, 2), elapsed=torch.ones(1, 5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"B": torch.randn(3, 2)}, r"B has shape \(3, 2\), expected \(4, 2\)"),
        ({"C": torch.randn(3, 3)}, r"C has shape \(3, 3\), expected \(3, 4\)"),
        ({"D": torch.randn(2, 2)}, r"D has shape \(2, 2\), expected \(3, 2\)"),
        ({"A": torch.randn(4)}, "A has shape"),
        ({"A": torch.ones(4, 4, dtype=torch.int64)}, "floating point"),
        ({"dt": torch.ones(2, 2)}, "one per sample"),
        ({"A": torch.randn(5, 4, 4), "dt": torch.ones(6)}, "A, dt vary over different numbers"),
        ({"transform": "bilinaer"}, "did you mean 'bilinear'"),
        ({"alpha": 1.5}, "in 0..1"),
        ({"alpha": 0.5, "transform": "forward_euler"}, "alpha alone"),
        ({"A": [[1.0]]}, "A must be a tensor, got list"),
        ({"B": None}, "B must be a tensor, got NoneType"),
        ({"B": torch.randn(4, 2).float()}, "B is torch.float32 on cpu, A torch.float64 on cpu"),
        ({"C": torch.randn(3, 4).float()}, "C is torch.float32"),
        ({"D": torch.randn(3, 2, device="meta")}, "D is torch.float64 on meta"),
        ({"dt": "1"}, "dt must be a number or a tensor, got str"),
        ({"dt": True}, "dt must be a number or a tensor, got bool"),
        ({"dt": 0}, "above 0 and finite"),
        ({"dt": torch.tensor([0.1, -1.0])}, "above 0 and finite"),
        ({"dt": math.nan}, "above 0 and finite"),
        ({"dt": math.inf}, "above 0 and finite"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    parts = dict(zip("ABCD", matrices())) | change
    with pytest.raises(BadInput, match=message):
        LinearSystem(**parts)


@pytest.mark.parametrize(
    ("u", "x", "elapsed", "message"),
    [
        (torch.zeros(2, 5, 3), None, None, r"u of shape \(batch, time, 2\)"),
        (torch.zeros(2, 5, 2, dtype=torch.float32), None, None, "u is torch.float32, the system torch.float64"),
        (torch.zeros(2, 5, 2), torch.zeros(1, 4), None, r"a state of shape \(2, 4\)"),
        (torch.zeros(2, 5, 2), None, torch.ones(2, 5), "knows no time between its samples"),
        ([[0.0]], None, None, "u must be a tensor, got list"),
        (torch.zeros(2, 5, 2), [0.0], None, "the state must be a tensor, got list"),
        (torch.zeros(2, 5, 2), torch.zeros(2, 4, device="meta"), None, "the state is on meta, the system on cpu"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(u, x, elapsed, message):
    A, B, C, D = matrices()
    with pytest.raises(BadInput, match=message):
        LinearSystem.discrete(A, B, C, D)(u, x, elapsed=elapsed)


@pytest.mark.parametrize(
    ("elapsed", "message"),
    [
        (torch.ones(2, 9), r"elapsed of shape \(2, 5\), got \(2, 9\)"),
        (1.0, r"elapsed of shape \(2, 5\), got float"),
        (torch.full((2, 5), -1.0), "a number from 0 on"),
        (torch.full((2, 5), math.nan), "a number from 0 on"),
    ],
)
def test_times_that_are_none_are_refused(elapsed, message):
    with pytest.raises(BadInput, match=message):
        LinearSystem(*matrices())(torch.zeros(2, 5, 2), elapsed=elapsed)


def test_no_kernel_has_a_negative_length():
    with pytest.raises(BadInput, match="length must be at least 0, got -1"):
        LinearSystem(*matrices()).kernel(-1)


@pytest.mark.parametrize(("transform", "eigenvalue"), [("backward_euler", 1.0), ("bilinear", 2.0)])
def test_a_pole_of_the_transform_is_named(transform, eigenvalue):
    system = LinearSystem(eigenvalue * torch.eye(2), torch.ones(2, 1), transform=transform)
    with pytest.raises(BadInput, match="has a pole where dt times an eigenvalue"):
        system(torch.ones(1, 3, 1))


@pytest.mark.parametrize(("B", "T", "M"), [(0, 5, 2), (2, 0, 2), (2, 5, 0), (0, 0, 2)])
def test_the_convolution_of_nothing_is_the_recurrence(B, T, M):
    A, inputs, C, D = matrices(M=M)
    system, x = LinearSystem(A, inputs, C, D, dt=STEP), torch.randn(B, 4)
    y, last = system.convolution(torch.randn(B, T, M), x)
    expected = system(torch.zeros(B, T, M), x)
    torch.testing.assert_close((y, last), expected)
    assert y.shape == (B, T, 3)


def test_a_state_made_elsewhere_and_a_step_of_another_precision_are_brought_to_the_system():
    A, B, C, D = matrices()
    system = LinearSystem(torch.nn.Parameter(A), B, C, D, dt=torch.tensor(STEP, dtype=torch.float32))
    assert system.dt.dtype == torch.float64
    u = torch.randn(2, 6, 2)
    with torch.inference_mode():
        _, closed = system(u[:, :3])
    y, last = system(u[:, 3:], closed)
    y.sum().backward()
    assert system.A.grad.abs().max() > 0
    torch.testing.assert_close(last, system(u)[1])
    _, narrow = system(u[:, 3:], closed.float())
    assert narrow.dtype == torch.float64
    torch.testing.assert_close(narrow, last, atol=1e-5, rtol=1e-5)


def test_systems_are_no_families():
    assert not {"linearsystem", "gaussiansystem"} & set(families())
