"""`conca stream`: rows in at stdin, their forecasts or labels out at once."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from conca.cli.kind import check_options, is_classifier
from conca.cli.novelty import Alarm
from conca.cli.open_stream import Answers, Opened, forecasts, labels
from conca.cli.screen import notice
from conca.cli.signals import Signals
from conca.types import BadInput

if TYPE_CHECKING:
    from typing import TextIO

    from conca.infer.stream import Keeper

__all__ = ["stream"]

STDIN, STDOUT = 0, 1
SIZE = 1 << 16
"""Bytes that are read at once, at most."""
OFTEN = 10.0
"""Seconds between two lines of --verbose."""


def stream(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder that `conca fit` wrote.")],
    state: Annotated[
        Path | None, Option(metavar="FILE", help="Go on from this file if it exists, and keep in it what was read.")
    ] = None,
    future: Annotated[
        Path | None,
        Option(metavar="FILE", help="Table of what is known in advance (fit --known), at all times to come."),
    ] = None,
    series: Annotated[
        str | None,
        Option(
            metavar="COLUMN", help="Labels: column that tells sequences apart; default: that of the fit, if it comes."
        ),
    ] = None,
    probabilities: Annotated[
        bool, Option("--probabilities", help="Labels: that of every class, p_CLASS, too.")
    ] = False,
    raw: Annotated[
        str | None,
        Option(metavar="WORD", help="Labels: bare samples come, not CSV: s16le, 16 bits, little-endian, one channel."),
    ] = None,
    every: Annotated[
        int | None,
        Option(metavar="N", help="Of bare samples: a label after every N; default: a tenth of a second."),
    ] = None,
    rate: Annotated[
        int | None,
        Option(metavar="N", help="Labels: samples a second of the sound that comes, if not that of the fit."),
    ] = None,
    novelty: Annotated[
        bool, Option("--novelty", help="Say how strange each row is, instead of forecasts or labels.")
    ] = False,
    quantile: Alarm = None,
    verbose: Annotated[bool, Option("-v", "--verbose", help="Say how many rows a second, and what is held.")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No notices; rows that are refused are still told.")] = False,
) -> None:
    """Read rows of CSV from stdin, and write the forecasts from each of them, or its label, to stdout at once.

    The first line names the columns, in any order; others than those of the fitted table are ignored. Memory stays constant: one
    state for each series. A row that cannot be read is answered by one line on stderr, and the stream goes on.

    Forecasts have the columns of `conca predict`, and its numbers with --rolling; y is empty, since it is not known yet. Rows of a
    series come in the order of time; those that its grid has between two of them count as missing.

    Labels have the columns step, label and probability: what the run says of the sequence so far. All rows are one sequence,
    unless a column tells them apart (--series).

    --novelty answers each row by novelty (minus the log-likelihood, in nats, of its targets under the forecast from the row before; of
    labels, the energy of the classifier so far), rank (the share of what was held out at the fit that scored lower) and alarm (1 from
    --quantile on): the numbers of `conca score --rows`. The first row of a series has none.

    With --state, what was read is written to the file every second, at the end, and on Ctrl-C or SIGTERM; the same command on the
    same rows then goes on where it ended: rows that were read are passed over. Rows written after the state was are written once
    more. Where the table has no times, that cannot be known: give the new rows alone. Appended to a file (>>), the header is not
    repeated.
    """
    if sys.__stdin__ is None:
        raise BadInput("stdin is closed; send a header and rows of CSV to it")
    if sys.__stdout__ is None:
        raise BadInput("stdout is closed; nothing can be written")
    own: dict[str, Any] = {"series": series, "probabilities": probabilities, "raw": raw, "every": every, "rate": rate}
    labelling = is_classifier(run)
    if quantile is not None and not novelty:
        raise BadInput("--quantile belongs to --novelty; give it, too, or leave it out")
    if novelty and (probabilities or future is not None):
        raise BadInput(
            f"{'--probabilities' if probabilities else '--future'} and --novelty are two answers; leave one out"
        )
    if labelling:
        check_options(run, of="forecast", future=future)
    else:
        check_options(run, of="classify", **own)
    with nullcontext() if state is None else sole(state):
        opened = (
            labels(run, novelty=novelty, quantile=quantile, **own)
            if labelling
            else forecasts(run, future, novelty, quantile)
        )
        run_stream(opened, state, verbose, quiet)


def run_stream(opened: Opened, state: Path | None, verbose: bool, quiet: bool) -> None:
    """The command, once nobody else has the state."""
    from conca.infer.stream import Keeper

    session = opened.session
    resumed = state is not None and state.exists()
    if state is not None and resumed:
        session.load(state)
    if os.isatty(STDIN) and not quiet:
        tell(f"waiting for {opened.wanted}; Ctrl-D ends")
    with Inlet() as inlet:
        answers, rest = opened.begin(partial(first_line, inlet), resumed)
        for line in () if quiet else opened.notices:
            tell(line)
        if resumed and not quiet and opened.timeless:
            tell(f"{state}: the rows have no times, so all are taken for new ones")
        keeper = Keeper(session, state, tell)
        meter = Meter(answers, verbose)
        try:
            if not holds_something(STDOUT):
                put(answers.header)
            run_through(inlet, rest, answers, keeper, meter)
        finally:
            keeper.keep(now=True)
            meter.tell(last=True)
    if not quiet:
        for line in closing(answers, state):
            tell(line)
    if keeper.failed:
        raise Exit(2)


@contextmanager
def sole(path: Path) -> Iterator[None]:
    """Nobody else goes on from this state in the block. Raises BadInput, before any work is done, if it cannot be kept there."""
    from conca.infer.links import check_regular, followed
    from conca.models.lock import holder, locked

    place = followed(path)
    check_regular(path)
    if not place.parent.is_dir():
        raise BadInput(f"{place.parent}: there is no such folder; make it first")
    name = place.absolute().with_name(f".{place.name}.lock")
    with ExitStack() as held:
        try:
            ours = held.enter_context(locked(name))
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}; the state cannot be kept there, name another file") from None
        if not ours:
            number = holder(name)
            other = f" (process {number})" if number else ""
            raise BadInput(f"{path}: another stream{other} goes on from it; end that, or name another file")
        yield


class Inlet(Signals):
    """What comes in at stdin. SIGINT and SIGTERM end the waiting, or what is being answered first."""

    def read(self, seconds: float | None = None) -> bytes | None:
        """What is there, as soon as there is something, b"" at the end; None if nothing came in these seconds."""
        self.waiting = True
        try:
            self.obey()
            if os.name == "posix" and not select.select([STDIN], [], [], seconds)[0]:
                return None
            self.waiting = os.name != "posix"
            return os.read(STDIN, SIZE)
        finally:
            self.waiting = False


def first_line(inlet: Inlet) -> tuple[bytes, bytes]:
    """The header, and what came with it. Raises BadInput if nothing comes, or a line without an end."""
    from conca.infer.lines import LONGEST

    parts = b""
    while b"\n" not in parts:
        data = inlet.read()
        if not data:
            break
        parts += data
        if len(parts) > LONGEST:
            raise BadInput(
                f"stdin, row 1: the line does not end within {LONGEST:,} bytes; send a header and rows of CSV"
            )
    if not parts:
        raise BadInput("stdin is empty; send a header and rows of CSV")
    line, _, rest = parts.partition(b"\n")
    return line, rest


def run_through(inlet: Inlet, rest: bytes, answers: Answers, keeper: Keeper, meter: Meter) -> None:
    """Answer rows until they end."""
    data: bytes | None = rest
    while True:
        if data is not None:
            with meter.busy():
                for answer in answers.feed(data):
                    put(answer.text)
                    report(answer.faults)
                keeper.keep()
            meter.tell()
        data = inlet.read(keeper.wait() if keeper.behind else None)
        if data is None:
            keeper.keep()
        elif not data:
            break
    with meter.busy():
        for answer in answers.feed(b"", end=True):
            put(answer.text)
            report(answer.faults)


def put(text: str) -> None:
    """Write text to stdout, at once. Raises BadInput where that takes none."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        lose(sys.stdout)
        raise BadInput(f"stdout: {error.strerror}; nothing more can be written, so the stream ends") from None


def report(faults: list[str]) -> None:
    """Write lines to stderr."""
    for fault in faults:
        tell(fault)


def tell(line: str) -> None:
    """One line on stderr; where that takes none, the stream goes on all the same."""
    try:
        notice(line)
    except OSError:
        lose(sys.stderr)


def lose(output: TextIO) -> None:
    """Let go what an output cannot take: the interpreter would write it once more as it ends, and fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, output.fileno())
    os.close(null)


def holds_something(number: int) -> bool:
    """Whether a descriptor is a file that is not empty, as where lines are appended to one."""
    about = os.fstat(number)
    return stat.S_ISREG(about.st_mode) and about.st_size > 0


def closing(answers: Answers, state: Path | None) -> Iterator[str]:
    """What should be known at the end."""
    if answers.passed:
        yield f"{rows_were(answers.passed)} read before, as {state} says, and passed over"
    if answers.refused:
        yield f"{rows_were(answers.refused)} refused"
    if answers.lost:
        yield f"{rows_were(answers.lost)} read, but not forecast from"


def rows_were(count: int) -> str:
    """The beginning of a sentence about so many rows."""
    return f"{count:,} row{'s were' if count > 1 else ' was'}"


class Meter:
    """Counts the time spent on rows."""

    def __init__(self, answers: Answers, wanted: bool) -> None:
        self.answers, self.wanted = answers, wanted
        self.seconds = 0.0
        self.due = time.monotonic() + OFTEN

    @contextmanager
    def busy(self) -> Iterator[None]:
        """What is done in this block is counted."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begin

    def tell(self, *, last: bool = False) -> None:
        """One line on stderr, every ten seconds and at the end."""
        if not self.wanted or not (last or time.monotonic() >= self.due):
            return
        self.due = time.monotonic() + OFTEN
        session, rows = self.answers.session, self.answers.rows
        rate = rows / self.seconds if self.seconds else 0.0
        came = f"{rows:,} row{'s' * (rows != 1)}, {rate:,.0f} a second"
        tell(f"{came}; {len(session):,} series, {session.size_in_bytes():,} bytes of state")
