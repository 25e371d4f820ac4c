"""A table that is its own head: both gradients gather in one buffer, in every order and use, and are PyTorch's."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad
from torch.testing import assert_close

from conca.layers.tied_embedding import TiedEmbedding
from conca.ops.embedding import embedding

V, D = 50, 6


class Model(torch.nn.Module):
    """Tokens, a map, tokens; in the library's way, or in PyTorch's alone."""

    def __init__(self, plain=False):
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.map, self.plain = TiedEmbedding(V, D, std=0.5), torch.nn.Linear(D, D), plain

    def forward(self, ids, target):
        if self.plain:
            return F.cross_entropy(
                F.linear(self.map(F.embedding(ids, self.embedding.weight)), self.embedding.weight), target
            )
        return self.embedding.loss(self.map(self.embedding(ids)), target)


def some(seed=0):
    return torch.randint(V, (2, 9), generator=torch.Generator().manual_seed(seed)).unbind(0)


def of_both(use):
    """The gradient of the weight after `use(model)`, ours and PyTorch's."""
    models = Model(), Model(plain=True)
    for model in models:
        use(model)
    assert models[0].embedding.weight.grad.layout == torch.strided
    assert_close(*(model.embedding.weight.grad for model in models))
    return models[0].embedding.weight.grad


def zeros_made(run):
    """How many tables of zeros `run` fills."""
    with torch.profiler.profile(record_shapes=True) as profile:
        run()
    return sum(e.name == "aten::zero_" and e.input_shapes[0] == [V, D] for e in profile.events())


def test_both_gradients_gather_in_one_buffer():
    model, table = Model(), torch.ones(V, D, requires_grad=True)
    assert zeros_made(lambda: embedding(some()[0], table).sum().backward()) == 1
    assert zeros_made(lambda: model(*some()).backward()) == 0
    of_both(lambda model: model(*some()).backward())


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_accumulation_double_use_and_second_passes(scale):
    def accumulate(model):
        for seed in range(3):
            (scale * model(*some(seed))).backward()

    def twice_in_one(model):
        (model(*some(1)) + scale * model(*some(2))).backward()

    def retained(model):
        loss = model(*some(1))
        loss.backward(retain_graph=True)
        model.embedding.weight.grad.mul_(2)
        (scale * loss).backward()

    def without_head(model):
        model(*some(1)).backward()
        model.embedding(some(2)[0]).square().sum().backward()

    def logits_too(model):
        (model(*some(1)) + scale * model.embedding.logits(model.embedding(some(2)[0])).square().mean()).backward()

    for use in (accumulate, twice_in_one, retained, without_head, logits_too):
        of_both(use)


def test_a_gradient_kept_by_somebody_is_left_alone():
    model = Model()
    early = model.embedding(some(2)[0]).sum()  # keeps the node of the weight, on which word of `kept` was left
    kept = grad(model(*some(1)), model.embedding.weight)[0]
    was = kept.clone()
    early.backward()
    assert_close(kept, was, rtol=0, atol=0)
    heard = []
    model = Model()
    model.embedding.weight.register_hook(lambda g: heard.append(g.clone()))
    model(*some(1)).backward()
    assert_close(heard[0], was)


def test_derivatives_of_derivatives_and_transforms():
    model, plain = Model(), Model(plain=True)

    def slope(model):
        weights = model.embedding.weight, model.map.weight
        return grad(sum(g.square().sum() for g in grad(model(*some()), weights, create_graph=True)), weights)

    assert_close(slope(model), slope(plain))
    parameters = dict(model.named_parameters())

    def loss(parameters, model):
        return torch.func.functional_call(model, parameters, some())

    for got, want in zip(*(torch.func.grad(loss)(parameters, m).values() for m in (model, plain))):
        assert_close(got, want)
    fast = torch.compile(model, fullgraph=True, backend="aot_eager")
    fast(*some()).backward()
    plain(*some()).backward()
    assert_close(model.embedding.weight.grad, plain.embedding.weight.grad)
    torch._dynamo.reset()


def test_frozen_or_cast_tables():
    model = Model()
    model.embedding.weight.requires_grad_(False)
    model(*some()).backward()
    assert model.embedding.weight.grad is None
    model = Model().bfloat16()
    model(*some()).backward()
    want = Model(plain=True)
    want(*some()).backward()
    assert model.embedding.weight.grad.dtype == torch.bfloat16
    assert_close(model.embedding.weight.grad.double(), want.embedding.weight.grad, rtol=0.05, atol=0.005)


def test_it_is_an_embedding_that_trains_is_clipped_and_copied():
    model = Model()
    assert isinstance(model.embedding, torch.nn.Embedding)
    assert list(model.embedding.state_dict()) == ["weight"]
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.05)
    first = model(*some()).item()
    for _ in range(30):
        optimiser.zero_grad()
        loss = model(*some())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    assert loss.item() < first / 2
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_close(twin(*some()), model(*some()))
    with pytest.raises(IndexError):
        model.embedding(torch.tensor([V]))
    with pytest.raises(ValueError, match="TiedEmbedding: "):
        TiedEmbedding(0, 3)


def test_a_gradient_that_somebody_keeps_and_a_table_with_another_use():
    """A hook holds on to the head's gradient, and autograd sums it with a third one elsewhere."""
    tokens, ids, kept = TiedEmbedding(13, 6), torch.randint(0, 13, (3, 7)), []

    def gradient(hook):
        loss = tokens.loss(tokens(ids), ids)
        if hook:
            loss.grad_fn.register_hook(lambda into, out: kept.append(into))
        return torch.autograd.grad(loss + tokens.weight.square().sum(), tokens.weight)[0]

    assert_close(gradient(True), gradient(False))


def test_from_a_table():
    table = torch.randn(5, 3)
    assert torch.equal(TiedEmbedding.from_pretrained(table)(torch.tensor([4])), table[4:])
    assert not TiedEmbedding.from_pretrained(table).weight.requires_grad
    with pytest.raises(ValueError, match="expected a table"):
        TiedEmbedding.from_pretrained(table[0])
