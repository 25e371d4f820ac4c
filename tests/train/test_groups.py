"""Parameter groups."""

import torch
from torch import nn

from conca.layers.lstm import LSTM
from conca.layers.s4d import S4D
from conca.models.stack import pattern
from conca.train.groups import param_groups


def where(module, groups):
    """Rate and decay of each parameter by name."""
    found = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    return {name: found.get(id(p)) for name, p in module.named_parameters()}


def test_every_parameter_stands_once():
    net = nn.Sequential(nn.Linear(4, 8), pattern("s4d lstm attention shortconv gatedmlp", 8), nn.LayerNorm(8))
    groups = param_groups(net, lr=1e-3, weight_decay=0.1)
    ids = [id(p) for group in groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in net.parameters())


def test_roles_are_followed():
    layer = S4D(4, d_state=4)
    rates = where(layer, param_groups(layer, lr=1.0, weight_decay=0.1))
    assert rates["log_dt"] == (0.1, 0.0)
    assert rates["c"] == (1.0, 0.0)
    assert rates["out.weight"] == (1.0, 0.1)
    assert rates["out.bias"] == (1.0, 0.0)
    lstm = LSTM(4)
    rates = where(lstm, param_groups(lstm, lr=1.0, weight_decay=0.1))
    assert rates["core.weight_hh_l0"] == (1.0, 0.1)
    assert rates["core.bias_hh_l0"] == (1.0, 0.0)


def test_norms_embeddings_and_vectors_are_not_decayed():
    net = nn.ModuleDict({"norm": nn.LayerNorm([2, 3]), "words": nn.Embedding(5, 3), "map": nn.Linear(3, 2)})
    rates = where(net, param_groups(net, lr=1.0, weight_decay=0.1))
    assert [name for name, (_, decay) in rates.items() if decay] == ["map.weight"]


def test_frozen_parameters_are_left_out():
    net = nn.Linear(3, 2)
    net.bias.requires_grad_(False)
    assert where(net, param_groups(net, lr=1.0)) == {"weight": (1.0, 0.0), "bias": None}


def test_shared_parameters_stand_once():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    b.weight = a.weight
    groups = param_groups(nn.Sequential(a, b), lr=1.0, weight_decay=0.1)
    assert sum(len(group["params"]) for group in groups) == 3
    torch.optim.AdamW(groups)
