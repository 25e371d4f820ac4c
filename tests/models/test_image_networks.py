"""Networks of images: shapes at every size, classes, bounds, rows apart, and derivatives of slopes."""

from itertools import product

import pytest
import torch
from torch import nn
from torch.autograd import grad, gradcheck, gradgradcheck

from conca.energy.network import rows_apart
from conca.models.image_energy import ImageEnergyConfig, ImageEnergyNetwork
from conca.models.unet import UNet, UNetConfig
from conca.types import BadInput

SIZES = (1, 1), (7, 5), (28, 28), (33, 64), (16, 17)


def energy(channels=1, height=8, width=8, **options):
    return ImageEnergyNetwork(ImageEnergyConfig(channels, height, width, **{"features": 4} | options))


def unet(channels=1, height=8, width=8, **options):
    """One that says something: it begins with zeros."""
    net = UNet(UNetConfig(channels, height, width, **{"features": 8, "blocks": 1} | options))
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.2)
    return net


@pytest.mark.parametrize(("size", "channels"), [*product(SIZES, (1, 3))])
def test_an_energy_is_one_number_of_an_image_or_one_of_each_class(size, channels):
    x = torch.rand(3, channels, *size, dtype=torch.float32)
    one, several = energy(channels, *size), energy(channels, *size, outputs=4, activation="leaky_relu")
    assert one(x).shape == (3,) and several(x).shape == (3, 4)
    assert one(x).std() > 0  # it depends on the image
    said = one.blocks(one.act(one.stem(x)))
    assert max(said.shape[2:]) <= 4


@pytest.mark.parametrize(("size", "patch", "halvings"), [(s, p, h) for s in SIZES for p, h in ((1, 0), (2, 1), (3, 2))])
def test_told_noise_is_shaped_like_the_image(size, patch, halvings):
    x, level = torch.rand(2, 3, *size, dtype=torch.float32), torch.zeros(2)
    net = unet(3, *size, patch=patch, halvings=halvings, blocks=2)
    said = net(x, level)
    assert said.shape == x.shape and said.isfinite().all() and said.std() > 0
    assert not torch.equal(net(x, level + 1), said)


def test_a_fresh_network_tells_no_noise_and_its_last_map_learns_at_once():
    net = UNet(UNetConfig(1, 9, 8, features=8, classes=2))
    x, level = torch.rand(2, 1, 9, 8, dtype=torch.float32), torch.zeros(2)
    assert not net(x, level).any()
    net(x, level).square().sum().backward()
    assert net.leave.weight.grad is not None and not net.leave.weight.grad.any()  # 0 is where its square is least
    (net(x, level) - 1).square().sum().backward()
    assert net.leave.weight.grad.any()


def test_a_network_is_float32_whatever_the_default():
    assert torch.get_default_dtype() == torch.float64
    for net in (energy(spectral=True), unet(classes=2)):
        assert {t.dtype for t in net.state_dict().values()} == {torch.float32}


def test_classes_are_told_and_their_number_stands_for_none():
    net = unet(classes=3)
    x, level = torch.rand(3, 1, 8, 8, dtype=torch.float32), torch.zeros(3)
    each = net(x, level, torch.tensor([0, 1, 2]))
    assert not torch.allclose(each, net(x, level))
    for place in range(3):
        torch.testing.assert_close(net(x, level, torch.tensor(place))[place], each[place])
    assert torch.equal(net(x, level, torch.tensor([3, 3, 3])), net(x, level))
    for y in (torch.tensor([0, 1, 4]), torch.tensor([-1, 0, 0]), torch.tensor([0.0, 1.0, 2.0])):
        with pytest.raises(BadInput, match="classes are whole numbers from 0 to 2, not"):
            net(x, level, y)
    with pytest.raises(BadInput, match="trained without classes; leave y out"):
        unet()(x, level, torch.tensor([0, 0, 0]))


def test_a_spectral_norm_bounds_every_layer():
    net = energy(1, 20, 20, spectral=True)
    x = torch.rand(4, 1, 20, 20, dtype=torch.float32)
    with torch.no_grad():
        for _ in range(200):
            net(x)  # its vectors follow the weights in training mode
    net.eval()
    layers = [m for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(layers) > 8
    for layer in layers:
        assert torch.linalg.matrix_norm(layer.weight.flatten(1), 2) < 1.01
    free = [m for m in energy(1, 20, 20).modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    for one, other in zip(layers, free, strict=True):
        with torch.no_grad():
            one.parametrizations.weight.original.mul_(100.0)
        assert torch.linalg.matrix_norm(one.weight.flatten(1), 2) < 1.01  # however large the weights are
        assert not hasattr(other, "parametrizations")


@pytest.mark.parametrize("spectral", [False, True])
def test_an_energy_is_trained_through_its_slope(spectral):
    """First and second derivatives, by finite differences; also those of the weights."""
    net = energy(1, 6, 5, features=2, spectral=spectral).double().eval()
    x = torch.rand(2, 1, 6, 5, requires_grad=True)
    assert gradcheck(net, x) and gradgradcheck(net, x)
    weight = net.stem.parametrizations.weight.original if spectral else net.stem.weight

    def steepness():
        (slope,) = grad(net(x).sum(), x, create_graph=True)
        return slope.square().sum()

    differences(steepness, weight)


def test_a_scalar_diffusion_is_trained_through_its_slope():
    net = unet(1, 4, 3, patch=1, classes=2).double().eval()
    x, level, y = torch.rand(2, 1, 4, 3, requires_grad=True), torch.tensor([0.3, -1.0]), torch.tensor([0, 2])
    assert gradcheck(lambda x: net(x, level, y), x)

    def steepness():
        (slope,) = grad(net(x, level, y).square().sum() / 2, x, create_graph=True)
        return slope.square().sum()

    differences(steepness, net.enter.weight)
    differences(steepness, net.middle[1].enter.weight)  # attention


def differences(value, weight, step=1e-5):
    """The derivative of a value by a weight, in a direction, against a difference."""
    way = torch.randn_like(weight)
    (found,) = grad(value(), weight)
    with torch.no_grad():
        sides = []
        for sign in (1, -2):
            weight.add_(sign * step * way)
            with torch.enable_grad():
                sides.append(float(value().detach()))
        weight.add_(step * way)
    torch.testing.assert_close(float((found * way).sum()), (sides[0] - sides[1]) / (2 * step), rtol=1e-5, atol=1e-7)
    assert found.any()


class Level(nn.Module):
    """A network that tells the noise, at one level."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x, torch.zeros(len(x), dtype=x.dtype)).flatten(1).sum(1)


@pytest.mark.parametrize("shape", [(3, 9, 7), (1, 20, 20)])
def test_rows_do_not_interact(shape):
    x = torch.rand(4, *shape, dtype=torch.float32)
    for net in (energy(*shape), energy(*shape, spectral=True), Level(unet(*shape))):
        rows_apart(net, shape)
        net.eval()
        torch.testing.assert_close(net(x)[2:3], net(x[2:3]))


@pytest.mark.parametrize(
    "config",
    [
        ImageEnergyConfig(3, 9, 7, features=5, outputs=4, activation="leaky_relu", spectral=True),
        UNetConfig(1, 9, 7, features=16, halvings=2, blocks=3, patch=3, classes=4, dropout=0.1),
    ],
    ids=["energy", "unet"],
)
def test_descriptions_come_back_and_know_their_keys(config):
    saved = config.as_dict()
    assert type(config).from_dict(saved) == config
    with pytest.raises(BadInput, match="unknown key 'featurs'; did you mean 'features'"):
        type(config).from_dict(saved | {"featurs": 1})
    with pytest.raises(BadInput, match="the key 'width' is missing"):
        type(config).from_dict({name: value for name, value in saved.items() if name != "width"})


ILL = [
    (ImageEnergyConfig, {"height": 0}, "height"),
    (ImageEnergyConfig, {"features": 1.5}, "features"),
    (ImageEnergyConfig, {"outputs": True}, "outputs"),
    (ImageEnergyConfig, {"activation": "relu"}, "activation 'relu'"),
    (ImageEnergyConfig, {"spectral": "yes"}, "spectral"),
    (UNetConfig, {"width": 2**16}, "width"),
    (UNetConfig, {"features": 12}, "a multiple of 8, not 12"),
    (UNetConfig, {"classes": -1}, "classes"),
    (UNetConfig, {"halvings": None}, "halvings"),
    (UNetConfig, {"dropout": 1.0}, "dropout"),
    (UNetConfig, {"dropout": float("nan")}, "dropout"),
]


@pytest.mark.parametrize(("config", "ill", "words"), ILL)
def test_ill_descriptions_are_one_line(config, ill, words):
    with pytest.raises(BadInput, match=f"network.*{words}") as error:
        config(**{"channels": 1, "height": 8, "width": 8} | ill)
    assert "\n" not in str(error.value)
