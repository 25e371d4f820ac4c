"""Spoken digits from raw samples: learnt from synthesised voices, tested on voices never heard and on real recordings.

    apt-get install espeak-ng flite festival festvox-kallpc16k festvox-kdlpc16k festvox-us-slt-hts asterisk-core-sounds-en-wav
    python bench/spoken_digits.py [--data FOLDER] [--out RUN] [--resume]

Trained at 8,000 samples a second. The half rate is zero-shot: nothing is learnt at it, every time scale of the layers is made twice
as long. What the change of the steps does is seen beside the same network without it. The voices are made once (`spoken_voices.py`) and
kept in FOLDER; a training that was killed goes on with --resume.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from packages import CACHE
from record import record
from spoken_voices import HELD_OUT, PROMPTS, RATE, make, real

import conca
from conca.data.audio_folder import read_audio_folder
from conca.metrics.classification import accuracy, log_loss, macro_f1

HALF = RATE // 2


def rows(
    model: conca.Classifier, name: str, folder: Path, part: str | None
) -> tuple[list[tuple[object, ...]], list[str]]:
    """Scores on a folder at the rate of the training, at half of it, and at half of it by steps left as they are; what is said."""
    data = {rate: read_audio_folder(folder, rate=rate) for rate in (RATE, HALF)}
    if part:
        data = {rate: found.part(part) for rate, found in data.items()}
    cases = {
        f"{RATE:,}": data[RATE],
        f"{HALF:,}, zero-shot, steps twice as long": data[HALF],
        f"{HALF:,}, steps left as they are": replace(data[HALF], rate=float(RATE)),
    }
    table, heard = [], []
    for rate, sequences in cases.items():
        found = model.judged(sequences)
        right = f"{accuracy(found.truth, found.said):.1%} ({(found.truth == found.said).sum()} of {len(found)})"
        scores = macro_f1(found.truth, found.said), log_loss(found.truth, found.probability)
        table.append((name, rate, right, *(f"{score:.3f}" for score in scores)))
        heard.append("".join(found.classes[answer] for answer in found.said))
    return table, heard


def main() -> None:
    """Make the voices, learn, and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--data", type=Path, default=CACHE.parent / "spoken", help="folder in which the voices are made and kept"
    )
    parser.add_argument("--out", type=Path, default=CACHE.parent / "spoken_run", help="run folder")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="where the prompts of Asterisk lie")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--train", type=int, default=8000, help="words to learn from")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", default="s4d(d_state=16)*3")
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--lr", type=float, default=8e-3)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    begin = time.perf_counter()
    counts = {"validation": min(max(options.train // 10, 10), 300), "test": min(max(options.train // 10, 10), 500)}
    make(options.data / "voices", {**counts, "train": options.train})
    real(options.data / "real", options.prompts)
    made, begin = time.perf_counter() - begin, time.perf_counter()
    model = conca.Classifier(
        layers=options.layers,
        d_model=options.width,
        dropout=0.05,
        epochs=options.epochs,
        batch_size=options.batch,
        lr=options.lr,
    )
    if options.resume and (options.out / "config.json").exists():
        model = conca.Classifier.load(options.out)
    else:
        model.fit(options.data / "voices", rate=RATE, out=options.out, resume=options.resume, progress=True)
    took = time.perf_counter() - begin
    print("\n".join(model.notices_))
    table, _ = rows(model, "synthesised voices never heard", options.data / "voices", "test")
    more, heard = rows(model, "real recordings", options.data / "real", None)
    learnt = sum(p.numel() for p in model.network_.parameters())
    note = (
        f"{options.train:,} synthesised words of 0.2 to 1.6 seconds, epochs: {len(model.history_)}, `{options.layers}` of width "
        f"{options.width} ({learnt:,} parameters), seed 0; making the voices took {made / 60:.0f} minutes, training and judging "
        f"{took / 60:.0f}. Voices of espeak-ng, flite and festival, varied in speed, pitch, length of the vocal tract, room, line and "
        f"noise; validation and test are of {HELD_OUT} voices of espeak-ng each that are in no other part, in eight accents. Of the ten "
        "digits there is one real recording each, of one speaker (asterisk-core-sounds-en-wav 1.6.1; no "
        "other English ones, spoken one by one, were found in Debian): "
        f"one more or less right is ten per cent. Heard in zero to nine: {heard[0]} at {RATE:,} samples a second, {heard[1]} at {HALF:,}."
    )
    header = ("what is heard", "samples a second", "accuracy", "macro F1", "log loss")
    record("spoken_digits", "Spoken digits from raw samples, and at half the rate", header, table + more, note)


if __name__ == "__main__":
    main()
