"""The one loop: what comes out, what is refused, and that nothing is left behind."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conca.energy import Descent, Divergence, DoubleWell, Energy, Gaussian, descent, mala, sample, ula
from conca.types import BadInput


def bowl(size=2):
    return Gaussian(torch.zeros(size), torch.eye(size))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Elsewhere(torch.Generator):
    device = torch.device("cuda", 0)


class Net(Energy):
    """Spectral norm, batch norm and dropout: everything that a chain could disturb."""

    shape = (2,)

    def __init__(self):
        super().__init__()
        first = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 8))
        self.net = nn.Sequential(first, nn.BatchNorm1d(8), nn.SiLU(), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)[:, 0] + 0.5 * x.square().sum(1)


def test_what_is_kept():
    x = torch.randn(5, 2)
    whole, info = sample(bowl(), mala(0.5), x, 12, generator=seeded())
    assert whole.shape == (12, 5, 2)
    assert {k: v.shape for k, v in info.items()} == dict.fromkeys(("accepted", "energy", "slope"), (12, 5))
    thinned, thin_info = sample(bowl(), mala(0.5), x, 12, 4, generator=seeded())
    assert torch.equal(thinned, whole[3::4])
    assert torch.equal(thin_info["energy"], info["energy"][3::4])
    torch.testing.assert_close(thin_info["accepted"], info["accepted"].reshape(3, 4, 5).mean(1))


def test_steps_that_nobody_would_see_are_not_run():
    x, calls = torch.randn(5, 2), []

    class Counted(Descent):
        def step(self, energy, state, generator):
            calls.append(1)
            return super().step(energy, state, generator)

    chain, _ = sample(bowl(), Counted(0.1), x, 11, 4)
    assert chain.shape == (2, 5, 2)
    assert len(calls) == 8
    assert sample(bowl(), Counted(0.1), x, np.int64(0), np.int32(1))[0].shape == (0, 5, 2)
    for steps, thin in ((0, 1), (3, 4)):
        chain, info = sample(bowl(), Counted(0.1), x, steps, thin)
        assert chain.shape == (0, 5, 2)
        assert info == {}
    assert len(calls) == 8


@pytest.mark.parametrize("kernel", [descent(0.1), ula(0.1), mala(0.1)])
@pytest.mark.parametrize("shape", [(0,), (0, 2), (0, 1, 8, 8), (3, 0)])
def test_nothing_to_walk(kernel, shape):
    chain, info = sample(DoubleWell(), kernel, torch.zeros(shape), 4, 2, generator=seeded())
    assert chain.shape == (2, *shape)
    assert info["energy"].shape == (2, shape[0])


def test_the_start_is_neither_changed_nor_handed_out():
    x = torch.randn(5, 2, requires_grad=True)
    before = x.detach().clone()
    chain, info = sample(bowl(), descent(0.1), x, 2)
    chain.zero_()
    assert torch.equal(x.detach(), before)
    assert x.grad is None
    assert not chain.requires_grad
    assert not any(value.requires_grad for value in info.values())


def test_a_kernel_that_writes_in_place_does_not_reach_the_start():
    class InPlace(Descent):
        def step(self, energy, state, generator):
            state.x.zero_()
            return super().step(energy, state, generator)

    x = torch.ones(5, 2)
    sample(bowl(), InPlace(0.1), x, 2)
    assert (x == 1).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"x": torch.ones(3, 2, dtype=torch.int64)}, "floating-point"),
        ({"x": torch.tensor(1.0)}, "shape"),
        ({"x": torch.tensor([[1.0, float("nan")]])}, "start of a chain must be finite"),
        ({"x": torch.tensor([[1.0, float("inf")]])}, "start of a chain must be finite"),
        ({"x": torch.zeros(3, 5)}, r"this Gaussian reads x of shape \(B, 2\)"),
        ({"steps": -1}, "steps must be 0 or more"),
        ({"thin": 0}, "thin 1 or more"),
        ({"generator": None}, r"pass generator=torch.Generator\(device\).manual_seed\(seed\)"),
        ({"generator": Elsewhere()}, r"x is on cpu, the generator on cuda:0"),
        ({"generator": 0}, r"must be a torch.Generator, not 0: pass generator=torch.Generator\('cpu'\).manual_seed"),
        ({"x": [[0.0, 0.0]]}, "not at a list"),
        ({"x": torch.zeros(3, 2).float()}, r"this Gaussian is of torch.float64, x of torch.float32: use x.to"),
        ({"steps": 7.0}, r"whole numbers, not 7.0 and 1; use int"),
        ({"thin": None}, "whole numbers, not 3 and None"),
        ({"kernel": descent}, r"an object with init and step, not descent; call it first: descent\(...\)"),
        ({"kernel": Descent}, r"call it first: Descent\(...\)"),
        ({"kernel": 0.1}, r"not 0.1; such as descent\(0.1\)"),
    ],
)
def test_bad_input_is_one_clear_line(options, says):
    asked = {"kernel": ula(0.1), "x": torch.zeros(3, 2), "steps": 3, "thin": 1, "generator": seeded()} | options
    with pytest.raises(BadInput, match=says) as caught:
        sample(bowl(), **asked)
    assert "\n" not in str(caught.value)


def test_only_landscapes_are_walked():
    with pytest.raises(TypeError, match="not a Linear"):
        sample(nn.Linear(2, 1), ula(0.1), torch.zeros(3, 2), 1, generator=seeded())


@pytest.mark.parametrize("size", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_is_positive(size):
    for make in (descent, ula, mala):
        with pytest.raises(BadInput, match="step must be positive"):
            make(size)


def test_kernels_are_frozen_values():
    assert ula(0.1) == ula(0.1) != ula(0.2)
    with pytest.raises(AttributeError):
        mala(0.1).size = 0.2


def test_divergence_says_when_and_how_high():
    start = torch.tensor([[0.5, 0.5], [4.0, 4.0], [0.1, 0.1]])
    with pytest.raises(Divergence) as caught:
        sample(DoubleWell(), descent(0.1), start, 100)
    error = caught.value
    assert (error.rows, error.batch) == (1, 3)
    assert 1 < error.step < 20
    assert 1e10 < error.slope < float("inf")
    assert 1e10 < error.energy < float("inf")
    assert f"1 of 3 chains left the finite numbers at step {error.step}" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert isinstance(error, ArithmeticError)


def test_a_start_without_an_energy_is_not_walked_in_silence():
    class Log(Energy):
        def forward(self, x):
            return x.log().square().sum(1)

    for kernel in (descent(0.1), ula(0.1), mala(0.1)):
        with pytest.raises(Divergence, match="step 1"):
            sample(Log(), kernel, torch.tensor([[1.0], [-1.0]]), 5, generator=seeded())


def test_a_chain_leaves_the_network_as_it_was():
    torch.manual_seed(0)
    energy, x = Net().train(), torch.randn(6, 2)
    energy.net[3].eval()
    loss = energy(x).mean()  # a graph that holds buffers and is finished only after the chain
    kept = {name: value.clone() for name, value in energy.state_dict().items()}
    modes = [part.training for part in energy.modules()]
    random = torch.get_rng_state()
    chain, _ = sample(energy, ula(0.1), x, 5, generator=seeded())
    with pytest.raises(Divergence):
        sample(energy, descent(1e4), x, 500)
    assert [part.training for part in energy.modules()] == modes
    assert all(torch.equal(value, kept[name]) for name, value in energy.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.requires_grad and p.grad is None for p in energy.parameters())
    loss.backward()
    calm, _ = sample(energy.eval(), ula(0.1), x, 5, generator=seeded())
    assert torch.equal(chain, calm)


def test_buffers_come_back_even_where_eval_does_not_keep_them():
    class Busy(Energy):
        def __init__(self):
            super().__init__()
            self.register_buffer("written", torch.zeros(3))
            self.register_buffer("replaced", torch.zeros(3))

        def forward(self, x):
            self.written += 1
            self.replaced = self.replaced + 1
            return x.square().sum(1)

    energy = Busy()
    written, replaced = energy.written, energy.replaced
    sample(energy, descent(0.1), torch.ones(3, 2), 5)
    assert energy.written is written
    assert energy.replaced is replaced
    assert not written.any()
    assert not replaced.any()


def test_an_energy_that_draws_does_not_move_the_global_random_state():
    class Probes(Energy):
        def forward(self, x):
            return (x * torch.randn(x.shape)).sum(1) * 0.0 + x.square().sum(1)

    random = torch.get_rng_state()
    sample(Probes(), descent(0.1), torch.ones(3, 2), 5)
    assert torch.equal(torch.get_rng_state(), random)


def test_it_runs_under_inference_mode_and_with_gradients_on():
    x = torch.randn(4, 2)
    outside, _ = sample(bowl(), mala(0.5), x, 5, generator=seeded())
    with torch.inference_mode():
        inside, _ = sample(bowl(), mala(0.5), x.clone(), 5, generator=seeded())
    assert torch.equal(inside, outside)


def test_chains_on_one_landscape_in_eval_mode_may_run_in_two_threads():
    torch.manual_seed(0)
    energy, x = Net().eval(), torch.randn(6, 2)
    alone = [sample(energy, mala(0.2), x, 50, generator=seeded(i))[0] for i in range(4)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda i: sample(energy, mala(0.2), x, 50, generator=seeded(i))[0], range(4)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together))


class Here(NamedTuple):
    x: Tensor


class RandomWalk:
    """A kernel of the user's own, which reports nothing."""

    def init(self, energy, x):
        return Here(x)

    def step(self, energy, state, generator):
        return Here(energy.clamp(state.x + torch.randn(state.x.shape, generator=generator))), {}


def test_a_kernel_of_ones_own():
    chain, info = sample(bowl(), RandomWalk(), torch.zeros(3, 2), 4, generator=seeded())
    assert chain.shape == (4, 3, 2)
    assert info == {}


def test_a_kernel_that_changes_what_x_is_is_refused():
    class Widens(RandomWalk):
        def step(self, energy, state, generator):
            return Here(torch.cat([state.x, state.x], 1)), {}

    class Rounds(RandomWalk):
        def step(self, energy, state, generator):
            return Here(state.x.float()), {}

    for kernel in (Widens(), Rounds()):
        with pytest.raises(BadInput, match="a step on Gaussian turned x from"):
            sample(bowl(), kernel, torch.zeros(3, 2), 4, generator=seeded())
