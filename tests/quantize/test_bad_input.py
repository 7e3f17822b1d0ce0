"""What is wrong with a source, a disk or a text is one sentence, and leaves nothing that looks like an output."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.quantize.conftest import Run

FP8 = ["--method", "fp8"]
GPTQ = ["--method", "gptq", "--samples", "2", "--seq-len", "16"]


def weight_file(folder: Path, name: str) -> Path:
    return next(f for f in sorted(folder.glob("*.safetensors")) if name in load_file(f))


def rewritten(folder: Path, name: str, change: Callable[[object], object]) -> None:
    file = weight_file(folder, name)
    tensors = load_file(file)
    value = change(tensors.pop(name))
    if value is not None:
        tensors[name] = value  # type: ignore[assignment]
    save_file(tensors, file, metadata={"format": "pt"})


def cut_short(folder: Path) -> None:
    file = next(iter(sorted(folder.glob("*.safetensors"))))
    os.truncate(file, file.stat().st_size - 100)


def a_file_less(folder: Path) -> None:
    min(folder.glob("*.safetensors")).unlink()


def no_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def not_finite(folder: Path, value: float) -> None:
    def spoilt(tensor: object) -> object:
        tensor[5, 7] = value  # type: ignore[index]
        return tensor

    rewritten(folder, "model.layers.2.mlp.down_proj.weight", spoilt)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (cut_short, "is not whole"),
    "a file less": (a_file_less, "not whole"),
    "a tensor less": (lambda f: rewritten(f, "model.layers.1.mlp.up_proj.weight", lambda _: None), "is not whole"),
    "another shape": (
        lambda f: rewritten(f, "model.layers.1.mlp.up_proj.weight", lambda t: t[:-1].contiguous()),  # type: ignore[index]
        "is not whole",
    ),
    "not a number": (lambda f: not_finite(f, float("nan")), "down_proj.weight holds NaN or infinity"),
    "infinite": (lambda f: not_finite(f, float("inf")), "down_proj.weight holds NaN or infinity"),
    "no weights": (no_weights, "holds no safetensors weights"),
    "no config": (no_config, "config"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "config"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_source(damage: str, demo: Path, tmp_path: Path, run: Run) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(demo, bad)
    spoil, said = DAMAGES[damage]
    spoil(bad)
    code, result = run(bad, "-o", tmp_path / "out", *FP8)
    assert code in (1, 2, 3)
    assert said in result["error"]
    assert "internal error" not in result["error"] and len(result["error"].splitlines()) <= 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad"]


@pytest.mark.slow
def test_a_weight_that_is_no_number_ends_a_calibrated_run(demo: Path, tmp_path: Path, run: Run) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(demo, bad)
    not_finite(bad, float("nan"))
    code, result = run(bad, "-o", tmp_path / "out", *GPTQ)
    assert code == 1
    assert "down_proj.weight holds NaN" in result["error"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad"]


@pytest.mark.parametrize(
    ("content", "name", "words", "said"),
    [
        (b"", "text.txt", [], "holds no text"),
        (b" \n\n ", "text.txt", [], "holds no text"),
        (b"\n\n", "text.jsonl", [], "holds no text"),
        (b"few words", "text.txt", ["--seq-len", "64"], "one sample takes 64"),
        (b'{"text": "a"}\n{"text": \n', "text.jsonl", [], "line 2 of"),
        (b'{"title": "a"}\n', "text.jsonl", [], 'neither "text" nor "messages"; it has title'),
        (b"many words " * 900, "text.txt", ["--seq-len", "2048"], "longer than the model's 1024 positions"),
    ],
)
def test_bad_calibration_text(
    content: bytes, name: str, words: list[str], said: str, demo: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / name).write_bytes(content)
    code, result = run(demo, "-o", tmp_path / "out", *GPTQ, "--calib", tmp_path / name, *words)
    assert code in (1, 2)
    assert said in result["error"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_a_tokenizer_of_another_model(demo: Path, tmp_path: Path, run: Run) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(demo, bad)
    config = json.loads((bad / "config.json").read_text())
    config["vocab_size"] = 300
    (bad / "config.json").write_text(json.dumps(config))
    rewritten(bad, "model.embed_tokens.weight", lambda t: t[:300].contiguous())  # type: ignore[index]
    if any("lm_head.weight" in load_file(f) for f in bad.glob("*.safetensors")):
        rewritten(bad, "lm_head.weight", lambda t: t[:300].contiguous())  # type: ignore[index]
    code, result = run(bad, "-o", tmp_path / "out", *GPTQ)
    assert code == 1
    assert "they do not belong together" in result["error"]


def test_an_unknown_architecture_is_quantized_without_data(demo: Path, tmp_path: Path, run: Run) -> None:
    strange = tmp_path / "strange"
    shutil.copytree(demo, strange)
    config = json.loads((strange / "config.json").read_text())
    config |= {"model_type": "neverheardof", "architectures": ["NeverHeardOfForCausalLM"]}
    (strange / "config.json").write_text(json.dumps(config))
    for words in ([], ["--dry-run"]):
        code, result = run(strange, "-o", tmp_path / "out", *GPTQ, *words)
        assert code == 3
        assert "builds no causal language model" in result["error"] and "--method rtn" in result["error"]
    assert not (tmp_path / "out.partial").exists()
    code, result = run(strange, "-o", tmp_path / "out", "--method", "rtn", "--no-check")
    assert code == 0, result
    assert result["layers"] == 28


@pytest.mark.parametrize("at", [1, 20, 60])
def test_a_full_disk_leaves_what_can_be_gone_on_with(
    at: int, demo: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(demo, "-o", tmp_path / "whole", "--method", "rtn")[0] == 0
    real, calls = os.pwrite, [0]

    def full(descriptor: int, data: bytes, offset: int) -> int:
        calls[0] += 1
        if calls[0] > at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    code, result = run(demo, "-o", tmp_path / "out", "--method", "rtn")
    monkeypatch.setattr(os, "pwrite", real)
    assert code == 1
    assert "disk is full" in result["error"] or "No space left" in result["error"]
    assert "--resume" in result["error"] or at == 1
    assert not (tmp_path / "out").exists()
    assert run(demo, "-o", tmp_path / "out", "--method", "rtn", "--resume")[0] == 0
    for file in sorted((tmp_path / "whole").iterdir()):
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


def test_a_file_system_that_takes_no_large_files(demo: Path, tmp_path: Path) -> None:
    """A real refusal of the kernel: no file may grow beyond 1 MB."""
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
        "from mlload.cli.app import main; sys.exit(main())"
    )
    words = ["quantize", str(demo), "-o", str(tmp_path / "out"), *FP8]
    found = subprocess.run([sys.executable, "-c", limited, *words], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "cannot be written: File too large" in found.stderr
    assert "Traceback" not in found.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("existing", ["file", "folder", "dangling link"])
def test_what_is_there_is_not_touched(existing: str, demo: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    if existing == "file":
        out.write_text("mine")
    elif existing == "folder":
        out.mkdir()
        (out / "thesis.txt").write_text("mine")
    else:
        out.symlink_to(tmp_path / "nowhere")
    code, result = run(demo, "-o", out, *FP8)
    assert code == 2
    assert "nothing is ever overwritten" in result["error"]
    assert not (tmp_path / "out.partial").exists()


def test_an_output_below_a_file(demo: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").write_text("mine")
    code, result = run(demo, "-o", tmp_path / "file" / "out", *FP8)
    assert code in (1, 2, 3)
    assert "internal error" not in result["error"]
    assert (tmp_path / "file").read_text() == "mine"


def test_memory_that_one_layer_cannot_fit_is_refused_early(demo: Path, tmp_path: Path, run: Run) -> None:
    for words in (GPTQ, ["--method", "rtn"]):
        code, result = run(demo, "-o", tmp_path / "out", *words, "--max-memory", "100MiB")
        assert code == 1
        assert "--max-memory allows 100" in result["error"]
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_is_not_there(demo: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, error = run(demo, "-o", tmp_path / "out", *GPTQ, "--device", "cuda")
    assert code == 3 and "torch finds no GPU here" in str(error)
    assert not list(tmp_path.glob("out*"))
