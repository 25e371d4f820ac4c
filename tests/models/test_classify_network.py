import pytest
import torch

from conca.layers.states import leaves
from conca.models.classify import ClassifyNetwork, ClassifyNetworkConfig, rescaled
from conca.types import BadInput


def network(**options) -> ClassifyNetwork:
    torch.manual_seed(0)
    described = {"channels": 2, "symbols": 0, "classes": 3, "layers": "s4d(d_state=4) lstm", "d_model": 6}
    found = ClassifyNetwork(ClassifyNetworkConfig(**described | options)).double()
    with torch.no_grad():
        found.mean.fill_(0.5)
        found.scale.fill_(2.0)
    return found.eval()


X = torch.randn(3, 13, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LENGTHS = torch.tensor([13, 1, 7])


def test_all_forms_are_one_function():
    net = network()
    poisoned = X.clone()
    poisoned[1, 1:] = poisoned[2, 7:] = torch.nan
    logits, state = net.read(poisoned, lengths=LENGTHS)
    every, after = net.every(poisoned, lengths=LENGTHS)
    at = net.at(poisoned, torch.stack([LENGTHS, LENGTHS.clamp(max=3)], 1), lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        own = net.init_state(1)
        for t in range(length):
            said, own = net.step(X[row : row + 1, t], own)
            assert torch.allclose(said[0], every[row, t])
        assert torch.allclose(said[0], logits[row]) and torch.allclose(said[0], at[row, 0])
        assert torch.allclose(at[row, 1], every[row, min(length, 3) - 1])
        assert torch.allclose(net(X[row : row + 1, :length])[0], logits[row])
        for one, two, three in zip(leaves(own), leaves(state), leaves(after)):
            assert torch.allclose(one[0], two[row]) and torch.allclose(one[0], three[row])


@pytest.mark.parametrize("cut", [0, 1, 5, 13])
def test_a_warm_state_goes_on(cut):
    net = network()
    whole, end = net.read(X)
    _, state = net.read(X[:, :cut])
    logits, state = net.read(X[:, cut:], state)
    assert torch.allclose(logits, whole)
    assert state.count_B.tolist() == end.count_B.tolist() == [13] * 3


def test_gradients_go_back_into_the_state():
    net = network()
    _, state = net.read(X[:, :4])
    total = state.sum_BD.detach().requires_grad_()
    net.read(X[:, 4:], state._replace(sum_BD=total))[0].sum().backward()
    assert total.grad.abs().sum() > 0


def test_what_is_missing_counts_as_the_mean():
    net, holed, filled = network(), X.clone(), X.clone()
    holed[:, 3, 1], filled[:, 3, 1] = torch.nan, 0.5
    assert torch.equal(net(holed), net(filled))


def test_both_directions_read_whole_sequences_alone():
    net = network(layers="s4d(d_state=4) gatedmlp", bidirectional=True)
    poisoned = X.clone()
    poisoned[2, 7:] = torch.nan
    both = net(poisoned, lengths=torch.tensor([13, 13, 7]))
    assert torch.allclose(both[2:], net(X[2:, :7])) and torch.allclose(both[:2], net(X[:2]))
    changed = X.clone()
    changed[:, -1] += 1
    assert not net.bounded and not torch.allclose(net(changed), net(X))
    for ask in (lambda: net.init_state(1), lambda: net.every(X), lambda: net.step(X[:, 0], None)):
        with pytest.raises(BadInput, match="whole sequences"):
            ask()


def test_symbols_are_embedded():
    net = network(channels=1, symbols=5)
    codes = torch.tensor([[0, 4, 2], [1, 1, 3]])
    every, _ = net.every(codes)
    state = net.init_state(2)
    for t in range(3):
        said, state = net.step(codes[:, t], state)
        assert torch.allclose(said, every[:, t])


def test_time_scales_are_longer_in_the_block_alone():
    net = network(layers="s4d(d_state=4)*2")
    before = net(X)
    with rescaled(net, 2.0):
        assert not torch.allclose(net(X), before)
    assert torch.equal(net(X), before)
    for factor in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(BadInput, match="positive"), rescaled(net, factor):
            pass
    with pytest.raises(BadInput, match="no layer"), rescaled(network(layers="lstm"), 2.0):
        pass


def test_half_the_sampling_rate_is_read_by_steps_twice_as_long():
    net = network(layers="s4d(d_state=8, dt=(0.001, 0.002))", channels=1)
    t = torch.arange(1024, dtype=torch.float64)
    fine = (t * 0.01).sin()[None, :, None]
    with rescaled(net, 2.0):
        coarse = net(fine[:, ::2])
    assert torch.allclose(coarse, net(fine), rtol=0.02, atol=0.02)
    assert not torch.allclose(net(fine[:, ::2]), net(fine), rtol=0.02, atol=0.02)
