"""LSTM, short convolution and gated feed-forward: each against PyTorch's own pieces."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conca.layers.gated_mlp import GatedMLP
from conca.layers.lstm import LSTM, LSTMState
from conca.layers.short_conv import ShortConv


def test_lstm_takes_the_weights_of_pytorchs():
    theirs, ours = nn.LSTM(5, 5, batch_first=True), LSTM(5)
    ours.core.load_state_dict(theirs.state_dict())
    x, h, c = torch.randn(2, 6, 5), torch.randn(2, 5), torch.randn(2, 5)
    y, (h_last, c_last) = theirs(x, (h[None], c[None]))
    y_ours, state = ours(x, LSTMState(h, c))
    torch.testing.assert_close(y_ours, y)
    torch.testing.assert_close(state, LSTMState(h_last[0], c_last[0]))


def test_rows_that_end_together_are_one_call_of_the_lstm():
    layer, sizes = LSTM(3), []
    layer.core.register_forward_pre_hook(lambda _, args: sizes.append(tuple(args[0].shape)))
    x = torch.randn(4, 9, 3)
    y, state = layer(x, lengths=torch.tensor([2, 7, 0, 7]))
    assert sizes == [(3, 2, 3), (2, 5, 3)]
    torch.testing.assert_close(y[1, :7], layer(x[1:2, :7])[0][0])
    torch.testing.assert_close(state.c_BD[3], layer(x[3:, :7])[1].c_BD[0])


def test_short_convolution_is_conv1d_and_remembers_one_column_fewer():
    layer = ShortConv(4, d_conv=3, activation=False)
    x = torch.randn(2, 9, 4)
    y, state = layer(x)
    weight = layer.weight.flip(1)[:, None]
    expected = F.conv1d(F.pad(x.transpose(1, 2), (2, 0)), weight, layer.bias, groups=4).transpose(1, 2)
    torch.testing.assert_close(y, expected)
    assert torch.equal(state.tail_BWD, x[:, -2:])
    torch.testing.assert_close(ShortConv(4)(x)[0].shape, x.shape)


def test_gated_feed_forward_by_hand():
    layer = GatedMLP(3, expand=2)
    x = torch.randn(2, 4, 3)
    gate, inner = x @ layer.gate.weight.T, x @ layer.inner.weight.T
    torch.testing.assert_close(layer(x)[0], (gate * torch.sigmoid(gate) * inner) @ layer.out.weight.T)
    assert layer.init_state(7) == ()


def test_weight_and_bias_start_as_those_of_a_convolution_of_pytorch():
    layer = ShortConv(5000, d_conv=4)
    for t in (layer.weight, layer.bias):
        assert t.abs().max() <= 0.5
        torch.testing.assert_close(t.detach().std(), torch.tensor(12**-0.5), rtol=0.05, atol=0)


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match="d_conv must be a whole number from 1 on"):
        ShortConv(4, d_conv=0)
    with pytest.raises(ValueError, match=r"activation must be True \(SiLU\) or False, got 'silu'"):
        ShortConv(4, activation="silu")
