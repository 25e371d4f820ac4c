"""The entry point in a process of its own: streams, statuses, interrupts; and what it says of errors."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from conca.cli import main as entry

ROOT = Path(__file__).resolve().parents[2]
CALL = "import sys; from conca.cli.main import main; sys.exit(main())"
SLOW = """
import signal, sys, time
from conca.laws import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may have been told to ignore it
run.check = lambda target: (print("judging", file=sys.stderr, flush=True), time.sleep(60))
"""


def started(code: str, *words: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(command, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_bad_input_costs_no_import_of_torch() -> None:
    code = (
        "import os, sys; from conca.cli.main import main; status = main(['predcit']);"
        "print(status, 'torch' in sys.modules, os.environ['OMP_WAIT_POLICY'])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "2 False passive\n"
    assert done.stderr == "conca: No such command 'predcit'. Did you mean 'predict'?\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("generate m -p a --n-predict 5", "option: --n-predict; here it is -n"),
        ("generate m -p a --num-return-sequences 5", "option: --num-return-sequences; here it is --samples"),
        ("generate -m model.gguf", "option: -m; here it is RUN_OR_ID without an option"),
        ("generate m --prompt-file a", "option: --prompt-file; here it is -p - < FILE"),
        ("fit a.txt --learning-rate 1", "option: --learning-rate; here it is --lr"),
        ("fit a.txt --model m", "option: --model; here it is --from"),
        ("fit a.txt --temp 1", "option: --temp"),
        ("train a.txt", "command 'train'; here it is conca fit"),
    ],
)
def test_names_of_others_are_answered_with_ours(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(words.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"conca: No such {told}") and ("here it is" in err) == ("here it is" in told)


def test_an_interrupt_is_one_line() -> None:
    with started(SLOW + CALL, "check") as process:
        assert process.stderr and process.stderr.readline() == "judging\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "conca: interrupted\n")


def test_a_reader_that_leaves_is_no_error() -> None:
    with started(CALL, "check", "--family", "gatedmlp") as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode != 0


def shell(line: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `conca` is this one; the words are $1 and so on."""
    setting = f"set -o pipefail; conca() {{ {sys.executable} -c '{CALL}' \"$@\"; }}; {line}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ["bash", "-c", setting, "bash", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_forecast_whose_reader_leaves(fitted: Path) -> None:
    run, data = fitted / "run", fitted / "air.csv.xz"
    done = shell('conca predict "$1" "$2" --rolling -q | head -1', run, data)
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.startswith("time,cutoff")


def test_a_stdout_that_is_closed(fitted: Path, tmp_path: Path) -> None:
    run, data = fitted / "run", fitted / "air.csv.xz"
    done = shell('conca predict "$1" "$2" -q >&-', run, data)
    assert (done.returncode, done.stderr) == (2, "conca: stdout is closed; name a file (--out)\n")
    done = shell('conca predict "$1" "$2" -q --out "$3" >&- 2>&-', run, data, tmp_path / "f.csv")
    assert done.returncode == 0
    assert (tmp_path / "f.csv").read_text().startswith("time,cutoff")


def test_help_names_every_command(say: Callable) -> None:
    for words in ([], ["--help"], ["-h"]):
        status, out, err = say(*words)
        assert (status, err) == (0, "")
        assert all(f"\n  {command} " in out for command in ("fit", "predict", "check", "info"))
        assert not [line for line in out.splitlines() if len(line) > 100]


@pytest.mark.parametrize("command", ["fit", "predict", "check", "info"])
def test_help_of_a_command(command: str, say: Callable) -> None:
    status, out, err = say(command, "--help")
    assert (status, err) == (0, "")
    assert f"conca {command}" in out
    assert "--debug" in out


def test_the_version(say: Callable) -> None:
    import conca

    assert say("--version") == (0, f"{conca.__version__}\n", "")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Lets a command `fail` raise something."""

    def install(error: BaseException) -> None:
        app = typer.Typer()
        app.callback()(lambda: None)

        @app.command()
        def fail() -> None:
            raise error

        monkeypatch.setattr(entry, "app", app)

    return install


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (entry.BadInput("a\nb"), 2, "a b"),
        (ModuleNotFoundError("No module named 'pandas'", name="pandas"), 2, "needs pandas"),
        (ModuleNotFoundError("No module named 'conca.x'", name="conca.x"), 1, "--debug"),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "/x/y: Permission denied"),
        (MemoryError(), 2, "not enough memory"),
        (RuntimeError("CUDA out of memory"), 2, "not enough memory"),
        (ZeroDivisionError("by zero"), 1, "ZeroDivisionError: by zero (--debug shows where)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (typer.Abort(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_error_is_one_line(
    error: BaseException, status: int, line: str, failing: Callable, say: Callable
) -> None:
    failing(error)
    found, out, err = say("fail")
    assert (found, out) == (status, "")
    assert err.startswith("conca: ")
    assert line in err
    assert err.count("\n") == 1


def test_a_missing_extra_says_how_to_install_it(failing: Callable, say: Callable) -> None:
    failing(ModuleNotFoundError("No module named 'lightning'", name="lightning"))
    assert say("fail")[2] == 'conca: this needs lightning, which is not installed: pip install "conca[all]"\n'


def test_a_loop_that_ends_itself_after_an_interrupt_was_interrupted(failing: Callable, say: Callable) -> None:
    stop = SystemExit(1)
    stop.__context__ = KeyboardInterrupt()
    failing(stop)
    assert say("fail") == (130, "", "conca: interrupted\n")


def test_debug_shows_where(failing: Callable, say: Callable) -> None:
    failing(entry.BadInput("here"))
    with pytest.raises(entry.BadInput, match="here"):
        say("fail", "--debug")
