"""What networks of images are read as: energies, or what tells the noise at each level of a diffusion."""

from __future__ import annotations

from conca.energy.classifier import ClassifierEnergy
from conca.energy.diffusion import NoiseEnergy, NoiseScore
from conca.energy.network import NetworkEnergy
from conca.energy.schedule import Schedule
from conca.models.image_energy import ImageEnergyNetwork
from conca.models.unet import UNet

__all__ = ["energy_of", "noise_of"]


def energy_of(network: ImageEnergyNetwork) -> NetworkEnergy | ClassifierEnergy:
    """The energy that a network is read as: its one number, or that of a classifier where it has several."""
    form = network.config
    shape = (form.channels, form.height, form.width)
    return NetworkEnergy(network, shape) if form.outputs == 1 else ClassifierEnergy(network, shape)


def noise_of(network: UNet, schedule: Schedule, scalar: bool, spread: float) -> NoiseScore | NoiseEnergy:
    """The landscapes that a network which tells the noise is read as: slopes, or energies (`scalar`)."""
    form = network.config
    shape = (form.channels, form.height, form.width)
    return NoiseEnergy(network, schedule, shape, spread=spread) if scalar else NoiseScore(network, schedule, shape)
