"""A memory that flows: one small tub, filled minute by minute and all at once, and then a layer that does the same.

    python examples/flow.py

You need nothing but conca and PyTorch. Read it from the top; every claim is followed by the line that checks it.
"""

import torch

from conca import S4D
from conca.ops.scan import scan

# The tub -------------------------------------------------------------------------------------------------------------
# Two litres a minute come in, and half of what is there leaves every minute. We look once a minute.

water, seen = 0.0, []
for _ in range(5):
    water = 0.5 * water + 2.0
    seen.append(water)
print("minute by minute:", seen)
assert seen == [2.0, 3.0, 3.5, 3.75, 3.875]

# Nobody has to wait for the minutes, though. What came in k minutes ago has been halved k times since, so what is there
# after five minutes is a plain sum:

at_once = sum(2.0 * 0.5**k for k in range(5))
print("summed at once:  ", at_once)
assert at_once == seen[-1]

# That is the double nature of a linear memory: a recurrence when you live through it, a sum over the past when you have
# all of it before you. conca calls the machine underneath a scan, and it gives every minute of the sum together.

minutes = 5
halves = torch.full((1, minutes, 1), 0.5)  # axes: one tub, five minutes, one number to remember
litres = torch.full((1, minutes, 1), 2.0)
empty = torch.zeros(1, 1)
levels = scan(halves, litres, empty)
print("by a scan:       ", levels.flatten().tolist())
assert levels.flatten().tolist() == seen

# A tub need not be empty when you come in. Begin where the first three minutes ended, and the rest is the same water:

warm = scan(halves[:, 3:], litres[:, 3:], levels[:, 2])
assert torch.equal(warm, levels[:, 3:])

# The layer -----------------------------------------------------------------------------------------------------------
# S4D (Gu et al. 2022) is many tubs side by side. Their drains are learned, and they are complex numbers, so that the
# water also sloshes back and forth. Two sequences of 60 readings, eight channels each:

torch.manual_seed(0)
layer = S4D(8).eval()
x = torch.randn(2, 60, 8)

# All at once, which is how you train it:

y, state = layer(x)

# One reading at a time, which is how you use it when readings arrive. The state is all that the layer keeps of the
# past, and its size never changes:

memory, outputs = layer.init_state(2), []
for reading in x.unbind(1):
    output, memory = layer.step(reading, memory)
    outputs.append(output)
torch.testing.assert_close(torch.stack(outputs, 1), y, rtol=1e-4, atol=1e-5)
print("S4D: 60 readings in turn and all at once agree")

# And the two mix as you like: read 40 at once, keep the state, read the rest later. This is what a warm state is for.

_, memory = layer(x[:, :40])
rest, memory = layer(x[:, 40:], memory)
torch.testing.assert_close(rest, y[:, 40:], rtol=1e-4, atol=1e-5)
print("S4D: 40 readings, a pause, and 20 more agree too")
