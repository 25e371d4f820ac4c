"""The network of a forecaster."""

import json

import pytest
import torch

from conca.models.forecast import ForecastNetwork, NetworkConfig, pinball
from conca.types import BadInput

LAYERS = ("s4d", "lstm*2", "s4d*2 attention(window=4)", "shortconv gatedmlp")


def config(**changes):
    values = {
        "layers": "lstm",
        "d_model": 8,
        "horizon": 3,
        "inputs": 5,
        "categories": (3,),
        "levels": (0.1, 0.4, 0.5, 0.9),
        "bends": (0.0, 2.0),
        "means": (0.1, 0.5),
        "scales": (1.0, 0.7),
        "members": 2,
    }
    return NetworkConfig(**(values | changes))


def rows(batch=2, time=9):
    return torch.randn(batch, time, 5, dtype=torch.float32), torch.randint(0, 3, (batch, time, 1))


def network(**changes):
    return ForecastNetwork(config(**changes)).eval()


@pytest.mark.parametrize("layers", LAYERS)
def test_row_by_row_is_as_good_as_whole(layers):
    net = network(layers=layers)
    inputs, codes = rows()
    whole, last = net.read(inputs, codes)
    state, parts = None, []
    for t in range(9):
        h, state = net.read(inputs[:, t : t + 1], codes[:, t : t + 1], state)
        parts.append(h)
    torch.testing.assert_close(torch.cat(parts, 2), whole, atol=1e-5, rtol=1e-5)
    assert net.bounded
    assert len(last) == 2


def test_quantiles_never_cross():
    net = network()
    with torch.no_grad():
        for tower in net.towers:
            tower.head.weight.normal_(std=30.0)
            tower.head.bias.normal_(std=30.0)
        net.spread.uniform_(0.1, 3.0)
    h = torch.randn(2, 50, 8, dtype=torch.float32)
    q = net(h, torch.randn(50, 1, 2, dtype=torch.float32))
    assert q.shape == (50, 3, 2, 4)
    assert torch.isfinite(q).all()
    assert (q.diff(dim=-1) >= 0).all()


def test_levels_without_a_median_have_a_middle():
    net = network(levels=(0.2, 0.45, 0.99))
    assert net.middle == 1
    assert (
        network(levels=(0.9,)).members(torch.zeros(2, 4, 8, dtype=torch.float32), torch.zeros(4, 1, 2)).shape[-1] == 1
    )


def test_forecasts_go_out_from_the_anchor():
    net = network()
    h = torch.randn(2, 4, 8, dtype=torch.float32)
    anchor = torch.randn(4, 1, 2, dtype=torch.float32)
    moved = net.normalised(h, anchor + 1) - net.normalised(h, anchor)
    torch.testing.assert_close(moved, torch.ones_like(moved))


def test_straightening_undoes_bending():
    net = network()
    v = torch.tensor([[-3.0], [7.0]], dtype=torch.float32).expand(4, 2, 1)
    torch.testing.assert_close(net.straighten(net.bent(v)), v)
    far = net.straighten(torch.full((2, 1), 1e6, dtype=torch.float32))
    assert torch.isfinite(far).all()


def test_members_differ_and_are_averaged():
    net = network()
    inputs, codes = rows()
    h, _ = net.read(inputs, codes)
    anchor = torch.zeros(2, 9, 1, 2, dtype=torch.float32)
    each = net.members(h, anchor)
    assert not torch.allclose(each[0], each[1])
    torch.testing.assert_close(net.normalised(h, anchor), each.mean(0))


def test_unknown_category_adds_nothing():
    tower = network().towers[0]
    assert (tower.embeddings[0](torch.zeros(1, dtype=torch.long)) == 0).all()


def test_spread_widens_around_the_middle():
    net = network()
    h, anchor = torch.randn(2, 4, 8, dtype=torch.float32), torch.zeros(4, 1, 2, dtype=torch.float32)
    before = net.normalised(h, anchor)
    net.spread[:] = 2.0
    after = net.normalised(h, anchor)
    centre = before[..., net.middle : net.middle + 1]
    torch.testing.assert_close(after - centre, 2 * (before - centre))


def test_pinball_by_hand():
    y = torch.tensor([[[1.0]], [[float("nan")]]])
    q = torch.tensor([[[[0.0, 3.0]]], [[[5.0, 6.0]]]])
    total, count = pinball(y, q, torch.tensor([0.1, 0.9]))
    assert count == 2
    torch.testing.assert_close(total, torch.tensor(0.1 * 1 + 0.1 * 2))


def test_pinball_is_least_at_the_quantile():
    y = torch.randn(20_000).abs()
    levels = torch.tensor([0.1, 0.5, 0.9])
    best = torch.quantile(y, levels)
    target = y[:, None, None]

    def loss(q):
        return pinball(target, q.expand(len(y), 1, 1, 3), levels)[0]

    for move in (-0.05, 0.05):
        assert loss(best) < loss(best + move)


def test_missing_targets_give_no_gradient():
    q = torch.randn(3, 2, 1, 3, requires_grad=True)
    y = torch.randn(3, 2, 1)
    y[1] = float("nan")
    pinball(y, q, torch.tensor([0.1, 0.5, 0.9]))[0].backward()
    assert torch.isfinite(q.grad).all()
    assert (q.grad[1] == 0).all()
    assert (q.grad[0] != 0).all()


def test_description_to_json_and_back():
    assert NetworkConfig.from_dict(json.loads(json.dumps(config().as_dict()))) == config()
    with pytest.raises(BadInput, match="did you mean 'levels'"):
        NetworkConfig.from_dict(config().as_dict() | {"level": 1})
    lost = config().as_dict()
    del lost["inputs"]
    with pytest.raises(BadInput, match="'inputs' is missing"):
        NetworkConfig.from_dict(lost)


def test_unknown_layer_is_refused():
    with pytest.raises(BadInput, match="did you mean 's4d'"):
        network(layers="s4dd")


def test_numbers_are_float32_whatever_the_default():
    assert torch.get_default_dtype() == torch.float64
    assert {t.dtype for t in network(layers="s4d attention").state_dict().values()} == {torch.float32}
