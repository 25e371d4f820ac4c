"""Diagnostics beside figures of ArviZ, and exact references beside values that are known."""

import itertools
import math

import numpy as np
import pytest
import torch

from conca.energy import (
    DoubleWell,
    Energy,
    Gaussian,
    GaussianMixture,
    acceptance,
    ais,
    effective_sample_size,
    energy_gap,
    gibbs,
    hmc,
    log_z_enumerate,
    log_z_grid,
    mala,
    nested_rhat,
    sample,
    split_rhat,
    ula,
)
from conca.types import BadInput

FIGURES = {
    (100, 4, 0.5): [
        [157.63958510543827, 125.06996000328226],
        [221.34340301429123, 203.03899739233634],
        [154.0412381671074, 125.8767987650027],
        [1.022232029970941, 1.0054010339262076],
        [1.0005453978024526, 1.0024376188485642],
    ],
    (101, 6, 0.9): [
        [17.394399668573765, 13.825419036673134],
        [62.447133151367694, 58.9996536768296],
        [17.761568060854888, 13.47950828214395],
        [1.321633745010057, 1.3916773599691017],
        [1.0167984121964544, 1.0057400542980695],
    ],
    (7, 4, 0.2): [
        [33.12506980107854, 33.12506980107854],
        [33.12506980107854, 33.12506980107854],
        [33.12506980107854, 33.12506980107854],
        [0.9589084853945816, 1.3203689972916532],
        [1.063378394749107, 1.0414717907101732],
    ],
    (4, 2, 0.0): [
        [7.224719895935548, 7.224719895935548],
        [7.224719895935548, 7.224719895935548],
        [7.224719895935548, 7.224719895935548],
        [2.046751525329616, 1.38644286305142],
        [],
    ],
    (1000, 4, 0.95): [
        [132.417874861132, 105.01109640334671],
        [309.9177179968519, 176.19938291056616],
        [131.42143428785596, 104.72231997467841],
        [1.0525456230842927, 1.038463342194109],
        [1.002742406984582, 1.000440490192815],
    ],
    (200, 8, -0.9): [
        [5126.591972249479, 5126.591972249479],
        [253.88846517601388, 769.597935342536],
        [5126.591972249479, 5126.591972249479],
        [1.0591558260293317, 1.0262818759615926],
        [1.0000747844077795, 1.0000034702276135],
    ],
    (12, 30, 0.99): [
        [92.8135373002351, 92.42083141537096],
        [118.46294079233782, 95.99839169809876],
        [91.99078740950388, 91.87115411029873],
        [4.648315136840194, 4.998520400818986],
        [1.017820375927592, 1.0347269723592287],
    ],
}
"""By (steps, chains, pull) of `chains`: bulk, tail and plain effective sample size, split R-hat, and nested R-hat of two groups, each for
both coordinates; by `arviz_stats.base.array_stats` (arviz-stats 0.8.0): ess(method="bulk"), ess(method="tail", prob=(0.05, 0.95)),
ess(method="mean"), rhat(method="rank"), rhat_nested(method="identity")."""


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def chains(steps, batch, pull, seed=0):
    """Autoregressive, stationary, two coordinates, by NumPy, whose numbers are the same everywhere; rounded, so that there are ties."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((steps, batch, 2))
    for t in range(1, steps):
        x[t] = pull * x[t - 1] + math.sqrt(1 - pull**2) * x[t]
    return torch.from_numpy(np.round(x, 1))


@pytest.mark.parametrize("shape", FIGURES, ids=str)
def test_figures_are_those_of_arviz(shape):
    x, (bulk, tail, plain, rhat, nested) = chains(*shape), FIGURES[shape]
    for kind, expected in (("bulk", bulk), ("tail", tail), ("mean", plain)):
        torch.testing.assert_close(effective_sample_size(x, kind), torch.tensor(expected), rtol=1e-10, atol=0)
    torch.testing.assert_close(split_rhat(x), torch.tensor(rhat), rtol=1e-10, atol=0)
    if nested:
        torch.testing.assert_close(nested_rhat(x, 2), torch.tensor(nested), rtol=1e-10, atol=0)


def test_figures_are_those_of_the_arviz_that_is_installed():
    array_stats = pytest.importorskip("arviz_stats.base").array_stats
    x = chains(60, 4, 0.7, seed=3)
    expected = [
        float(array_stats.ess(x[:, :, i].T.numpy(), chain_axis=0, draw_axis=1, method="bulk")) for i in range(2)
    ]
    torch.testing.assert_close(
        effective_sample_size(x), torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=0
    )


def test_coordinates_are_judged_apart_whatever_their_shape():
    x = chains(50, 4, 0.5).reshape(50, 4, 1, 2, 1)
    assert effective_sample_size(x).shape == split_rhat(x).shape == nested_rhat(x, 2).shape == (1, 2, 1)
    torch.testing.assert_close(split_rhat(x)[0, 1, 0], split_rhat(x[..., 0, 1, 0]))


def test_effective_samples_of_a_chain_whose_correlation_is_known():
    """Of an autoregression with pull r, n (1 - r) / (1 + r) draws are worth a mean."""
    x = chains(20_000, 4, 0.8)
    assert effective_sample_size(x, "mean")[0].item() == pytest.approx(80_000 / 9, rel=0.1)


def test_what_cannot_be_judged_is_nan_or_told():
    x = chains(20, 4, 0.0)
    x[3, 1, 0] = math.nan
    assert effective_sample_size(x)[0].isnan() and not effective_sample_size(x)[1].isnan() and split_rhat(x)[0].isnan()
    assert effective_sample_size(torch.ones(20, 3, 1)).item() == 60
    for bad, line in (
        (torch.zeros(3, 2), "4 steps or more"),
        (torch.zeros(9, 0, 2), "of one chain or more"),
        ([1.0], "steps, B"),
    ):
        with pytest.raises(BadInput, match=line):
            effective_sample_size(bad)
    with pytest.raises(BadInput, match="'bulk', 'tail' or 'mean'"):
        effective_sample_size(x, "median")
    for groups in (1, 3):
        with pytest.raises(BadInput, match="cannot be parted"):
            nested_rhat(x, groups)


def test_chains_that_begin_apart_are_told_from_those_that_met():
    energy, start = Gaussian(torch.zeros(1), torch.eye(1)), torch.tensor([[-9.0]] * 32 + [[9.0]] * 32)
    early, _ = sample(energy, mala(0.3), start, 2, generator=seeded())
    late, info = sample(energy, mala(0.3), start, 200, generator=seeded())
    assert split_rhat(late[:20]).item() > 1.2 and split_rhat(late[100:]).item() < 1.06
    assert nested_rhat(early, 2).item() > 3 and nested_rhat(late[-1:], 2).item() < 1.1
    assert acceptance(info).shape == (64,) and 0.5 < acceptance(info).mean() < 1
    with pytest.raises(BadInput, match="accepts all"):
        acceptance(sample(energy, ula(0.1), start, 2, generator=seeded())[1])
    assert energy_gap(energy, late[-1], start) == pytest.approx(float(energy(late[-1]).mean() - energy(start).mean()))


class Spins(Energy):
    """A chain of spins: log Z = size log(2 cosh J) + log(1 + tanh(J)^size), around a ring."""

    def __init__(self, size, pull=0.4):
        super().__init__()
        self.shape, self.pull = (size,), pull

    def forward(self, x):
        return -self.pull * (x * x.roll(1, 1)).sum(1)

    def exact(self):
        size = self.shape[0]
        return size * math.log(2 * math.cosh(self.pull)) + math.log1p(math.tanh(self.pull) ** size)


@pytest.mark.parametrize(("height", "log_z"), [(1.0, 0.67993), (2.0, 0.34424), (4.0, -0.05357)])
def test_log_z_of_double_wells_on_a_grid(height, log_z):
    assert float(log_z_grid(DoubleWell(height, shape=(1,)), -4, 4, 4000)) == pytest.approx(log_z, abs=1e-5)
    assert float(log_z_grid(DoubleWell(height, shape=(2,)), -4, 4, 400)) == pytest.approx(2 * log_z, abs=2e-5)


def test_normalised_landscapes_have_log_z_zero_in_three_dimensions():
    assert float(log_z_grid(Gaussian(torch.zeros(3), torch.eye(3)), -6, 6, 60)) == pytest.approx(0.0, abs=1e-6)
    assert float(log_z_grid(GaussianMixture.eight(), -4, 4, 400)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("size", [1, 2, 9, 17])
def test_log_z_of_a_ring_of_spins_by_enumeration(size):
    spins = Spins(size)
    expected = spins.exact() if size > 1 else math.log(2) + 0.4
    assert float(log_z_enumerate(spins, (-1.0, 1.0))) == pytest.approx(expected, abs=1e-10)


def test_log_z_of_a_small_boltzmann_machine_from_either_side():
    """Seven visible and four hidden units: the sum over the visible ones of exp(-F) is that over the hidden ones."""
    weights, a, b = (torch.randn(size, generator=seeded(1)) for size in ((7, 4), (7,), (4,)))

    class Free(Energy):
        def __init__(self, weights, own, others):
            super().__init__()
            self.weights, self.own, self.others, self.shape = weights, own, others, (len(own),)

        def forward(self, x):
            return -x @ self.own - torch.nn.functional.softplus(x @ self.weights + self.others).sum(1)

    left, right = (log_z_enumerate(Free(*side), (0.0, 1.0)) for side in ((weights, a, b), (weights.T, b, a)))
    torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


def test_three_values_are_enumerated_as_a_loop_does():
    energy = DoubleWell(0.7)
    expected = torch.logsumexp(-energy(torch.tensor(list(itertools.product((-1.0, 0.0, 2.0), repeat=4)))), 0)
    torch.testing.assert_close(log_z_enumerate(energy, (-1.0, 0.0, 2.0), 4), expected)


@pytest.mark.parametrize("kernel", [mala(0.05), hmc(0.2, 5)], ids=repr)
def test_annealed_importance_sampling_finds_log_z_within_its_own_error(kernel):
    base, energy = Gaussian(torch.zeros(2), torch.eye(2)), DoubleWell(2.0, shape=(2,))
    found, error = ais(energy, base, kernel, base.draw(2000, seeded(1)), 40, generator=seeded())
    assert abs(found - 2 * 0.34424) < 5 * error and 0 < error < 0.02
    rough, wide = ais(energy, base, kernel, base.draw(2000, seeded(1)), 1, generator=seeded())
    assert wide > error and abs(rough - 2 * 0.34424) < 5 * wide


def test_annealed_importance_sampling_of_spins():
    spins, flat = Spins(12), Spins(12, 0.0)
    x = 2.0 * torch.randint(2, (3000, 12), generator=seeded(1)) - 1
    found, error = ais(spins, flat, gibbs((-1, 1)), x, [0, 0.3, 0.6, 1], log_z=12 * math.log(2), generator=seeded())
    assert abs(found - spins.exact()) < 5 * error and error < 0.05


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda e, b: log_z_grid(e, 1, -1, 10), "low below high"),
        (lambda e, b: log_z_grid(e, -1, 1, 0), "points of a grid"),
        (lambda e, b: log_z_grid(DoubleWell(shape=(4,)), -1, 1, 9), "up to three coordinates"),
        (lambda e, b: log_z_enumerate(Spins(40), (-1, 1)), "up to 2"),
        (lambda e, b: log_z_enumerate(DoubleWell(), (-1, 1)), "give size"),
        (lambda e, b: log_z_enumerate(Spins(3), (1, 1)), "each once"),
        (lambda e, b: log_z_grid(e, -1, 1, 100_000), "up to 2"),
        (lambda e, b: ais(e, b, mala(0.1), torch.zeros(4, 2), 5, log_z=math.nan, generator=seeded()), "must be finite"),
        (lambda e, b: ais(e, b, ula(0.1), torch.zeros(4, 2), 5, generator=seeded()), "a kernel that is exact"),
        (lambda e, b: ais(e, b, mala(0.1), torch.zeros(4, 2), [0, 0.5], generator=seeded()), "rise from 0 to 1"),
        (lambda e, b: ais(e, b, mala(0.1), torch.zeros(1, 2), 5, generator=seeded()), "two chains or more"),
    ],
)
def test_what_has_no_reference_gets_one_line(make, line):
    with pytest.raises(BadInput, match=line):
        make(DoubleWell(shape=(2,)), Gaussian(torch.zeros(2), torch.eye(2)))
