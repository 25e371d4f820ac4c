"""What `import conca` costs beside `import torch`: medians over fresh interpreters.

    python bench/import_time.py [--repeats 7]      writes bench/results/import_time.md

The second line asks for every name that needs no optional package, which loads PyTorch as well.
"""

import argparse
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

STATEMENTS = {
    "import torch": "import torch",
    "import conca": "import conca",
    "from conca import (all layers, models, energies)": (
        "from conca import LSTM, S4D, Attention, Block, DoubleWell, Energy, GatedMLP, Gaussian, Hopfield, Mixer, "
        "Output, ShortConv, Stack, descent, mala, pattern, plain_bodies, sample, ula"
    ),
}


def seconds(statement: str) -> float:
    """Wall time of a fresh interpreter that runs `statement`."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - begin


def measure(repeats: int) -> dict[str, float]:
    """Median seconds of each statement beyond a bare interpreter; they take turns, so that drift hits all alike."""
    found: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(repeats):
        bare = seconds("pass")
        for name, statement in STATEMENTS.items():
            found[name].append(seconds(statement) - bare)
    return {name: median(times) for name, times in found.items()}


def report(times: dict[str, float], repeats: int) -> str:
    """The table in Markdown."""
    base = times["import torch"]
    rows = "".join(f"| `{name}` | {t:.2f} | {t / base:.2f} |\n" for name, t in times.items())
    machine = f"Python {platform.python_version()}, {platform.machine()}"
    return (
        f"`python bench/import_time.py --repeats {repeats}`: {machine}\n\n"
        f"| statement | seconds | against `import torch` |\n|---|---|---|\n{rows}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    text = report(measure(repeats), repeats)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / "import_time.md").write_text(text)
    print(text)
