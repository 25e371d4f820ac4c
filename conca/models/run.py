"""A run on disk: a folder with config.json, model.safetensors and tables; written whole or not at all, read with care."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from zlib import crc32

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from conca.models.lock import holder, locked
from conca.types import BadInput, nearest

__all__ = [
    "CHECKPOINT",
    "FORMAT",
    "UNFINISHED",
    "check_free",
    "check_keys",
    "load_tensors",
    "new_folder",
    "read_config",
    "read_tensors",
    "umask",
    "unfinished",
    "write_config",
    "write_tensors",
    "write_whole",
]

FORMAT = 1
"""Version of the format of run folders; a program reads its own and older ones."""
CONFIG, MODEL, LATEST = "config.json", "model.safetensors", "latest.safetensors"
UNFINISHED = "unfinished.json"
"""What a run is to become, while it is made; gone when it is whole."""
CHECKPOINT = Path("checkpoints", "last.ckpt")
"""Where a training, inside its folder, keeps what it can be taken up from."""
TABLES = {"metrics.csv", "scores.csv", "refit_scores.csv", "target_scores.csv", "positions.csv"}
ARRAYS = {MODEL, LATEST, "simple.safetensors", "evaluation.safetensors"}
WORDS = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
}
CONTENTS = {CONFIG, UNFINISHED, "report.html", "checkpoints", "logs", "refit", "adapter", *TABLES, *ARRAYS, *WORDS}
"""What a run folder may hold; a folder with anything else is never replaced."""


def check_free(folder: Path, force: bool = False, resume: bool = False) -> None:
    """Raise BadInput if a run cannot be written at `folder`.

    It exists (and is not to be replaced: `force`), or its parent does not, or another process is writing it, or an unfinished
    training of it lies there (which is neither to be taken up, `resume`, nor to be dropped, `force`).
    """
    check_place(folder, force, resume)
    process = holder(lock_of(folder))
    if process is not None:
        raise BadInput(busy(folder, process))
    if not force and not resume and unfinished(folder):
        raise BadInput(again(folder))


def check_place(folder: Path, force: bool, resume: bool = False) -> None:
    """Raise BadInput if there is something at `folder` that is not to be replaced, or nothing can be written beside it."""
    if folder.exists() or folder.is_symlink():
        if not force and resume and (folder / CONFIG).is_file():
            raise BadInput(f"{folder}: is finished, there is nothing to resume; train anew with force (--force)")
        if not force:
            raise BadInput(f"{folder}: exists; name another folder, or allow to replace it (force, --force)")
        check_replaceable(folder)
    parent = folder.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise BadInput(f"{folder}: {parent} is not a directory; name another folder")
    if not os.access(parent, os.W_OK):
        raise BadInput(f"{folder}: no permission to write in {parent}; name another folder")


def again(folder: Path) -> str:
    """The line that says that a training of that name was broken off."""
    line = f"{folder}: an unfinished training of it was found"
    return f"{line}; continue with resume (--resume), or begin anew with force (--force)"


def busy(folder: Path, process: int | None) -> str:
    """The line that says who else is writing a run."""
    who = f" (process {process})" if process else ""
    return f"{folder}: another training{who} is writing it; wait for it, or name another folder"


def check_replaceable(folder: Path) -> None:
    """Raise BadInput unless a folder is empty, or a run (it may be damaged) and nothing but a run."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: is not a run folder, so it is not replaced; name another one")
    found = sorted(path.name for path in folder.iterdir())
    if not found:
        return
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        ours = isinstance(config, dict) and "format" in config and "kind" in config
    except (OSError, ValueError, RecursionError):
        ours = LATEST in found  # no other program's folders have this file
    if not ours:
        raise BadInput(f"{folder}: is not a run folder, so it is not replaced; name another one")
    for name in found:
        if name not in CONTENTS:
            raise BadInput(f"{folder / name}: is no part of a run, so the folder is not replaced; move it elsewhere")


@contextmanager
def new_folder(folder: Path, force: bool = False, resume: bool = False) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its name when the block ends well; nobody else can have it meanwhile.

    If the block fails, the folder stays where it holds a complete checkpoint, to be found again with `resume`; otherwise, and
    on BadInput in a training that was new, it disappears. With `force` an older run of that name is replaced at the end, and
    an unfinished training is dropped at the beginning.

    Raises:
        BadInput: as `check_free` does, and if another process or thread is writing the same run.
    """
    shown, folder = folder, folder.absolute()
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        check_place(shown, force, resume)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock_of(folder)) as ours:
            if not ours:
                raise BadInput(busy(shown, holder(lock_of(folder))))
            with _written(shown, force, resume) as temporary:
                yield temporary
    except BaseException:
        for parent in made:
            if parent.exists() and not any(parent.iterdir()):
                parent.rmdir()
        raise


@contextmanager
def _written(folder: Path, force: bool, resume: bool) -> Iterator[Path]:
    """What `new_folder` does for whoever holds the lock."""
    check_place(folder, force, resume)
    if not force and not resume and unfinished(folder):
        raise BadInput(again(folder))
    folder = folder.absolute()
    found = _taken_up(folder) if resume else None
    remove_left_behind(folder, but=found)
    temporary = found or Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix_of(folder), suffix=".part"))
    try:
        yield temporary
        temporary.chmod(0o777 & ~umask())
        check_place(folder, force)
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix_of(folder), suffix=".old"))
            os.replace(folder, old / folder.name)
            os.replace(temporary, folder)
            shutil.rmtree(old)
        else:
            os.replace(temporary, folder)
        (folder / UNFINISHED).unlink(missing_ok=True)
    except BaseException as error:
        ill = isinstance(error, BadInput) and found is None
        if ill or not (temporary / CHECKPOINT).is_file():
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def lock_of(folder: Path) -> Path:
    """The file that whoever writes a run holds."""
    return folder.absolute().with_name(f".{folder.name}.lock")


def prefix_of(folder: Path) -> str:
    """How the temporary folders of this process begin."""
    return f".{folder.name}.{host()}-{os.getpid()}."


def host() -> str:
    """This machine, in eight letters: the locks of others may say nothing here."""
    return f"{crc32(socket.gethostname().encode()):08x}"


def temporaries(folder: Path, kind: str, machine: str) -> list[Path]:
    """Temporary folders beside `folder` made for it, of a kind ("part", "old") and a machine (a pattern)."""
    form = re.compile(rf"\.{re.escape(folder.name)}\.{machine}-\d+\.\w+\.{kind}")
    return [path for path in folder.parent.iterdir() if form.fullmatch(path.name)] if folder.parent.is_dir() else []


def unfinished(folder: Path) -> list[Path]:
    """Folders of trainings that can be taken up, of any machine, the newest last."""
    found = {path: path / CHECKPOINT for path in temporaries(folder.absolute(), "part", r"\w{8}")}
    return sorted((p for p, c in found.items() if c.is_file()), key=lambda path: found[path].stat().st_mtime)


def _taken_up(folder: Path) -> Path | None:
    """The newest unfinished training, renamed to be this process's; None if there is none.

    On another machine that shares the disk but not its locks, somebody may be faster.
    """
    for path in reversed(unfinished(folder)):
        own = folder.with_name(f"{prefix_of(folder)}{path.name.split('.')[-2]}.part")
        with suppress(FileNotFoundError):
            os.rename(path, own)
            return own
    return None


def remove_left_behind(folder: Path, but: Path | None) -> None:
    """Remove temporary folders that this machine left beside `folder`; not an old run that has no successor yet.

    Whoever holds the lock may do so: nobody else is writing.
    """
    kinds = ("part", "old") if folder.exists() else ("part",)
    for path in (path for kind in kinds for path in temporaries(folder, kind, host())):
        if path != but:
            shutil.rmtree(path, ignore_errors=True)


def umask() -> int:
    """The permissions that new files of this process lack."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_whole(path: Path, data: bytes | memoryview | Callable[[BinaryIO], object], *, shared: bool = False) -> None:
    """A file with this content, on the disk when this returns; until then what stood there stays. OSError names the file.

    data: the content, or what writes it, so that a large one is never in memory as a whole.

    shared: nobody holds a lock of the place, so the temporary file has a name that no other has. Else its name is always the same, and
    the next write takes away what a kill left.
    """
    part = None
    try:
        part = new_file(path) if shared else path.with_name(path.name + ".part")
        with part.open("wb") as file:
            data(file) if callable(data) else file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            if part is not None:
                part.unlink()
        # torch.save, while it closes a file on a disk that is full, covers the reason by an error of its own
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise


def new_file(path: Path) -> Path:
    """An empty file beside `path`, with a hidden name that no other file has."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.")
    os.close(handle)
    Path(name).chmod(0o666 & ~umask())
    return Path(name)


def write_config(folder: Path, kind: str, parts: dict[str, Any]) -> None:
    """Write config.json: the format, the kind of run, and its parts (plain lists, strings and numbers)."""
    text = json.dumps({"format": FORMAT, "kind": kind, **parts}, indent=1, allow_nan=False)
    write_whole(folder / CONFIG, (text + "\n").encode())


def read_config(folder: Path) -> dict[str, Any]:
    """What `write_config` wrote, `kind` and the parts. Raises BadInput on anything that is no run of a known format."""
    path = folder / CONFIG
    if not folder.exists():
        raise BadInput(f"{folder}: there is no such folder; check the path")
    if not folder.is_dir():
        raise BadInput(f"{folder}: is not a folder; name the run folder itself")
    if not path.is_file():
        raise BadInput(f"{folder}: not a run folder, {CONFIG} is missing")
    try:
        config = json.loads(path.read_text(encoding="utf-8"), parse_constant=no_number)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: cannot be read ({' '.join(str(error).split())}); the run is damaged") from None
    version = config.get("format") if isinstance(config, dict) else None
    if type(version) is not int or version < 1 or not isinstance(config.get("kind"), str):
        raise BadInput(f"{path}: not the description of a run (it needs 'format' and 'kind')")
    if version > FORMAT:
        raise BadInput(f"{path}: format {version} is newer than this conca understands ({FORMAT}); update conca")
    config.pop("format")
    return dict(config)


def no_number(word: str) -> NoReturn:
    """JSON has no NaN and no Infinity, though Python reads them."""
    raise ValueError(f"{word} is no number")


def check_keys(path: Path, config: dict[str, Any], known: tuple[str, ...]) -> None:
    """Raise BadInput unless a configuration has exactly the known parts, beside its kind."""
    for key in config:
        if key not in (*known, "kind"):
            raise BadInput(f"{path}: unknown key '{key}'; {nearest(key, known)}")
    for key in known:
        if key not in config:
            raise BadInput(f"{path}: the key '{key}' is missing; the run is damaged")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors as safetensors."""
    write_whole(path, save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises BadInput if it is missing or not whole."""
    if not path.is_file():
        raise BadInput(f"{path}: is missing; the run is damaged")
    try:
        found: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        line = " ".join(str(error).split())
        raise BadInput(f"{path}: not a whole safetensors file ({line}); copy the run again") from None
    return found


def load_tensors(module: nn.Module, path: Path) -> None:
    """Fill a module with the tensors of a file. Raises BadInput unless names and shapes are its own, and all are numbers."""
    found, own = read_tensors(path), module.state_dict()
    for name in own:
        if name not in found:
            raise BadInput(f"{path}: the tensor '{name}' is missing; the file belongs to another model")
    for name, tensor in found.items():
        if name not in own:
            raise BadInput(f"{path}: unknown tensor '{name}'; the file belongs to another model")
        if tensor.shape != own[name].shape or tensor.dtype != own[name].dtype:
            has, needs = (f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (tensor, own[name]))
            raise BadInput(f"{path}: the tensor '{name}' is {has}, the model needs {needs}")
        if not bool(torch.isfinite(tensor).all()):
            raise BadInput(f"{path}: the run is damaged: a weight is no number")
    module.load_state_dict(found)
