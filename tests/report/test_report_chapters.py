"""The report of fitted forecasters, easy and hostile: every chapter is there, and its words carry the numbers."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

from conca.estimators.forecaster import Forecaster
from conca.report.facts import chapter as facts_of
from conca.report.page import Picture, Table, render
from conca.report.verdict import verdict
from conca.report.words import aligned, number
from conca.report.write import report, write_report

SMALL = {"horizon": 6, "layers": "s4d", "d_model": 8, "members": 1, "epochs": 2, "length": 48, "batch_size": 4}
TITLES = [
    "How good it is, and what it is",
    "Training",
    "Forecasts beside what came",
    "Error by step",
    "Residuals",
    "Calibration",
    "What it remembers",
    "What the state holds",
]
SCRIPT = "<script>alert(1)</script>"
MONEY = "$x_1$ \\frac{1}{2} " + "long " * 40
GLYPHS = "名前 ünïcode 🌧 \"'&"


def hourly(rows=240, freq="h"):
    hours = np.arange(rows)
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "when": pd.date_range("2024-01-01", periods=rows, freq=freq),
            "load": 50 + 20 * np.sin(2 * np.pi * hours / 24) + 3 * draw.normal(size=rows),
            "heat": draw.normal(5, 2, rows),
        }
    )


def fit(table, options=None, **columns):
    torch.set_default_dtype(torch.float32)
    columns = {"target": "load", "time": "when", "progress": False} | columns
    return Forecaster(**(SMALL | (options or {}))).fit(table, **columns)


def pictures(page):
    return [part for chapter in page.chapters for part in chapter.parts if isinstance(part, Picture)]


@pytest.fixture(scope="module")
def plain():
    return fit(hourly(), known=["heat"])


@pytest.fixture(scope="module")
def page(plain):
    return report(plain)


def test_every_chapter_is_there_and_every_picture_has_words(page):
    assert [chapter.title for chapter in page.chapters] == TITLES
    for chapter in page.chapters:
        assert len(chapter.parts) > 1
    for picture in pictures(page):
        assert re.search(r"\d", picture.alt), "its numbers stand beside it"
        assert picture.caption[1:] in picture.alt or picture.caption in picture.alt
        assert "nan" not in picture.alt
    counts = [sum(isinstance(part, Picture) for part in chapter.parts) for chapter in page.chapters]
    assert counts == [0, 1, 6, 1, 4, 2, 4, 1]


def test_the_words_carry_the_numbers(plain, page):
    text = render(page)
    for column in plain.scores_:
        assert all(f">{cell}</td>" in text for cell in aligned(plain.scores_[column].tolist()))
    steps = plain.evaluation_.by_step[0, :, 0]
    errors = next(p for p in page.chapters[3].parts if isinstance(p, Picture))
    assert f"error is {number(steps[0])} at step 1 and {number(steps[-1])} at step 6" in errors.alt
    training = next(p for p in page.chapters[1].parts if isinstance(p, Picture))
    best = plain.history_["val/loss"].min()
    assert f"validation loss of {number(best)}" in training.alt
    cells = [row for part in page.chapters[3].parts if isinstance(part, Table) for row in part.rows]
    assert [row[0] for row in cells] == list(plain.scores_.index) == list(plain.evaluation_.names)


def test_a_second_training_is_told_apart(page):
    facts = page.chapters[0].parts
    assert any("how well it fits, not how well it forecasts" in part for part in facts if isinstance(part, str))
    tables = [part for part in facts if isinstance(part, Table)]
    assert len(tables) == 4
    without = facts_of(fit(hourly(), {"epochs": 1}, refit=False)).parts
    assert len([part for part in without if isinstance(part, Table)]) == 3


def test_the_verdict_and_the_scores_come_first(plain, page):
    first, second, scores, *others = page.chapters[0].parts
    assert first == verdict(plain.scores_) and re.search("forecasts best|is best|equally good", first)
    assert second == "Judged on rows held out: 43 forecasts of 6 steps, from 2024-01-09 00:00 to 2024-01-10 23:00."
    assert len(plain.evaluation_.y) == 43, "all of them are kept"
    assert list(scores.headings) == ["forecast", *plain.scores_.columns]
    assert plain.notices_ and not set(plain.notices_) & {part for part in others if isinstance(part, str)}, (
        "said already"
    )
    roles = next(part.rows for part in others if isinstance(part, Table) and part.headings[0] == "column")
    assert ["heat", "covariate, numbers, known in advance"] in roles


def hostile():
    parts = []
    for name, scale in ((SCRIPT, 1.0), (GLYPHS, 1e9)):
        table = hourly().rename(columns={"load": MONEY, "heat": GLYPHS})
        table[MONEY] *= scale
        table.loc[10:40, MONEY] = np.nan
        parts.append(table.assign(**{SCRIPT: name, "kind": [GLYPHS, SCRIPT] * (len(table) // 2)}))
    return pd.concat(parts, ignore_index=True)


def test_names_that_are_markup_mathematics_or_endless():
    page = report(fit(hostile(), {"epochs": 1}, target=[MONEY, GLYPHS], series=SCRIPT, refit=False))
    text = render(page)
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "$x_1$" in text and "名前" in text
    assert {w.split(":")[0] for w in (p.caption for p in page.chapters[2].parts if isinstance(p, Picture))} >= {"Best"}
    captions = [p.caption for p in page.chapters[2].parts if isinstance(p, Picture)]
    assert any("series <script>" in c for c in captions) and any("series 名前" in c for c in captions)
    assert any("$x_1$" in c for c in captions) and any("ünïcode" in c for c in captions)


CASES = {
    "one step, one quantile, lstm, no times": (
        {"horizon": 1, "quantiles": (0.4,), "layers": "lstm"},
        hourly().drop(columns="when"),
        {"time": None},
    ),
    "attention, two members, whole numbers as times": (
        {"layers": "attention(n_heads=2)", "members": 2},
        hourly().assign(when=np.arange(240) * 5),
        {},
    ),
    "months": ({"horizon": 2}, hourly(freq="MS"), {}),
    "a hybrid, days in a zone": (
        {"layers": "s4d lstm attention(n_heads=2, window=4)"},
        hourly(freq="D").assign(when=lambda t: t["when"].dt.tz_localize("Europe/Rome")),
        {},
    ),
    "irregular times": (
        {},
        hourly().assign(
            when=pd.Timestamp("2024-01-01")
            + pd.to_timedelta(np.random.default_rng(0).exponential(60, 240).cumsum() // 0.01 / 100, unit="min")
        ),
        {},
    ),
    "a target that stands still": ({}, hourly().assign(load=3.0), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_tables_and_networks_of_many_kinds(case):
    options, table, columns = CASES[case]
    page = report(fit(table, {"epochs": 1, **options}, refit=False, **columns))
    assert [chapter.title for chapter in page.chapters] == TITLES
    assert all(len(chapter.parts) > 1 for chapter in page.chapters if chapter.title != "Training")
    assert not [p.alt for p in pictures(page) if re.search(r"\bnan\b|\binf\b", p.alt)]


def test_a_run_without_rows_held_out_says_so():
    page = report(fit(hourly(), {"epochs": 1}, test_fraction=0, refit=False))
    assert [chapter.title for chapter in page.chapters] == [*TITLES[:2], *TITLES[6:]]
    assert page.chapters[1].parts == (page.chapters[1].parts[0],) and "1 epoch;" in page.chapters[1].parts[0]
    assert (
        page.chapters[0]
        .parts[0]
        .startswith("No rows were held out, or too few for a whole forecast of 6 steps, so there is nothing to judge: ")
    )
    assert render(page).count("held out") == 1, "it is said once"


def test_a_table_too_short_for_a_whole_forecast_says_so_once():
    model = fit(hourly(24), {"epochs": 1}, refit=False)
    assert len(model.notices_) == 1 and "no whole forecast" in model.notices_[0]
    text = render(report(model))
    assert text.count("whole forecast") == 1 and "nothing to judge" in text and text.count("<section ") == 4


def test_rows_held_out_of_which_nothing_is_known():
    table = hourly()
    table.loc[180:, "load"] = np.nan
    page = report(fit(table, {"epochs": 1}, refit=False))
    assert [chapter.title for chapter in page.chapters] == TITLES
    assert "no scores" in page.chapters[0].parts[0]
    assert not re.search(r">nan<|\bnan\b", " ".join(p.alt for p in pictures(page)))


def test_a_wide_table_is_not_listed_whole():
    table = hourly(120)
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(120, 80)), columns=[f"c{i}" for i in range(80)])
    facts = facts_of(fit(pd.concat([table, wide], axis=1), {"epochs": 1}, refit=False)).parts
    assert "And 33 columns more." in facts


def test_before_fit_there_is_nothing_to_report(tmp_path):
    with pytest.raises(RuntimeError, match="fit"):
        write_report(Forecaster(), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_the_report_of_a_run_is_the_same_from_disk(plain, page, tmp_path):
    plain.save(tmp_path / "run")
    loaded = Forecaster.load(tmp_path / "run")
    notices, loaded.notices_ = loaded.notices_, plain.notices_
    assert notices == []
    write_report(loaded, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render(page)
