"""Energies and scores as objects: shapes, slopes, the algebra, conditions, what is known, and what happens to bad input."""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from conca.energy import DoubleWell, Energy, Gaussian, Score, descent, mala, mixture, sample, ula
from conca.types import BadInput


class Pull(Score):
    """Knows the way to `target`, and no energy."""

    def score(self, x, target=0.0):
        return target - x


class Tied(Energy):
    """|x - y|^2 / 2 at inverse temperature t."""

    def forward(self, x, y, t=1.0):
        return t * 0.5 * (x - y).square().sum(1)


def bowl(size=2):
    return Gaussian(torch.zeros(size), torch.eye(size))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


FIRST = torch.tensor([True, False])


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        (lambda self, x: x.square(), r"shape \(3, 2\)"),
        (lambda self, x: x.square().sum(), r"shape \(\)"),
        (lambda self, x: x.square().sum(1, keepdim=True), r"shape \(3, 1\)"),
        (lambda self, x: 1.0, "float"),
    ],
)
def test_an_energy_of_the_wrong_shape_names_its_class(forward, found):
    energy = type("Lopsided", (Energy,), {"forward": forward})()
    with pytest.raises(BadInput, match=rf"Lopsided.*\(3,\).*{found}"):
        energy(torch.ones(3, 2))


def test_what_is_not_floating_point_has_an_energy_and_no_slope():
    whole = torch.ones(3, 2, dtype=torch.int64)
    assert DoubleWell()(whole).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(BadInput, match="DoubleWell has a slope at floating-point x alone"):
        DoubleWell().score(whole)
    with pytest.raises(BadInput, match="floating-point"):
        Pull().evaluate(whole)


def test_a_point_without_a_batch_is_refused():
    with pytest.raises(BadInput, match="batch"):
        DoubleWell()(torch.tensor(1.0))


def test_a_slope_of_another_shape_or_dtype_is_refused():
    for score in (lambda self, x: x[:, :1], lambda self, x: x.float()):
        with pytest.raises(BadInput, match=r"Odd\.score"):
            type("Odd", (Score,), {"score": score})().evaluate(torch.ones(3, 2))
    with pytest.raises(NotImplementedError, match="Score must define"):
        Score().score(torch.ones(3, 2))


def test_energies_add_scale_and_stay_energies():
    x, e, f = torch.randn(4, 2), bowl(), DoubleWell()
    for made, value in (
        (e + f, e(x) + f(x)),
        (e - 2 * f, e(x) - 2 * f(x)),
        (e / 4, e(x) / 4),
        (-e, -e(x)),
        (sum([e, f, f]), e(x) + 2 * f(x)),
        *((number(3) * e, 3 * e(x)) for number in (np.float64, np.float32, np.int64, np.uint8, Fraction)),
        *((e * number(3) + e / number(3), 10 / 3 * e(x)) for number in (np.float64, np.float32, np.int64, Fraction)),
        (e * torch.tensor(0.5), e(x) / 2),
        (torch.tensor(0.5) * e, e(x) / 2),
        (e * torch.tensor([1.0, 2.0, 3.0, 4.0]), e(x) * torch.arange(1, 5)),
        (2 * (e + 3 * f), 2 * e(x) + 6 * f(x)),
    ):
        assert isinstance(made, Energy)
        torch.testing.assert_close(made(x), value)


def test_what_does_not_add_says_so():
    for wrong in (
        lambda e: e + 1,
        lambda e: 1 + e,
        lambda e: e + nn.Linear(2, 1),
        lambda e: e * "a",
        lambda e: e - 0.5,
        lambda e: e / "2",
        lambda e: np.ones(4) * e,
    ):
        with pytest.raises(TypeError):
            wrong(bowl())
    with pytest.raises(BadInput, match="finite"):
        float("nan") * bowl()
    for ask in (type(bowl()).__call__, Energy.score):
        with pytest.raises(BadInput, match=r"one per row, \(1,\), not of shape \(4,\)"):
            ask(bowl() * torch.ones(4), torch.zeros(1, 2))


def test_a_slope_adds_and_scales_and_is_refused_where_energies_are_compared():
    x, e, s = torch.randn(4, 2), bowl(), Pull()
    for made, value in (
        (e + s, -2 * x),
        (s - e, 0 * x),
        (2 * s + e, -3 * x),
        (sum([s, s]), -2 * x),
        (s * torch.tensor([1.0, 2.0, 3.0, 4.0]), -x * torch.arange(1, 5)[:, None]),
    ):
        assert not isinstance(made, Energy)
        torch.testing.assert_close(made.score(x), value)
        assert made.evaluate(x)[0] is None
        with pytest.raises(TypeError, match="knows only its slope; use ula"):
            sample(made, mala(0.1), x, 1, generator=seeded())
        chain, info = sample(made, ula(0.1), x, 2, generator=seeded())
        assert chain.shape == (2, 4, 2)
        assert set(info) == {"slope"}
    with pytest.raises(TypeError, match="only a slope"):
        mixture(e, s)


def test_a_slope_holds_what_is_known_whatever_the_other_parts_say():
    known, start = torch.tensor([0.3, float("nan")]), torch.full((4, 2), 2.0)
    held = Pull().given(known, FIRST)
    for made in (held, held + bowl(), bowl() + 0.5 * held, held.on(target=1.0)):
        assert not made.score(start)[:, 0].any()
        assert made.free(start).tolist() == [[False, True]] * 4
        chain, _ = sample(made, ula(0.1), start, 5, generator=seeded())
        assert (chain[..., 0] == 0.3).all()
        assert (chain[-1, :, 1] != 2).all()


def test_tensor_weights_move_are_saved_and_train():
    weight = nn.Parameter(torch.tensor(2.0))
    energy = weight * bowl() + torch.tensor(3.0) * DoubleWell()
    assert [p is weight for p in energy.parameters()] == [True]
    state = energy.state_dict()
    assert {n.rpartition(".")[2] for n in state} >= {"weight_0", "mean", "precision"}
    x = torch.randn(4, 2)
    before = energy(x).detach()
    with torch.no_grad():
        weight.mul_(2)
    torch.testing.assert_close(energy(x).detach(), before + 2 * bowl()(x))
    energy.score(x).square().sum().backward()
    assert weight.grad is not None
    single = copy.deepcopy(energy).float()
    assert single(x.float()).dtype == torch.float32
    assert all(t.dtype == torch.float32 for t in single.state_dict().values())
    other = nn.Parameter(torch.tensor(0.0)) * bowl() + torch.tensor(0.0) * DoubleWell()
    other.load_state_dict(state)
    assert other(x).shape == (4,)


def test_weights_of_a_mixture_are_proportions_or_an_error():
    low, high = Gaussian(torch.zeros(1), torch.eye(1)), Gaussian(torch.ones(1), torch.eye(1))
    x = torch.linspace(-12, 12, 4001)[:, None]
    density = torch.exp(-mixture(low, high, weights=[0.3, 0.7])(x))
    assert abs(density.sum().item() * (24 / 4000) - 1) < 1e-10
    assert abs((density * x[:, 0]).sum().item() * (24 / 4000) - 0.7) < 1e-10
    for weights in ([1.0], [1.0, -1.0], [1.0, float("nan")], torch.ones(2, 2)):
        with pytest.raises(BadInput, match="2 positive weights"):
            mixture(low, high, weights=weights)
    with pytest.raises(TypeError):
        mixture()


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_weights_of_a_mixture_are_as_exact_as_x(default):
    x = torch.randn(50, 2)
    e, f = bowl(), Gaussian(torch.ones(2), torch.eye(2))
    torch.set_default_dtype(default)
    wanted = -torch.logaddexp(math.log(0.3) - e(x), math.log(0.7) - f(x))
    for weights in ([0.3, 0.7], (0.3, 0.7), np.array([0.3, 0.7]), torch.tensor([0.3, 0.7], dtype=torch.float64)):
        for made in (mixture(e, f, weights=weights), mixture(e, f, weights=weights).on()):
            torch.testing.assert_close(made(x), wanted, atol=1e-15, rtol=1e-15)
            assert copy.deepcopy(made).float()(x.float()).dtype == torch.float32
    assert mixture(e, f, weights=[1e-60, 1e-60])(x).isfinite().all()
    trained = nn.Parameter(torch.tensor([0.3, 0.7]))
    mixture(e, f, weights=trained)(x).sum().backward()
    assert trained.grad.ne(0).all()


def test_conditions_are_bound_moved_and_handed_to_the_parts_that_read_them():
    x, y = torch.randn(4, 2), torch.randn(4, 2)
    tied = Tied()
    assert tied.conditions() == {"y", "t"}
    bound = tied.on(y=y)
    torch.testing.assert_close(bound(x), tied(x, y=y))
    torch.testing.assert_close(bound.score(x), y - x)
    assert bound.conditions() == {"t"}
    torch.testing.assert_close(bound.at(3.0).score(x), 3 * (y - x))
    torch.testing.assert_close(bound.at(torch.tensor(3.0)).float().score(x.float()), 3 * (y - x).float())
    assert "on_y" in bound.state_dict()
    mask = FIRST
    for made, value in (
        ((tied + bowl()).on(y=y), y - 2 * x),
        ((bowl() + 2 * tied).at(2.0).on(y=y), 4 * (y - x) - x),
        (mixture(tied, tied).on(y=y), y - x),
        (tied.given(torch.zeros(2), mask).on(y=y), torch.where(mask, 0, y - x)),
        ((tied + Pull()).on(y=y, target=1.0), y - x + 1 - x),
        (Pull().on(target=y), y - x),
    ):
        torch.testing.assert_close(made.score(x), value)
    with pytest.raises(BadInput, match="no condition 'yy'; did you mean 'y'"):
        tied.on(yy=y)
    with pytest.raises(BadInput, match="no condition 'y'; it takes no conditions"):
        bowl().on(y=y)
    for again in (bound, bound.at(2.0), bound + bowl(), mixture(bound, bowl()).given(y[0], mask), Pull().on(target=y)):
        name = "target" if isinstance(again, Score) and not isinstance(again, Energy) else "y"
        with pytest.raises(
            BadInput, match=f"'{name}' is bound already in this .*on the landscape that it was made from"
        ):
            again.on(**{name: y})
    torch.testing.assert_close((bound + tied).on(y=2 * y).score(x), 3 * y - 2 * x, msg="the part that is still free")
    with pytest.raises(TypeError, match="'y'"):
        tied(x)


def test_a_condition_that_hangs_on_x_is_not_differentiated():
    x = torch.randn(4, 2, requires_grad=True)
    score = Tied().on(y=3 * x).score(x)
    torch.testing.assert_close(score, 2 * x)
    (second,) = torch.autograd.grad(score.sum(), x)
    torch.testing.assert_close(
        second, torch.full_like(x, 2.0), msg="where the slope is trained through, both paths count"
    )


def test_what_is_composed_under_inference_mode_works_outside():
    x = torch.randn(4, 2)
    with torch.inference_mode():
        energy = (bowl() * torch.tensor(2.0)).given(torch.zeros(2), FIRST) + Tied().on(y=torch.ones(2))
        inside = energy.score(x)
    torch.testing.assert_close(energy.score(x), inside)


@pytest.mark.parametrize(
    ("known", "mask", "says"),
    [
        (torch.zeros(2), torch.tensor([1.0, 0.0]), "must be bool"),
        (torch.tensor([float("nan"), 0.0]), FIRST, "must be finite"),
        (torch.zeros(3), FIRST, "do not broadcast"),
        (torch.zeros(5, 2), FIRST, r"do not broadcast to \(4, 2\)"),
        (torch.zeros(2), torch.ones(4, 2, 2, dtype=torch.bool), r"do not broadcast to \(4, 2\)"),
    ],
)
def test_what_is_known_must_fit(known, mask, says):
    with pytest.raises(BadInput, match=says):
        bowl().given(known, mask)(torch.zeros(4, 2))


def test_each_row_may_know_something_else():
    mask = torch.tensor([[True, False], [False, True], [True, True], [False, False]])
    known = torch.arange(8.0).reshape(4, 2)
    chain, info = sample(bowl().given(known, mask), mala(0.3), torch.zeros(4, 2), 20, generator=seeded())
    assert torch.equal(chain[:, mask], known[mask].expand(20, -1))
    assert (chain[-1][~mask] != 0).all()
    assert (info["slope"][:, 2] == 0).all()


def test_knowing_two_things_of_one_coordinate_is_an_error():
    one, other = (bowl().given(torch.full((2,), v), FIRST) for v in (0.0, 1.0))
    second = bowl().given(torch.ones(2), ~FIRST)
    for made in (one + other, mixture(one, other), one.given(torch.ones(2), FIRST), 2 * (second + (one - other))):
        with pytest.raises(BadInput, match="different values of the same coordinate"):
            sample(made, descent(0.1), torch.zeros(4, 2), 1)
    chain, _ = sample(one + second, descent(0.1), torch.zeros(4, 2), 1)
    assert chain[0].tolist() == [[0.0, 1.0]] * 4


def test_points_of_any_shape():
    for shape in ((), (3,), (1, 8, 8)):
        energy = DoubleWell(shape=shape) + 0.5 * Gaussian(
            torch.zeros(shape), torch.eye(max(1, torch.Size(shape).numel()))
        )
        x = torch.randn(5, *shape)
        assert energy(x).shape == (5,)
        for kernel in (descent(0.01), ula(0.01), mala(0.01)):
            chain, info = sample(energy, kernel, x, 3, generator=seeded())
            assert chain.shape == (3, 5, *shape)
            assert info["energy"].shape == (3, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_chain_keeps_its_dtype(dtype):
    energy = (bowl().to(dtype) + DoubleWell()).given(torch.zeros(2), FIRST)
    for kernel in (descent(0.01), ula(0.01), mala(0.01)):
        chain, info = sample(energy, kernel, torch.ones(3, 2, dtype=dtype), 3, generator=seeded())
        assert chain.dtype == info["energy"].dtype == dtype


def test_the_energy_is_trained_through_its_slope():
    torch.manual_seed(0)
    data = torch.randn(500, 2) + torch.tensor([1.0, -2.0])
    mean = nn.Parameter(torch.zeros(2))
    energy = Gaussian(mean, torch.eye(2))
    optimizer = torch.optim.SGD([mean], lr=0.5)
    for _ in range(30):  # denoising: the slope at a noisy point leads back to the data
        noise = torch.randn(500, 2)
        loss = (energy.score(data + noise) + noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(mean.detach(), torch.tensor([1.0, -2.0]), atol=0.3, rtol=0)


def test_asking_for_energy_and_slope_keeps_the_graph_only_with_gradients():
    x = torch.randn(3, 2, requires_grad=True)
    energy, score = DoubleWell().evaluate(x)
    assert energy.requires_grad
    assert score.requires_grad
    with torch.no_grad():
        energy, score = DoubleWell().evaluate(x)
    assert not energy.requires_grad
    assert not score.requires_grad
    assert x.grad is None


def test_composites_print_and_copy():
    energy = mixture((2 * bowl()).given(torch.zeros(2), FIRST), Tied().on(y=torch.ones(2), t=3.0))
    text = repr(energy)
    assert all(word in text for word in ("Mixture", "Given", "Sum", "weights=2", "Gaussian", "Bound"))
    x = torch.randn(3, 2)
    torch.testing.assert_close(copy.deepcopy(energy)(x), energy(x))
