"""How the next token is chosen: what is done to the logits, in which order, and how one is drawn.

    repetition penalty -> temperature -> the k likeliest -> the likeliest of mass p -> none less likely than p times the likeliest -> draw

Names, order and meaning are those of a `generation_config.json`. Each row has random numbers of its own, a function of the seed, the row
and the place in its text, so that what it says does not hang on the rows beside it, nor on where a text was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from conca.layers.options import whole
from conca.ops.doors import raised
from conca.types import BadInput, nearest

__all__ = ["Draws", "Sampling", "at_least", "choose", "cooled", "likeliest", "nucleus", "penalised", "processed"]

FROM_CONFIG = {"eos_token_id": "eos", "stop_strings": "stop"}
"""Names of a generation config that are others here."""
SWITCH = "temperature", "top_k", "top_p", "min_p"
"""Whoever asks for one of these wants to draw."""
FOREIGN = {
    "input_ids": "prompts", "inputs": "prompts", "max_tokens": "max_new_tokens", "max_length": "max_new_tokens",
    "n_predict": "max_new_tokens", "num_return_sequences": "samples", "num_samples": "samples", "n": "samples",
    "beams": "num_beams", "num_beam": "num_beams", "temp": "temperature", "repeat_penalty": "repetition_penalty",
    "eos_token_id": "eos", "stop_strings": "stop", "random_state": "seed", "past_key_values": "write(past=...)",
    "cache_params": "write(past=...)", "past": "write(past=...)",
}  # fmt: skip
"""What others call options of writing, and what they are here."""
BROKEN = "the network gives logits that are not finite; its weights or its input are broken"
TOKENS = 2**31
"""No table has so many tokens."""
HIDDEN_TOP_K = 50
"""What published models that draw mean where their config is silent about top_k."""


@dataclass(frozen=True)
class Sampling:
    """How a text is written.

    max_new_tokens      tokens, at most
    do_sample           draw; otherwise the likeliest token is taken
    temperature         divides the logits; 0 takes the likeliest token
    top_k               only so many of the likeliest tokens; None or 0: all
    top_p               only the likeliest tokens that make up this mass
    min_p               no token that is less likely than this times the likeliest
    repetition_penalty  makes tokens that stand in the prompt or the text less likely; 1 does not
    eos                 tokens that end a text
    stop                strings that end a text, and are left out of it
    seed                of the draws; None takes one from PyTorch's generator
    num_beams           texts that are followed at once; 1 follows one
    length_penalty      power of the length that the sum of a beam is divided by
    early_stopping      ends once as many beams as are followed have ended; "never" only when none can be better

    Raises:
        BadInput: for values out of range.

    >>> Sampling(temperature=0.7, do_sample=True).greedy, Sampling().greedy
    (False, True)
    """

    max_new_tokens: int = 256
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    eos: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_beams"):
            if not whole(getattr(self, name)):
                raise BadInput(f"{name} must be a whole number from 1 on, not {getattr(self, name)!r}")
        if self.top_k is not None and self.top_k != 0 and not whole(self.top_k):
            raise BadInput(f"top_k must be a whole number from 1 on, or 0 for all tokens, not {self.top_k!r}")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            if isinstance(getattr(self, name), str):
                raise BadInput(f"{name} must be a number, not {getattr(self, name)!r}")
        _within("temperature", self.temperature, lambda value: value >= 0, "0 or more")
        _within("top_p", self.top_p, lambda value: 0 < value <= 1, "above 0 and at most 1")
        _within("min_p", self.min_p or 0.0, lambda value: 0 <= value <= 1, "from 0 to 1")
        _within("repetition_penalty", self.repetition_penalty, lambda value: value > 0, "above 0")
        _within("length_penalty", self.length_penalty, lambda value: abs(value) <= 30, "from -30 to 30")
        if self.early_stopping not in (True, False, "never"):
            raise BadInput(f"early_stopping must be true, false or 'never', not {self.early_stopping!r}")
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise BadInput(f"a stop string is empty, or no text; leave it out, or say where to stop: {self.stop!r}")
        if any(isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < TOKENS for token in self.eos):
            raise BadInput(f"eos must be tokens (whole numbers from 0 on), not {self.eos!r}")
        if self.num_beams > 1 and not self.greedy:
            raise BadInput(
                "beams follow the likeliest tokens and draw none; leave out num_beams (--beams), or what asks for drawing"
            )
        if self.num_beams > 1 and self.stop:
            raise BadInput("beams do not look for stop strings; leave out num_beams (--beams), or the stop strings")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0):
            raise BadInput(f"seed must be a whole number from 0 on, not {self.seed!r}")

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return not self.do_sample or self.temperature == 0

    @classmethod
    def from_generation_config(cls, saved: Mapping[str, Any], **overrides: Any) -> Sampling:
        """What a `generation_config.json` says, and what the user says instead.

        Args:
            saved: its keys; those that are not known, and those that are null, are passed over. A config that draws and does not say
                top_k means 50, as everywhere where such files are read.
            overrides: fields of `Sampling`; None counts as not given. A temperature, top_k, top_p or min_p asks for drawing, and beams
                alone for none, unless do_sample is given too.

        Raises:
            BadInput: for values out of range, and an override that is no field.
        """
        known = {field.name for field in fields(cls)}
        for name in overrides.keys() - known:
            hint = f"conca says {FOREIGN[name]!r}" if name in FOREIGN else nearest(name, known | {"samples"})
            raise BadInput(f"unknown option {name!r} of writing; {hint}")
        found = {FROM_CONFIG.get(key, key): value for key, value in saved.items() if value is not None}
        found = {key: value for key, value in found.items() if key in known}
        if found.get("do_sample"):
            found.setdefault("top_k", HIDDEN_TOP_K)
        given = {key: value for key, value in overrides.items() if value is not None}
        if any(name in given for name in SWITCH):
            found["do_sample"] = True
        elif given.get("num_beams", 1) != 1:
            found["do_sample"] = False
        found |= given
        for name in ("eos", "stop"):
            value = found.get(name, ())
            several = value if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
            found[name] = tuple(map(as_python, several))
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "length_penalty"):
            if name in found and type(found[name]) is not bool and isinstance(found[name], Real):
                found[name] = float(found[name])
        return cls(**found)


def as_python(value: Any) -> Any:
    """A whole number of NumPy as one of Python; anything else as it is."""
    whole_number = type(value) is not bool and isinstance(value, Integral)
    return int(value) if whole_number else value


def _within(name: str, value: float, right: Callable[[float], bool], wanted: str) -> None:
    """Raise BadInput unless it is a number, finite and right."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not right(value):
        raise BadInput(f"{name} must be {wanted}, not {value!r}")


def penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits (B, V) in which tokens that were `seen` (B, V, bool) are less likely: divided if positive,
    multiplied if negative; what is no number any more becomes the largest there is.
    """
    at = torch.from_numpy(np.flatnonzero(seen.numpy())) if seen.is_cpu else seen.flatten().nonzero()[:, 0]
    flat = logits.flatten()
    some = flat[at]
    largest = torch.finfo(some.dtype).max
    less = torch.where(some < 0, some * penalty, some / penalty)
    return flat.index_put((at,), torch.where(some.isinf(), less, less.clamp(-largest, largest))).view_as(logits)


def cooled(logits: Tensor, temperature: float) -> Tensor:
    """Logits (B, V) divided by the temperature; where the likeliest would be no number any more, it alone is left (the limit)."""
    cold = logits / temperature
    right = cold.amax(-1, keepdim=True).isfinite()
    return cold if bool(right.all()) else torch.where(right, cold, likeliest(logits, 1))


def likeliest(logits: Tensor, top_k: int) -> Tensor:
    """Logits (B, V) with -inf for all but the `top_k` likeliest tokens of each row, and those that are as likely as the last of them."""
    place = max(0, logits.shape[-1] - top_k)
    if by_numpy(logits):
        last = torch.from_numpy(np.partition(logits.detach().numpy(), place)[..., place, None])
    else:
        last = logits.topk(logits.shape[-1] - place).values[..., -1:]
    return logits.masked_fill(logits < last, -math.inf)


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Logits (B, V) with -inf for the tokens of each row that the likeliest ones of mass `top_p` can do without."""
    least = edge(logits, top_p) if by_numpy(logits) else None
    if least is not None:
        return logits.masked_fill(logits < least, -math.inf)
    rising, order = logits.sort()
    out = rising.softmax(-1).cumsum(-1) <= 1 - top_p
    out[..., -1] = False
    return logits.masked_fill(out.scatter(-1, order, out), -math.inf)


def edge(logits: Tensor, top_p: float) -> Tensor | None:
    """The least of the likeliest ones of mass `top_p` (B, 1); None where others that are as likely go, and sorting has to say which."""
    rising = torch.from_numpy(np.sort(logits.detach().numpy()))
    mass = rising.softmax(-1).cumsum(-1)
    gone = torch.searchsorted(mass, torch.full_like(mass[..., :1], 1 - top_p), right=True).clamp(max=mass.shape[-1] - 1)
    least = rising.gather(-1, gone)
    return least if torch.equal(torch.searchsorted(rising, least), gone) else None


def by_numpy(logits: Tensor) -> bool:
    """Whether NumPy can sort them, which sorts values alone, and 50,000 of them in a twentieth of the time on one thread."""
    return logits.is_cpu and logits.dtype in (torch.float32, torch.float64)


def at_least(logits: Tensor, min_p: float) -> Tensor:
    """Logits (B, V) with -inf for tokens that are less likely than `min_p` times the likeliest of their own row."""
    chances = logits.softmax(-1)
    return logits.masked_fill(chances < min_p * chances.amax(-1, keepdim=True), -math.inf)


def processed(logits: Tensor, seen: Tensor | None, sampling: Sampling, n_tokens: int | None = None) -> Tensor:
    """Logits (B, n_tokens) of tokens that there are; -inf for those that may not be taken.

    Args:
        logits: what the network says (B, V).
        seen: tokens (B, V, bool) in the prompt and the text, for the repetition penalty.
        sampling: what is done; where nothing is drawn, the penalty alone.
        n_tokens: tokens that there are, at most V; None: V. The rows of the table from there on are never taken.
    """
    logits = logits[..., :n_tokens].to(raised(logits.dtype))
    if sampling.repetition_penalty != 1 and seen is not None:
        logits = penalised(logits, seen[..., :n_tokens], sampling.repetition_penalty)
    if sampling.greedy:
        return logits
    if sampling.temperature != 1:
        logits = cooled(logits, sampling.temperature)
    if sampling.top_k:
        logits = likeliest(logits, sampling.top_k)
    if sampling.top_p < 1:
        logits = nucleus(logits, sampling.top_p)
    return at_least(logits, sampling.min_p) if sampling.min_p else logits


class Draws:
    """Uniform numbers, a stream for each row.

    Args:
        seed: of all streams.
        rows: which stream each row has.
        begin: how many numbers of it were used before, for each row.
    """

    def __init__(self, seed: int, rows: Sequence[int], begin: Sequence[int] | None = None) -> None:
        self.streams = [torch.Generator().manual_seed(mixed(seed, row)) for row in rows]
        for stream, used in zip(self.streams, begin or [0] * len(self.streams)):
            if used:
                torch.rand(used, generator=stream, dtype=torch.float64)

    def take(self, rows: Sequence[int]) -> None:
        """Go on with the streams of these rows alone."""
        self.streams = [self.streams[row] for row in rows]

    def uniform(self) -> Tensor:
        """The next number of each stream, (B,), float64 in [0, 1)."""
        return torch.cat([torch.rand(1, generator=stream, dtype=torch.float64) for stream in self.streams])


def mixed(seed: int, row: int) -> int:
    """A seed for a row: both stirred (the finaliser of SplitMix64), so that neighbours have nothing in common."""
    mask = 2**64 - 1
    value = (seed * 0x9E3779B97F4A7C15 + (row + 1) * 0xD1B54A32D192ED03) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = ((value ^ (value >> shift)) * factor) & mask
    return value ^ (value >> 31)


def choose(logits: Tensor, sampling: Sampling, draws: Draws | None) -> Tensor:
    """A token (B,) for each row of `processed` logits (B, V): the likeliest, or one drawn by inverting its distribution.

    Raises:
        BadInput: where logits are not numbers.
    """
    if not bool(logits.amax(-1).isfinite().all()):
        raise BadInput(BROKEN)
    if sampling.greedy or draws is None:
        return logits.argmax(-1)
    mass = logits.to(torch.float64).softmax(-1).cumsum(-1)
    # below the whole mass, also rounded: it is found before the tokens that have none at the end
    point = draws.uniform().to(mass.device)[:, None] * mass[:, -1:]
    return torch.searchsorted(mass, point, right=True)[:, 0]
