"""Arrays in an `.npz` file: X with labels y, and what else belongs to them. Nothing is unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conca.data.archive import check_name
from conca.data.labelled import PARTS, Labelled, Labels, Numbers, joined, numbered, settle_labels
from conca.types import BadInput, nearest

__all__ = ["AXES", "Arrays", "read_arrays"]

AXES = ("ntc", "nct", "nhw")
"""Orders of the axes of X: sequence, time, channel; sequence, channel, time; image, row, column."""

KEYS = ("X", "y", "lengths", "parts", "split", "symbols", "channels", "ids", "rate")
SPELLED = {"training": "train", "val": "validation", "valid": "validation", "dev": "validation", "testing": "test"}

Arrays = Mapping[str, NDArray[np.generic]]


def read_arrays(path: Path, *, axes: str = "ntc", labelled: bool = True) -> Labelled:
    """The sequences of an `.npz` file, in the type they have there; `source` says how X was read.

    Keys, in any case: X and y, with lengths, parts (or split), symbols, channels, ids and rate where there are any; or
    X_train, y_train, X_test, y_test, and X_validation, y_validation, each with its lengths. X is (n, T), (n, T, C), or
    what `axes` says: "nct" for (n, C, T), "nhw" for images (n, H, W) or (n, H, W, C), read pixel by pixel in rows. What
    stands past the length of a sequence is cut off. Integers in X with a list of symbols are symbols.

    labelled  whether a missing y is bad input

    Raises BadInput: a damaged file, objects (never unpickled), shapes that do not fit, an unknown `axes`.
    """
    if axes not in AXES:
        raise BadInput(f"axes '{axes}' are not known; {nearest(axes, AXES)}")
    arrays = load(path)
    split = [part for part in PARTS if f"x_{part}" in arrays]
    if not split:
        return one(path, arrays, "", axes, labelled)
    found = {part: one(path, arrays, f"_{part}", axes, labelled) for part in split}
    shapes = "; ".join(data.source.partition("; ")[2] for data in found.values())
    return joined(found, path.name).named(path.name, f"; {shapes}")


def load(path: Path) -> dict[str, NDArray[np.generic]]:
    """All arrays of the file under their keys in lower case. Raises BadInput if one cannot be read as it is."""
    if path.is_dir():
        raise BadInput(f"{path} is a directory where a file is wanted; name a file")
    arrays: dict[str, NDArray[np.generic]] = {}
    try:
        with zipfile.ZipFile(path) as file:
            for member in file.infolist():
                check_name(path, member.orig_filename)
                key = member.filename.removesuffix(".npy")
                if key.lower() in arrays:
                    raise BadInput(f"{path}: two arrays are named '{key}'; rename one of them")
                arrays[key.lower()] = read_member(path, file, member, key)
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file; check the path") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise BadInput(f"{path}: not a readable .npz file ({error}); write it again with numpy.savez") from None
    return arrays


def read_member(path: Path, file: zipfile.ZipFile, member: zipfile.ZipInfo, key: str) -> NDArray[np.generic]:
    """One array. Raises BadInput if it holds objects, or is not of the size that its header says."""
    with file.open(member) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = reader(stream)
            left = member.file_size - stream.tell()
        except ValueError:
            raise BadInput(f"{path}: '{key}' is not an array; write the file with numpy.savez") from None
    if dtype.hasobject:
        raise BadInput(f"{path}: '{key}' holds Python objects, which are never unpickled; save numbers or text")
    if left != dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise BadInput(f"{path}: '{key}' is not of the size that its header says; write the file again")
    try:
        with file.open(member) as stream:
            array: NDArray[np.generic] = np.lib.format.read_array(stream, allow_pickle=False)
    except MemoryError:
        raise BadInput(f"{path}: '{key}' of shape {shape} does not fit into memory; read a part of it") from None
    return array


def one(path: Path, arrays: Arrays, ending: str, axes: str, labelled: bool) -> Labelled:
    """The sequences of the keys with one ending, such as "_train"."""
    key = f"X{ending}"
    if f"x{ending}" not in arrays:
        known = ", ".join(f"'{name}'" for name in sorted(arrays)) or "nothing"
        raise BadInput(f"{path}: no array is named 'X' (or 'X_train'); the file has {known}")
    x = arrays[f"x{ending}"]
    steps = as_steps(path, key, x, axes)
    n, time, width = steps.shape
    found = {name.lower(): arrays.get(f"{name.lower()}{ending}") for name in KEYS}
    if labelled and found["y"] is None:
        raise BadInput(f"{path}: '{key}' has no labels 'y{ending}'; add them")
    lengths = read_lengths(path, f"lengths{ending}", found["lengths"], n, time)
    split = found["parts"] if found["parts"] is not None else found["split"]
    ids, channels = texts(found["ids"]), texts(arrays.get("channels"))
    symbols = texts(arrays.get("symbols"))
    if symbols and x.dtype.kind not in "iu":
        raise BadInput(f"{path}: '{key}' of type {x.dtype} does not number the symbols; save integers")
    if channels and len(channels) != width:
        raise BadInput(f"{path}: {len(channels)} names of channels where '{key}' has {width}; give one each")
    return Labelled(
        cut(steps, lengths),
        lengths,
        read_y(path, found["y"], n, labelled),
        None if split is None else read_parts(path, split, n),
        ids or tuple(map(str, range(n))),
        channels or numbered(width),
        symbols,
        read_rate(path, arrays.get("rate")),
        path.name,
    ).named(path.name, f"; {key} as (n={n}, time={time}, channels={width}){hint(x, axes)}")


def as_steps(path: Path, key: str, x: NDArray[np.generic], axes: str) -> Numbers:
    """X with the axes (n, T, C). Raises BadInput if it is not of numbers, or has other axes."""
    if x.dtype.kind not in "biuf":
        raise BadInput(f"{path}: '{key}' of type {x.dtype} is not of real numbers; convert it")
    wanted = {"ntc": (2, 3), "nct": (2, 3), "nhw": (3, 4)}[axes]
    if x.ndim not in wanted or 0 in x.shape:
        more = "; images are read with the axes nhw" if x.ndim == 4 else "; sequences of several lengths need 'lengths'"
        raise BadInput(f"{path}: '{key}' of shape {x.shape} cannot be read with the axes {axes}{more}")
    if axes == "nhw":
        return x.reshape(x.shape[0], x.shape[1] * x.shape[2], -1)
    if x.ndim == 2:
        return x[:, :, None]
    return x.transpose(0, 2, 1) if axes == "nct" else x


def hint(x: NDArray[np.generic], axes: str) -> str:
    """What to add where X looks as if its axes stood in another order; empty if it does not."""
    if x.ndim != 3 or axes == "nhw":
        return ""
    time, width = (x.shape[1], x.shape[2]) if axes == "ntc" else (x.shape[2], x.shape[1])
    other = "nct" if axes == "ntc" else "ntc"
    if time >= width:
        return ""
    return f" (fewer steps than channels: if {time} is the number of channels, read it with --axes {other})"


def read_lengths(path: Path, key: str, lengths: NDArray[Any] | None, n: int, time: int) -> NDArray[np.int64]:
    """The lengths (n,), all of them T if there are none. Raises BadInput if one is below 1 or beyond T."""
    if lengths is None:
        return np.full(n, time, np.int64)
    if lengths.dtype.kind not in "iu" or lengths.shape != (n,):
        told = f"{lengths.dtype} of shape {lengths.shape}"
        raise BadInput(f"{path}: '{key}' is {told}; give {n} integers, one for each sequence")
    wrong = np.flatnonzero((lengths < 1) | (lengths > time))
    if len(wrong):
        told = f"sequence {wrong[0]} has the length {lengths[wrong[0]]}"
        raise BadInput(f"{path}, '{key}': {told}; X has {time} steps, so give 1 to {time}, and leave out what is empty")
    return lengths.astype(np.int64)


def read_y(path: Path, y: NDArray[Any] | None, n: int, labelled: bool) -> Labels | None:
    """The labels (n,). None if there are none, or if some are missing and may be."""
    if y is None:
        return None
    missing = np.isnan(y) if y.dtype.kind == "f" else y == y.dtype.type() if y.dtype.kind in "US" else np.zeros(1, bool)
    return None if missing.any() and not labelled else settle_labels(y, n, f"{path}: ")


def read_rate(path: Path, rate: NDArray[Any] | None) -> float | None:
    """The samples a second, if they are there. Raises BadInput if they are not one positive number."""
    if rate is None:
        return None
    if rate.size != 1 or rate.dtype.kind not in "iuf" or not 0 < float(rate.reshape(-1)[0]) < np.inf:
        raise BadInput(f"{path}: 'rate' is {str(rate.tolist())[:40]}; give one positive number of samples a second")
    return float(rate.reshape(-1)[0])


def cut(steps: Numbers, lengths: NDArray[np.int64]) -> Numbers:
    """The rows (n, T, C) without what stands past their lengths, end to end; a view, where nothing is cut off."""
    n, time, width = steps.shape
    if (lengths == time).all():
        return steps.reshape(n * time, width)
    kept: Numbers = steps[np.arange(time) < lengths[:, None]]
    return kept


def read_parts(path: Path, parts: NDArray[np.generic], n: int) -> NDArray[np.str_]:
    """The names of the parts (n,), also where they are written "val" or "Test". Raises BadInput if one is unknown."""
    if parts.shape != (n,) or parts.dtype.kind not in "US":
        told = f"{parts.dtype} of shape {parts.shape}"
        raise BadInput(f"{path}: the split is {told}; give {n} words, each one of {', '.join(PARTS)}")
    names = [name.lower() for name in texts(parts)]
    settled = [SPELLED.get(name, name) for name in names]
    strange = [name for name in settled if name not in PARTS]
    if strange:
        raise BadInput(f"{path}: the split names a part '{strange[0]}'; {nearest(strange[0], PARTS)}")
    return np.array(settled)


def texts(array: NDArray[np.generic] | None) -> tuple[str, ...]:
    """An array as text; nothing for None."""
    if array is None:
        return ()
    return tuple(w.decode("utf-8", "replace") if isinstance(w, bytes) else str(w) for w in array.reshape(-1).tolist())
