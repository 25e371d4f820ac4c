"""Memories that settle: one loop walks every landscape.

An energy gives each point a height, and low means plausible. To settle is to go down; to sample is to go down and be
jostled just enough that a valley is visited as often as it deserves. Recall is the same walk again, with a part of
the point held in place.

Run it: python examples/settle.py
"""

import torch

from conca.energy import Divergence, DoubleWell, Hopfield, descent, mala, sample, ula

torch.set_default_dtype(torch.float64)
generator = torch.Generator().manual_seed(0)


def two_valleys() -> None:
    """E(x) = 2 (x^2 - 1)^2 has valleys at -1 and +1. In one dimension we can simply count, and so know the answer."""
    well = DoubleWell(height=2.0)
    x = torch.linspace(-3, 3, 10_001)[:, None]
    density = torch.softmax(-well(x), dim=0)
    known = (density @ x.square()).item()
    print(f"E[x^2] by counting           {known:.4f}")

    # Two thousand walkers start at the top of the barrier and roll down. Without noise they all end at the bottom.
    start = 0.1 * torch.randn(2000, 1, generator=generator)
    rest, _ = sample(well, descent(0.05), start, steps=200, thin=200)
    print(f"E[x^2] without any noise     {rest[-1].square().mean():.4f}   (every walker sits at -1 or +1)")
    assert torch.allclose(rest[-1].abs(), torch.ones(2000, 1))

    # `ula` adds noise. It is nearly right: a step of finite size jostles a little too much or too little.
    chain, _ = sample(well, ula(0.01), start, steps=2000, thin=20, generator=generator)
    rough = chain[50:].square().mean().item()
    print(f"E[x^2] by ula, step 0.01     {rough:.4f}   (a bias that no patience removes)")

    # `mala` takes the same steps and sends some walkers back, and now it is exact, even with a step ten times as long.
    chain, info = sample(well, mala(0.1), start, steps=2000, thin=20, generator=generator)
    exact = chain[50:].square().mean().item()
    print(f"E[x^2] by mala, step 0.1     {exact:.4f}   ({info['accepted'].mean():.0%} of the steps accepted)")
    assert abs(exact - known) < 0.005 < abs(rough - known)

    # With that step `ula` does not survive. It says so, instead of handing you numbers.
    try:
        sample(well, ula(0.1), start, steps=2000, generator=generator)
        raise AssertionError("ula should have left the finite numbers")
    except Divergence as error:
        print(f"ula, step 0.1                {error}")


def half_a_picture() -> None:
    """A Hopfield memory has a valley at every picture it stores. Show it half of one, and let it settle."""
    shapes = {
        "ring": ["  ####  ", " #    # ", "#      #", "#      #", "#      #", "#      #", " #    # ", "  ####  "],
        "cross": ["#      #", " #    # ", "  #  #  ", "   ##   ", "   ##   ", "  #  #  ", " #    # ", "#      #"],
        "house": ["   ##   ", "  #  #  ", " #    # ", "########", "#      #", "#  ##  #", "#  ##  #", "########"],
    }
    pictures = torch.tensor(
        [[[1.0 if dot == "#" else -1.0 for dot in row] for row in shape] for shape in shapes.values()]
    )
    memory = Hopfield(pictures, beta=0.2)

    # The upper half is known and stays; below it there is only noise. `given` is all that changes: same loop, same kernel.
    upper = torch.zeros(8, 8, dtype=torch.bool)
    upper[:4] = True
    start = torch.randn(3, 8, 8, generator=generator)
    held = memory.given(pictures, upper)
    recalled, info = sample(held, descent(1.0), start, steps=10)

    assert torch.equal(recalled[..., :4, :], pictures[:, :4].expand(10, -1, -1, -1)), "what is known has not moved"
    assert (info["energy"].diff(dim=0) <= 1e-12).all(), "no step went uphill"
    assert (recalled[-1] - pictures).abs().max() < 0.01, "each half has found its own other half"
    for before, after in zip(torch.where(upper, pictures, start)[2], recalled[-1][2]):
        print("  ".join("".join("#" if dot > 0 else "." for dot in row) for row in (before, after)))
    heights = [held(start)[2].item(), *info["energy"][:4, 2].tolist()]
    print("energy, step by step:", ", ".join(f"{height:.3f}" for height in heights))

    # One such update, with beta = 1 / sqrt(d), is the attention of a transformer: keys and values are what is remembered.
    query, keys = torch.randn(5, 64, generator=generator), pictures.flatten(1)
    attention = torch.nn.functional.scaled_dot_product_attention(query[None], keys[None], keys[None])[0]
    gap = (Hopfield(keys, beta=64**-0.5).step(query) - attention).abs().max()
    print(f"one update against attention: differs by at most {gap:.0e}")
    assert gap < 1e-12


if __name__ == "__main__":
    two_valleys()
    print()
    half_a_picture()
