"""Pages: escaped, self-contained, whole or not at all; drawings whose identifiers do not meet."""

import os
import re
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser

import pytest

from conca.models.run import umask
from conca.report.drawing import COLOURS, canvas, key, label, logarithmic, svg_of, whole_steps
from conca.report.page import Chapter, Page, Picture, Table, render, short, write_page

HOSTILE = "<script>alert(\"1\")</script> $x_1$ & 'quoted' ünïcode 名前 🌧"


def drawing(name="one", points=(1, 3, 2)):
    figure, (axes,) = canvas()
    axes.plot(range(1, len(points) + 1), points, color=COLOURS[0], label="a line")
    label(axes, "steps", "value", "a title")
    whole_steps(axes)
    key(axes)
    return svg_of(figure, name)


def page(text=HOSTILE, svg=None):
    picture = Picture(svg or drawing(), text, text)
    table = Table([text, "number"], [[text, "1"], ["plain", "2"]])
    return Page(text, text, [Chapter(text, [text, table, picture]), Chapter("second", ["more"])])


class Elements(HTMLParser):
    """Names and attributes of all elements, and whether they are closed in order."""

    VOID = {"meta", "path", "use", "rect", "br", "img"}

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_a_page_holds_no_control_characters():
    text = render(page("red\x1b[31m \x00\x07\x7f name\n"))
    assert "red\ufffd[31m \ufffd\ufffd\ufffd name\n" in text
    assert not {code for code in range(32) if chr(code) in text} - {9, 10, 13} and "\x7f" not in text


def test_whatever_stands_on_a_page_is_escaped():
    text = render(page())
    elements = Elements(text)
    assert not elements.open, "all elements are closed"
    assert "script" not in {tag for tag, _ in elements.found}
    assert text.count("&lt;script&gt;") == 10, "title twice, line, heading twice, text, column, cell, alt, caption"
    labels = [attributes["aria-label"] for _, attributes in elements.found if "aria-label" in attributes]
    assert labels == [HOSTILE]


def test_a_page_asks_for_nothing_and_fits_a_phone():
    text = render(page())
    elements = Elements(text).found
    assert not [a for tag, attributes in elements for a in attributes if a == "src" or a.startswith("on")]
    assert {attributes["href"] for tag, attributes in elements if tag == "a"} == {"#chapter-1", "#chapter-2"}
    links = [a[name] for _, a in elements for name in a if name.endswith("href")]
    assert links and all(link.startswith("#") for link in links)
    assert set(re.findall(r"https?://[^\s\"<]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", text) and "@import" not in text
    metas = [attributes for tag, attributes in elements if tag == "meta"]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in metas
    policy = next(m["content"] for m in metas if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "script-src" not in policy
    assert "prefers-color-scheme: dark" in text


def test_tables_scroll_and_tell_words_from_numbers():
    text = render(Page("t", "l", [Chapter("c", [Table(["name", "also", "n"], [["a", "b", "1"]], words=2)])]))
    assert text.count('class="word"') == 4
    assert '<div class="wide"><table>' in text


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_page(page("old"), path)
    before = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "replace", full)
        write_page(page("new"), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    write_page(page("new \ud800 half a letter, and \x00"), path)
    assert path.read_bytes() != before
    path.read_text(encoding="utf-8")


def test_a_drawing_is_well_formed_and_follows_the_colours_of_the_page():
    text = drawing()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "viewBox" in root.attrib and not {"width", "height"} & set(root.attrib), "as wide as the page gives it"
    assert "var(--one)" in text and "var(--ink)" in text
    assert not any(colour in text for colour in COLOURS)
    assert "<metadata" not in text


def test_drawings_on_one_page_share_no_identifier_and_are_the_same_every_time():
    first, second = drawing("one"), drawing("two")
    identifiers = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (first, second)]
    assert identifiers[0] and not identifiers[0] & identifiers[1]
    for text, own in zip((first, second), identifiers):
        used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
        assert {a or b for a, b in used} <= own, "what is referred to is there"
    assert first == drawing("one")


def test_threads_draw_the_same_as_one_alone():
    alone = [drawing(f"n{i}", (1, i, 2)) for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda i: drawing(f"n{i}", (1, i, 2)), range(6)))
    assert together == alone


def test_a_logarithmic_axis_has_plain_numbers():
    figure, (axes,) = canvas()
    axes.plot([1, 10, 1000], [1, 2, 3])
    logarithmic(axes)
    svg_of(figure, "log")
    assert [t.get_text() for t in axes.get_xticklabels() if t.get_text() in ("1", "10", "1000")] == ["1", "10", "1000"]


def test_long_names_are_cut():
    assert short("a" * 60) == "a" * 60
    assert short("a" * 61) == "a" * 59 + "…"
    assert short(" two\n lines ") == "two lines"
