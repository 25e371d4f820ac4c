"""Freed memory that is kept: large tensors no longer have a mapping of their own, which goes back when they are freed."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, torch
from conca.train.pages import keep_memory
class Facts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uord ford keep".split()]
ask = ctypes.CDLL(None).mallinfo2
ask.restype = Facts
def mapped():
    before = ask().hblks
    x = torch.ones(2**26, dtype=torch.uint8)
    return ask().hblks - before
print(mapped(), keep_memory(), mapped())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt belongs to glibc")
def test_large_tensors_have_no_mapping_of_their_own():
    out = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert out.stdout.split() == ["1", "True", "0"]
