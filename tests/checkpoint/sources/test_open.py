"""What a person typed, and what is said when nothing answers to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources import open_source


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "llama-70b").mkdir()
    (tmp_path / "llama-70b" / "config.json").write_text("{}")
    (tmp_path / "models" / "qwen").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("./lama-70b", "./llama-70b"),
        ("lama-70b", "llama-70b"),
        ("models/qwem", "models/qwen"),
        ("lama-70b/", "llama-70b"),
    ],
)
def test_a_mistyped_path_gets_its_neighbour(here: Path, typed: str, meant: str) -> None:
    with pytest.raises(MlloadError) as caught:
        open_source(typed)
    assert caught.value.message == f"no folder, file or Hub id called {typed}. Did you mean {meant}?"
    assert caught.value.exit_code == 3


def test_nothing_close_says_what_can_be_written(here: Path) -> None:
    for typed in ("zzz", "./zzz/yyy", "/no/such/place", "a b", ""):
        with pytest.raises(MlloadError) as caught:
            open_source(typed)
        assert caught.value.message == f"no folder, file or Hub id called {typed}"
        assert "org/name" in (caught.value.hint or "")


def test_a_folder_wins_over_the_hub(here: Path) -> None:
    assert open_source("models/qwen").kind == "folder"
    assert open_source("llama-70b").kind == "folder"
    assert open_source(f"file://{here}/llama-70b").kind == "folder"


def test_what_is_not_here_is_asked_of_the_hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlload.checkpoint.sources.http.HttpClient._wait", lambda self, attempt, answer: 0.0)
    with pytest.raises(MlloadError, match="cannot reach"):
        open_source("acme/llama")


def test_an_unknown_protocol_gives_a_sentence(here: Path) -> None:
    with pytest.raises(MlloadError, match="zzz:// is not a kind of address") as caught:
        open_source("zzz://bucket/path")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("url", "package", "extra"), [("s3://b/p", "s3fs", "s3"), ("gs://b/p", "gcsfs", "gs")])
def test_a_missing_package_names_its_extra(url: str, package: str, extra: str) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from mlload.checkpoint.finding import MlloadError\n"
        "from mlload.checkpoint.sources import open_source\n"
        f"try: open_source({url!r})\n"
        "except MlloadError as error: print(error.exit_code, error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = f'3 {url} needs {package}, which is not installed here:  pip install "mlload[{extra}]"'
    assert done.stdout.strip() == expected
