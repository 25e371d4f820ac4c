"""The processes that train together: which of them this one is, and what they add up."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

from conca.train.places import launched

__all__ = ["add_up", "alike", "first", "local", "rank", "shared", "summed", "world"]


def rank() -> int:
    """The number of this process among those that train together, also before they have met; 0 where it is alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", 0)) if launched() else 0


def local() -> int:
    """The number of this process among those on this machine."""
    return int(os.environ["LOCAL_RANK"]) if launched() else rank()


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def first() -> bool:
    """Whether this process is the one that writes and prints."""
    return rank() == 0


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, in their order: the same bits on every one."""
    if world() == 1:
        return values
    parts = [torch.empty_like(values) for _ in range(world())]
    dist.all_gather(parts, values)
    return torch.stack(parts).sum(0)


def add_up(gradients: list[Tensor], loss: Tensor, stops: bool) -> tuple[Tensor, bool]:
    """Add up gradients in place over all processes, and the loss; the last is whether some process wants to stop."""
    extra = torch.stack([loss.detach().to(gradients[0]), gradients[0].new_tensor(float(stops))])
    flat = torch.cat([*(g.reshape(-1) for g in gradients), extra])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, torch.split(flat[:-2], [g.numel() for g in gradients])):
        gradient.copy_(part.view_as(gradient))
    return flat[-2].to(loss), bool(flat[-1] > 0)


def alike(network: nn.Module) -> None:
    """Every process gets the weights of the first."""
    if world() > 1:
        for tensor in network.state_dict().values():
            dist.broadcast(tensor, 0)


def shared(data: bytes) -> bytes:
    """Every process gets the bytes of the first."""
    if world() == 1:
        return data
    size = torch.tensor([len(data)])
    dist.broadcast(size, 0)
    values = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data and first() else torch.zeros(int(size)).byte()
    dist.broadcast(values, 0)
    return values.numpy().tobytes()
