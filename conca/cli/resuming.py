"""What is said at the prompt of trainings that are stopped, and of those that go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conca.cli.screen import notice
from conca.types import BadInput

__all__ = ["resumable"]


@contextmanager
def resumable(run: Path, resume: bool, quiet: bool) -> Iterator[None]:
    """Say what becomes of a training that is stopped, and that there is none to go on with. Raises BadInput for one that diverges."""
    from conca.energy.chain import Divergence
    from conca.models.run import unfinished
    from conca.train.ranks import first

    if resume and not quiet and first() and not unfinished(run):
        notice(f"{run}: there is no unfinished training of it; it begins anew")
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if first() and unfinished(run):
            notice(f"{run}: stopped; the same command with --resume goes on")
        raise
    except Divergence as error:
        kept = (
            "its last checkpoint leads here again: begin anew with --force" if unfinished(run) else "nothing was kept"
        )
        raise BadInput(f"{run}: {error}; {kept}") from error
