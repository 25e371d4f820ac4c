"""A small classifier of MNIST, trained here: its features measure Frechet distances, its answers count what samples are of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conca.data.images import load_images
from conca.metrics.frechet import frechet_distance

EPOCHS = 3


class Features(nn.Module):
    """Two convolutions and two linear maps; the first linear map gives 64 features."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.ReLU()
        )
        self.features, self.head = nn.Linear(32 * 49, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, 64) and logits (B, 10) of images (B, 1, 28, 28) between 0 and 1."""
        found = F.relu(self.features(self.convolutions(x).flatten(1)))
        return found, self.head(found)


def classifier(work: Path) -> Features:
    """The classifier, from its file or trained now."""
    torch.manual_seed(0)
    net, path = Features(), work / "features.safetensors"
    if path.exists():
        net.load_state_dict(load_file(path))
        return net.eval()
    images = load_images(work / "mnist", labelled=True).part("train")
    assert images.labels is not None
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for epoch in range(EPOCHS):
        order = np.random.default_rng(epoch).permutation(len(images))
        for k in range(0, len(order), 128):
            chosen = order[k : k + 128]
            x = torch.from_numpy(images.pixels[chosen]).float() / 255
            loss = F.cross_entropy(net(x)[1], torch.from_numpy(images.labels[chosen]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    save_file(net.state_dict(), path)
    return net.eval()


def seen(net: Features, pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Features (n, 64) and probabilities (n, 10) of images (n, 1, 28, 28), bytes."""
    with torch.no_grad():
        parts = [net(torch.from_numpy(pixels[k : k + 500].copy()).float() / 255) for k in range(0, len(pixels), 500)]
    features, logits = (torch.cat([part[i] for part in parts]).double() for i in (0, 1))
    return features.numpy(), logits.softmax(1).numpy()


def judged(net: Features, pixels: NDArray[np.uint8], real: NDArray[np.uint8]) -> dict[str, float]:
    """Frechet distance to real images, share that the classifier is sure of (0.9), and entropy of its classes in bits (at most 3.32)."""
    features, told = seen(net, pixels)
    share = told.mean(0)
    return {
        "frechet": frechet_distance(features, seen(net, real)[0]),
        "sure": float((told.max(1) > 0.9).mean()),
        "entropy": float(-(share * np.log2(share + 1e-12)).sum()),
    }
