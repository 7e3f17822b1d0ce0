"""`--gpu local`: what the driver says, through a stand-in for nvidia-smi on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.profiles.gpus import find


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; a test writes nvidia-smi into it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def says(smi: Path, text: str, code: int = 0) -> None:
    (smi.parent / "answer").write_text(text)
    smi.write_text(f'#!/bin/sh\nwhile IFS= read -r line; do echo "$line"; done < {smi.parent}/answer\nexit {code}\n')
    smi.chmod(0o755)


def test_one_gpu(smi: Path) -> None:
    says(smi, "NVIDIA H100 80GB HBM3, 9.0, 81559\n")
    gpu = find("local")
    assert (gpu.key, gpu.name, gpu.capability, gpu.memory_gib) == (
        "local",
        "NVIDIA H100 80GB HBM3",
        (9, 0),
        81559 / 1024,
    )


def test_of_several_the_smallest_decides(smi: Path) -> None:
    says(smi, "Big, 8.0, 81920\nSmall, with a comma, 8.6, 24576\n")
    assert find("local").name == "Small, with a comma"


def test_no_driver_is_a_sentence(smi: Path) -> None:
    with pytest.raises(MlloadError, match="this machine has none") as caught:
        find("local")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("NVIDIA-SMI has failed because it could not talk to the driver\n", 9, "could not talk"),
        ("", 6, "exit code 6"),
        ("", 0, "nothing that could be read"),
        ("H100, [N/A], 81559\n", 0, "nothing that could be read"),
    ],
)
def test_a_driver_that_fails_is_a_sentence(smi: Path, text: str, code: int, message: str) -> None:
    says(smi, text, code)
    with pytest.raises(MlloadError, match=message):
        find("local")
