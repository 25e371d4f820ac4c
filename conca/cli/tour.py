"""`conca tour`: each number of the theory beside the measured one, and a page of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Exit, Option

from conca.cli.output import check_free
from conca.cli.screen import notice, progress_bar, table

__all__ = ["tour"]


def tour(
    out: Annotated[Path, Option(metavar="FILE", help="HTML file to write.")] = Path("tour.html"),
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="Print only what does not hold.")] = False,
) -> None:
    """Walk through the theory: what it claims, and what this machine measures.

    A tub step by step and all at once, one layer in all its forms, attention as a memory, an energy that never rises, and more;
    under a minute. The page shows a picture of each. The exit status is 1 when a claim does not hold (NO).
    """
    check_free(out, force)

    from conca.bench.tour import HEADINGS, STOPS, page, rows, walk
    from conca.report.page import write_page

    stops, broken = [], 0
    with progress_bar(quiet) as bar:
        task = bar.add_task("stops", total=len(STOPS))
        for stop in walk():
            stops.append(stop)
            bar.advance(task)
            failed = [row for row in rows(stop.claims) if row[-1] == "NO"]
            broken += len(failed)
            shown = failed if quiet else rows(stop.claims)
            if shown:
                table([stop.title, *HEADINGS[1:]], shown)
    write_page(page(stops), out)
    if not quiet:
        notice(f"wrote {out}")
    if broken:
        notice(f"{broken} of {sum(len(stop.claims) for stop in stops)} claims do not hold here")
        raise Exit(1)
