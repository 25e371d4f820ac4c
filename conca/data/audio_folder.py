"""A folder of WAV files in folders of classes becomes sequences of sound with labels."""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path, PurePosixPath

import numpy as np
import soundfile
from numpy.typing import NDArray

from conca.data.labelled import Labelled, counted, labels_of_text
from conca.data.resampling import resample
from conca.types import BadInput

__all__ = ["is_audio_folder", "read_audio_folder"]

WAV = (".wav", ".wave")
OTHER_SOUND = (".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".aac", ".wma", ".aif", ".aiff", ".au", ".amr")
PART_FOLDERS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
LISTS = {"validation_list.txt": "validation", "testing_list.txt": "test"}
"""As the Speech Commands set (Warden, 2018) names the files of its parts."""
PASSED_OVER = ("_background_noise_", "__MACOSX")
OPEN_END = 0x7FFFF000
"""Sizes from here on stand in headers that were written before the end of the sound was known."""
HIGHEST_RATE = 10_000_000
UNREADABLE = re.compile(r"[\ud800-\udfff]")
"""What stands in a name for bytes that are not UTF-8."""
FARTHEST, FINEST = 1_000, 100_000
"""How many times one rate may be another, and the largest number in their ratio as a reduced fraction."""


@dataclass(frozen=True)
class Recording:
    """One WAV file: its path inside the folder, how many samples it has, and how many a second."""

    path: PurePosixPath
    samples: int
    rate: int


def is_audio_folder(folder: str | Path) -> bool:
    """Whether `folder` is a directory with a WAV file at any depth, in folders that are read."""
    return Path(folder).is_dir() and any(name.suffix.lower() in WAV for name in files_in(Path(folder)))


def read_audio_folder(folder: str | Path, *, rate: int | None = None, labelled: bool = True) -> Labelled:
    """The WAV files in a folder of folders, each named by its class; all at one rate, stereo as the mean of its channels.

    folder    CLASS/FILE.wav; or PART/CLASS/FILE.wav, where parts are train, validation and test; or CLASS/FILE.wav with
              validation_list.txt and testing_list.txt, as Speech Commands has them
    rate      samples a second; None: that which most files have
    labelled  False: the files may also lie anywhere in the folder, without labels, and one WAV file may stand in its place

    Values are float32, between -1 and 1 for whole-number encodings of 8 to 32 bits. Hidden folders, `_background_noise_`
    and files that are no sound are passed over. Files are in the order of their paths, by parts, which are their ids.

    Raises BadInput, one line, on a file that is no WAV, is cut short or has no samples, on sound of another kind, and on
    files that lie elsewhere than in folders of classes.
    """
    folder = Path(folder)
    if rate is not None and not (rate == int(rate) and 0 < rate <= HIGHEST_RATE):
        raise BadInput(f"rate {rate:g}: the rate must be a positive whole number of samples a second, such as 8000")
    alone = folder.is_file() and not labelled
    if not alone and not folder.is_dir():
        raise BadInput(f"{folder}: there is no such folder; name a folder with one folder of WAV files for each class")
    root, paths, others = (folder.parent, [PurePosixPath(folder.name)], 0) if alone else found(folder)
    labels, parts = (None, None) if not labelled and loose(paths) else placed(root, paths)
    recordings = [described(root, path) for path in paths]
    rates = Counter(recording.rate for recording in recordings)
    rate = int(rate) if rate is not None else max(rates, key=lambda own: (rates[own], own))
    check_rates(root, recordings, rate)
    values, lengths = sounds(root, recordings, rate)
    data = Labelled(
        values,
        lengths,
        None if labels is None else labels_of_text(labels),
        None if parts is None else np.array(parts, np.str_),
        tuple(map(str, paths)),
        ("sound",),
        rate=float(rate),
        source=str(folder),
    )
    resampled = len(recordings) - rates[rate]
    note = f"; {counted(resampled, 'file')} resampled" * (resampled > 0)
    return data.named(str(folder), note + f"; {counted(others, 'other file')} passed over" * (others > 0))


def found(folder: Path) -> tuple[Path, list[PurePosixPath], int]:
    """The folder, its WAV files, sorted, and how many files are passed over.

    Raises BadInput if there are no WAV files, or if there is sound of another kind.
    """
    every = sorted(files_in(folder))
    paths = [path for path in every if path.suffix.lower() in WAV]
    foreign = [path for path in every if path.suffix.lower() in OTHER_SOUND]
    if foreign:
        more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
        raise BadInput(f"{folder / foreign[0]}{more}: only WAV files are read; convert it to WAV, or take it away")
    strange = next((path for path in paths if UNREADABLE.search(str(path))), None)
    if strange is not None:
        raise BadInput(f"{folder}: the name {str(strange)!r} is not text in UTF-8; rename it")
    if not paths:
        raise BadInput(f"{folder}: there are no WAV files; it needs one folder of them for each class")
    return folder, paths, sum(path.name not in LISTS for path in every) - len(paths)


def files_in(folder: Path, onerror: Callable[[OSError], object] | None = None) -> Iterator[PurePosixPath]:
    """All files at any depth that are not hidden, by their paths inside `folder`; links to folders are followed once."""
    seen = set()
    for place, folders, files in os.walk(folder, onerror=onerror, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in PASSED_OVER)
        inside = PurePosixPath(Path(place).relative_to(folder).as_posix())
        yield from (inside / name for name in files if not name.startswith("."))


def loose(paths: Sequence[PurePosixPath]) -> list[PurePosixPath]:
    """The files that lie elsewhere than most: in folders of classes, or in those in folders of parts."""
    plain = [path for path in paths if len(path.parts) != 2]
    parted = [path for path in paths if len(path.parts) != 3 or path.parts[0].lower() not in PART_FOLDERS]
    return min(plain, parted, key=len)


def placed(root: Path, paths: Sequence[PurePosixPath]) -> tuple[list[str], list[str] | None]:
    """The class of each file, and its part if there is an official split.

    Raises BadInput on a file that lies in no folder of a class, and on lists of parts that name no file.
    """
    if astray := loose(paths):
        raise BadInput(
            f"{root / astray[0]}: files are wanted as CLASS/FILE.wav, or as PART/CLASS/FILE.wav with the parts train, "
            "validation and test, all in one way; move it"
        )
    labels = [path.parts[-2] for path in paths]
    parts = [PART_FOLDERS[path.parts[0].lower()] for path in paths] if len(paths[0].parts) == 3 else listed(root, paths)
    return labels, parts if len(set(parts)) > 1 else None


def listed(root: Path, paths: Sequence[PurePosixPath]) -> list[str]:
    """The part of each file by the lists beside the folders of classes: "train", unless one names it."""
    part = dict.fromkeys(map(str, paths), "train")
    for name, said in LISTS.items():
        if not (root / name).is_file():
            continue
        lines = (root / name).read_text(encoding="utf-8", errors="replace").splitlines()
        named = [line.strip().replace("\\", "/").removeprefix("./") for line in lines if line.strip()]
        present = [path for path in named if path in part]
        if named and not present:
            raise BadInput(
                f"{root / name}: none of its {len(named)} lines names a file that is there; mend or remove it"
            )
        for path in present:
            if part[path] not in ("train", said):
                raise BadInput(f"{root / name}: '{path}' is in the other list, too; a file has one part")
            part[path] = said
    return list(part.values())


def described(root: Path, path: PurePosixPath) -> Recording:
    """Samples and rate of a file. Raises BadInput if it is no WAV, is cut short or has no samples."""
    full = root / path
    check_whole(full)
    try:
        with soundfile.SoundFile(full) as sound:
            samples, rate = sound.frames, sound.samplerate
    except (soundfile.SoundFileError, OSError) as error:
        raise BadInput(f"{full}: not a readable WAV file ({one_line(error)}); write it again") from None
    if not samples:
        raise BadInput(f"{full}: the file has no samples; remove it or record it again")
    return Recording(path, samples, rate)


def check_whole(path: Path) -> None:
    """Raise BadInput if a file is no WAV or ends before its header says so."""
    if not path.is_file():
        raise BadInput(f"{path}: is no regular file; take it away")
    try:
        with path.open("rb") as file:
            head = file.read(12)
            if not head:
                raise BadInput(f"{path}: the file is empty; remove it or record it again")
            if head[:4] not in (b"RIFF", b"RIFX", b"RF64") or head[8:] != b"WAVE":
                raise BadInput(f"{path}: not a WAV file, whatever its name says; convert it to WAV or remove it")
            if head[:4] == b"RF64":
                return
            order, end = ">" if head[:4] == b"RIFX" else "<", path.stat().st_size
            while len(chunk := file.read(8)) == 8:
                size = struct.unpack(order + "I", chunk[4:])[0]
                left = end - file.tell()
                if chunk[:4] == b"data":
                    if left < size < OPEN_END:
                        raise BadInput(
                            f"{path}: cut short: its header promises {size} bytes of sound, and {left} are there; "
                            "fetch or record it again"
                        )
                    return
                file.seek(size + size % 2, os.SEEK_CUR)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({one_line(error)})") from None
    raise BadInput(f"{path}: cut short: the file ends before any sound; fetch or record it again")


def check_rates(root: Path, recordings: Sequence[Recording], rate: int) -> None:
    """Raise BadInput for a file that cannot be brought to a rate with reasonable work."""
    for own in recordings:
        far = max(own.rate, rate) > FARTHEST * min(own.rate, rate)
        if far or max(own.rate, rate) // gcd(own.rate, rate) > FINEST:
            told = "too far apart" if far else "without a common measure"
            raise BadInput(
                f"{root / own.path}: {own.rate:,} samples a second cannot be brought to {rate:,}, they are {told}; "
                "name another rate (rate, --rate), or mend the file"
            )


def sounds(root: Path, recordings: Sequence[Recording], rate: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """All sounds at one rate, end to end (sum of lengths, 1), and their lengths (n,)."""
    lengths = np.array([-(-recording.samples * rate // recording.rate) for recording in recordings], np.int64)
    values = np.empty((int(lengths.sum()), 1), np.float32)
    end = 0
    for recording, length in zip(recordings, lengths.tolist()):
        values[end : end + length, 0] = resample(mono(root, recording), recording.rate, rate)
        end += length
    return values, lengths


def mono(root: Path, recording: Recording) -> NDArray[np.float32]:
    """The samples of a file (T,), the mean of its channels. Raises BadInput if they cannot be read."""
    full = root / recording.path
    try:
        sound, _ = soundfile.read(full, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise BadInput(f"{full}: not a readable WAV file ({one_line(error)}); write it again") from None
    if len(sound) != recording.samples:
        raise BadInput(f"{full}: cut short: {len(sound)} of {recording.samples} samples can be read; fetch it again")
    return np.asarray(sound[:, 0] if sound.shape[1] == 1 else sound.mean(axis=1), np.float32)


def one_line(error: Exception) -> str:
    """What an error says, as one line without its last stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
