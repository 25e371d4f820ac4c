"""Classification at the prompt: fit, predict, score, stream, info, report, and what belongs to the other kind of run."""

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import conca
from conca.cli.main import main
from conca.cli.task import estimator
from conca.data.labelled import numbered
from conca.estimators.classify_config import ClassifyConfig
from conca.estimators.label_runs import LabelRun, write_label_run
from conca.infer import LabelSession
from conca.models.classify import ClassifyNetwork, ClassifyNetworkConfig

SMALL = ["--layers", "s4d(d_state=8)", "--d-model", 8, "--epochs", 2]
COLUMNS = ["--series", "who", "--time", "t", "--label", "kind"]
WORDS = ("[MAX", "]", "7")
Feed = Callable[..., tuple[int, str, str]]
Say = Callable[..., tuple[int, str, str]]


def waves() -> pd.DataFrame:
    """Thirty waves of two speeds and unlike lengths, a row a step."""
    draw, parts = np.random.default_rng(0), []
    for number in range(30):
        steps, speed = np.arange(draw.integers(12, 24)), (0.3, 0.9)[number % 2]
        phase = draw.uniform(0, 6) + speed * steps
        table = pd.DataFrame({"who": f"s{number:02}", "t": steps, "x": np.sin(phase), "z": np.cos(phase)})
        parts.append(table.assign(kind=("slow", "fast")[number % 2]))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `waves.csv`, a run of it, `run`, and what was said while it was fitted; nobody may change it."""
    folder = tmp_path_factory.mktemp("classified")
    waves().to_csv(folder / "waves.csv", index=False)
    torch.set_default_dtype(torch.float32)
    words = ["fit", folder / "waves.csv", "--task", "classify", *COLUMNS, *SMALL, "--out", folder / "run"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        assert main([str(word) for word in words]) == 0, err.getvalue()
    (folder / "out").write_text(out.getvalue())
    (folder / "err").write_text(err.getvalue())
    return folder


def untrained(
    folder: Path,
    *,
    channels: int = 1,
    symbols: tuple[str, ...] = (),
    rate: float | None = None,
    layers: str = "s4d",
    **how: bool,
) -> Path:
    """A run of a network that learnt nothing."""
    torch.manual_seed(0)
    config = ClassifyConfig(layers=layers, d_model=8, **how)
    asked = ClassifyNetworkConfig(channels, len(symbols), 2, layers, 8, config.dropout, config.bidirectional)
    network = ClassifyNetwork(asked).eval()
    classes, counts = np.array(["no", "yes"]), np.array([3, 4])
    names = numbered(channels)
    run = LabelRun(config, network, classes, counts, names, symbols, rate, {}, "", None, pd.DataFrame(), None)
    folder.mkdir()
    write_label_run(folder, run)
    return folder


def one_line(said: tuple[int, str, str], *expected: str) -> None:
    status, out, err = said
    assert (status, out) == (2, ""), err
    assert err.startswith("conca: ") and err.count("\n") == 1, err
    for word in expected:
        assert word in err


def frame(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text))


def test_a_fit_says_what_was_read_and_how_good_it_is(place: Path) -> None:
    out, err = (place / "out").read_text(), (place / "err").read_text()
    for words in ("waves.csv: 30 sequences", "2 channels", "2 classes", "judged: 6 held out", f"wrote {place / 'run'}"):
        assert words in err
    assert [name in out for name in ("accuracy", "macro F1", "log loss", "model", "most frequent")] == [True] * 5
    assert "<section " in (place / "run" / "report.html").read_text(encoding="utf-8")
    assert isinstance(conca.load(place / "run"), conca.Classifier)


def test_predict_names_each_sequence(place: Path, say: Say) -> None:
    status, out, err = say("predict", place / "run", place / "waves.csv", "--probabilities")
    found, truth = frame(out), waves().groupby("who").kind.first()
    assert (status, err) == (
        0,
        "conca: waves.csv: 30 sequences, 2 channels, 12 to 23 steps, 2 classes; channels x, z\n",
    )
    assert list(found) == ["sequence", "label", "probability", "p_fast", "p_slow", "truth"]
    assert found.set_index("sequence").truth.equals(truth.rename("truth").rename_axis("sequence"))
    np.testing.assert_allclose(found.p_fast + found.p_slow, 1, atol=3e-6)
    np.testing.assert_array_equal(found.probability, found[["p_fast", "p_slow"]].max(axis=1))
    assert (found.label == np.where(found.p_fast > 0.5, "fast", "slow")).all()
    waves().drop(columns="kind").to_csv("bare.csv", index=False)
    status, out, _ = say("predict", place / "run", "bare.csv", "-q", "--out", "labels.csv")
    assert (status, out) == (0, "")
    pd.testing.assert_frame_equal(pd.read_csv("labels.csv"), found[["sequence", "label", "probability"]])


def test_a_stream_ends_where_predict_does(place: Path, say: Say, feed: Feed) -> None:
    rows = waves().sort_values(["t", "who"], kind="stable").drop(columns=["kind", "t"])
    status, out, err = feed(rows.to_csv(index=False), "--series", "who", "--probabilities", run=place / "run")
    assert (status, err) == (0, "")
    assert feed(rows.to_csv(index=False), "--probabilities", run=place / "run") == (0, out, ""), "as in the fit"
    found = frame(out)
    assert list(found) == ["who", "step", "label", "probability", "p_fast", "p_slow"]
    assert found.who.tolist() == rows.who.tolist()
    assert (found.step == found.groupby("who").cumcount() + 1).all()
    wanted = frame(say("predict", place / "run", place / "waves.csv", "--probabilities", "-q")[1])
    last = found.groupby("who").last().reset_index(drop=True)
    np.testing.assert_allclose(last[["p_fast", "p_slow"]], wanted[["p_fast", "p_slow"]], atol=3e-6)
    assert last.label.tolist() == wanted.label.tolist()


def test_a_state_goes_on_with_the_same_numbers(place: Path, feed: Feed) -> None:
    header, *rows = waves()[["who", "x", "z"]].to_csv(index=False).splitlines(keepends=True)
    whole = feed(header + "".join(rows[:60]), "--series", "who", run=place / "run")[1]
    parts = []
    for begin, end in ((0, 7), (7, 33), (33, 60)):
        status, out, err = feed(
            header + "".join(rows[begin:end]), "--series", "who", "--state", "state", run=place / "run"
        )
        assert status == 0
        assert err == ("conca: state: the rows have no times, so all are taken for new ones\n" if begin else "")
        parts.append(frame(out))
    found, wanted = pd.concat(parts, ignore_index=True), frame(whole)
    pd.testing.assert_frame_equal(found, wanted, rtol=0, atol=3e-6)


def test_a_row_is_answered_at_once(place: Path, started: Callable) -> None:
    process = started("--state", "state", run=place / "run")
    process.stdin.write(b"x,z\n")
    for step in range(1, 4):
        process.stdin.write(b"0.5,1\n")
        process.stdin.flush()
        lines = [process.stdout.readline().decode() for _ in range(1 + (step == 1))]
        assert lines[-1].startswith(f"{step},")
    assert process.communicate() == (b"", b"")
    assert process.returncode == 0


def test_bad_rows_are_told_and_the_stream_goes_on(place: Path, feed: Feed) -> None:
    rows = ["2,7,1", "2,7,a", "2,7", "2,7,1,3", ",7,", "inf,7,1", "4,7,3"]
    status, out, err = feed("\n".join(["z,other,x", *rows]), run=place / "run")
    *told, last = err.splitlines()
    assert (status, last) == (0, "conca: 4 rows were refused")
    wanted = [
        "row 3, column 'x': 'a' is not a number",
        "row 4: 2 cells, but",
        "row 5: 4 cells, but",
        "row 7, column 'z': the value is inf",
    ]
    assert len(told) == len(wanted)
    assert all(line.startswith(f"conca: stdin, {words}") for line, words in zip(told, wanted)), told
    assert frame(out).step.tolist() == [1, 2, 3]
    assert feed("x,z\n1,2\n,\n3,4\n", run=place / "run")[1] == out, "what was refused was not read"


@pytest.mark.parametrize(
    ("text", "words"),
    [("", ["empty"]), ("x\n1\n", ["no column 'z'"]), ("1,2\n3,4\n", ["no column 'x'", "header"]), ("x,x,z\n", ["'x'"])],
)
def test_a_header_that_cannot_be_used(text: str, words: list[str], place: Path, feed: Feed) -> None:
    one_line(feed(text, run=place / "run"), "stdin", *words)


def test_score_prints_the_frame(place: Path, say: Say) -> None:
    status, out, err = say("score", place / "run", place / "waves.csv")
    assert status == 0
    assert "30 sequences" in err
    rows = {line.split("  ")[0].strip(): line.split() for line in out.splitlines()}
    accuracy = float(rows["model"][1])
    wanted = frame(say("predict", place / "run", place / "waves.csv", "-q")[1])
    assert accuracy == pytest.approx((wanted.label == wanted.truth).mean(), abs=1e-3)
    assert float(rows["most frequent"][2]) == pytest.approx(0.5)


def test_info_says_what_it_is(place: Path, say: Say, tmp_path: Path) -> None:
    status, out, _ = say("info", place / "run")
    assert status == 0
    for words in ("fast, slow", "channels x, z", "s4d(d_state=8)", "1: S4D", "entry and head", "macro F1", "forward"):
        assert words in out
    both = untrained(tmp_path / "both", layers="s4d lstm", bidirectional=True)
    status, out, _ = say("info", both)
    assert status == 0
    assert "1: S4D, both ways" in out and "2: LSTM, both ways" in out and "no stream" in out


def test_report_is_that_of_the_classifier(place: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("conca.report.write.write_report", lambda *given: asked.extend(given))
    assert say("report", place / "run", "--out", "page.html") == (0, "", "conca: wrote page.html\n")
    assert isinstance(asked[0], conca.Classifier)
    assert asked[1] == Path("page.html")


FITS = {
    "an unknown task": (["--task", "clasify"], ["--task", "did you mean 'classify'"]),
    "no horizon": ([], ["--horizon", "--task classify"]),
    "a horizon of labels": (["--task", "classify", "--horizon", 3], ["--horizon belongs to --task forecast"]),
    "quantiles of labels": (["--task", "classify", "--quantiles", "0.5"], ["--quantiles belongs to --task forecast"]),
    "labels and no refit": (["--task", "classify", "--no-refit"], ["--no-refit belongs to --task forecast"]),
    "labels and covariates": (["--task", "classify", "--covariates", "x"], ["--covariates belongs to --task forecast"]),
    "a forecast with a label": (
        ["--horizon", 3, "--label", "kind"],
        ["--label belongs to --task classify", "add --task classify"],
    ),
    "a forecast of both directions": (
        ["--horizon", 3, "--bidirectional"],
        ["--bidirectional belongs to --task classify"],
    ),
    "two columns of series": (["--task", "classify", *COLUMNS, "--series", "t"], ["--series", "one column"]),
    "a label that is no column": (["--task", "classify", *COLUMNS[:4], "--label", "kin"], ["waves.csv", "kin", "kind"]),
    "unknown axes": (["--task", "classify", *COLUMNS, "--axes", "cnt"], ["axes", "cnt"]),
    "an unknown order": (["--task", "classify", *COLUMNS, "--order", "bit"], ["order", "bits"]),
    "an ill option": (["--task", "classify", *COLUMNS, "--dropout", 2], ["dropout", "less than 1"]),
}


@pytest.mark.parametrize("name", FITS)
def test_fits_that_cannot_be(name: str, place: Path, say: Say) -> None:
    words, expected = FITS[name]
    one_line(say("fit", place / "waves.csv", "--out", "new", *words), *expected)
    assert not Path("new").exists()


def test_options_reach_the_classifier() -> None:
    model, reading = estimator("classify", {"seed": 3, "d_model": 16, "series": ["who"], "axes": "nct"})
    assert (model.random_state, model.d_model, model.axes, reading) == (3, 16, "nct", {"series": "who"})


def test_what_belongs_to_the_other_kind_of_run(place: Path, fitted: Path, say: Say, feed: Feed) -> None:
    label, forecast, data = place / "run", fitted / "run", fitted / "air.csv.xz"
    one_line(say("predict", label, place / "waves.csv", "--rolling"), "--rolling belongs to forecasts", "classifies")
    one_line(feed("x,z\n", "--future", data, run=label), "--future belongs to forecasts")
    one_line(say("predict", forecast, data, "--probabilities"), "--probabilities belongs to classifiers", "forecasts")
    one_line(say("score", forecast, data, "--rate", 8000), "--rate belongs to classifiers")
    one_line(feed("", "--raw", "s16le", run=forecast), "--raw belongs to classifiers")
    one_line(say("score", label, place / "waves.csv", "--rate", 8000), "--rate belongs to sound")
    one_line(feed("", "--rate", 0, run=label), "--rate", "at least 1")


def test_channels_go_by_their_names(place: Path, say: Say) -> None:
    wanted = say("predict", place / "run", place / "waves.csv", "-q")
    waves()[["z", "who", "x", "t", "kind"]].assign(more=1.0).to_csv("other.csv", index=False)
    assert say("predict", place / "run", "other.csv", "-q") == wanted


def test_data_of_another_kind_than_the_run(place: Path, say: Say) -> None:
    np.savez("three.npz", X=np.zeros((2, 5, 3)), y=np.array(["slow", "fast"]))
    one_line(say("predict", place / "run", "three.npz"), "three.npz", "3 channels", "the fit had 2")
    np.savez("words.npz", X=np.zeros((2, 5), np.int64), y=np.array(["slow", "fast"]), symbols=np.array(["a"]))
    one_line(say("predict", place / "run", "words.npz"), "symbols")
    waves().replace("slow", "still").to_csv("strange.csv", index=False)
    one_line(say("score", place / "run", "strange.csv"), "still", "never seen")
    waves().drop(columns="z").to_csv("lacking.csv", index=False)
    one_line(say("predict", place / "run", "lacking.csv"), "lacking.csv", "no channel 'z'")
    one_line(say("predict", place / "run", "nothing.csv"), "nothing.csv")


def test_bare_samples_at_two_rates(feed: Feed, tmp_path: Path) -> None:
    run = untrained(tmp_path / "sound", rate=8000)
    samples = (np.sin(np.arange(1234) / 3) * 20_000).astype("<i2")
    status, out, err = feed(samples.tobytes(), "--raw", "s16le", "--probabilities", run=run)
    assert (status, err) == (0, "")
    assert frame(out).step.tolist() == [800, 1234]
    rows = feed("sound\n" + "\n".join(map(str, samples / 32768)), "--probabilities", run=run)[1]
    at = frame(rows).iloc[[799, 1233]].reset_index(drop=True)
    pd.testing.assert_frame_equal(frame(out), at, rtol=0, atol=3e-6)
    status, out, err = feed(samples.tobytes()[:-1], "--raw", "s16le", "--every", 500, "--rate", 4000, run=run)
    assert "4000 samples a second" in err and "2 times as long" in err and "half a sample" in err
    slow = frame(out)
    assert slow.step.tolist() == [500, 1000, 1233]
    heard = LabelSession(conca.load(run).network_at(4000), ("no", "yes"))
    assert slow.probability[0] == pytest.approx(heard.last(samples[:500, None] / 32768).max(), abs=3e-6)
    assert slow.probability[0] != pytest.approx(frame(rows).probability[499], abs=1e-4), "the steps were rescaled"
    status, out, err = feed(b"RIFF" + samples.tobytes(), "--raw", "s16le", run=run)
    assert (status, out.count("\n")) == (2, 1) and "WAV" in err and err.count("\n") == 1


RAW = {
    "another form": (["--raw", "u8"], ["--raw", "s16le"]),
    "every without raw": (["--every", 5], ["--every", "--raw"]),
    "every nothing": (["--raw", "s16le", "--every", 0], ["--every", "at least 1"]),
    "series of samples": (["--raw", "s16le", "--series", "who"], ["--series"]),
    "two channels": (["--raw", "s16le"], ["--raw", "2 channels"]),
}


@pytest.mark.parametrize("name", RAW)
def test_samples_that_cannot_be_read(name: str, place: Path, feed: Feed) -> None:
    words, expected = RAW[name]
    one_line(feed("", *words, run=place / "run"), *expected)


def test_symbols_are_streamed_by_their_text(feed: Feed, tmp_path: Path) -> None:
    run = untrained(tmp_path / "words", symbols=WORDS)
    status, out, err = feed('word,n\n[MAX,1\n7 ,2\n8,3\n"]",4\n', "--probabilities", run=run)
    assert status == 2 and "no column '1'" in err, "two columns for one channel without a name"
    status, out, err = feed('word\n[MAX\n7 \n8\n"]"\n', "--probabilities", run=run)
    assert status == 0
    assert err.splitlines()[0].startswith("conca: stdin, row 4: unknown symbol '8' in column 'word'; ")
    network = conca.load(run).network_
    wanted = network.every(torch.tensor([[0, 2, 1]]))[0][0].softmax(-1)
    np.testing.assert_allclose(frame(out)[["p_no", "p_yes"]], wanted.detach(), atol=3e-6)


def test_streams_that_cannot_be_and_one_that_grows(feed: Feed, tmp_path: Path) -> None:
    both = untrained(tmp_path / "both", bidirectional=True)
    one_line(feed("a\n1\n", run=both), "both", "no answer before the end", "--bidirectional")
    one_line(feed("0.1\n1\n", run=untrained(tmp_path / "one")), "row 1", "header")
    status, out, err = feed("a\n1\n2\n", run=untrained(tmp_path / "grows", layers="attention"))
    assert (status, len(frame(out))) == (0, 2)
    assert "memory grows" in err


def test_a_stream_says_that_it_takes_rows_as_they_come(place: Path, feed: Feed) -> None:
    status, _, err = feed("who,t,x,z\na,7,0.1,0.2\n", run=place / "run")
    assert status == 0 and "in the order in which they come; 't' is not read" in err


def test_what_says_nothing_about_the_data_is_refused(say: Say) -> None:
    np.savez("some.npz", X=np.zeros((4, 5)), y=np.array(["slow", "fast"] * 2))
    words = ["fit", "some.npz", "--task", "classify", "--out", "new"]
    one_line(say(*words, "--rate", 8000), "some.npz", "rate belongs to sound")
    one_line(say(*words, "--series", "who"), "some.npz", "series names a column of a table")


def test_steps_in_another_order_are_no_stream(place: Path, feed: Feed, tmp_path: Path) -> None:
    config = (place / "run" / "config.json").read_text().replace('"reading": {', '"reading": {"order": "permuted",')
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(config)
    one_line(feed("x,z\n1,2\n", run=tmp_path / "run"), "order 'permuted'", "fit without --order")


def test_a_name_of_two_lines_is_quoted(place: Path, feed: Feed) -> None:
    status, out, _ = feed('who,x,z\n"a\nb",1,2\n', run=place / "run")
    assert status == 0 and pd.read_csv(io.StringIO(out)).who.tolist() == ["a\nb"]


def test_a_stream_says_how_strange_sequences_are_and_score_agrees_at_their_ends(
    place: Path, say: Say, feed: Feed, tmp_path: Path
) -> None:
    status, out, err = say("score", place / "run", place / "waves.csv", "--rows")
    whole = frame(out).set_index("sequence")
    assert status == 0 and "alarm" in err.splitlines()[-1]
    assert list(whole) == ["label", "novelty", "rank", "alarm", "truth"]
    model = conca.load(place / "run")
    np.testing.assert_allclose(whole.novelty, model.novelty(place / "waves.csv"), rtol=1e-5)
    assert len(model.evaluation_.energy) == 6 and set(whole["rank"]) <= {round(k / 7, 6) for k in range(7)}
    assert (whole.alarm == (whole["rank"] > 0.85)).all()
    rows = waves().sort_values(["t", "who"], kind="stable").drop(columns=["kind", "t"]).to_csv(index=False)
    status, out, _ = feed(rows, "--series", "who", "--novelty", run=place / "run")
    last = frame(out).groupby("who").last()
    np.testing.assert_allclose(last.novelty, whole.novelty.loc[last.index], rtol=1e-5)
    lines = rows.splitlines(keepends=True)
    words = "--series", "who", "--novelty", "--state", tmp_path / "state", "-q"
    parts = [feed("".join(part), *words, run=place / "run")[1] for part in (lines[:100], [lines[0], *lines[100:]])]
    again = frame(parts[0] + parts[1].partition("\n")[2])
    np.testing.assert_allclose(again.novelty, frame(out).novelty, rtol=1e-5)
    assert again[["who", "step"]].equals(frame(out)[["who", "step"]])
    one_line(say("score", place / "run", place / "waves.csv", "--rows", "--quantile", 0.99), "6 sequences held out")
    one_line(feed(rows, "--novelty", "--probabilities", run=place / "run"), "leave one out")
    one_line(say("predict", place / "run", place / "waves.csv", "--rolling"), "--rolling")
