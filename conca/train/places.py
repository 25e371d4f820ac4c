"""Where to train: the user's words for devices, and the device of each process."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch
import torch.distributed as dist

from conca.types import BadInput

__all__ = ["Place", "launched", "place_of"]

WORDS = "say auto, cpu, cuda or cuda:0, or for more than one 2, cpu:2 or cuda:0,1"


@dataclass(frozen=True)
class Place:
    """The devices of this machine that train, one process each.

    kind      "cpu" or "cuda"
    numbers   of the GPUs; on the CPU of the processes
    """

    kind: str
    numbers: tuple[int, ...]

    @property
    def processes(self) -> int:
        """How many on this machine."""
        return len(self.numbers)

    @property
    def backend(self) -> str:
        """What adds up gradients."""
        return "gloo" if self.kind == "cpu" else "cpu:gloo,cuda:nccl"

    def devices(self, local: int) -> int | list[int]:
        """Lightning's word for the device of a process, by its number on this machine."""
        return 1 if self.kind == "cpu" else [self.numbers[local]]


def launched() -> bool:
    """Whether `torchrun` started this process and others."""
    return dist.is_available() and dist.is_torchelastic_launched() and "LOCAL_WORLD_SIZE" in os.environ


def place_of(devices: str) -> Place:
    """The place that a user means. Raises BadInput if there is no such place, or `torchrun` started another number."""
    form = re.fullmatch(r"(auto|cpu|cuda)|(?:cpu:)?([1-9]\d{0,3})|cuda:(\d{1,4}(?:,\d{1,4})*)", devices)
    if form is None:
        raise BadInput(f"devices '{devices}': no such place to train; {WORDS}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    started = int(os.environ["LOCAL_WORLD_SIZE"]) if launched() else None
    cuda = devices.startswith("cuda") or (count > 0 and not devices.startswith("cpu"))
    several = range(int(form[2] or started or 1))
    numbers = tuple(map(int, form[3].split(","))) if form[3] else tuple(several)
    place = Place("cuda" if cuda else "cpu", numbers)
    check_place(place, devices, count, started)
    return place


def check_place(place: Place, devices: str, count: int, started: int | None) -> None:
    """Raise BadInput unless this machine has the devices, and `torchrun` as many processes."""
    if place.kind == "cuda" and (max(place.numbers) >= count or len(set(place.numbers)) < place.processes):
        has = f"this machine has {count} GPU{'s' if count != 1 else ''} that PyTorch sees"
        raise BadInput(f"devices '{devices}': {has}; name those, or say cpu:{place.processes}")
    if started is not None and place.processes != started:
        raise BadInput(f"devices '{devices}': torchrun started {started} processes on this machine; say auto")
