"""The laws hold for every energy and kernel that is found, and each law is broken by the faults seeded for it."""

import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from conca.energy import Energy, mala, ula
from conca.laws.energies import ENERGY_LAWS, check_energy, composites, energies
from conca.laws.samplers import KERNEL_LAWS, check_kernel, kernels

spec = importlib.util.spec_from_file_location("energy_faults", Path(__file__).with_name("energy_faults.py"))
faults = importlib.util.module_from_spec(spec)
sys.modules["energy_faults"] = faults
spec.loader.exec_module(faults)

SAMPLES = {f"{name}-{i}": energy for name, kind in energies().items() for i, energy in enumerate(kind.samples())}


def broken(verdicts):
    return [v for v in verdicts if v.outcome == "broken"]


def test_the_walk_finds_energies_and_kernels():
    assert {"doublewell", "gaussian", "hopfield"} <= set(energies())
    assert {"descent", "ula", "mala"} <= set(kernels())


@pytest.mark.parametrize("name", energies())
def test_every_energy_obeys_the_laws(name):
    verdicts = list(check_energy(energies()[name]))
    assert {v.law for v in verdicts} == set(ENERGY_LAWS)
    assert not broken(verdicts)
    assert sum(v.outcome == "holds" for v in verdicts) >= 0.9 * len(verdicts)


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_composed_of_them_obeys_the_laws(name):
    for made in composites(SAMPLES[name]).values():
        assert not broken(check_energy(made))


@pytest.mark.parametrize("name", kernels())
def test_every_kernel_obeys_the_laws(name):
    verdicts = list(check_kernel(kernels()[name]))
    assert {v.law for v in verdicts} == set(KERNEL_LAWS)
    assert not broken(verdicts)


@pytest.mark.parametrize("step", [0.02, 0.5])
def test_the_test_makes_any_step_exact(step):
    assert not broken(check_kernel(mala(step)))


@pytest.mark.parametrize("energy", faults.SOUND, ids=lambda energy: type(energy).__name__)
def test_sound_toys_obey_the_laws(energy):
    assert not broken(check_energy(energy))


def test_every_law_has_a_fault():
    assert set(faults.ENERGY_FAULTS) == set(ENERGY_LAWS)
    assert set(faults.KERNEL_FAULTS) == set(KERNEL_LAWS)


def pairs(table):
    return [pytest.param(law, fault, id=f"{law}-{called(fault)}") for law, some in table.items() for fault in some]


def called(fault):
    """The same in every process, unlike a function's address."""
    return " ".join(part.__name__ for part in (fault if isinstance(fault, tuple) else (fault,)))


@pytest.mark.parametrize(("law", "fault"), pairs(faults.ENERGY_FAULTS))
def test_each_fault_of_an_energy_is_caught(law, fault):
    kind, patch = fault if isinstance(fault, tuple) else (fault, nullcontext)
    with patch():
        verdicts = list(check_energy(kind, laws=(law,)))
    assert broken(verdicts)
    assert all(v.message for v in broken(verdicts))


@pytest.mark.parametrize(("law", "fault"), pairs(faults.KERNEL_FAULTS))
def test_each_fault_of_a_kernel_is_caught(law, fault):
    verdicts = list(check_kernel(fault, laws=(law,)))
    assert broken(verdicts)
    assert all(v.message for v in broken(verdicts))


def test_a_law_that_says_nothing_says_so():
    (verdict,) = check_energy(faults.Bowl(), laws=("update never raises",))
    assert verdict.outcome == "does not apply"
    (verdict,) = check_kernel(ula(0.1), laws=("Gaussian stays",))
    assert verdict.outcome == "does not apply"


def test_an_energy_is_checked_on_a_copy_and_may_be_told_its_shape():
    class Plain(Energy):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x):
            return self.layer(x)[:, 0] + x.square().sum(1)

    energy = Plain().float()
    assert broken(check_energy(energy)), "without a shape the laws draw three coordinates"
    assert not broken(check_energy(energy, shape=(4,)))
    assert energy.training
    assert energy.layer.weight.dtype == torch.float32
    assert energy.shape is None
