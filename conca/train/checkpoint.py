"""Checkpoints of a training: complete or not there, and read with care."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from conca.models.run import write_whole
from conca.types import BadInput

__all__ = ["read_checkpoint", "write_checkpoint"]

FORMAT = 1
"""Version of what a checkpoint holds."""


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Tensors, numbers, strings, lists and dicts, on the disk when this returns. Raises OSError."""
    write_whole(path, lambda file: torch.save({"conca": FORMAT, **content}, file))


def read_checkpoint(path: Path, data: bytes) -> dict[str, Any]:
    """What `write_checkpoint` wrote, on the CPU, from the bytes of a file.

    Raises:
        BadInput: if it is damaged or another program's.
    """
    ill = f"{path}: not a whole checkpoint of conca; begin the training anew with force (--force)"
    try:
        memory = io.BytesIO(data)
        with zipfile.ZipFile(memory) as parts:
            broken = parts.testzip()
        memory.seek(0)
        content = None if broken else torch.load(memory, map_location="cpu", weights_only=True)
    except Exception:  # a damaged pickle fails in as many ways as there are bytes
        raise BadInput(ill) from None
    if not isinstance(content, dict) or type(content.pop("conca", None)) is not int:
        raise BadInput(ill)
    return content
