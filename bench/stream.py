"""A million rows through `conca stream`: how many a second, what memory it holds on the way, and how long one row waits.

The network is that of the defaults (three members of two LSTM layers, 24 steps ahead), hardly trained: that changes no time.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
from record import record

import conca

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
BLOCK = 5_000
COMMAND = [sys.executable, "-c", "import sys; from conca.cli.main import main; sys.exit(main())", "stream"]
BEGIN = np.datetime64("2000-01-01", "m")


def load(at: np.ndarray, site: np.ndarray | int) -> np.ndarray:
    """A wave with a day's period, other for each site."""
    return np.sin(2 * np.pi * at / 1440 + site) + 0.1 * np.cos(at * 7.3 + site)


def fitted(folder: Path) -> tuple[Path, Path]:
    """Two runs: of one series, and of some that are told apart by a name."""
    at = np.arange(3000)
    one = pd.DataFrame({"time": BEGIN + at, "load": load(at, 0)})
    many = pd.concat([one.assign(site=f"s{site}", load=load(at, site)) for site in range(3)])
    runs = folder / "one", folder / "many"
    for run, table, names in zip(runs, (one, many), ((), ("site",))):
        model = conca.Forecaster(24, epochs=1, max_minutes=0.05)
        model.fit(table, target="load", time="time", series=names, out=run, progress=False)
    return runs


def blocks(rows: int, sites: int) -> Iterator[str]:
    """Rows of CSV, block by block; of many sites, one row of each in turn."""
    for begin in range(0, rows, BLOCK):
        every = np.arange(begin, min(begin + BLOCK, rows))
        at, site = every // max(sites, 1), every % max(sites, 1)
        times = np.datetime_as_string(BEGIN + at, unit="m").tolist()
        values = load(at, site).tolist()
        if sites:
            yield "".join(f"{t},{v:.6f},s{s}\n" for t, v, s in zip(times, values, site.tolist()))
        else:
            yield "".join(f"{t},{v:.6f}\n" for t, v in zip(times, values))


def resident(process: int) -> float:
    """Megabytes of a process in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def many_rows(run: Path, rows: int, sites: int, *words: str) -> list[object]:
    """Rows a second, and a second of the processor, memory on the way, and what the command said at the end."""
    begin, before = time.perf_counter(), used()
    process = subprocess.Popen([*COMMAND, str(run), "-v", *words], stdin=-1, stdout=subprocess.DEVNULL, stderr=-1)
    assert process.stdin
    assert process.stderr
    process.stdin.write(b"time,load,site\n" if sites else b"time,load\n")
    fed, held, marks = 0, [], [0.1, 0.5, 1.0]
    for block in blocks(rows, sites):
        process.stdin.write(block.encode())
        process.stdin.flush()
        fed += block.count("\n")
        if marks and fed >= marks[0] * rows:
            held.append(f"{resident(process.pid):.0f}")
            marks.pop(0)
    process.stdin.close()
    said = process.stderr.read().decode().splitlines()
    assert process.wait() == 0, said
    counts, _, memory = said[-1].partition("; ")
    print(f"{rows:,} rows in {time.perf_counter() - begin:.0f} s, the start of the command among them")
    rate = counts.partition("rows, ")[2].split()[0]
    return [f"{max(sites, 1):,} series, {rows:,} rows", rate, f"{rows / (used() - before):,.0f}", *held, memory]


def used() -> float:
    """Seconds of the processor that children which have ended took."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def taken(process: int) -> float:
    """Seconds of the processor that a process that lives has taken."""
    cells = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")


def one_row(run: Path, count: int = 400) -> tuple[float, float]:
    """Milliseconds between a row and its last line of forecasts, in the median; and of the processor, in the mean."""
    process = subprocess.Popen([*COMMAND, str(run), "-q"], stdin=-1, stdout=-1)
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"time,load\n")
    process.stdin.flush()
    process.stdout.readline()
    waited, before = [], taken(process.pid)
    for row in "".join(blocks(count, 0)).splitlines(keepends=True):
        time.sleep(0.005)
        begin = time.perf_counter()
        process.stdin.write(row.encode())
        process.stdin.flush()
        for _ in range(24):
            process.stdout.readline()
        waited.append(1e3 * (time.perf_counter() - begin))
    used_up = 1e3 * (taken(process.pid) - before) / count
    process.stdin.close()
    process.wait()
    return median(waited), used_up


def main() -> None:
    """All of it; about three minutes for a million rows."""
    with tempfile.TemporaryDirectory() as folder:
        one, many = fitted(Path(folder))
        middle, used_up = one_row(one)
        rows = [
            many_rows(one, ROWS, 0, "--state", str(Path(folder) / "state")),
            many_rows(many, ROWS // 5, 1000),
        ]
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    record(
        "stream",
        "Rows through `conca stream`",
        ["rows", "rows a second", "of the processor", "MB at 10%", "MB at 50%", "MB at 100%", "held at the end"],
        rows,
        "Each row gives 24 lines of forecasts, written to nowhere; the first run also keeps its state in a file, every second. "
        f"One row by itself waits {middle:.1f} ms for its forecasts (median), and takes {used_up:.1f} ms of the processor (mean). "
        f"OMP_NUM_THREADS: {threads}; load average of the machine at the end: {os.getloadavg()[1]:.1f}.",
    )


if __name__ == "__main__":
    main()
