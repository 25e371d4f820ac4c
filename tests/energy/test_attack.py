"""Projected ascent where its end is known: on a linear classifier it is a corner of the box, or a step along the weights."""

import copy

import pytest
import torch
from torch import nn

from conca.energy.attack import pgd
from conca.types import BadInput

NORMS = ("linf", "l2")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def linear(weights):
    """Two classes: the logit of class 1 is w x, that of class 0 is 0."""
    net = nn.Linear(len(weights), 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.stack([torch.zeros(len(weights)), torch.tensor(weights)]))
    return net


def crooked(width=6, classes=4):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, classes))


def lengths(change, norm):
    return change.flatten(1).abs().amax(1) if norm == "linf" else change.flatten(1).norm(dim=1)


@pytest.mark.parametrize("start", [None, 1])
def test_on_a_linear_classifier_it_goes_where_it_is_known_to(start):
    w = torch.tensor([3.0, -4.0, 1e-3, 0.0])
    x, y = torch.randn(8, 4, generator=seeded()), torch.arange(8) % 2
    way = torch.where(y == 0, 1.0, -1.0)[:, None]
    draw = seeded(start) if start is not None else None
    corner = pgd(linear(w.tolist()), x, y, 0.3, norm="linf", generator=draw) - x
    along = pgd(linear(w.tolist()), x, y, 0.3, norm="l2", step=0.3, generator=draw) - x
    seen = w != 0  # where the weight is 0 nothing is known but the ball
    torch.testing.assert_close(corner[:, seen], (0.3 * way * w.sign())[:, seen])
    torch.testing.assert_close(along, 0.3 * way * w / w.norm(), atol=1e-7, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [0.0, 0.05, 0.7])
@pytest.mark.parametrize("start", [None, 1])
def test_it_leaves_neither_the_ball_nor_the_bounds(norm, size, start):
    x = torch.rand(40, 6, generator=seeded())
    x[0], x[1] = 0.0, 1.0
    draw = seeded(start) if start is not None else None
    near = pgd(crooked(), x, torch.arange(40) % 4, size, norm=norm, step=0.5, bounds=(0.0, 1.0), generator=draw)
    assert near.min() >= 0 and near.max() <= 1
    assert lengths(near - x, norm).max() <= size * (1 + 1e-12)
    assert torch.equal(near, x) == (size == 0)


@pytest.mark.parametrize("norm", NORMS)
def test_cross_entropy_never_falls_and_rises_with_the_size(norm):
    net, x, y = crooked(), torch.randn(40, 2, 3, generator=seeded()), torch.arange(40) % 4
    net = nn.Sequential(nn.Flatten(), net)
    before, harm = nn.functional.cross_entropy(net(x), y, reduction="none"), []
    for size in (0.1, 0.3, 1.0):
        after = nn.functional.cross_entropy(net(pgd(net, x, y, size, norm=norm)), y, reduction="none")
        assert bool((after > before).all())
        noise = torch.randn(200, *x.shape, generator=seeded())
        noise = size * (noise.sign() if norm == "linf" else noise / noise.flatten(2).norm(dim=2)[..., None, None])
        tried = torch.stack([nn.functional.cross_entropy(net(x + z), y, reduction="none") for z in noise]).amax(0)
        assert (after > 0.999 * tried).double().mean() > 0.8, "the best of 200 corners is rarely better"
        harm.append(after.mean().item())
    assert harm == sorted(harm)


@pytest.mark.parametrize("norm", NORMS)
def test_of_the_steps_the_highest_is_returned(norm):
    """A stride as wide as the ball jumps over a bump right beside x and back."""

    class Bump(nn.Module):
        def forward(self, x):
            return torch.stack([torch.zeros(len(x)), torch.exp(-((x[:, 0] - 0.3) ** 2) / 0.02)], 1)

    x, y = torch.tensor([[0.25]]), torch.tensor([0])
    near = pgd(Bump(), x, y, 1.0, norm=norm, steps=1, step=1.0)
    assert torch.equal(near, x)


@pytest.mark.parametrize("norm", NORMS)
def test_it_is_not_stopped_by_a_network_that_is_very_sure(norm):
    """The softmax of logits this large is exactly 1, and the slope of the cross entropy exactly 0."""
    net, x = linear([3e4, -4e4]), torch.tensor([[1.0, -1.0]])
    y, change = torch.tensor([1]), {"linf": [[-0.5, 0.5]], "l2": [[-0.3, 0.4]]}[norm]
    torch.testing.assert_close(pgd(net, x, y, 0.5, norm=norm) - x, torch.tensor(change))


@pytest.mark.parametrize("norm", NORMS)
def test_rows_are_apart_and_a_flat_row_stays(norm):
    class Cliff(nn.Module):
        def forward(self, x):
            return crooked()(x.relu())

    x, y = torch.rand(5, 6, generator=seeded()) + 0.5, torch.tensor([0, 1, 2, 3, 0])
    x[3] = -9.0
    whole = pgd(Cliff(), x, y, 0.2, norm=norm)
    alone = torch.cat([pgd(Cliff(), x[k : k + 1], y[k : k + 1], 0.2, norm=norm) for k in range(5)])
    torch.testing.assert_close(whole, alone)
    assert torch.equal(whole[3], x[3]) and not bool((whole[[0, 1, 2, 4]] == x[[0, 1, 2, 4]]).any())
    assert pgd(Cliff(), x[:0], y[:0], 0.2, norm=norm, generator=seeded()).shape == (0, 6)


@pytest.mark.parametrize("norm", NORMS)
def test_the_start_is_uniform_in_the_ball_and_its_generators_own(norm):
    flat = nn.Linear(3, 2)
    nn.init.zeros_(flat.weight)
    x, y = torch.zeros(20_000, 3), torch.zeros(20_000, dtype=torch.long)
    state = torch.get_rng_state()
    near = pgd(flat, x, y, 2.0, norm=norm, steps=1, generator=seeded())
    assert torch.equal(near, pgd(flat, x, y, 2.0, norm=norm, steps=1, generator=seeded()))
    assert torch.equal(torch.get_rng_state(), state)
    share = (lengths(near, norm) < 1.0).double().mean().item()
    assert abs(share - 1 / 8) < 5 * (1 / 8 * 7 / 8 / 20_000) ** 0.5, "half the radius is an eighth of the volume"


def test_the_network_is_left_as_it_was():
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    net[1].eval()
    net[3].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x, y = torch.randn(5, 6, generator=seeded()).requires_grad_(), torch.zeros(5, dtype=torch.long)
    kept = x.detach().clone()
    with torch.no_grad():
        near = pgd(net, x, y, 0.1, generator=seeded())
    calm = pgd(copy.deepcopy(net).eval(), x, y, 0.1, generator=seeded())
    assert torch.equal(calm, near), "dropout is off, and batches have no mean"
    with torch.inference_mode():
        assert torch.equal(pgd(net, x, y, 0.1, generator=seeded()), near)
    assert [part.training for part in net] == [True, False, True, True] and not net[3].weight.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert x.grad is None and torch.equal(x, kept) and not near.requires_grad


class Lost(nn.Module):
    def forward(self, x):
        return torch.full((len(x), 2), float("nan"))


class Cut(nn.Module):
    def forward(self, x):
        return x.detach()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm": "l1"}, "norm must be 'linf' or 'l2', not 'l1'"),
        ({"size": -0.1}, "the size of an attack must be 0 or more and finite, not -0.1"),
        ({"size": float("nan")}, "the size of an attack"),
        ({"size": "0.1"}, "the size of an attack"),
        ({"steps": 0}, "the steps of an attack must be a whole number"),
        ({"step": 0.0}, "the step of an attack must be positive"),
        ({"bounds": (1.0, 0.0)}, r"bounds are \(low, high\)"),
        ({"bounds": (0.0, 1.0)}, "the data lie between -2 and 3, out of bounds"),
        ({"x": torch.ones(2, 3, dtype=torch.long)}, "floating-point data"),
        ({"y": torch.tensor([0])}, "labels must be whole numbers, one per row"),
        ({"y": torch.tensor([0, 3])}, "labels must lie between 0 and 2"),
        ({"net": nn.Flatten(0)}, "needs logits of two classes or more"),
        ({"net": nn.Linear(3, 1)}, "needs logits of two classes or more"),
        ({"net": Lost()}, "the logits of 2 of 2 rows are not finite"),
        ({"net": Cut()}, "the logits have no slope in x"),
    ],
)
def test_what_cannot_be_attacked_is_refused(change, words):
    x = torch.tensor([[-2.0, 0.0, 1.0], [0.5, 3.0, 0.0]])
    given = {"net": nn.Linear(3, 3), "x": x, "y": torch.tensor([0, 1]), "size": 0.1} | change
    with pytest.raises(BadInput, match=words):
        pgd(**given)
