"""The chatter of Lightning silenced, and nothing else."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet"]

LOGGERS = (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.pytorch.trainer.connectors.signal_connector",
    "lightning.pytorch.accelerators.cuda",
    "lightning.fabric.utilities.seed",
)
LINES = (
    ".*does not have many workers.*",
    ".*The number of training batches.*",
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*Trying to infer the `batch_size`.*",
    ".*Experiment logs directory .* exists.*",
    ".*have no `val_dataloader`.*",
    ".*Mismatch dtype between input and weight.*",
    ".*LeafSpec.*deprecated.*",
    ".*isinstance\\(treespec, LeafSpec\\).*",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Hints about hardware, workers and folders stay unsaid; other warnings and all errors pass."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        with warnings.catch_warnings():
            for line in LINES:
                warnings.filterwarnings("ignore", message=line)
            yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)
