"""Spoken digits from raw samples: learnt from synthesised voices, tested on voices never heard and on real recordings.

    apt-get install espeak-ng flite festival festvox-kallpc16k festvox-kdlpc16k festvox-us-slt-hts asterisk-core-sounds-en-wav
    python bench/spoken_digits.py --data FOLDER --out RUN [--resume]

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
from record import record
from spoken_voices import PROMPTS, RATE, make, real

import conca
from conca.data.audio_folder import read_audio_folder

HALF = RATE // 2


def rows(model: conca.Classifier, name: str, folder: Path, wanted: str | None) -> list[tuple[object, ...]]:
    """Accuracy on a folder at the rate of the training, at half of it, and at half of it by steps left as they are."""
    data = {rate: read_audio_folder(folder, rate=rate) for rate in (RATE, HALF)}
    if wanted:
        data = {rate: found.part(wanted) for rate, found in data.items()}
    cases = {
        f"{RATE:,}": data[RATE],
        f"{HALF:,}, zero-shot, steps twice as long": data[HALF],
        f"{HALF:,}, steps left as they are": replace(data[HALF], rate=float(RATE)),
    }
    found = []
    for rate, sequences in cases.items():
        said = model.judged(sequences)
        correct = int((said.probability.argmax(1) == said.truth).sum())
        scores = model.evaluate(sequences).iloc[0]
        found.append(
            (
                name,
                len(sequences),
                rate,
                f"{correct / len(sequences):.1%} ({correct})",
                f"{scores['macro F1']:.3f}",
                f"{scores['log loss']:.3f}",
            )
        )
    return found


def answers(model: conca.Classifier, folder: Path, rate: int) -> str:
    """What is heard in the real recordings of zero to nine, as digits one after the other."""
    return "".join(str(label) for label in model.predict(read_audio_folder(folder, rate=rate)))


def main() -> None:
    """Make the voices, learn, and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="folder in which the voices are made and kept")
    parser.add_argument("--out", type=Path, required=True, help="run folder")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="where the prompts of Asterisk lie")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--train", type=int, default=4000, help="words to learn from")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", default="s4d(d_state=16)*3")
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--lr", type=float, default=8e-3)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    begin = time.perf_counter()
    make(options.data / "voices", {"train": options.train, "validation": 300, "test": 500})
    real(options.data / "real", options.prompts)
    made, begin = time.perf_counter() - begin, time.perf_counter()
    model = conca.Classifier(
        layers=options.layers,
        d_model=options.width,
        dropout=0.0,
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
    table = rows(model, "synthesised voices never heard", options.data / "voices", "test")
    table += rows(model, "real recordings", options.data / "real", None)
    learnt = sum(p.numel() for p in model.network_.parameters())
    note = (
        f"{options.train:,} synthesised words of 0.2 to 1.2 seconds, {options.epochs} epochs, `{options.layers}` of width "
        f"{options.width} ({learnt:,} parameters), seed 0; training and its judging took {took / 60:.0f} minutes"
        + f" after {made / 60:.0f} minutes of making the voices"
        * (made > 30)
        + ". Voices of espeak-ng, flite and festival, varied in speed, pitch, length of the vocal tract, room, line and noise; test "
        "and validation are of twelve voices of espeak-ng each that are in no other part, at eight accents. The real recordings are all "
        "that there are of the ten digits by an English speaker in Debian's packages, one of each (asterisk-core-sounds-en-wav 1.6.1): one "
        "more or less right is ten per cent. Nothing was chosen by them. "
        f"Heard in zero to nine: {answers(model, options.data / 'real', RATE)} at {RATE:,} samples a second, "
        f"{answers(model, options.data / 'real', HALF)} at {HALF:,}."
    )
    header = ("what is heard", "words", "samples a second", "accuracy", "macro F1", "log loss")
    record("spoken_digits", "Spoken digits from raw samples, and at half the rate", header, table, note)


if __name__ == "__main__":
    main()
