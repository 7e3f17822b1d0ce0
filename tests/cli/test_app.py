"""The frame: whatever is typed, one useful sentence and the documented exit code."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from mlload.cli import app
from tests.cli.conftest import Run, write_llama


def test_help_names_every_command(mlload: Run) -> None:
    done = mlload("--help")
    assert done.returncode == 0 and done.stderr == ""
    for name in app.COMMANDS:
        assert f"\n  {name} " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_without_a_word_it_helps(mlload: Run) -> None:
    assert mlload().stdout == mlload("--help").stdout


def test_version(mlload: Run) -> None:
    done = mlload("--version")
    assert done.returncode == 0 and done.stdout.startswith("mlload 0.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspct"], "inspect"),
        (["inspect", "--fromat", "json"], "--format"),
        (["inspect", "--format", "yaml"], "'json'"),
        (["validate", ".", "--tp", "two"], "--tp takes sizes"),
        (["validate", ".", "--tp", "0"], "--tp takes sizes"),
        (["validate", ".", "--tp", "1,,2"], "--tp takes sizes"),
        (["validate", ".", "--gpu", "cc:9"], "cc:9.0"),
        (["inspect", ".", "--engine", "vlm"], "unknown engine 'vlm'"),
        (["inspect", "a", "b"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_sentence(mlload: Run, tmp_path: Path, words: list[str], said: str) -> None:
    write_llama(tmp_path)
    done = mlload(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("mlload: ") and said in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 4


def test_a_path_in_place_of_a_command(mlload: Run, llama: Path) -> None:
    done = mlload(llama)
    assert done.returncode == 2 and f"mlload inspect {llama}" in done.stderr


def test_the_current_folder_is_the_source(mlload: Run, llama: Path, tmp_path: Path) -> None:
    assert mlload("inspect", "--format", "json", cwd=llama).returncode == 0
    empty = tmp_path / "empty"
    empty.mkdir()
    done = mlload("inspect", cwd=empty)
    assert done.returncode == 2 and "no SOURCE given" in done.stderr


def test_a_source_that_is_not_there(mlload: Run, llama: Path) -> None:
    done = mlload("inspect", "./small-lama")
    assert done.returncode in (2, 3)
    assert done.stderr.startswith("mlload: ") and "small-lama" in done.stderr and "Traceback" not in done.stderr


def test_an_internal_error_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("a surprise")

    monkeypatch.setattr(app, "import_module", broken)
    monkeypatch.delenv("MLLOAD_DEBUG", raising=False)
    assert app.main(["inspect", "x"]) == 3
    assert capsys.readouterr().err == (
        "mlload: internal error: RuntimeError: a surprise\n        MLLOAD_DEBUG=1 shows the traceback\n"
    )
    monkeypatch.setenv("MLLOAD_DEBUG", "1")
    with pytest.raises(RuntimeError):
        app.main(["inspect", "x"])


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "import_module", stopped)
    assert app.main(["inspect", "x"]) == 130
    assert capsys.readouterr().err.strip() == "mlload: interrupted"


def test_a_closed_pipe_is_quiet(llama: Path) -> None:
    line = f"{sys.executable} -m mlload inspect {llama} --format json | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=300)
    assert done.stdout == "{" and done.stderr == ""


def on_a_terminal(*words: str | Path, **env: str) -> str:
    """What the command writes when stdout is a terminal."""
    parent, child = pty.openpty()
    base = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM", "COLUMNS")}
    done = subprocess.Popen(
        [sys.executable, "-m", "mlload", *map(str, words)], stdout=child, stderr=child, env={**base, **env}
    )
    os.close(child)
    seen = b""
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    done.wait(timeout=300)
    os.close(parent)
    return seen.decode()


def test_colour_on_a_terminal_only(mlload: Run, llama: Path) -> None:
    assert "\x1b[" in on_a_terminal("inspect", llama, TERM="xterm")
    assert "\x1b[" not in on_a_terminal("inspect", llama, TERM="xterm", NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal("inspect", llama, TERM="dumb")
    assert "\x1b[" not in mlload("inspect", llama, env={"TERM": "xterm"}).stdout


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("command", [("inspect",), ("validate", "--tp", "1,2,3,4,5")])
def test_lines_keep_the_width(mlload: Run, llama: Path, columns: int, command: tuple[str, ...]) -> None:
    done = mlload(*command, llama.name, env={"COLUMNS": str(columns)})
    lines = [line for line in done.stdout.splitlines() if " --" not in line]  # to be copied whole
    assert max(map(len, lines)) <= columns


def test_ascii_locale(mlload: Run, llama: Path) -> None:
    done = mlload("inspect", llama, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode == 0 and done.stdout.isascii() and "####" in done.stdout


def test_stdout_is_data_alone(mlload: Run, llama: Path, tmp_path: Path) -> None:
    done = mlload("inspect", llama, "--format", "json", "--html", tmp_path / "page.html")
    json.loads(done.stdout)
    assert "page.html" in done.stderr


def test_the_first_sentence_of_every_command_fits_the_help(mlload: Run) -> None:
    done = mlload("--help")
    assert done.returncode == 0 and "..." not in done.stdout.partition("Commands:")[2]


def test_a_command_without_its_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_llama(tmp_path / "model")
    for name in app.EXTRAS:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [
        name for name in sys.modules if name.startswith(("mlload.quantize", "mlload.loader", "mlload.engine"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    assert app.main(["quantize", str(folder), "--method", "rtn", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "not installed" in said and "pip install 'mlload[torch]'" in said and "internal" not in said
