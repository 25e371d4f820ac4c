"""Folders of WAV files: encodings, rates, classes, official parts, and files that are none."""

import os
import struct

import numpy as np
import pytest
import soundfile

from conca.data.audio_folder import is_audio_folder, read_audio_folder
from conca.data.labelled_source import read_labelled
from conca.data.resampling import resample
from conca.types import BadInput

TONE = np.sin(np.arange(400) / 9) * 0.9


def write(root, path, sound=TONE, rate=8000, subtype="PCM_16"):
    """One WAV file."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(root / path, sound, rate, subtype=subtype, format="WAV")


@pytest.fixture
def folder(tmp_path):
    """Two classes of two files."""
    for path, length in (("yes/b.wav", 400), ("yes/a.wav", 300), ("no/c.wav", 200), ("no/d.WAV", 100)):
        write(tmp_path, path, TONE[:length])
    return tmp_path


def fails(folder, match, **options):
    """Reading raises one line that names the folder's file or the fault."""
    with pytest.raises(BadInput, match=match) as caught:
        read_audio_folder(folder, **options)
    assert "\n" not in str(caught.value)


def test_classes_are_folders_and_order_is_that_of_the_paths(folder):
    for junk in ("readme.txt", "yes/notes.md", ".git/x.wav", "_background_noise_/hum.wav", "yes/.hidden.wav"):
        (folder / junk).parent.mkdir(exist_ok=True)
        (folder / junk).write_bytes(b"no sound")
    data = read_audio_folder(folder)
    assert data.ids == ("no/c.wav", "no/d.WAV", "yes/a.wav", "yes/b.wav")
    assert data.labels.tolist() == ["no", "no", "yes", "yes"] and data.parts is None
    assert data.lengths.tolist() == [200, 100, 300, 400] and data.rate == 8000 and data.channels == ("sound",)
    assert data.values.dtype == np.float32
    np.testing.assert_allclose(data.sequence(3)[:, 0], TONE, atol=1 / 32768)
    assert "4 sequences" in data.source and "2 other files passed over" in data.source


def test_every_encoding_reads_alike(tmp_path):
    steps = {"PCM_U8": 2**-7, "PCM_16": 2**-15, "PCM_24": 2**-23, "PCM_32": 1e-6, "FLOAT": 1e-6, "DOUBLE": 1e-6}
    for subtype in steps:
        write(tmp_path, f"x/{subtype}.wav", TONE, subtype=subtype)
    write(tmp_path, "x/stereo.wav", np.stack([2 * TONE / 3, 4 * TONE / 3], axis=1) / 1.5, subtype="FLOAT")
    data = read_audio_folder(tmp_path)
    for name, sound in zip(data.ids, (data.sequence(i)[:, 0] for i in range(len(data)))):
        scale, step = (1.5, 1e-6) if "stereo" in name else (1, steps[name[2:-4]])
        np.testing.assert_allclose(sound * scale, TONE, atol=step, err_msg=name)


def test_most_common_rate_is_taken_and_others_are_resampled(folder):
    write(folder, "no/e.wav", np.sin(2 * np.pi * 440 * np.arange(4410) / 44100), 44100)
    data = read_audio_folder(folder)
    assert data.rate == 8000 and data.lengths[2] == 800 and "1 file resampled" in data.source
    inside = slice(60, -60)
    expected = np.sin(2 * np.pi * 440 * np.arange(800) / 8000)
    np.testing.assert_allclose(data.sequence(2)[inside, 0], expected[inside], atol=2e-3)
    half = read_audio_folder(folder, rate=4000)
    assert half.rate == 4000 and half.lengths.tolist() == [100, 50, 400, 150, 200]
    fails(folder, "whole number of samples", rate=0)


@pytest.mark.parametrize(("own", "rate"), [(44100, 8000), (8000, 4000), (22050, 16000)])
def test_what_the_lower_rate_cannot_hold_is_taken_out(own, rate):
    at = np.arange(own // 4) / own
    high = resample(np.sin(2 * np.pi * 0.56 * rate * at), own, rate)
    low = resample(np.sin(2 * np.pi * 0.40 * rate * at), own, rate)
    inside = slice(100, -100)
    assert np.abs(high[inside]).max() < 2e-3
    expected = np.sin(2 * np.pi * 0.40 * np.arange(len(low)))
    np.testing.assert_allclose(low[inside], expected[inside], atol=4e-3)
    constant = resample(np.ones(3000), own, rate)
    np.testing.assert_allclose(constant[inside], 1, atol=1e-3)
    assert len(low) == -(-len(at) * rate // own)


def test_folders_of_parts_are_the_official_split(tmp_path):
    for part in ("train", "val", "Test"):
        for name in ("0", "1"):
            write(tmp_path, f"{part}/{name}/x.wav")
    data = read_audio_folder(tmp_path)
    assert data.parts.tolist() == ["test", "test", "train", "train", "validation", "validation"]
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 1]
    write(tmp_path, "extra/y.wav")
    fails(tmp_path, r"extra/y\.wav: files are wanted as CLASS/FILE\.wav")


def test_one_part_alone_is_no_split(tmp_path):
    write(tmp_path, "train/yes/x.wav")
    data = read_audio_folder(tmp_path)
    assert data.parts is None and data.labels.tolist() == ["yes"]


def test_lists_of_speech_commands_are_respected(folder):
    (folder / "testing_list.txt").write_text("yes/a.wav\r\nno/c.wav\nmaybe/not_here.wav\n")
    (folder / "validation_list.txt").write_text("no/d.WAV\n")
    data = read_audio_folder(folder)
    assert data.parts.tolist() == ["test", "validation", "test", "train"] and "passed over" not in data.source
    (folder / "validation_list.txt").write_text("yes/a.wav\n")
    fails(folder, r"testing_list\.txt: 'yes/a\.wav' is in the other list")
    (folder / "validation_list.txt").write_text("nowhere.wav\n")
    fails(folder, "none of its 1 lines names a file")


def test_without_labels_files_may_lie_anywhere(tmp_path):
    write(tmp_path, "b.wav", TONE[:50])
    write(tmp_path, "deep/er/still/a.wav", TONE[:60])
    assert is_audio_folder(tmp_path) and not is_audio_folder(tmp_path / "b.wav")
    data = read_audio_folder(tmp_path, labelled=False)
    assert data.labels is None and data.ids == ("b.wav", "deep/er/still/a.wav")
    alone = read_audio_folder(tmp_path / "b.wav", labelled=False)
    assert alone.ids == ("b.wav",) and alone.lengths.tolist() == [50]
    fails(tmp_path, r"b\.wav: files are wanted")


def test_known_classes_stay_where_labels_are_optional(folder):
    assert read_audio_folder(folder, labelled=False).labels.tolist() == ["no", "no", "yes", "yes"]


def test_files_that_are_no_wav_are_named(folder):
    bad = folder / "yes" / "bad.wav"
    whole = (folder / "yes" / "b.wav").read_bytes()
    streamed = whole[:40] + struct.pack("<I", 0xFFFFFFFF) + whole[44:]
    faults = {
        b"": "the file is empty",
        b"ID3\x03 some music that is not a WAV": "not a WAV file",
        whole[:500]: "cut short: its header promises 800 bytes of sound, and 456 are there",
        whole[:30]: "cut short: the file ends before any sound",
        whole[:40] + struct.pack("<I", 0): "no samples",
        whole[:20] + b"\x99\x99" + whole[22:]: "not a readable WAV file",
    }
    for content, line in faults.items():
        bad.write_bytes(content)
        fails(folder, rf"yes/bad\.wav.*{line}")
    bad.write_bytes(streamed)
    assert read_audio_folder(folder).lengths.tolist() == [200, 100, 300, 400, 400]


def test_other_sound_and_empty_folders_are_refused(folder, tmp_path_factory):
    (folder / "yes" / "song.mp3").write_bytes(b"ID3")
    fails(folder, r"song\.mp3: only WAV files are read; convert it")
    empty = tmp_path_factory.mktemp("empty")
    fails(empty, "there are no WAV files")
    fails(empty / "not_there", "there is no such folder")


def test_infinite_samples_are_named(folder):
    write(folder, "yes/c.wav", np.array([0.0, np.inf, 0]), subtype="FLOAT")
    fails(folder, r"yes/c\.wav.*step 1.*infinite")


def test_rates_that_cannot_be_brought_together(folder):
    fails(folder, "no/c.wav: 8,000 samples a second cannot be brought to 9,999,991", rate=9_999_991)
    write(folder, "no/slow.wav", rate=1)
    fails(folder, "slow.wav: 1 samples a second cannot be brought to 8,000, they are too far apart")
    with pytest.raises(BadInput, match="rate inf"):
        read_labelled(folder, rate=np.inf)


def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / "no" / "pipe.wav")
    fails(folder, "pipe.wav: is no regular file")


def test_a_name_that_is_not_text_is_refused(folder):
    os.rename(folder / "no", os.fsencode(folder) + b"/\xe9")
    fails(folder, r"the name '\\udce9/c.wav' is not text in UTF-8")
