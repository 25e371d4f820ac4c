"""What `import conca` costs beside `import torch`: medians over fresh interpreters, without the bare interpreter's own time.

python bench/import_time.py
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from record import medians, record

STATEMENTS = {
    "import torch": "import torch",
    "import conca": "import conca",
    "import torch, conca": "import torch, conca",
    "conca's layers, models and energies": (
        "from conca import LSTM, S4D, Attention, Block, DoubleWell, Energy, GatedMLP, Gaussian, Hopfield, Mixer, Output, "
        "ShortConv, Stack, descent, mala, pattern, plain_bodies, sample, ula"
    ),
}


def run(statement: str) -> None:
    """A fresh interpreter that runs `statement`."""
    subprocess.run([sys.executable, "-c", statement], check=True)


if __name__ == "__main__":
    times = medians({name: partial(run, code) for name, code in {"nothing": "pass", **STATEMENTS}.items()})
    nothing = times.pop("nothing")
    seconds = {name: found - nothing for name, found in times.items()}
    record(
        "import_time",
        "The price of an import",
        ["statement", "seconds", "against import torch"],
        [[f"`{n}`", f"{s:.2f}", f"{s / seconds['import torch']:.2f}"] for n, s in seconds.items()],
    )
