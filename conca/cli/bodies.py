"""Which body, kernel or plain PyTorch, runs each operation on this machine."""

from __future__ import annotations

__all__ = ["bodies"]

BACKWARD = "_backward"


def bodies() -> list[tuple[str, str]]:
    """Rows (operation, body) of every operation that has a kernel somewhere, on the device that models run on here."""
    import torch

    from conca.ops.bodies import kernel, registered

    device = "cuda" if torch.cuda.is_available() else "cpu"
    operations = sorted({operation for operation, _ in registered() if not operation.endswith(BACKWARD)})
    return [(operation, body_of(kernel(operation, device) is not None, device)) for operation in operations]


def body_of(found: bool, device: str) -> str:
    """How a body is called on the screen."""
    return f"kernel ({device})" if found else "plain PyTorch"
