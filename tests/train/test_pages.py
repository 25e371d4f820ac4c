"""Freed memory that is kept: the second large tensor brings no page faults."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from conca.train.pages import keep_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24, dtype=torch.uint8).bitwise_not_()
    torch.ones(2**26, dtype=torch.uint8).bitwise_not_()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
given_back = [faults() for _ in range(3)][-1]
print(given_back, keep_memory(), [faults() for _ in range(3)][-1])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt belongs to glibc")
def test_large_tensors_fault_once():
    environment = {"PATH": "", "THP_MEM_ALLOC_ENABLE": "0"}
    out = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, env=environment)
    before, kept, after = out.stdout.split()
    assert kept == "True"
    assert int(after) < int(before) / 100
