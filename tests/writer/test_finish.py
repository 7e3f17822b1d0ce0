"""Stopped at every step of giving an output its name: the same command goes on, and the folder is the same one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.writer.folder import COMPLETE, OutputFolder, forget_rest, request_of_rest

STEPS = ("fsync", "unlink", "rename", "replace")


class Stopped(BaseException):
    """As a kill: nobody catches it."""


def stopping(monkeypatch: pytest.MonkeyPatch, at: int) -> list[str]:
    """The calls that change the disk, counted from 0; the one numbered `at` is not carried out, nor any after it."""
    seen: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(seen) >= at:
                raise Stopped
            seen.append(name)
            return real(*args, **kwargs)

        return call

    for name in STEPS:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return seen


def write(path: Path, request: str = "this", *, count: int = 3) -> bool:
    """True where it had only to be finished."""
    with OutputFolder(str(path), request, 30) as folder:
        if not folder.complete:
            folder.write("state.tmp", (b"x",))
            for number in range(folder.done, count):
                folder.write(f"deep/{number}", (bytes([number]) * 10,))
                folder.record(number + 1)
        complete = folder.complete
        folder.finish(("state.tmp",))
    return complete


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


WHOLE = {f"deep/{number}": bytes([number]) * 10 for number in range(3)}


def test_stopped_at_each_step(tmp_path: Path) -> None:
    complete = renamed = stop = 0
    while True:
        out = tmp_path / str(stop) / "out"
        with pytest.MonkeyPatch.context() as patch:
            stopping(patch, stop)
            try:
                write(out)
                break
            except Stopped:
                pass
        stop += 1
        if out.exists():
            renamed += 1
            assert contents(out) == WHOLE
            with pytest.raises(MlloadError, match="exists"):
                write(out)
        else:
            complete += write(out)
        assert contents(out) == WHOLE
        assert [p.name for p in out.parent.iterdir()] == ["out"]
    # Two after the name was given; before it the mark, then three files to remove and the name itself.
    assert renamed == 2 and complete >= 4


@pytest.mark.parametrize("again", ["other", "forgotten"])
def test_another_command_after_one_that_was_stopped_begins_anew(tmp_path: Path, again: str) -> None:
    """Itself stopped at each step, and followed by the first one."""
    stop = 0
    while True:
        out = tmp_path / str(stop) / "out"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(Stopped))
            with pytest.raises(Stopped):
                write(out)
        assert Path(f"{out}{COMPLETE}").exists() and request_of_rest(str(out)) == "this"
        with pytest.MonkeyPatch.context() as patch:
            stopping(patch, stop)
            try:
                if again == "forgotten":
                    forget_rest(str(out))
                else:
                    write(out, "other", count=2)
                break
            except Stopped:
                pass
        if not out.exists():
            write(out)
            assert contents(out) == WHOLE
        stop += 1
    if again == "other":
        assert contents(out) == {name: WHOLE[name] for name in ("deep/0", "deep/1")}
    assert stop > 1


def test_a_mark_without_its_folder_says_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            write(out)
    for path in sorted(Path(f"{out}.partial").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert not write(out)
    assert contents(out) == WHOLE
