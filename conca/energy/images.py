"""Images as landscapes see them: bytes as numbers and back, and what networks of images are read as."""

from __future__ import annotations

import torch
from torch import Tensor

from conca.energy.classifier import ClassifierEnergy
from conca.energy.diffusion import NoiseEnergy, NoiseScore
from conca.energy.network import NetworkEnergy
from conca.energy.schedule import Schedule
from conca.models.image_energy import ImageEnergyNetwork
from conca.models.unet import UNet

__all__ = ["energy_of", "noise_of", "to_bytes", "to_floats"]


def to_floats(x: Tensor, low: float, high: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bytes as numbers between low and high."""
    return low + (high - low) / 255 * x.to(dtype)


def to_bytes(x: Tensor, low: float, high: float) -> Tensor:
    """Numbers between low and high as bytes, on the CPU; what lies outside is cut off."""
    return ((x - low) / (high - low)).clamp(0, 1).mul(255).round().to("cpu", torch.uint8)


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
