"""Spoken digits made by speech synthesisers, and real recordings beside them: WAV files in folders of classes.

    python bench/spoken_voices.py FOLDER

Training voices are varied as rooms, microphones, lines and speakers vary; the voices of validation and test are heard in training
never. Needs the Debian packages espeak-ng, flite, festival, festvox-kallpc16k, festvox-kdlpc16k and festvox-us-slt-hts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import fftconvolve

from conca.data.resampling import resample

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
RATE = 8000
DIALECTS = ("en-us", "en-us-nyc", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029")
ODD = ("robo", "unirobot", "announcer", "demonic", "croak", "whisper", "fast", "mr")
"""Variants of espeak-ng that are no voices of people talking."""
FLITE = ("awb", "rms", "slt", "kal16")
FESTIVAL = ("kal_diphone", "ked_diphone", "cmu_us_slt_arctic_hts")
PROMPTS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
AROUND = 0.055
"""Seconds before and after a word that is tested on: what there are on average where it is learnt from."""
HELD_OUT = 12
"""Voices of espeak-ng for validation, and as many for test."""


def variants() -> list[str]:
    """The voices of espeak-ng, in an order that a seed has drawn."""
    lines = subprocess.run(["espeak-ng", "--voices=variant"], capture_output=True, text=True, check=True).stdout
    names = {line.split("!v/")[1].split()[0] for line in lines.splitlines() if "!v/" in line}
    people = sorted(name for name in names if not any(odd in name.lower() for odd in ODD))
    return np.random.default_rng(20).permutation(people).tolist()


def said(engine: str, voice: str, word: str, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """One word by a voice, at a speed and pitch drawn by `rng`: samples and their rate."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        if engine == "espeak-ng":
            manner = ["-s", rng.integers(100, 220), "-p", rng.integers(5, 95)]
            command = ["espeak-ng", "-v", f"{rng.choice(DIALECTS)}+{voice}", *manner, "-w", file.name, word]
        elif engine == "flite":
            stretch, pitch = rng.uniform(0.8, 1.4), rng.uniform(85, 240)
            manner = ["--setf", f"duration_stretch={stretch:.2f}", "--setf", f"int_f0_target_mean={pitch:.0f}"]
            command = ["flite", "-voice", voice, *manner, "-t", word, "-o", file.name]
        else:
            stretch = f"(Parameter.set 'Duration_Stretch {rng.uniform(0.8, 1.4):.2f})"
            command = ["text2wave", "-eval", f"(voice_{voice})", "-eval", stretch, "-o", file.name]
        subprocess.run([str(part) for part in command], input=word.encode(), capture_output=True, check=True)
        return soundfile.read(file.name, dtype="float32")


def trimmed(sound: np.ndarray, around: float = 0.03) -> np.ndarray:
    """The word without the silence before and after it, but for `around` seconds: what is 35 dB below the loudest frame."""
    size = RATE // 100
    frames = np.pad(sound, (0, -len(sound) % size)).reshape(-1, size)
    loud = np.sqrt((frames**2).mean(1))
    heard = np.flatnonzero(loud > loud.max() * 10 ** (-35 / 20))
    pad = int(around * RATE)
    return sound[max(heard[0] * size - pad, 0) : (heard[-1] + 1) * size + pad]


def scaled(sound: np.ndarray, peak: float = 0.6) -> np.ndarray:
    """The same with a largest absolute value of `peak`."""
    return (sound * peak / max(np.abs(sound).max(), 1e-6)).astype(np.float32)


def varied(sound: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The word in a room, over a line and with noise, all drawn by `rng`."""
    if rng.random() < 0.35:
        decay = np.exp(-6.9 * np.arange(int(0.25 * RATE)) / RATE / rng.uniform(0.08, 0.3))
        echo = rng.normal(size=len(decay)) * decay
        echo *= 10 ** (-rng.uniform(3, 20) / 20) / np.sqrt((echo**2).sum())
        echo[0] += 1
        sound = trimmed(fftconvolve(sound, echo))
    sound = np.pad(sound, (rng.integers(0, 400), rng.integers(0, 400)))
    size = len(sound)
    frequency = np.fft.rfftfreq(size, 1 / RATE)
    places = np.geomspace(60, 4000, 7)
    level = np.interp(np.log(frequency + 1), np.log(places), rng.normal(0, 4, 7)) + rng.normal(0, 2) * np.log2(
        (frequency + 100) / 1000
    )
    low, high = rng.uniform(30, 300), rng.choice([4000, rng.uniform(1700, 4000)])
    level -= 24 * np.maximum(np.log2(low / (frequency + 1)), 0) + 120 * np.maximum(np.log2((frequency + 1) / high), 0)
    sound = np.fft.irfft(np.fft.rfft(sound) * 10 ** (level / 20), size)
    noise = np.fft.irfft(np.fft.rfft(rng.normal(size=size)) / np.sqrt(frequency + 50) ** rng.uniform(0, 2), size)
    noise *= np.sqrt((sound**2).mean() / (noise**2).mean()) * 10 ** (-rng.uniform(15, 50) / 20)
    return scaled(sound + noise)


def spoken(at: int, part: str, voices: list[tuple[str, str]], root: Path) -> None:
    """One file, unless it is there: number `at` of a part, a digit after the other."""
    rng = np.random.default_rng([("train", "validation", "test").index(part), at])
    digit, (engine, voice) = at % 10, voices[rng.integers(len(voices))]
    path = root / part / str(digit) / f"{at:05d}_{engine}_{voice}.wav"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    sound, own = said(engine, voice, WORDS[digit], rng)
    larynx = rng.uniform(0.87, 1.15) if part == "train" else 1.0  # shorter or longer vocal tracts
    sound = resample(sound, round(own * larynx / 100) * 100, RATE)
    sound = varied(scaled(trimmed(sound)), rng) if part == "train" else scaled(trimmed(sound, AROUND))
    partly = path.with_suffix(".part")
    soundfile.write(partly, sound, RATE, subtype="PCM_16", format="WAV")
    partly.replace(path)


def make(root: Path, counts: dict[str, int], recorded: float = 0.4) -> None:
    """The three parts under `root`, unless they are there; `recorded`: the share of voices cut from recordings of people."""
    for program in ("espeak-ng", "flite", "text2wave"):
        if not shutil.which(program):
            raise SystemExit(f"{program} is not installed; the first lines of {Path(__file__).name} name the packages")
    names = variants()
    espeak = {
        "test": names[:HELD_OUT],
        "validation": names[HELD_OUT : 2 * HELD_OUT],
        "train": names[2 * HELD_OUT :],
    }
    engines = [("flite", name) for name in FLITE] + [("festival", name) for name in FESTIVAL]
    for part, count in counts.items():
        voices = [("espeak-ng", name) for name in espeak[part]]
        if part == "train" and recorded:
            times = recorded / (1 - recorded) * len(voices) / len(engines)
            voices += engines * round(times)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(partial(spoken, part=part, voices=voices, root=root), range(count)))


def real(root: Path, prompts: Path, rate: int = RATE) -> None:
    """The ten digits of the prompts of Asterisk (one speaker, who takes no part in training), trimmed as the others are.

    What is there is not made again.
    """
    for digit in range(10):
        path = root / str(digit) / "allison.wav"
        if path.exists():
            continue
        if not prompts.is_dir():
            raise SystemExit(
                f"{prompts}: there are no prompts; apt-get install asterisk-core-sounds-en-wav, or give --prompts"
            )
        sound, own = soundfile.read(prompts / "digits" / f"{digit}.wav", dtype="float32")
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, scaled(trimmed(resample(sound, own, rate), AROUND)), rate, subtype="PCM_16")


if __name__ == "__main__":
    make(Path(sys.argv[1]), {"train": 8000, "validation": 300, "test": 500})
