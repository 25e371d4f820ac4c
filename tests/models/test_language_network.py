"""A language model's network: forms, padding on either side, half precision, and what it is made of."""

import pytest
import torch

from conca.models.language import LanguageConfig, LanguageNetwork
from conca.types import BadInput

LAYERS = (
    "mamba(d_state=3, select_norm=1e-6) mamba2(d_state=4, d_head=4, gate={'groups': 1}) gatedmlp attention(window=4) s5"
)


def network(**options):
    torch.manual_seed(0)
    given = {"vocab_size": 23, "n_tokens": 20, "layers": LAYERS, "d_model": 8} | options
    return LanguageNetwork(LanguageConfig(**given)).eval()


@pytest.mark.parametrize("tied", [True, False])
def test_token_by_token_gives_what_all_at_once_gives(tied):
    model, ids = network(tied=tied), torch.randint(23, (2, 9))
    with torch.no_grad():
        _, warm = model(ids[:, :4])
        whole, last = model(ids, warm)
        found, state = [], warm
        for token in ids.unbind(1):
            logits, state = model.step(token, state)
            found.append(logits)
        torch.testing.assert_close(torch.stack(found, 1), whole)
        torch.testing.assert_close(model(ids[:, :1], state)[0], model(ids[:, :1], last)[0])


def test_padding_on_either_side_changes_nothing():
    model, ids = network(), torch.randint(20, (3, 7))
    lengths = torch.tensor([7, 4, 0])
    right = torch.arange(7) < lengths[:, None]
    alone, state = model(ids[1:2, :4])
    for mask, row in ((right, ids[1]), (right.flip(1), ids[1].roll(3))):
        padded = ids.clone()
        padded[1] = row
        logits, after = model(padded, attention_mask=mask.long())
        torch.testing.assert_close(logits[1][mask[1]], alone[0])
        torch.testing.assert_close(after[0].h_BEN[1:2], state[0].h_BEN)


def test_a_mask_with_holes_is_refused():
    model, ids = network(), torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(BadInput, match="holes"):
        model(ids, attention_mask=torch.tensor([[1, 0, 1]]))
    with pytest.raises(BadInput, match=r"\(1, 2\)"):
        model(ids, attention_mask=torch.ones(1, 2))
    with pytest.raises(BadInput, match="leave lengths"):
        model(ids, attention_mask=torch.ones(1, 3), lengths=torch.tensor([3]))


def test_half_precision_adds_up_in_float32():
    model, ids = network(tied=False).float(), torch.randint(23, (2, 9))
    exact, _ = model(ids)
    rough, state = model.bfloat16()(ids)
    assert rough.dtype == torch.bfloat16 and model.read(ids)[0].dtype == torch.float32
    assert (rough.float() - exact).abs().max() < 0.02
    assert model.step(ids[:, 0], state)[0].shape == (2, 23)


def test_a_loss_is_the_cross_entropy_of_its_logits():
    for tied in (True, False):
        model, ids = network(tied=tied), torch.randint(23, (2, 9))
        h, _ = model.read(ids[:, :-1])
        want = torch.nn.functional.cross_entropy(model.logits(h).flatten(0, 1), ids[:, 1:].flatten())
        torch.testing.assert_close(model.loss(h, ids[:, 1:]), want)


def test_a_description_survives_json_and_refuses_what_it_does_not_know():
    config = network().config
    assert LanguageConfig.from_dict(config.as_dict()) == config
    with pytest.raises(BadInput, match="did you mean 'n_tokens'"):
        LanguageConfig.from_dict(config.as_dict() | {"n_token": 3})
    with pytest.raises(BadInput, match="more than the vocab_size"):
        LanguageConfig(vocab_size=3, n_tokens=4, layers="s5", d_model=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", None),
        ("tied", 2),
        ("eps", float("nan")),
        ("eps", "a"),
        ("dropout", 1.5),
        ("dropout", True),
        ("std", -1.0),
    ],
)
def test_a_description_refuses_what_no_network_can_be(name, value):
    with pytest.raises(BadInput, match=f"network: {name} must be "):
        network(**{name: value})
