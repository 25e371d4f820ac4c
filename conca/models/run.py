"""A run on disk: a folder with config.json, model.safetensors and tables; written whole or not at all, read with care."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conca.types import BadInput, nearest

__all__ = [
    "FORMAT",
    "check_free",
    "check_keys",
    "load_tensors",
    "new_folder",
    "read_config",
    "read_tensors",
    "write_config",
    "write_tensors",
]

FORMAT = 1
"""Version of the format of run folders; a program reads its own and older ones."""
CONFIG, MODEL, LATEST = "config.json", "model.safetensors", "latest.safetensors"
CONTENTS = {CONFIG, MODEL, LATEST, "metrics.csv", "scores.csv", "report.html", "checkpoints", "logs"}
"""What a run folder may hold; a folder with anything else is never replaced."""


def check_free(folder: Path, force: bool = False) -> None:
    """Raise BadInput if a run cannot be written at `folder`: it exists (and is not to be replaced), or its parent does not."""
    if folder.exists() or folder.is_symlink():
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
def new_folder(folder: Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its name when the block ends well, and else disappears.

    With `force` an older run of that name is replaced at the end. What a process left behind that was killed while it wrote
    to the same name is removed. Raises BadInput as `check_free` does.
    """
    check_free(folder, force)
    folder = folder.absolute()
    made = [parent for parent in folder.parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_left_behind(folder)
    prefix = f".{folder.name}.{host()}-{os.getpid()}."
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix, suffix=".part"))
    try:
        yield temporary
        temporary.chmod(0o777 & ~umask())
        check_free(folder, force)
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix, suffix=".old"))
            os.replace(folder, old / folder.name)
            os.replace(temporary, folder)
            shutil.rmtree(old)
        else:
            os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:
            if parent.exists() and not any(parent.iterdir()):
                parent.rmdir()
        raise


def host() -> str:
    """This machine, in eight letters: process numbers of others say nothing here."""
    return f"{crc32(socket.gethostname().encode()):08x}"


def remove_left_behind(folder: Path) -> None:
    """Remove temporary folders beside `folder` whose process is gone; not an old run that has no successor yet."""
    form = re.compile(rf"\.{re.escape(folder.name)}\.{host()}-(\d+)\.\w+\.(part|old)")
    for path in folder.parent.iterdir():
        match = form.fullmatch(path.name)
        if match and not alive(int(match[1])) and (match[2] == "part" or folder.exists()):
            shutil.rmtree(path, ignore_errors=True)


def alive(process: int) -> bool:
    """Whether there is such a process on this machine; where that cannot be asked, there is."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def umask() -> int:
    """The permissions that new files of this process lack."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_config(folder: Path, kind: str, parts: dict[str, Any]) -> None:
    """Write config.json: the format, the kind of run, and its parts (plain lists, strings and numbers)."""
    text = json.dumps({"format": FORMAT, "kind": kind, **parts}, indent=1, allow_nan=False)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


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
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, path)
    path.chmod(0o666 & ~umask())


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
    """Fill a module with the tensors of a file. Raises BadInput unless names and shapes are its own."""
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
    module.load_state_dict(found)
