"""Losses, the buffer and the recipes: gradients in closed form, fits compared by quadrature, and what is written back."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from conca.energy import (
    ClassifierEnergy,
    DenoiserScore,
    Divergence,
    Energy,
    Gaussian,
    GaussianMixture,
    NetworkEnergy,
    ReplayBuffer,
    anatomy,
    contrastive_divergence,
    denoising_score_matching,
    energy_margin,
    igebm,
    improved_cd,
    jem,
    jem_recipe,
    log_z_grid,
    margins,
    noise_contrastive,
    short_run,
    sliced_score_matching,
)
from conca.types import BadInput


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Bowl(Energy):
    """E = stiffness (x - mean)^2 / 2, both trained."""

    shape = (1,)

    def __init__(self, mean=0.0, stiffness=1.0):
        super().__init__()
        self.mean, self.stiffness = nn.Parameter(torch.tensor(mean)), nn.Parameter(torch.tensor(stiffness))

    def forward(self, x):
        return self.stiffness * (x - self.mean).square().sum(1) / 2


def fitted(energy, loss, steps, lr=0.05, extra=()):
    optimizer = torch.optim.Adam([*energy.parameters(), *extra], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return energy


def test_the_gradient_of_contrastive_divergence_is_a_difference_of_moments():
    energy, x, x_model = Bowl(0.3, 2.0), torch.randn(50, 1), torch.randn(50, 1) + 1
    contrastive_divergence(energy, x, x_model).backward()
    expected = -2.0 * ((x - 0.3).mean() - (x_model - 0.3).mean())
    torch.testing.assert_close(energy.mean.grad, expected)
    half = ((x - 0.3).square().mean() - (x_model - 0.3).square().mean()) / 2
    torch.testing.assert_close(energy.stiffness.grad, half)
    low, high = energy(x), energy(x_model)
    each = contrastive_divergence(energy, x, x_model, l2=0.5, reduction="none")
    torch.testing.assert_close(each, low - high + 0.5 * (low.square() + high.square()))


def test_no_gradient_goes_into_chains_or_data():
    x, x_model = torch.randn(4, 1, requires_grad=True), torch.randn(4, 1, requires_grad=True)
    contrastive_divergence(Bowl(), x, x_model).backward()
    assert x.grad is None and x_model.grad is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2000.0])
def test_divergence_is_loud(value):
    class Sick(Energy):
        def forward(self, x):
            return torch.where(x[:, 0] > 0, value, 0.0 * x[:, 0])

    x = torch.tensor([[-1.0], [1.0], [-1.0]])
    with pytest.raises(Divergence, match="the training diverged: 1 of 3") as raised:
        contrastive_divergence(Sick(), x, x, limit=1000.0)
    assert raised.value.rows == 1 and raised.value.batch == 3
    assert value != value or raised.value.energy == value


def test_denoising_finds_the_slope_of_the_noised_data():
    """Of data from N(1, 0.25) with noise of deviation 0.5: mean 1, precision 2."""
    x, draw = 1 + 0.5 * torch.randn(4000, 1, generator=seeded(1)), seeded()
    energy = Bowl()
    fitted(energy, lambda: denoising_score_matching(energy, x, 0.5, generator=draw), 200)
    assert energy.mean.item() == pytest.approx(1.0, abs=0.06)
    assert energy.stiffness.item() == pytest.approx(2.0, abs=0.15)


def test_denoising_asks_each_row_at_its_own_level():
    seen = []

    def denoise(x, t):
        seen.append(t)
        return x

    levels = torch.linspace(0.1, 1.0, 5)
    loss = denoising_score_matching(
        DenoiserScore(denoise), torch.zeros(5, 2), levels, generator=seeded(), reduction="none"
    )
    assert loss.shape == (5,) and torch.equal(seen[0], levels)
    with pytest.raises(BadInput, match="sigma must be positive"):
        denoising_score_matching(Bowl(), torch.zeros(5, 1), 0.0, generator=seeded())


def test_sliced_score_matching_is_the_trace_on_average():
    torch.manual_seed(0)
    energy = NetworkEnergy(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), (2,))
    x = torch.randn(3, 2)
    jacobian = torch.stack([torch.autograd.functional.jacobian(lambda z: energy.score(z[None])[0], row) for row in x])
    exact = energy.score(x).square().sum(1) / 2 + jacobian.diagonal(dim1=1, dim2=2).sum(1)
    found = sliced_score_matching(energy, x, slices=4000, generator=seeded(), reduction="none")
    torch.testing.assert_close(found, exact, atol=0.02, rtol=0)
    bowl, data, draw = Bowl(), 1 + 0.5 * torch.randn(4000, 1, generator=seeded(1)), seeded()
    fitted(bowl, lambda: sliced_score_matching(bowl, data, generator=draw), 300)
    assert bowl.mean.item() == pytest.approx(1.0, abs=0.05) and bowl.stiffness.item() == pytest.approx(4.0, abs=0.3)


def test_noise_contrast_learns_log_z_too():
    """exp(-2 (x - 1)^2 / 2) has the integral sqrt(2 pi / 2)."""
    x = 1 + 0.5**0.5 * torch.randn(20_000, 1, generator=seeded(1))
    noise = Gaussian(torch.zeros(1), 4 * torch.eye(1))
    x_noise, log_z, energy = noise.draw(20_000, seeded(2)), nn.Parameter(torch.tensor(0.0)), Bowl()
    fitted(energy, lambda: noise_contrastive(energy, x, x_noise, noise, log_z), 250, extra=[log_z])
    assert energy.mean.item() == pytest.approx(1.0, abs=0.05) and energy.stiffness.item() == pytest.approx(
        2.0, abs=0.15
    )
    assert log_z.item() == pytest.approx(math.log(math.sqrt(math.pi)), abs=0.06)


def kl(energy, target):
    """KL(target || energy) by quadrature, nats."""
    side = torch.linspace(-4, 4, 161)[:-1] + 0.025
    grid = torch.cartesian_prod(side, side)
    with torch.no_grad():
        log_p, log_q = -target(grid), -energy(grid) - log_z_grid(energy, -4, 4, 160)
        return float((log_p.exp() * (log_p - log_q)).sum() * 0.05**2)


def plane(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    return NetworkEnergy(net, (2,)) + Gaussian(torch.zeros(2), 9 * torch.eye(2))


@pytest.mark.parametrize("how", ["persistent", "noise contrast", "sliced"])
def test_a_ring_of_eight_bowls_is_learnt(how):
    target, draw = GaussianMixture.eight(scale=0.4), seeded()
    energy, recipe = plane(), dataclasses.replace(anatomy(0.25), steps=15, size=500)
    buffer, noise = recipe.buffer((2,), generator=draw), Gaussian(torch.zeros(2), 4 * torch.eye(2))
    log_z = nn.Parameter(torch.tensor(0.0))

    def loss():
        x = target.draw(256, draw)
        if how == "persistent":
            return contrastive_divergence(energy, x, recipe.negatives(energy, 256, buffer, generator=draw))
        if how == "sliced":
            return sliced_score_matching(energy, x, generator=draw)
        return noise_contrastive(energy, x, noise.draw(256, draw), noise, log_z)

    before = kl(energy, target)
    fitted(energy, loss, {"persistent": 200, "noise contrast": 250, "sliced": 250}[how], 0.01, [log_z])
    after = kl(energy, target)
    assert before > 0.9 and after < 0.3, after


def test_jem_is_cross_entropy_and_contrastive_divergence():
    energy, x, y, x_model = (
        ClassifierEnergy(nn.Linear(2, 3), (2,)),
        torch.randn(6, 2),
        torch.arange(6) % 3,
        torch.randn(6, 2),
    )
    crossed = nn.functional.cross_entropy(energy.net(x), y, reduction="none")
    torch.testing.assert_close(
        jem(energy, x, y, x_model, weight=0.5, l2=0.1, reduction="none"),
        crossed + 0.5 * contrastive_divergence(energy, x, x_model, l2=0.1, reduction="none"),
    )
    torch.testing.assert_close(jem(energy, x, y, x_model, weight=0.0), crossed.mean())
    with pytest.raises(BadInput, match="between 0 and 2"):
        jem(energy, x, y + 1, x_model)


def test_margins_come_from_what_was_observed_and_keep_their_order():
    inside, outside = torch.tensor([-10.0, -8.0]), torch.tensor([-4.0, -2.0])
    assert margins(inside, outside) == (-9.0, -3.0)
    low, high = margins(outside, inside)  # strange data that lie lower: still the order that the loss needs
    assert low < high
    torch.testing.assert_close(energy_margin(inside, outside, -9.0, -3.0), torch.tensor(0.5 + 0.5))
    torch.testing.assert_close(
        energy_margin(inside, outside, -9.0, -3.0, reduction="none"), torch.tensor([0.0, 1, 1, 0])
    )
    with pytest.raises(BadInput, match="must be below m_out"):
        energy_margin(inside, outside, -3.0, -9.0)
    with pytest.raises(BadInput, match="all energies observed are alike"):
        margins(inside[:1], inside[:1])
    with pytest.raises(BadInput, match="outside has none such"):
        margins(inside, outside[:0])


def start(n, generator):
    return torch.rand(n, 2, generator=generator)


def test_a_buffer_writes_back_at_the_indices_it_drew():
    buffer = ReplayBuffer(20, start, restart=0.3, generator=seeded())
    before = buffer.places.clone()
    x, index = buffer.draw(12)
    assert len(index.unique()) == 12 and torch.equal(buffer.places, before)
    fresh = (x != before[index]).any(1)
    assert 0 < fresh.sum() < 12
    buffer.put(index, x + 5)
    rest = [i for i in range(20) if i not in index.tolist()]
    assert torch.equal(buffer.places[index], x + 5) and torch.equal(buffer.places[rest], before[rest])


def test_the_share_of_restarts_is_what_it_is_said_to_be():
    buffer, count = ReplayBuffer(2000, lambda n, g: torch.zeros(n, 1), restart=0.05, generator=seeded()), 0
    buffer.places += 1
    for _ in range(10):
        count += int((buffer.draw(2000)[0] == 0).sum())
    assert abs(count / 20_000 - 0.05) < 5 * (0.05 * 0.95 / 20_000) ** 0.5
    always, never = (ReplayBuffer(9, start, restart=share, generator=seeded()) for share in (1.0, 0.0))
    assert not (always.draw(9)[0] == always.places).all(1).any()
    x, index = never.draw(9)
    assert torch.equal(x, never.places[index])


def test_classes_have_parts_of_their_own():
    buffer = ReplayBuffer(10, start, n_classes=3, generator=seeded())
    assert [len(buffer.part(k)) for k in range(3)] == [3, 4, 3] and buffer.part(2).stop == 10
    y = torch.tensor([2, 0, 1, 1, 2])
    _, index = buffer.draw(5, y)
    assert all(i in buffer.part(k) for i, k in zip(index.tolist(), y.tolist()))
    for labels, line in ((torch.tensor([0] * 4), "4 places of class 0"), (torch.tensor([3]), "between 0 and 2")):
        with pytest.raises(BadInput, match=line):
            buffer.draw(len(labels), labels)
    with pytest.raises(BadInput, match="has a part for each class"):
        buffer.draw(2)
    with pytest.raises(BadInput, match="has no classes"):
        ReplayBuffer(4, start, generator=seeded()).draw(1, torch.tensor([0]))


def test_a_buffer_that_was_kept_draws_the_same():
    buffer, other = ReplayBuffer(30, start, generator=seeded()), ReplayBuffer(30, start, generator=seeded(9))
    buffer.draw(5)
    other.load_state_dict(buffer.state_dict())
    (x, index), (x_other, index_other) = buffer.draw(7), other.draw(7)
    assert torch.equal(index, index_other) and torch.equal(x, x_other)
    buffer.put(index, x + 1)
    assert not torch.equal(buffer.places, other.places)
    with pytest.raises(BadInput, match=r"not the state of a buffer of shape \(4, 2\)"):
        ReplayBuffer(4, start, generator=seeded()).load_state_dict(buffer.state_dict())


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: ReplayBuffer(0, start, generator=seeded()), "one place or more"),
        (lambda: ReplayBuffer(4, start, restart=1.5, generator=seeded()), "a share from 0 to 1"),
        (lambda: ReplayBuffer(4, start, n_classes=5, generator=seeded()), "n_classes must lie"),
        (lambda: ReplayBuffer(4, lambda n, g: torch.zeros(2, 2), generator=seeded()), "must give 4 finite places"),
        (lambda: ReplayBuffer(4, start, generator=seeded()).draw(5), "5 places are asked for"),
        (
            lambda: ReplayBuffer(4, start, generator=seeded()).put(torch.arange(2), torch.zeros(3, 2)),
            "go back at 2 indices",
        ),
        (
            lambda: ReplayBuffer(4, start, generator=seeded()).put(torch.arange(1), torch.full((1, 2), math.nan)),
            "not finite",
        ),
        (lambda: contrastive_divergence(Bowl(), torch.zeros(2, 1), torch.zeros(3, 1)), "as many places"),
        (
            lambda: contrastive_divergence(Bowl(), torch.zeros(2, 1), torch.zeros(2, 1), reduction="sum"),
            "reduction must be",
        ),
        (lambda: igebm().negatives(Bowl(), 4, generator=seeded()), "goes on from a buffer"),
    ],
)
def test_bad_input_gets_one_line(make, line):
    with pytest.raises(BadInput, match=line) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "recipe", [igebm(), improved_cd(), short_run(), anatomy(), jem_recipe()], ids=lambda r: r.source
)
def test_recipes_train_and_write_back(recipe):
    torch.manual_seed(0)
    net = recipe.normed(nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 1)))
    assert recipe.spectral == hasattr(net[0], "parametrizations")
    energy, draw = NetworkEnergy(net, (6,)), seeded()
    recipe = dataclasses.replace(recipe, steps=5, size=min(recipe.size, 50))
    buffer, optimizer = recipe.buffer((6,), generator=draw), recipe.optimizer(energy.parameters())
    assert (buffer is None) == (recipe.size == 0)
    before = None if buffer is None else buffer.places.clone()
    for _ in range(3):
        x = recipe.noised(recipe.start((6,))(16, draw), draw)
        x_model = recipe.negatives(energy, 16, buffer, generator=draw)
        optimizer.zero_grad()
        contrastive_divergence(energy, x, x_model, l2=recipe.l2, limit=recipe.limit).backward()
        optimizer.step()
    if buffer is not None:
        assert 16 <= int((buffer.places != before).any(1).sum()) <= 48
    assert recipe.source and recipe.kernel.temperature > 0


def test_slopes_and_margins_that_are_no_numbers_are_loud():
    class Sick(Bowl):
        def forward(self, x):
            return super().forward(x) * float("inf")

    x = torch.ones(3, 1)
    for loss in (
        lambda: denoising_score_matching(Sick(), x, 0.1, generator=seeded()),
        lambda: sliced_score_matching(Sick(), x, generator=seeded()),
        lambda: energy_margin(torch.tensor([float("nan")]), x[:, 0], -2.0, -1.0),
    ):
        with pytest.raises(Divergence):
            loss()


def test_a_buffer_changes_nothing_where_it_refuses():
    buffer = ReplayBuffer(5, start, generator=seeded())
    before = buffer.places.clone()
    for index in (torch.tensor([-1, 2]), torch.tensor([5, 2]), torch.tensor([2, 2])):
        with pytest.raises(BadInput, match="indices are those that draw gave"):
            buffer.put(index, torch.ones(2, 2))
    with pytest.raises(BadInput, match="not the state of a generator"):
        buffer.load_state_dict({"places": torch.ones(5, 2), "generator": torch.zeros(3, dtype=torch.uint8)})
    buffer.start, buffer.restart = (lambda n, g: torch.zeros(n, 1)), 1.0
    with pytest.raises(BadInput, match="always of one shape"):
        buffer.draw(2)
    assert torch.equal(buffer.places, before)
