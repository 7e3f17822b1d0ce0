"""A run that was stopped while its folder got its name: --resume gives the same folder, checked as far as it can be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.quantize.recipe import make_recipe
from mlload.quantize.run import Options, run
from tests.quantize.tiny import GROUP, calibration, config, write


class Stopped(BaseException):
    """As a kill: nobody catches it."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("method", ["rtn", "awq", "gptq"])
@pytest.mark.parametrize("at", ["record", "rename"])
def test_resumed(method: str, at: str, tmp_path: Path) -> None:
    """at: what an interrupted run did not come to; the scales of AWQ go right before the record."""
    source = tmp_path / "source"
    write(source, config("llama"))
    recipe = make_recipe(method, group_size=GROUP)
    data = calibration() if method != "rtn" else None

    def once(name: str, **more: Any) -> Any:
        return run(Checkpoint.open(str(source)), recipe, Options(str(tmp_path / name), calibration=data, **more))

    whole = once("whole")
    unlink = os.unlink

    def stopping(path: Any, *args: Any, **kwargs: Any) -> None:
        if at == "record" and str(path).endswith(("mlload-calibration.npz", "mlload-progress.json")):
            raise Stopped
        unlink(path, *args, **kwargs)

    def stopped(*_: Any) -> None:
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", stopping)
        patch.setattr(os, "rename", stopped)
        with pytest.raises(Stopped):
            once("out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(MlloadError, match="begun with other options"):
        run(
            Checkpoint.open(str(source)),
            make_recipe("fp8"),
            Options(str(tmp_path / "out"), resume=True, calibration=data),
        )
    result = once("out", resume=True)
    assert result.resumed and result.check is not None and not result.check.problems
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not list(tmp_path.glob("out.partial*"))
    if method == "awq" and at == "rename":
        # What its weights were scaled by is gone; its layers are heard all the same.
        assert not result.check.errors and result.check.outputs == whole.check.outputs
        assert any("very end" in note for note in result.notes)
    else:
        assert result.check.errors == whole.check.errors
    if at == "record":
        assert result.outputs == whole.outputs
