"""Every test starts alike: float64, one thread, the same seeds."""

import os
import random

import numpy as np
import pytest
import torch

os.environ.pop("COLUMNS", None)  # the width of no screen, which a runner of several processes sets
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


@pytest.fixture(autouse=True)
def alike() -> None:
    """float64, one thread and fixed seeds, whatever the test before has left."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
