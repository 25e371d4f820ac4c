"""Linear systems: a tub, a thermostat, a circuit, a car, and a rocket that is only seen through noise.

    python examples/systems.py

All of them are one thing: a state x that A moves, that B lets inputs into, that C reads, beside a direct path D.
"""

import math

import torch

from conca import GaussianSystem, LinearSystem

torch.set_default_dtype(torch.float64)
generator = torch.Generator().manual_seed(0)


def column(*numbers: float) -> torch.Tensor:
    """Numbers as one series of one input: axes are series, time, input."""
    return torch.tensor(numbers, dtype=torch.float64).reshape(1, -1, 1)


# The tub. Two litres a minute come in, half of what is there leaves every minute; we look once a minute.
tub = LinearSystem.discrete(A=torch.tensor([[0.5]]), B=torch.tensor([[1.0]]))
litres, _ = tub(column(2, 2, 2, 2, 2))
summed, _ = tub.convolution(column(2, 2, 2, 2, 2))
print("tub, litres               ", [0.0, *litres.flatten().tolist()])
print("summed at once            ", [0.0, *(round(level, 12) for level in summed.flatten().tolist())])
print("left after five minutes   ", tub.kernel(6)[-1].item(), "of what came in")

# A thermostat. A room loses a tenth of its excess warmth an hour; the heater gives 3 degrees an hour, the rest of the
# house is at 10. Here the input depends on what was read, so we must live through it, step by step.
room = LinearSystem(A=torch.tensor([[-0.1]]), B=torch.tensor([[3.0]]), dt=0.25)
excess, hours_on = torch.tensor([[5.0]]), 0.0
for _ in range(96):
    heating = 1.0 if 10 + excess.item() < 20 else 0.0
    _, excess = room.step(torch.tensor([[heating]]), excess)
    hours_on += 0.25 * heating
print(
    f"thermostat set to 20      {10 + excess.item():.1f} degrees after a day, the heater was on for {hours_on:.1f} hours"
)
assert abs(10 + excess.item() - 20) < 1

# A resistor and a capacitor: the voltage follows its input with a delay of RC seconds. Each transform is an approximation
# of the same curve; the zero-order hold is exact for an input that is held.
rc = 0.5
exact = 1 - math.exp(-1 / rc)
for transform in ("zoh", "bilinear", "backward_euler", "forward_euler"):
    circuit = LinearSystem(torch.tensor([[-1 / rc]]), torch.tensor([[1 / rc]]), dt=0.1, transform=transform)
    after = circuit(torch.ones(1, 10, 1))[0][0, -1].item()
    print(f"circuit, {transform:15s}  {after:.6f} volts after a second, off by {abs(after - exact):.0e}")

# A car. The pedal pushes, the air brakes, we read the speed: nothing goes straight from pedal to speed, D = 0.
drag, push = 0.1, 3.0
matrices = torch.tensor([[-drag]]), torch.tensor([[push]])
pedal = column(*[1.0] * 4, *[0.0] * 2)
speed, _ = LinearSystem(*matrices, dt=1.0)(pedal)
print("car, speed                ", [round(value, 2) for value in speed.flatten().tolist()])
# Read the acceleration of the very same car instead and the pedal is felt at once: D is not 0 any more.
acceleration, _ = LinearSystem(*matrices, torch.tensor([[-drag]]), torch.tensor([[push]]), dt=1.0)(pedal)
print("the same, acceleration    ", [round(value, 2) for value in acceleration.flatten().tolist()])
assert torch.allclose(acceleration, push * pedal - drag * speed)

# What sampling too rarely loses. A pendulum swings once a second. Looked at every 0.1 s it swings; looked at once a second
# it seems to stand still, and a push that came and went between two looks might as well not have been.
swing = torch.tensor([[0.0, 2 * math.pi], [-2 * math.pi, 0.0]])
pendulum = LinearSystem(swing, torch.zeros(2, 1), torch.tensor([[1.0, 0.0]]), dt=0.1)
seen, _ = pendulum(torch.zeros(1, 30, 1), torch.tensor([[1.0, 0.0]]))
print(f"pendulum, every 0.1 s      from {seen.min():.2f} to {seen.max():.2f}")
print(f"pendulum, every second     from {seen[:, 9::10].min():.2f} to {seen[:, 9::10].max():.2f}")
press = torch.zeros(1, 30, 1)
press[:, 11:17] = 1.0  # from 1.1 s to 1.7 s, between the looks at 1 s and at 2 s
felt, _ = LinearSystem(torch.tensor([[-12.0]]), torch.tensor([[12.0]]), dt=0.1)(press)
print(
    f"a push of half a second    reaches {felt.max():.2f}; whoever looks each second sees {felt[:, 9::10].max():.2f} of it"
)

# A rocket. Its height and speed obey Newton, gusts disturb it, and a radar reads the height to within 30 metres, when it
# reads at all: it is blind for 40 of 200 readings, and misses every seventh of the others.
T, dt, gust, radar = 200, 0.5, 2.0, 30.0
fall, engine = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([[0.0], [1.0]])
newton = LinearSystem(fall, engine, torch.tensor([[1.0, 0.0]]), dt=dt)
thrust = torch.where(torch.arange(T) < 80, 12.0, -9.8).reshape(1, T, 1)
true, _ = LinearSystem(fall, engine, dt=dt)(thrust + gust * torch.randn(1, T, 1, generator=generator))
readings = true[..., :1] + radar * torch.randn(1, T, 1, generator=generator)
readings[:, 100:140] = readings[:, ::7] = float("nan")
rocket = GaussianSystem(
    newton, state_noise=torch.tensor([gust**2]), observation_noise=torch.tensor([radar**2]), noise_input=engine
)
filtered, smoothed = rocket.filter(readings, u=thrust), rocket.smooth(readings, u=thrust)
for name, guess in (("radar alone", readings), ("filtered", filtered.mean_BTN), ("smoothed", smoothed.mean_BTN)):
    error = (guess - true)[0, 5:, 0]
    print(
        f"rocket, {name:12s}      off by {error.square().nanmean().sqrt():5.1f} m, over {(~error.isnan()).sum()} readings"
    )
blind = smoothed.covariance_BTNN[0, 120, 0, 0].sqrt()
print(f"while the radar was blind  the smoother gives itself {blind:.0f} m, and was off by {error[115].abs():.0f} m")
low, high = rocket.forecast(filtered.state, 20, u=torch.full((1, 20, 1), -9.8)).interval(0.9)
print(f"in ten seconds             between {low[0, -1, 0]:.0f} and {high[0, -1, 0]:.0f} m, nine times in ten")
