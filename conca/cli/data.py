"""`conca data`: sequences with labels that are made here, as the Long Range Arena made them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from conca.cli.output import check_free
from conca.cli.screen import notice, progress_bar
from conca.types import BadInput

__all__ = ["app", "listops", "pathfinder"]

app = typer.Typer(
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Make the data of the Long Range Arena: the same seed gives the same file, in however many processes.",
)
LARGEST = 10_000_000

Count = Annotated[int, Option(metavar="N", min=1, max=LARGEST, help="How many.")]
Seed = Annotated[int, Option(metavar="N", help="Same seed, same data.")]
Processes = Annotated[
    int | None, Option(metavar="N", min=1, max=1024, help="How many work; default: one for each processor.")
]
Force = Annotated[bool, Option("--force", help="Replace the file if it exists.")]
Quiet = Annotated[bool, Option("-q", "--quiet", help="No progress bar, no notices.")]


@app.command()
def listops(
    out: Annotated[
        Path,
        Option(
            metavar="FILE",
            help="An .npz to write; a name without an ending: a folder of the three published .tsv files.",
        ),
    ],
    count: Count = 100_000,
    seed: Seed = 0,
    processes: Processes = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Nested lists of digits under MIN, MAX, MED and SM, of 501 to 1999 symbols; the label is the digit that one is worth.

    The first 96% are for training, 2% for validation and the last 2% for the test. What is printed is the sha256 of the
    arrays (of the lines, for .tsv).
    """
    from conca.data import listops as made

    folder = not out.suffix
    if folder:
        check_folder(out, set(made.TABLES.values()), force)
    else:
        check_archive(out, force)
    with progress("sequences", count, quiet) as advance:
        blocks = made.listops(count, seed=seed, processes=processes or processors())
        if folder:
            with whole_folder(out) as place:
                checksum = made.write_tables(place, blocks, count, advance)
        else:
            checksum = made.write_arrays(out, blocks, count, advance)
    told(out, count, "sequences of symbols, 10 classes", checksum, quiet)


@app.command()
def pathfinder(
    out: Annotated[Path, Option(metavar="FILE", help="An .npz to write.")],
    size: Annotated[int, Option(metavar="N", help="Pixels of a side: 32, 64, 128 (Path-X) or 256.")] = 32,
    contour: Annotated[int, Option(metavar="N", help="Paddles of a path: 6 (easy), 9 or 14 (hard).")] = 14,
    count: Count = 200_000,
    seed: Seed = 0,
    processes: Processes = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Pictures of dashed paths with two dots, as sequences of pixels; the label is 1 if the dots are on one path.

    The first 80% are for training, 10% for validation and the last 10% for the test. What is printed is the sha256 of the
    arrays.
    """
    check_archive(out, force)
    from conca.data import pathfinder as made

    given = made.setting(size, contour)
    with progress("pictures", count, quiet) as advance:
        blocks = made.pathfinder(given, count, seed=seed, processes=processes or processors())
        checksum = made.write_pictures(out, blocks, given, count, advance)
    told(out, count, f"sequences of {size * size} pixels, 2 classes", checksum, quiet)


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_archive(out: Path, force: bool) -> None:
    """Refuse what cannot become an .npz, before any work is done."""
    if out.suffix != ".npz":
        raise BadInput(f"{out}: name a file that ends in .npz")
    check_free(out, force)


def check_folder(out: Path, own: set[str], force: bool) -> None:
    """Refuse a place that cannot take a folder of these files; one that holds others is never replaced."""
    if not out.parent.is_dir():
        raise BadInput(f"{out.parent}: there is no such folder; make it first")
    if not (out.exists() or out.is_symlink()):
        return
    if out.is_symlink() or not out.is_dir():
        raise BadInput(f"{out}: is no folder; name a file that ends in .npz, or another folder")
    found = sorted(path.name for path in out.iterdir())
    if set(found) - own:
        raise BadInput(f"{out}: holds other things ('{min(set(found) - own)}'); name another folder")
    if found and not force:
        raise BadInput(f"{out}: exists; --force replaces it")


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of `out` when all is written, or goes away."""
    place = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        inner = place / "new"
        inner.mkdir()
        yield inner
        if out.exists():
            os.replace(out, place / "old")
        os.replace(inner, out)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def progress(word: str, count: int, quiet: bool) -> Iterator[Callable[[int], object]]:
    """A bar on a terminal; what is given moves it on."""
    with progress_bar(quiet) as bar:
        task = bar.add_task(word, total=count)
        yield lambda made: bar.advance(task, made)


def told(out: Path, count: int, what: str, checksum: str, quiet: bool) -> None:
    """The checksum to stdout, and a notice."""
    typer.echo(f"sha256 {checksum}")
    if not quiet:
        notice(f"wrote {out}: {count} {what}")
