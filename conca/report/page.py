"""A page in one file: chapters of text, tables and pictures; no scripts, nothing fetched, readable on a phone.

Whatever text stands on it is escaped; only what `conca.report.drawing` drew is taken as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment

from conca.models.run import write_whole

__all__ = ["Chapter", "Page", "Picture", "Quote", "Table", "render", "short", "write_page"]


@dataclass(frozen=True)
class Picture:
    """A drawing with its words.

    svg      the drawing, `conca.report.drawing.svg_of`
    alt      what it shows, with its key numbers, for those who cannot see it
    caption  the line below it
    """

    svg: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Table:
    """A table; it scrolls sideways where it is wider than the screen.

    headings  of the columns
    rows      of text
    words     so many of the first columns hold words and stand to the left
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1


@dataclass(frozen=True)
class Quote:
    """Text of whatever origin, line by line as it is; characters that are not to be seen stand as marks.

    text  what is quoted
    """

    text: str

    @property
    def shown(self) -> str:
        """The text with a mark in place of every control character but the end of a line and the tabulator."""
        return self.text.translate(MARKS)


MARKS = (
    {code: 0x2400 + code for code in range(32) if code not in (9, 10)}
    | {0x7F: 0x2421}
    | dict.fromkeys([*range(0x80, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
)
"""What a page shows for characters that HTML forbids, or that turn the text around them."""


@dataclass(frozen=True)
class Chapter:
    """A heading and what stands under it: text, tables, pictures and quotes in their order."""

    title: str
    parts: Sequence[str | Table | Picture | Quote]


@dataclass(frozen=True)
class Page:
    """A title, a line below it, and chapters."""

    title: str
    line: str
    chapters: Sequence[Chapter]


STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #667085; --rule: #d5d9e0; --paper: #fbfbfa; --card: #ffffff;
  --one: #1f6fb2; --two: #c8501e; --three: #2e8b57; --four: #7d4fb3; --five: #8a6d1a; --six: #b03a6f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --soft: #9aa3b2; --rule: #3a4150; --paper: #14171c;
  --card: #1b1f26; --one: #6cb2ee; --two: #f0905c; --three: #66c794; --four: #b592e6; --five: #d3b45a; --six: #e585ae; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 44rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0 0; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2.5rem 0 0.5rem; padding-top: 0.75rem; border-top: 1px solid var(--rule); }
p { margin: 0.5rem 0; }
.line { color: var(--soft); }
nav ol { margin: 1rem 0 0; padding-left: 1.5rem; }
nav a { color: var(--one); display: inline-block; padding: 0.15rem 0; }
figure { margin: 1rem 0; padding: 0.5rem; background: var(--card); border: 1px solid var(--rule); border-radius: 0.5rem; }
figure svg, figure img { display: block; width: 100%; max-width: 100%; height: auto; }
figcaption { font-size: 0.9rem; line-height: 1.4; color: var(--soft); margin-top: 0.35rem; }
pre { margin: 0.75rem 0; padding: 0.75rem; background: var(--card); border: 1px solid var(--rule); border-radius: 0.5rem;
  font: 0.85rem/1.45 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre-wrap; unicode-bidi: plaintext; }
.wide { overflow-x: auto; margin: 0.75rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.75rem 0.3rem 0; text-align: right; vertical-align: top; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th { font-weight: 600; color: var(--soft); white-space: normal; overflow-wrap: normal; vertical-align: bottom; }
th.word { vertical-align: bottom; }
th.word, td.word { text-align: left; white-space: normal; overflow-wrap: break-word; min-width: 7.5rem; max-width: 24rem; }
@media (max-width: 30rem) {
  body { padding: 0.75rem; }
  table { font-size: 0.75rem; }
  th, td { padding: 0.25rem 0.35rem 0.25rem 0; }
  th.word, td.word { min-width: 4rem; }
  th:last-child, td:last-child { padding-right: 0; }
}
footer { margin: 2.5rem 0 1rem; color: var(--soft); font-size: 0.85rem; }
@media print { figure, tr { break-inside: avoid; } }
"""

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ page.title }}</title>
<style>{{ style|safe }}</style>
</head>
<body>
<header>
<h1>{{ page.title }}</h1>
<p class="line">{{ page.line }}</p>
<nav><ol>{% for chapter in page.chapters %}<li><a href="#chapter-{{ loop.index }}">{{ chapter.title }}</a></li>{% endfor %}</ol></nav>
</header>
<main>
{% for chapter in page.chapters %}
<section id="chapter-{{ loop.index }}">
<h2>{{ loop.index }}. {{ chapter.title }}</h2>
{% for part in chapter.parts %}
{% if part is string %}
<p>{{ part }}</p>
{% elif part.svg is defined %}
<figure>
<div role="img" aria-label="{{ part.alt }}">{{ part.svg|safe }}</div>
<figcaption>{{ part.caption }}</figcaption>
</figure>
{% elif part.shown is defined %}
<pre>
{{ part.shown }}</pre>
{% else %}
<div class="wide"><table>
<thead><tr>
{% for cell in part.headings %}
<th scope="col"{% if loop.index0 < part.words %} class="word"{% endif %}>{{ cell }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in part.rows %}
<tr>
{% for cell in row %}
<td{% if loop.index0 < part.words %} class="word"{% endif %}>{{ cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table></div>
{% endif %}
{% endfor %}
</section>
{% endfor %}
</main>
<footer>Written by conca. This file needs no network and runs no scripts.</footer>
</body>
</html>
"""


CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Characters that a page must not hold, as names of files may."""


def render(page: Page) -> str:
    """The page as HTML."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return CONTROLS.sub("\ufffd", environment.from_string(TEMPLATE).render(page=page, style=STYLE))


def write_page(page: Page, path: Path) -> None:
    """Write a page to `path`, whole or not at all; what stood there is replaced."""
    write_whole(path, render(page).encode("utf-8", errors="xmlcharrefreplace"), shared=True)


def short(text: object, limit: int = 60) -> str:
    """A name on one line, cut where it is longer than `limit` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
