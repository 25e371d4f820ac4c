"""Tagging 20,000 bytes with the published Mamba of typeseg: put together from conca's parts, by its own ONNX file, by its own NumPy code.

    python bench/byte_tagger.py [--bytes 20000] [--rounds 5]

The text is the source of Python's library. typeseg and onnxruntime are fetched into .cache/packages; nothing else of them is wanted.
ONNX Runtime gets as many threads as PyTorch; they wait busily for a while after each run, so its turns come when ours are over. NumPy's
time is that of one run, the others' are medians. Beside them stand what ours is made of: its matrix products alone, by PyTorch, and its
scans alone; what is left are passes over memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import numpy as np
import torch
from packages import CACHE, fetched
from record import medians, record
from torch import Tensor, nn

from conca.ops.selective_scan import selective_scan
from conca.train.pages import keep_memory

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED, RUNTIME = "typeseg==0.2.7", "onnxruntime==1.32.0"


def module(path: Path) -> ModuleType:
    """A file as a module, without the package around it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def products(model: nn.Module, length: int) -> list[tuple[nn.Linear, Tensor]]:
    """Every linear map of the model, and an input for it."""
    maps = [part for part in model.modules() if isinstance(part, nn.Linear)]
    widths = {part.in_features for part in maps}
    inputs = {width: torch.randn(1, length, width) for width in widths}
    return [(part, inputs[part.in_features]) for part in maps]


def scans(model: nn.Module, length: int) -> list[tuple[Tensor, ...]]:
    """What the scan of each layer gets."""
    found = []
    for layer in model.layers:
        E, N = layer.A_log.shape
        u, dt, B, C = (torch.randn(1, length, width) for width in (E, E, N, N))
        found.append((u, dt.abs() / 100, -layer.A_log.detach().exp(), B, C, torch.zeros(1, E, N)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=20_000, help="length of the text")
    parser.add_argument("--rounds", type=int, default=5, help="timings of each; ours takes turns with its parts")
    options = parser.parse_args()
    keep_memory()
    package = fetched(PUBLISHED, CACHE) / "typeseg"
    sys.path.append(str(fetched(RUNTIME, CACHE)))
    import onnxruntime

    example, theirs = module(ROOT / "examples" / "byte_tagger.py"), module(package / "_mamba_kernel.py")
    with np.load(package / "data" / "mamba_al.npz") as stored:
        arrays = dict(stored)
    text = b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py")))[: options.bytes]
    tokens = np.array([*text.translate(example.TOKENS)])
    ids, model = torch.from_numpy(tokens)[None], example.tagger(arrays)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    onnx = onnxruntime.InferenceSession(package / "data" / "mamba_al.onnx", settings, ["CPUExecutionProvider"])
    maps, memories = products(model, options.bytes), scans(model, options.bytes)
    with torch.inference_mode():
        parts = {
            "conca": lambda: model(ids),
            "its matrix products alone": lambda: [part(x) for part, x in maps],
            "its scans alone": lambda: [selective_scan(*memory) for memory in memories for _ in range(2)],
        }
        seconds = medians(parts, options.rounds)
        seconds |= medians({"ONNX Runtime": lambda: onnx.run(None, {"ids": tokens})}, options.rounds)
        ours, other = model(ids)[0].numpy(), onnx.run(None, {"ids": tokens})[0]
    begin = time.perf_counter()
    numpy = theirs.mamba_forward(np, {name.replace("__", "/"): array for name, array in arrays.items()}, tokens)
    seconds["NumPy"] = time.perf_counter() - begin
    mine = seconds["conca"]
    rows = [(name, f"{s:.2f}", f"{options.bytes / s:,.0f}", f"{s / mine:.2f}") for name, s in seconds.items()]
    apart = ", ".join(
        f"{np.abs(ours - peer).max():.1e} from {name}" for name, peer in (("ONNX", other), ("NumPy", numpy))
    )
    record(
        "byte_tagger",
        f"The byte tagger of typeseg: {options.bytes:,} bytes",
        ("by", "seconds", "bytes/s", "times conca's time"),
        rows,
        f"ONNX Runtime over conca: {seconds['ONNX Runtime'] / mine:.1f}; over the products alone, which the same network needs in any "
        f"float32: {seconds['ONNX Runtime'] / seconds['its matrix products alone']:.1f}. The largest score is {np.abs(ours).max():.1f}; "
        f"ours differ by at most {apart}. {options.rounds} turns, medians; NumPy once. {PUBLISHED}, {RUNTIME}.",
    )


if __name__ == "__main__":
    main()
