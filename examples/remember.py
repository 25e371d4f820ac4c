"""Thirty-two numbers and a long past: what each memory still knows of it, and what has faded.

    python examples/remember.py

A signal comes in, one sample after another. We may keep 32 numbers, nothing else. HiPPO says which: those of the best
approximation of the past, best under a measure that we choose. Here the same past goes through seven measures, and
from each set of 32 numbers we draw what can still be told. The picture is written to remember.png.
"""

import torch
from matplotlib.figure import Figure

from conca.ops.hippo_memory import project
from conca.ops.hippo_rebuild import reach, rebuild

# A day of 1,200 samples: a slow swell, a short burst early on, its twin near the end, and a jump in between.
steps, numbers = 1200, 32
t = torch.arange(steps, dtype=torch.float64)
burst = sum(torch.exp(-(((t - at) / 60) ** 2)) * torch.sin((t - at) / 18) for at in (250, 1030))
signal = 0.6 * torch.sin(t / 170) + burst + 0.5 * torch.sigmoid((t - 640) / 3)

# What is to be seen of each, the length of the memory in samples, and the time between samples in the measure's units:
# a window of 400 samples, or a past that fades, a unit of time for so many samples. The scaled measure has no rate.
window = 400
measures = {
    "legs": ("LegS, scaled: all of the past alike", None),
    "legt": ("LegT: the last 400 samples alike, nothing before", reach("legt") / window),
    "chebt": ("Chebyshev: the same window, both of its ends best", reach("chebt") / window),
    "fourier": ("Fourier: the same window in waves, which must close up", reach("fourier") / window),
    "lagt": ("LagT: clear nearby, and less and less", 1 / 12),
    "tlagt": ("LagT, tilted: the further back, the less it counts", 1 / 60),
    "legs, without 1/t": ("LegS without its division by time, as S4 has it: fading", 1 / 200),
}
ages = steps - 0.5 - t  # of each sample, seen from the end: the first is the oldest
known, errors = {}, {}
for name, (_, dt) in measures.items():
    measure = name.partition(",")[0]
    if dt is None:  # scaled: `span` tells how long the past was
        state = project(signal[None], measure, numbers)[0]
        known[name] = rebuild(measure, state, ages, span=steps)
    else:
        state = project(signal[None], measure, numbers, dt=dt, scaled=False)[0]
        inside = ages * dt <= reach(measure)
        known[name] = torch.full_like(signal, torch.nan)
        known[name][inside] = rebuild(measure, state, ages[inside] * dt)
    errors[name] = (known[name] - signal)[-300:].square().mean().sqrt().item()

# Who was right? Over the last 300 samples the windows know best, for they spend their numbers on nothing else. Waves do
# worse than polynomials, since the two ends of the window do not meet. LegS smooths a little everywhere, and is alone in
# still knowing of the burst at the beginning. Without its division it is a fading memory like the others.
for name, error in errors.items():
    print(f"{name:18} error over the last 300 samples {error:.4f}")
early = (t > 150) & (t < 310)
print(f"{'legs':18} error over the early burst      {(known['legs'] - signal)[early].square().mean().sqrt():.4f}")
assert errors["legt"] < errors["fourier"] and errors["chebt"] < errors["fourier"]
assert max(errors["legt"], errors["chebt"]) < errors["legs"]
assert (known["legs"] - signal)[early].square().mean() < 0.6 * signal[early].square().mean()

# Draw them: the signal in grey, what is still known in blue, and orange wherever the two part: that has faded.
figure = Figure(figsize=(9, 12), dpi=120, layout="constrained")
for axes, (name, (title, _)) in zip(figure.subplots(len(measures), 1, sharex=True, sharey=True), measures.items()):
    wild = known[name].isnan() | (known[name].abs() > 1.6)  # outside the window, or not to be believed any more
    gone = wild.int().flip(0).cummax(0).values.flip(0).bool()  # and all that is older
    told = known[name].masked_fill(gone, 0.0)
    axes.fill_between(t, signal, told, color="#f0a36b", alpha=0.55, linewidth=0, label="faded, or wrong")
    axes.plot(t, signal, color="#8a93a3", linewidth=1.0, label="what came in")
    axes.plot(t, told.masked_fill(gone, torch.nan), color="#1f6fb2", linewidth=1.6, label="what 32 numbers still know")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylim(-1.7, 1.8)
    axes.spines[["top", "right"]].set_visible(False)
axes.set_xlabel("sample; the present is on the right")
figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False, fontsize=9)
figure.savefig("remember.png")
print("drawn: remember.png")
