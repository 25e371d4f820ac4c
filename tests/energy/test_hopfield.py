"""The continuous Hopfield memory: attention is its update, and it remembers what the paper says it does."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from conca.energy import Hopfield, descent, sample
from conca.ops.hopfield import hopfield_update
from conca.types import BadInput


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def patterns(count=200, size=64):
    return normalize(torch.randn(count, size, generator=seeded()), dim=1)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_one_update_is_softmax_attention(dtype, limit):
    for batch, count, size in ((5, 7, 3), (1, 1, 1), (64, 200, 64), (0, 4, 8)):
        x, memories = (torch.randn(n, size, generator=seeded(n), dtype=dtype) for n in (batch, count))
        attention = scaled_dot_product_attention(x[None], memories[None], memories[None])[0]
        for updated in (hopfield_update(x, memories, size**-0.5), Hopfield(memories, size**-0.5).step(x)):
            torch.testing.assert_close(updated, attention, atol=limit, rtol=limit)


def test_the_update_has_heads_and_both_derivatives():
    x, memories = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 6, 4)
    torch.testing.assert_close(hopfield_update(x, memories, 0.5), scaled_dot_product_attention(x, memories, memories))
    x, memories, beta = (t.requires_grad_() for t in (torch.randn(2, 3), torch.randn(4, 3), torch.tensor(1.5)))
    assert torch.autograd.gradcheck(hopfield_update, (x, memories, beta))
    assert torch.autograd.gradgradcheck(hopfield_update, (x, memories, beta))


def test_the_update_is_a_descent_of_step_one():
    memory, x = Hopfield(torch.randn(5, 3), 2.0), torch.randn(7, 3)
    chain, _ = sample(memory, descent(1.0), x, 3)
    once = memory.step(x)
    torch.testing.assert_close(chain[0], once)
    torch.testing.assert_close(chain[2], memory.step(memory.step(once)))


def test_its_energy_lies_between_zero_and_twice_the_largest_memory():
    memories = torch.randn(20, 6)
    inside = torch.softmax(3 * torch.randn(500, 20), 1) @ memories
    for beta in (0.01, 1.0, 100.0):
        energy = Hopfield(memories, beta)(inside)
        assert energy.min() >= 0
        assert energy.max() <= 2 * memories.square().sum(1).max()


@pytest.mark.parametrize(("beta", "retrieved"), [(1.0, 0), (8.0, 0), (16.0, 50), (32.0, 50)])
def test_a_cold_memory_recalls_one_pattern_and_a_warm_one_their_mean(beta, retrieved):
    stored = patterns()
    noise = normalize(torch.randn(50, 64, generator=seeded(1)), dim=1)
    found = Hopfield(stored, beta).retrieve(stored[:50] + 0.5 * noise)
    assert int((found - stored[:50]).norm(dim=1).lt(0.1).sum()) == retrieved


def test_half_a_pattern_is_completed_by_the_same_loop():
    stored = patterns(40)
    mask = torch.arange(64) < 32
    start = torch.where(mask, stored, 0)
    chain, info = sample(Hopfield(stored, 30.0).given(stored, mask), descent(1.0), start, 20)
    assert torch.equal(chain[..., mask], stored[:, mask].expand(20, -1, -1))
    assert (chain[-1] - stored).abs().max() < 0.01
    assert (info["energy"].diff(dim=0) <= 1e-12).all()


def test_a_row_settles_by_itself():
    memory, probes = Hopfield(patterns(20), 12.0), torch.randn(9, 64, generator=seeded(3))
    together = memory.retrieve(probes, 100, 1e-4)
    alone = torch.cat([memory.retrieve(probes[i : i + 1], 100, 1e-4) for i in range(9)])
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)
    assert torch.equal(memory.retrieve(probes, 0), probes)
    assert memory.retrieve(probes[:0]).shape == (0, 64)


def test_images_are_stored_as_they_are():
    images = torch.randn(3, 1, 8, 8, generator=seeded())
    memory = Hopfield(images, 1.0)
    torch.testing.assert_close(memory.retrieve(images + 0.1), images, atol=1e-6, rtol=0)


def test_memories_train_where_they_are_parameters():
    memory = Hopfield(nn.Parameter(torch.randn(4, 3)), 1.0)
    memory.retrieve(torch.randn(5, 3), 2).sum().backward()
    assert memory.memories.grad.abs().sum() > 0
    assert not list(Hopfield(torch.randn(4, 3), 1.0).parameters())


def test_what_is_no_memory_is_refused():
    for memories, beta in (
        (torch.zeros(0, 3), 1.0),
        (torch.tensor(1.0), 1.0),
        (torch.zeros(2, 3), 0.0),
        (torch.zeros(2, 3), float("nan")),
    ):
        with pytest.raises(BadInput):
            Hopfield(memories, beta)
    with pytest.raises(BadInput, match=r"floating point, not torch.int64; use .float\(\)"):
        Hopfield(torch.ones(2, 3, dtype=torch.int64), 1.0)
    memory = Hopfield(torch.zeros(2, 3), 1.0)
    with pytest.raises(BadInput, match=r"this Hopfield reads x of shape \(B, 3\), not \(4, 2\)"):
        memory(torch.zeros(4, 2))
    for ask in (memory, memory.score, memory.step, memory.retrieve):
        with pytest.raises(BadInput, match=r"this Hopfield is of torch.float64, x of torch.float32: use x.to"):
            ask(torch.zeros(4, 3, dtype=torch.float32))
