import json
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import conca
from conca.data.labelled import Labelled
from conca.train.label_learner import LabelLearner
from conca.types import BadInput

SMALL = {"layers": "s4d(d_state=4, dt=(0.05, 0.5))", "d_model": 8, "epochs": 2, "dropout": 0.0, "lr": 2e-2}
CODES = np.repeat([0, 1], 12)


@pytest.fixture(autouse=True, scope="module")
def module_in_single():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def single(module_in_single):
    torch.set_default_dtype(torch.float32)


def waves(channels=1, steps=20):
    draw = np.random.default_rng(0)
    speed = np.where(CODES, 0.9, 0.2)[:, None, None]
    phase = draw.uniform(0, 6, (len(CODES), 1, channels))
    return np.sin(phase + speed * np.arange(steps)[:, None])


X, Y = waves(2), np.where(CODES, "fast", "slow")


@pytest.fixture(scope="module")
def fitted():
    return conca.Classifier(**SMALL).fit(X, Y)


def labelled(**changes):
    data = Labelled.of(list(X), Y, ids=[f"wave {i}" for i in range(len(X))])
    return replace(data, **changes)


@pytest.fixture(scope="module")
def split_run(tmp_path_factory):
    parts = np.where(np.arange(24) % 3 == 0, "test", "train")
    data = labelled(parts=parts, rate=8000.0, source="waves: of two kinds")
    out = tmp_path_factory.mktemp("runs") / "waves"
    return conca.Classifier(**SMALL).fit(data, out=out), out, data


def test_the_checks_of_scikit_learn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(
            conca.Classifier(layers="lstm", d_model=8, epochs=2, lr=5e-2, dropout=0.0), on_fail=None, on_skip=None
        )
    assert len(found) > 50
    assert {(r["check_name"], str(r["exception"])) for r in found if r["status"] == "failed"} == set()


def test_axes_and_forms_of_input_are_one(fitted):
    probability = fitted.predict_proba(X)
    assert probability.shape == (24, 2) and np.allclose(probability.sum(1), 1)
    turned = conca.Classifier(**SMALL, axes="nct").fit(X.transpose(0, 2, 1), Y)
    assert np.array_equal(turned.predict_proba(X.transpose(0, 2, 1)), probability)
    listed = [x[: 5 + i] for i, x in enumerate(X)]
    apart = np.concatenate([fitted.predict_proba(x[None]) for x in listed])
    assert np.allclose(fitted.predict_proba(listed), apart, atol=1e-5)
    assert fitted.n_features_in_ == 2 and fitted.classes_.tolist() == ["fast", "slow"]
    assert set(fitted.predict(X)) <= {"fast", "slow"} and fitted.score(X, Y) > 0.9


def test_parameters_are_those_of_scikit_learn(fitted):
    again = clone(fitted)
    assert again.get_params() == fitted.get_params() and not hasattr(again, "classes_")
    assert again.set_params(d_model=9).d_model == 9
    with pytest.raises(BadInput, match="d_model must be a whole number"):
        conca.Classifier(d_model=0).fit(X, Y)
    with pytest.raises(BadInput, match="unknown layer"):
        conca.Classifier(layers="s4dd").fit(X, Y)


def test_a_seed_is_a_model(fitted):
    again = conca.Classifier(**SMALL).fit(X, Y)
    other = conca.Classifier(**SMALL, random_state=1).fit(X, Y)
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert not np.array_equal(other.predict_proba(X), fitted.predict_proba(X))


def test_a_run_comes_back_as_it_was(split_run, tmp_path):
    model, out, data = split_run
    back = conca.load(out)
    assert np.array_equal(back.predict_proba(data), model.predict_proba(data))
    assert back.get_params() == model.get_params() and back.rate_ == 8000
    pd.testing.assert_frame_equal(back.scores_, model.scores_)
    assert np.array_equal(back.evaluation_.probability, model.evaluation_.probability)
    with pytest.raises(BadInput, match="exists"):
        model.save(out)
    with pytest.raises(BadInput, match="not a forecaster"):
        conca.Forecaster.load(out)
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    saved = json.loads((copy / "config.json").read_text())
    for change in ({"classes": ["fast", "fast"]}, {"counts": [1]}, {"rate": "fast"}, {"symbols": ["a"]}, {"more": 1}):
        (copy / "config.json").write_text(json.dumps(saved | change))
        with pytest.raises(BadInput, match=r"config\.json"):
            conca.load(copy)


def test_the_test_part_alone_is_judged(split_run):
    model, _, data = split_run
    test = data.part("test")
    said = model.evaluation_
    assert len(said) == 8 and np.array_equal(said.early[-1], said.said)
    assert model.scores_.loc["model", "accuracy"] == np.mean(model.predict(test) == test.labels)
    assert model.evaluate(data).loc["model"].to_dict() == pytest.approx(model.scores_.loc["model"].to_dict())
    assert {"model", "most frequent", "1-NN"} == set(model.scores_.index)
    half = model.judged(replace(test, rate=4000.0))
    assert not np.allclose(half.probability, said.probability)
    assert model.network_at(8000.0) is model.network_


def test_an_interrupted_training_ends_as_if_it_had_not_been(split_run, tmp_path, monkeypatch):
    model, _, data = split_run
    step, out = LabelLearner.training_step, tmp_path / "run"

    def press(self, batch, index):
        if self.course.step == 31:
            raise KeyboardInterrupt
        return step(self, batch, index)

    monkeypatch.setattr(LabelLearner, "training_step", press)
    with pytest.raises(KeyboardInterrupt):
        conca.Classifier(**SMALL).fit(data, out=out)
    monkeypatch.undo()
    with pytest.raises(BadInput, match="unfinished"):
        conca.Classifier(**SMALL).fit(data, out=out)
    with pytest.raises(BadInput, match="begun with lr"):
        conca.Classifier(**SMALL | {"lr": 1e-3}).fit(data, out=out, resume=True)
    with pytest.raises(BadInput, match="other data"):
        conca.Classifier(**SMALL).fit(replace(data, values=data.values + 1), out=out, resume=True)
    (stamp,) = tmp_path.glob(".run*.part/unfinished.json")
    written = stamp.read_text()
    for ill in ("[]", '{"options": [1]}', "garbage"):
        stamp.write_text(ill)
        with pytest.raises(BadInput, match=r"unfinished\.json: is damaged"):
            conca.Classifier(**SMALL).fit(data, out=out, resume=True)
        (stamp,) = tmp_path.glob(".run*.part/unfinished.json")
    stamp.write_text(written)
    again = conca.Classifier(**SMALL).fit(data, out=out, resume=True)
    for one, two in zip(again.network_.parameters(), model.network_.parameters()):
        assert torch.equal(one, two)


def test_what_cannot_be_learnt_is_said():
    fit = conca.Classifier(**SMALL).fit
    with pytest.raises(BadInput, match="one class"):
        fit(X, np.repeat("a", 24))
    with pytest.raises(BadInput, match="24 sequences and 3 labels"):
        fit(X, Y[:3])
    parts = np.where(CODES, "train", "test")
    three = np.where(np.arange(24) == 20, "slower", Y)
    with pytest.raises(BadInput, match="slow"):
        fit(labelled(parts=parts, labels=three))
    with pytest.raises(ValueError, match="inf"):
        fit(np.where(np.arange(20)[:, None] == 3, np.inf, X), Y)
    with pytest.raises(BadInput, match="no steps"):
        fit([*X[:-1], X[-1][:0]], Y)
    with pytest.raises(BadInput, match="axes"):
        conca.Classifier(**SMALL, axes="tnc").fit(X, Y)
    with pytest.raises(BadInput, match="test_fraction"):
        fit(X, Y, test_fraction=1.0)
    with pytest.raises(BadInput, match="leave it out"):
        fit(X, Y, series="id")


def test_one_example_of_a_class_is_learnt_from():
    labels = np.where(np.arange(24) == 5, "odd", Y)
    model = conca.Classifier(**SMALL).fit(labelled(labels=labels), test_fraction=0.25)
    assert any("one sequence to learn from (odd)" in line for line in model.notices_)
    assert len(model.evaluation_) == 6 and model.classes_.tolist() == ["fast", "odd", "slow"]


def test_other_channels_and_symbols_are_refused(fitted):
    with pytest.raises(BadInput, match="the fit had 2"):
        fitted.predict(X[:, :, :1])
    codes = [np.array([0, 1, 2] * 3), np.array([2, 1, 0, 1])] * 8
    words = Labelled.of(codes, np.tile(["up", "down"], 8), symbols=("a", "b", "c"))
    with pytest.raises(BadInput, match="numbers were fitted"):
        fitted.predict(words)
    model = conca.Classifier(**SMALL).fit(words)
    other = Labelled.of([np.array([1, 0])], symbols=("b", "a"))
    same = Labelled.of([np.array([0, 1])], symbols=("a", "b", "c"))
    assert np.array_equal(model.predict_proba(other), model.predict_proba(same))
    with pytest.raises(BadInput, match="'z' was not fitted"):
        model.predict(Labelled.of([np.array([0, 1])], symbols=("z", "a")))
    with pytest.raises(BadInput, match="symbols were fitted, and these are numbers"):
        model.predict(np.zeros((1, 4, 1)))


def test_missing_values_are_read(fitted):
    holed = X.copy()
    holed[:, 4] = np.nan
    model = conca.Classifier(**SMALL).fit(holed, Y)
    assert np.isfinite(model.predict_proba(holed)).all()
    assert any("missing" in line for line in model.notices_)


def test_a_channel_without_a_value_is_refused():
    empty = X.copy()
    empty[:, :, 1] = np.nan
    with pytest.raises(BadInput, match="channel '2' has no value"):
        conca.Classifier(**SMALL).fit(empty, Y)


def test_both_directions():
    model = conca.Classifier(**SMALL, bidirectional=True).fit(labelled(), test_fraction=0.25)
    assert model.evaluation_.early is None and model.score(X, Y) > 0.9


def test_what_is_far_from_zero_is_read_as_well(fitted):
    far = conca.Classifier(**SMALL).fit(X + 1e9, Y)
    assert np.allclose(far.predict_proba(X + 1e9), fitted.predict_proba(X), atol=1e-3)
    stream = conca.infer.LabelSession(far.network_, far.classes_)
    assert np.allclose(stream.last(X[0] + 1e9), far.predict_proba(X[:1] + 1e9), atol=1e-6)
    with pytest.raises(BadInput, match=r"beyond 1e\+30"):
        fitted.predict(X * 1e33)
    with pytest.raises(BadInput, match=r"beyond 1e\+30"):
        stream.step(X[0, 0] * 1e33)


def test_lists_are_sequences_whatever_their_lengths(fitted):
    one = waves(1)[..., 0]
    model = conca.Classifier(**SMALL).fit([row[: 10 + n % 3] for n, row in enumerate(one)], Y)
    assert np.array_equal(model.predict_proba([row[:9] for row in one]), model.predict_proba(one[:, :9]))
    assert model.predict([one[0]]).shape == (1,)
    frames = [pd.DataFrame(x[: 10 + n % 3]) for n, x in enumerate(X)]
    assert np.array_equal(fitted.predict(frames), fitted.predict([frame.to_numpy() for frame in frames]))
    with pytest.warns(UserWarning, match="20 channels: if these are the steps, give axes='nct'"):
        turned = conca.Classifier(**SMALL | {"epochs": 1}).fit(X.transpose(0, 2, 1), Y)
    assert turned.n_features_in_ == 20
    with pytest.raises(BadInput, match="20 channels, and the fit had 2; their axes may be swapped"):
        fitted.predict(X.transpose(0, 2, 1))


def test_a_frame_with_a_row_for_each_step():
    table = pd.concat(pd.DataFrame(x, columns=["u", "v"]).assign(who=f"w{n}", kind=Y[n]) for n, x in enumerate(X))
    model = conca.Classifier(**SMALL).fit(table, series="who", label="kind")
    assert model.channels_ == ("u", "v") and model.score(table[["v", "kind", "who", "u"]]) > 0.9
    with pytest.raises(BadInput, match="name the column that tells sequences apart"):
        conca.Classifier(**SMALL).fit(table, label="kind")
    swapped = table.rename(columns={"u": "2", "v": "1"})
    other = conca.Classifier(**SMALL).fit(swapped, series="who", label="kind")
    assert np.array_equal(other.predict_proba(swapped[["1", "2", "who"]]), other.predict_proba(swapped))
    alone = conca.Classifier(**SMALL | {"epochs": 1}).fit(table[["u", "who", "kind"]], series="who", label="kind")
    with pytest.raises(BadInput, match="there is no channel 'u'"):
        alone.predict(table[["v", "who"]])


def test_labels_that_are_none():
    fit = conca.Classifier(**SMALL).fit
    for told, labels in {
        "of sequence 1 is missing": ["slow", None] * 12,
        "some labels are text": np.array(["slow", 1] * 12, object),
        "labels are dates": np.array(["2024-01-01", "2024-01-02"] * 12, "datetime64[D]"),
        "have one class, a;": ["a"] * 24,
    }.items():
        with pytest.raises(BadInput, match=told):
            fit(X, labels)


def test_columns_of_a_saved_table_keep_their_names(tmp_path):
    table = pd.DataFrame(waves(1)[..., 0], columns=[f"t{n}" for n in range(20)])
    model = conca.Classifier(**SMALL | {"epochs": 1}).fit(table, Y)
    model.save(tmp_path / "run")
    again = conca.load(tmp_path / "run")
    assert np.array_equal(again.predict_proba(table), model.predict_proba(table))
    with pytest.raises(ValueError, match="feature names"):
        again.predict(table[table.columns[::-1]])


def test_a_network_in_training_answers_as_it_should(fitted):
    wanted = fitted.predict_proba(X)
    fitted.network_.train()
    assert np.array_equal(fitted.predict_proba(X), wanted) and fitted.network_.training
    fitted.network_.eval()


def test_two_threads_fit_what_one_does():
    options = SMALL | {"epochs": 1, "dropout": 0.2}
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda x: conca.Classifier(**options).fit(x, Y), (X, X[:, ::-1])))
    alone = conca.Classifier(**options).fit(X, Y)
    assert np.array_equal(found[0].predict_proba(X), alone.predict_proba(X))
    assert not np.array_equal(found[1].predict_proba(X), alone.predict_proba(X))


def test_one_channel_may_come_as_a_table_of_any_length(fitted):
    one = waves(1)
    model = conca.Classifier(**SMALL).fit(one, Y)
    assert np.array_equal(model.predict_proba(one[..., 0]), model.predict_proba(one))
    assert model.predict(one[:, :7, 0]).shape == (24,)
    with pytest.raises(BadInput, match="1 channel, and the fit had 2"):
        fitted.predict(X[..., 0])
