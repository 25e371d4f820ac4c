"""The rules of the house: sizes, names, the ladder of imports, docstrings, and a map that tells the truth.

Run as a script (`make map`) it writes the map of files into README.md, and the list of laws into CONTRIBUTING.md.
"""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles

import pytest
from importlinter.cli import lint_imports

from conca.laws.run import LAWS
from conca.layers.mixer import Mixer

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "conca"
SOURCES = sorted(PACKAGE.rglob("*.py"))
WRITTEN = sorted(
    path
    for place in ("conca", "tests", "bench", "examples", ".ci")
    for path in (ROOT / place).rglob("*")
    if path.is_file() and path.suffix in {"", ".py", ".md", ".toml", ".txt"}
) + [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "constraints.txt")]
DRAWERS = {"utils", "util", "common", "base", "core", "helpers", "misc", "tools", "lib"}
MATHEMATICS = [path for path in SOURCES if path.parent.name in {"ops", "layers", "models"}]
MARKS = ("<!-- map: written by `make map` -->\n```text\n", "```\n<!-- end of map -->")
LAW_MARKS = ("<!-- laws: written by `make map` -->\n", "<!-- end of laws -->")
STREAMS = re.compile(r"infer/|stream|README|conca/__init__")
PIPES = {"conca/train/worker.py"}
"""Files that talk to processes which they have started themselves, through a pipe of their own, as multiprocessing does."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def length(function: Function, *, docstring: bool) -> int:
    """Lines of a body, with its docstring or without."""
    body = function.body[1:] if not docstring and ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def readme_map() -> str:
    """One line per file of the package: its path and the first line of its docstring."""
    paths = [named(path) for path in SOURCES]
    width = max(map(len, paths))
    return "".join(f"{path:{width}}  {caption(ROOT / path)}\n" for path in paths)


def caption(path: Path) -> str:
    return (ast.get_docstring(tree(path)) or "").partition("\n")[0]


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_a_file_is_short_and_named_after_what_it_holds(path: Path) -> None:
    assert path.read_text().count("\n") <= 400
    assert path.stem not in DRAWERS
    assert len(path.relative_to(PACKAGE).parts) <= 2, "two folder levels: package, room"


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_what_is_public_has_a_docstring(path: Path) -> None:
    silent = [
        node.name
        for node in tree(path).body
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert not silent
    assert caption(path), "the module says in one line what it holds"


def test_function_bodies_are_short() -> None:
    found = [(named(path), function) for path in SOURCES for function in functions(path)]
    assert not [f"{path}:{f.lineno} {f.name}" for path, f in found if length(f, docstring=True) > 80]
    sizes = [length(f, docstring=False) for _, f in found]
    assert median(sizes) < 10
    assert quantiles(sizes, n=10)[-1] < 35


@pytest.mark.parametrize("path", MATHEMATICS, ids=named)
def test_mathematics_imports_at_the_top_and_without_guards(path: Path) -> None:
    imports = ast.Import | ast.ImportFrom
    inside = [f for f in functions(path) for node in ast.walk(f) if isinstance(node, imports)]
    guarded = [t for t in ast.walk(tree(path)) if isinstance(t, ast.Try) for n in ast.walk(t) if isinstance(n, imports)]
    assert not inside
    assert not guarded


def test_rooms_import_only_from_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(no_cache=True) == 0


def test_the_map_in_the_readme_is_true() -> None:
    text = (ROOT / "README.md").read_text()
    begin, end = (text.index(mark) for mark in MARKS)
    assert text[begin + len(MARKS[0]) : end] == readme_map(), "`make map` writes it"


def laws_listed() -> str:
    """One line for each law, numbered as `conca check` numbers them."""
    sentences = ((name, str(law.__doc__).partition("\n")[0]) for name, law in LAWS.items())
    return "".join(f"{number}. *{name}*: {sentence}\n" for number, (name, sentence) in enumerate(sentences, 1))


def test_the_laws_in_the_contributors_page_are_those_that_run() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    begin, end = (text.index(mark) for mark in LAW_MARKS)
    assert text[begin + len(LAW_MARKS[0]) : end] == laws_listed(), "`make map` writes it"


@pytest.mark.parametrize("path", WRITTEN, ids=named)
def test_the_project_speaks_of_itself_alone(path: Path) -> None:
    # The classes of one letter keep this list from finding itself.
    strange = re.compile(
        r"(?<!scope=\")\bs[e]ssions?\b|\bsub-?[a]gents?\b|\b[i]ssue #?\d|/[w]ork/|/[o]pt/|/tmp/[c]onca",
        re.I,
    )
    if STREAMS.search(named(path)):  # where a class has that name
        strange = re.compile(strange.pattern.partition("|")[2], re.I)
    assert not strange.findall(path.read_text())


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_no_pickle_is_trusted(path: Path) -> None:
    text = path.read_text()
    loads = re.findall(r"torch\.load\([^\n]*", text)
    assert all("weights_only=True" in call for call in loads)
    if named(path) not in PIPES:
        assert not re.search(r"^\s*(import|from) (pickle|joblib|dill|cloudpickle)\b|allow_pickle=True", text, re.M)


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_what_is_exported_exists(path: Path) -> None:
    module = import_module(module_of(path))
    assert not [name for name in getattr(module, "__all__", []) if not hasattr(module, name)]


def test_no_family_writes_the_forms_that_belong_to_the_mixer() -> None:
    for path in MATHEMATICS:
        import_module(module_of(path))
    families, found = [Mixer], []
    for family in families:
        families += [c for c in family.__subclasses__() if c not in families and c.__module__.startswith("conca.")]
        found += [f"{family.__name__}.{name}" for name in ("forward", "recurrent", "chunked") if name in vars(family)]
    assert len(families) > 3
    assert found == ["Mixer.forward", "Mixer.recurrent", "Mixer.chunked"]


def put(page: str, marks: tuple[str, str], text: str) -> None:
    """Write `text` between two marks of a page."""
    path = ROOT / page
    before, _, rest = path.read_text().partition(marks[0])
    path.write_text(before + marks[0] + text + marks[1] + rest.partition(marks[1])[2])


if __name__ == "__main__":
    put("README.md", MARKS, readme_map())
    put("CONTRIBUTING.md", LAW_MARKS, laws_listed())
