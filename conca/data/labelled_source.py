"""Labelled sequences from whatever stands at a path: files of many kinds, folders, archives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conca.data.archive import ENDINGS, unpacked
from conca.data.arrays import AXES, read_arrays
from conca.data.audio_folder import read_audio_folder
from conca.data.found_sets import FoundSet, find_set, set_of
from conca.data.idx_file import is_idx, read_images
from conca.data.labelled import Labelled, joined
from conca.data.listops import is_tree_table, read_tree_table
from conca.data.long_table import is_long_table, read_long_table
from conca.data.table import Source
from conca.data.ts_file import read_ts
from conca.data.ucr_file import read_ucr
from conca.types import BadInput, nearest, path_of

__all__ = ["ORDERS", "bit_reversal", "permuted", "read_labelled"]

PERMUTED = 92916
ORDERS = ("permuted", "bits")
"""Orders of the steps: one random order, as the literature has it for pixels of MNIST; that of reversed bits."""
KINDS = ".ts, .tsv, .txt, .npz, .csv, .parquet, -idx3-ubyte, .wav in folders, or an archive of one of them"


@dataclass(frozen=True)
class Reading:
    """How what is found is to be read; see `read_labelled`."""

    series: str | None
    time: str | None
    label: str | None
    axes: str
    rate: float | None
    labelled: bool


def read_labelled(
    path: Source,
    *,
    series: str | None = None,
    time: str | None = None,
    label: str | None = None,
    axes: str = "ntc",
    rate: float | None = None,
    order: str | None = None,
    labelled: bool = True,
) -> Labelled:
    """The sequences at a path, with their labels and, where there is one, their official split.

    path      a file `.ts` or `.tsv`/`.txt` (UCR, UEA), `.npz`, IDX (`-idx3-ubyte`, `.gz`), a long table (`.csv`,
              `.parquet`); a folder that holds one of these, or folders of `.wav` by class; or an archive of one of them.
              A data frame is read as a long table.
              A file NAME_TRAIN comes with its NAME_TEST, train-images with its labels and t10k, unless `labelled` is off
    series, time, label    columns of a long table: what tells sequences apart, what orders them, what is learned
    axes      of X in an `.npz`: "ntc", "nct" or "nhw"
    rate      samples a second of sound; None: that of most files
    order     an order of the steps, "permuted" or "bits", for sequences of one length
    labelled  whether missing labels are bad input; if not, labels are None where any is missing

    Raises BadInput, one line: what, where, what to do.
    """
    if axes not in AXES:
        raise BadInput(f"axes '{axes}' are not known; {nearest(axes, AXES)}")
    if order is not None and order not in ORDERS:
        raise BadInput(f"order '{order}' is not known; {nearest(order, ORDERS)}")
    how = Reading(series, time, label, axes, rate, labelled)
    data = read_path(path_of(path), how) if isinstance(path, str | PathLike) else read_table(path, how)
    if labelled and data.labels is None:
        raise BadInput(f"{path}: there are no labels; name a file that has them")
    return data if order is None else permuted(data, order)


def read_path(path: Path, how: Reading) -> Labelled:
    """What stands at `path`, by its kind."""
    if not path.exists():
        raise BadInput(f"{path}: there is no such file or folder; check the path")
    if path.is_dir():
        return read_set(find_set(path), how)
    if not path.is_file():
        raise BadInput(f"{path}: is neither a file nor a folder; name one")
    name = path.name.lower()
    if name.endswith(ENDINGS):
        with unpacked(path) as folder:
            data = read_set(find_set(folder, path.name.partition(".")[0]), how)
            return replace(data, source=f"{path.name} with {data.source.replace(f'{folder}/', '')}")
    if is_long_table(path):
        return read_table(path, how)
    if name.endswith((".wav", ".wave")):
        return read_audio_folder(path, rate=whole(how.rate), labelled=how.labelled)
    if is_idx(path) and not (set_of(path)):
        return read_images(path, None)
    found = set_of(path)
    if found is None:
        raise BadInput(f"{path}: this kind of file is not read; name a file ending in {KINDS}")
    return read_set(found if how.labelled else alone(found, path), how)


def alone(found: FoundSet, path: Path) -> FoundSet:
    """The set with the part of one file, without the others."""
    mine = [files for files in found.files.values() if files[0] == path]
    return replace(found, files={"": mine[0]})


def read_set(found: FoundSet, how: Reading) -> Labelled:
    """The parts of a set, joined."""
    parts = {part: read_files(found.kind, files, how) for part, files in found.files.items()}
    if len(parts) == 1:
        return parts.popitem()[1]
    files = ", ".join(data.source.partition(": ")[0] for data in parts.values())
    return joined(parts, files)


def read_files(kind: str, files: tuple[Path, ...], how: Reading) -> Labelled:
    """The sequences of one part."""
    path = files[0]
    readers: dict[str, Callable[[], Labelled]] = {
        ".ts": lambda: read_ts(path, labelled=how.labelled),
        ".tsv": lambda: read_tree_table(path) if is_tree_table(path) else read_ucr(path, labelled=how.labelled),
        ".txt": lambda: read_ucr(path, labelled=how.labelled),
        ".npz": lambda: read_arrays(path, axes=how.axes, labelled=how.labelled),
        "idx": lambda: read_pair(path, files[1] if len(files) > 1 else None, how),
        "table": lambda: read_table(path, how),
        "audio": lambda: read_audio_folder(path, rate=whole(how.rate), labelled=how.labelled),
    }
    return readers[kind]()


def read_pair(images: Path, labels: Path | None, how: Reading) -> Labelled:
    """Images with their labels. Raises BadInput if there are none and there should be."""
    if labels is None and how.labelled:
        wanted = images.name.replace("images", "labels").replace("idx3", "idx1")
        raise BadInput(f"{images}: no file of labels stands beside it; put {wanted} there")
    return read_images(images, labels)


def read_table(path: Source, how: Reading) -> Labelled:
    """A long table."""
    return read_long_table(path, series=how.series, time=how.time, label=how.label, labelled=how.labelled)


def whole(rate: float | None) -> int | None:
    """A rate in whole samples a second. Raises BadInput if it is none."""
    if rate is not None and (not 0 < rate < np.inf or rate != int(rate)):
        raise BadInput(f"rate {rate:g} is not a whole number of samples a second; give one, such as 8000")
    return None if rate is None else int(rate)


def permuted(data: Labelled, order: str) -> Labelled:
    """The steps of every sequence in another order, the same for all.

    order  "permuted": that of `RandomState(92916)`, which the literature has for the pixels of MNIST; "bits": step i is
           that at i with its bits reversed

    Raises BadInput if the sequences are not of one length.
    """
    length = int(data.lengths[0])
    if (data.lengths != length).any():
        told = f"from {data.lengths.min()} to {data.lengths.max()}"
        raise BadInput(f"order '{order}' asks for sequences of one length; these have {told} steps, so leave it out")
    index = bit_reversal(length) if order == "bits" else np.random.RandomState(PERMUTED).permutation(length)
    values = data.values.reshape(len(data), length, -1)[:, index].reshape(data.values.shape)
    return replace(data, values=values, source=f"{data.source}; steps in the order '{order}'")


def bit_reversal(length: int) -> NDArray[np.int64]:
    """The order (T,) of reversed bits: of the numbers below the next power of two, those that are below T.

    >>> bit_reversal(6).tolist()
    [0, 4, 2, 1, 5, 3]
    """
    bits = max(1, (length - 1).bit_length())
    index = np.arange(1 << bits)
    reverse = np.zeros_like(index)
    for bit in range(bits):
        reverse |= (index >> bit & 1) << (bits - 1 - bit)
    return reverse[reverse < length].astype(np.int64)
