"""Where a slope comes from: autograd, or the energy itself, and then alone as in every composite; a missing one is loud."""

import pytest
import torch
from torch import nn
from torch.func import grad, jacfwd, jacrev, vmap

from conca.energy import DoubleWell, Energy, Gaussian, Score, descent, mala, mixture, sample, ula
from conca.laws.energies import check_energy, composites
from conca.types import BadInput

FIRST = torch.tensor([True, False])


class Simulator(Energy):
    """|x - place|^2 / 2, computed by numpy, beside its slope."""

    shape = (2,)

    def forward(self, x, place=3.0):
        return torch.from_numpy(((x.detach().numpy() - float(place)) ** 2).sum(1) / 2).to(x.dtype)

    def score(self, x, place=3.0):
        return place - x


class Pulled(Energy):
    """The same in torch, detached from x, with a place that is trained."""

    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.tensor([1.0, -1.0]))

    def forward(self, x, place=3.0):
        return (x.detach() - place - self.offset).square().sum(1) / 2

    def score(self, x, place=3.0):
        return place + self.offset - x


class Mute(Energy):
    """The same, without its slope."""

    forward = Simulator.forward


def bowl(center=0.0):
    return Gaussian(torch.full((2,), center), torch.eye(2))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


COMPOSED = {
    "weighted": lambda e: 0.5 * e,
    "weighted by row": lambda e: e * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "sum": lambda e: e + e,
    "difference": lambda e: bowl(1.0) - e / 4,
    "mixture": lambda e: mixture(e, bowl(), weights=[0.3, 0.7]),
    "given": lambda e: e.given(torch.zeros(2), FIRST),
    "bound": lambda e: e.on(place=1.0),
    "nested": lambda e: mixture(2 * (e.on(place=torch.tensor(1.0)) + e), e.on(place=0.0).given(torch.ones(2), FIRST)),
}


@pytest.mark.parametrize("make", COMPOSED.values(), ids=COMPOSED)
def test_a_slope_of_its_own_survives_every_composition(make):
    class Followed(Energy):
        def forward(self, x, place=3.0):
            return (x - place).square().sum(1) / 2

    made, twin, x = make(Simulator()), make(Followed()), torch.randn(4, 2)
    for found, wanted in zip(made.evaluate(x), twin.evaluate(x)):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(made(x), twin(x))
    for kernel in (descent(0.1), ula(0.1), mala(0.1)):
        chain, _ = sample(made, kernel, x, 5, generator=seeded())
        torch.testing.assert_close(chain, sample(twin, kernel, x, 5, generator=seeded())[0])
        assert (chain[-1] != x).any()


@pytest.mark.parametrize("make", COMPOSED.values(), ids=COMPOSED)
def test_what_autograd_cannot_follow_is_loud_everywhere(make):
    for made in (Mute(), make(Mute())):
        for kernel in (descent(0.1), ula(0.1), mala(0.1)):
            with pytest.raises(
                BadInput, match=r"cannot follow Mute.forward back to x: give it its own score"
            ) as caught:
                sample(made, kernel, torch.randn(4, 2), 1, generator=seeded())
            assert "\n" not in str(caught.value)
        with pytest.raises(BadInput, match="Mute"):
            made.score(torch.randn(4, 2, requires_grad=True))


def test_an_energy_that_gives_its_own_slope_obeys_the_laws_alone_and_composed():
    for made in (Simulator(), *composites(Simulator()).values()):
        assert not [v for v in check_energy(made) if v.outcome == "broken"]


def test_a_flat_energy_says_so_itself():
    class Level(Energy):
        def __init__(self):
            super().__init__()
            self.level = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.level.expand(len(x))

    class Flat(Level):
        def score(self, x):
            return torch.zeros_like(x)

    x = torch.randn(4, 2)
    for start in (x, x.clone().requires_grad_()):
        with pytest.raises(BadInput, match="zeros_like"):
            Level().score(start)
        assert not Flat().score(start).any()
        torch.testing.assert_close((Flat() + bowl()).score(start), -x)
    assert Level().score(x[:0]).shape == (0, 2), "no coordinate, no slope"
    flat = Flat()
    (flat + bowl()).evaluate(x)[0].sum().backward()
    assert flat.level.grad == 4


def test_part_of_an_energy_that_is_walled_off_leaves_the_rest_its_slope():
    class Walled(Energy):
        def forward(self, x):
            return x.square().sum(1) + 100.0 * (x > 1).sum(1)

    torch.testing.assert_close(Walled().score(torch.ones(1, 2)), torch.full((1, 2), -2.0))


def test_a_slope_of_its_own_may_build_on_autograd():
    class Clipped(DoubleWell):
        def score(self, x):
            return super().score(x).clamp(-1, 1)

    x = 5 * torch.randn(4, 2)
    for made in (Clipped(), Clipped() * 1.0, Clipped().given(torch.zeros(2), torch.zeros(2, dtype=torch.bool))):
        torch.testing.assert_close(made.score(x), DoubleWell().score(x).clamp(-1, 1))


def test_an_energy_around_another_follows_its_own_slope():
    class Around(Energy):
        def __init__(self):
            super().__init__()
            self.inner = Simulator()

        def forward(self, x):
            return 2 * self.inner.evaluate(x)[0] + x.square().sum(1) / 2

    x = torch.randn(4, 2)
    torch.testing.assert_close(Around().score(x), 6 - 3 * x)


def test_slopes_of_composites_are_trained_through():
    torch.manual_seed(0)
    x = torch.randn(5, 2)
    weight, known = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor([0.3, 0.0]))
    for pull in (Pulled(), Gaussian(nn.Parameter(torch.tensor([1.0, -1.0])), torch.eye(2))):
        made = mixture(weight * pull, (pull + DoubleWell()).given(known, FIRST), weights=[0.4, 1.3])
        wanted = [x, *made.parameters()]
        assert len(wanted) == 4

        def slope(x, *_, made=made):
            return made.score(x)

        assert torch.autograd.gradcheck(slope, [t.detach().requires_grad_() if t is x else t for t in wanted])


def test_a_score_in_a_sum_keeps_its_conditions_apart():
    class Pull(Score):
        def score(self, x, target=0.0):
            return target - x

    x = torch.randn(4, 2)
    torch.testing.assert_close((Pull().on(target=1.0) + Simulator().on(place=2.0)).score(x), 3 - 2 * x)
    torch.testing.assert_close((Simulator() + bowl()).evaluate(x, place=1.0)[1], 1 - 2 * x)
    with pytest.raises(BadInput, match="no condition 'place'"):
        (bowl() + bowl()).evaluate(x, place=1.0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, in jacfwd
@pytest.mark.parametrize("name", [name for name in COMPOSED if name != "weighted by row"])
def test_slopes_under_the_transforms_of_torch_func(name):
    class Tied(Energy):
        def forward(self, x, place=3.0):
            return (x - place).square().square().sum(1) / 4

    energy, x = COMPOSED[name](Tied()), torch.randn(4, 2)

    def one(z):
        return energy.score(z[None])[0]

    torch.testing.assert_close(vmap(one)(x), energy.score(x))
    jacobians = torch.stack([torch.autograd.functional.jacobian(one, row) for row in x])
    for transform in (jacrev, jacfwd):
        torch.testing.assert_close(vmap(transform(one))(x), jacobians)
    made = COMPOSED[name](Pulled())

    def own(z):
        return made.score(z[None])[0]

    torch.testing.assert_close(vmap(own)(x), made.score(x))
    jacobians_own = torch.stack([torch.autograd.functional.jacobian(own, row) for row in x])
    torch.testing.assert_close(vmap(jacrev(own))(x), jacobians_own)
    total = grad(lambda x: vmap(one)(x).square().sum())(x)
    torch.testing.assert_close(total, 2 * (jacobians.mT @ energy.score(x)[..., None])[..., 0])
