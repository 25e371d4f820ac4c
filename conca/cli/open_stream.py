"""What `conca stream` opens of a run: the memories, and what answers the bytes that come; forecasts or labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from conca.cli.kind import check_rate, classifier, forecaster
from conca.cli.novelty import about_refit
from conca.types import BadInput

if TYPE_CHECKING:
    from conca.infer.label_session import LabelSession
    from conca.infer.label_stream import LabelStream, SampleStream
    from conca.infer.session import Session
    from conca.infer.stream import Stream

__all__ = ["Answers", "Opened", "forecasts", "labels"]

Answers: TypeAlias = "Stream | LabelStream | SampleStream"
First: TypeAlias = "Callable[[], tuple[bytes, bytes]]"
"""Waits for the first line: it, and what came with it."""

RAW = "s16le"
EVERY, SHARE = 1_000, 10
"""Samples from one label to the next: so many, or this share of a second where the rate is known."""


@dataclass(frozen=True)
class Opened:
    """A run, ready for a stream.

    session   holds the memories
    begin     makes what answers: from a way to wait for the first line, and whether the memories were kept before; also gives what
              came already
    notices   what the user should know, once it has begun
    timeless  no row can be known to have been read before
    wanted    what must be sent
    """

    session: Session | LabelSession
    begin: Callable[[First, bool], tuple[Answers, bytes]]
    notices: Sequence[str]
    timeless: bool
    wanted: str = "a header and rows of CSV"


def forecasts(run: Path, future: Path | None, novelty: bool = False, quantile: float | None = None) -> Opened:
    """A run that forecasts, or says how strange rows are. Raises BadInput if it cannot be read, or the future cannot."""
    from conca.infer.session import Session
    from conca.infer.stream import Stream

    if novelty:
        return novelties(run, quantile)
    session = Session(forecaster(run), future)

    def begin(first: First, resumed: bool) -> tuple[Answers, bytes]:
        line, rest = first()
        return Stream(session, line, "stdin", resumed=resumed), rest

    notices = session.coming.notices if session.coming else ()
    return Opened(session, begin, notices, session.fitted.schema.time is None)


def novelties(run: Path, quantile: float | None) -> Opened:
    """A run that says how strange rows are. Raises BadInput if it cannot be read, or nothing was held out."""
    from conca.estimators.novelty import held_out_rows
    from conca.infer.novelty_stream import NoveltySession, NoveltyStream

    model = forecaster(run)
    session = NoveltySession(model, held_out_rows(model.run_), quantile)

    def begin(first: First, resumed: bool) -> tuple[Answers, bytes]:
        line, rest = first()
        if any(memory.last is None for memory in session.memories.values()):
            notices.append("the state is that of a stream of forecasts, so the next row of each series has no score")
        return NoveltyStream(session, line, "stdin", resumed=resumed), rest

    notices = about_refit(model)
    return Opened(session, begin, notices, session.fitted.schema.time is None)


def labels(
    run: Path,
    *,
    series: str | None,
    probabilities: bool,
    raw: str | None,
    every: int | None,
    rate: int | None,
    novelty: bool = False,
    quantile: float | None = None,
) -> Opened:
    """A run that classifies. Raises BadInput if it cannot be read, or has no answer before the end of a sequence."""
    from conca.estimators.novelty import held_out_sequences
    from conca.infer.label_session import LabelSession
    from conca.infer.label_stream import LabelStream, SampleStream
    from conca.infer.lines import read_header

    check_raw(raw, every, series)
    model = classifier(run)
    check_rate(run, model, rate)
    if model.config.bidirectional:
        raise BadInput(f"{run}: reads both ways, so it has no answer before the end; fit one without --bidirectional")
    if "order" in model.reading_:
        raise BadInput(
            f"{run}: reads steps in the order '{model.reading_['order']}', and a stream has them as they come; fit without --order"
        )
    measure = (held_out_sequences(model.run_), quantile) if novelty else None
    session = LabelSession(model.network_at(rate), model.classes_.tolist(), symbols=model.symbols_)
    known = rate or model.rate_

    def begin(first: First, resumed: bool) -> tuple[Answers, bytes]:
        if raw is not None:
            size = every or (max(1, int(known) // SHARE) if known else EVERY)
            return SampleStream(session, size, every=probabilities, novelty=measure), b""
        line, rest = first()
        usual, channels, names = model.reading_.get("series"), model.channels_, read_header(line, "stdin").names
        column = usual if series is None and usual in names else series
        if (time := model.reading_.get("time")) in names:
            notices.append(f"rows of a sequence are taken in the order in which they come; '{time}' is not read")
        stream = LabelStream(
            session, line, "stdin", channels=channels, series=column, every=probabilities, novelty=measure
        )
        return stream, rest

    notices = [line for line in (model.about_rate(rate),) if line]
    if not session.network.bounded:
        notices.append(f"{run}: attention without a window holds every row, so memory grows with the stream")
    wanted = "a header and rows of CSV" if raw is None else "samples of 16 bits"
    return Opened(session, begin, notices, True, wanted)


def check_raw(raw: str | None, every: int | None, series: str | None) -> None:
    """Raise BadInput unless the options about bare samples fit each other."""
    if raw is not None and raw != RAW:
        raise BadInput(f"--raw: unknown form '{raw}'; known: {RAW} (16 bits, signed, little-endian, one channel)")
    if raw is None and every is not None:
        raise BadInput(f"--every belongs to bare samples (--raw {RAW}); rows of CSV are answered one by one")
    if every is not None and every < 1:
        raise BadInput(f"--every must be at least 1, not {every}")
    if raw is not None and series is not None:
        raise BadInput("--series belongs to rows of CSV; bare samples are one sequence")
