"""How every benchmark keeps what it measured: a page in bench/results with the command, the date and the machine."""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch

RESULTS = Path(__file__).parent / "results"


def record(name: str, title: str, header: Sequence[str], rows: Sequence[Sequence[object]], notes: str = "") -> None:
    """Print a table and write it to bench/results/NAME.md."""
    lines = [
        f"# {title}",
        "",
        f"`python {' '.join([Path(sys.argv[0]).parent.name + '/' + Path(sys.argv[0]).name, *sys.argv[1:]])}`, "
        f"{datetime.date.today()}, {machine()}",
        "",
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows),
    ]
    if notes:
        lines += ["", notes]
    text = "\n".join(lines) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


def machine() -> str:
    """The processor, the threads used, and the versions that matter."""
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    cpu = names[0] if names else platform.processor() or platform.machine()
    return f"{cpu}, {torch.get_num_threads()} of {os.cpu_count()} threads, Python {platform.python_version()}, PyTorch {torch.__version__}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def medians(tasks: dict[str, Callable[[], object]], repeats: int = 7) -> dict[str, float]:
    """Median seconds of each task; the tasks take turns, so that drift of the machine hits all alike."""
    for task in tasks.values():
        task()
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            begin = time.perf_counter()
            task()
            times[name].append(time.perf_counter() - begin)
    return {name: median(found) for name, found in times.items()}
