"""What is written, read by tools that know nothing of mlload: whole models, by their logits.

Expected are the logits of a plain transformers model in fp32 whose weights benchmarks/quantize_peers_read.py unpacks by
arithmetic of its own; a reader's differ from these by the rounding of its own computation.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.quantize_peers_read import dequantized, model_of
from tests.quantize.conftest import Run
from tools import peers

pytestmark = pytest.mark.slow
READS = Path(__file__).with_name("reads_with_transformers.py")
IDS = [[(37 * at + 11 * row) % 250 + 3 for at in range(24)] for row in range(2)]
GROUP = ("--group-size", "64")
DATA = ("--samples", "8", "--seq-len", "64")
# Weights of these are read from the same numbers; activations of the last two are rounded to 8 bits as they come.
COMPRESSED: dict[str, tuple[tuple[str, ...], float]] = {
    "w4a16": (("--method", "rtn", *GROUP), 1e-3),
    "gptq-w4a16": (("--method", "gptq", "--save-as", "compressed-tensors", *GROUP, *DATA), 1e-3),
    "int8": (("--method", "int8"), 0.05),
    "fp8": (("--method", "fp8"), 0.15),
}
PACKED = {
    "awq": ("--method", "awq", *GROUP, *DATA),
    "awq-rtn": ("--method", "rtn", "--asym", "--save-as", "awq", *GROUP),
    "gptq": ("--method", "gptq", *GROUP, *DATA),
}


def expected(source: Path, folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model_of(source, dequantized(folder))(input_ids=torch.tensor(IDS)).logits
    return found


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("name", COMPRESSED)
def test_transformers_reads_compressed_tensors(name: str, demo: Path, tmp_path: Path, run: Run) -> None:
    from transformers import AutoModelForCausalLM

    words, close = COMPRESSED[name]
    code, result = run(demo, "-o", tmp_path / "out", *words)
    assert code == 0, result
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.inference_mode():
        found = model(input_ids=torch.tensor(IDS)).logits
    assert distance(found, expected(demo, tmp_path / "out")) < close


def test_its_own_package_reads_asymmetric_groups(demo: Path, tmp_path: Path, run: Run) -> None:
    """transformers 5.24 does not take packed zero points; the package itself does. Every layer, to the bit of bf16."""
    from compressed_tensors.compressors import BaseCompressor  # type: ignore[import-untyped]
    from compressed_tensors.quantization import QuantizationScheme  # type: ignore[import-untyped]

    code, result = run(demo, "-o", tmp_path / "out", "--method", "rtn", "--asym", *GROUP)
    assert code == 0, result
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    group = config["config_groups"]["group_0"]
    compressor: Any = BaseCompressor.get_value_from_registry(group["format"])
    stored = {name: t for file in (tmp_path / "out").glob("*.safetensors") for name, t in load_file(file).items()}
    mine = dequantized(tmp_path / "out")
    layers = [name.removesuffix(".weight_packed") for name in stored if name.endswith(".weight_packed")]
    assert len(layers) == 28
    for layer in layers:
        parts = {name.removeprefix(layer + "."): t for name, t in stored.items() if name.startswith(layer + ".")}
        back = compressor.decompress(parts, QuantizationScheme(**group))["weight"].float()
        assert torch.allclose(back, mine[layer + ".weight"], rtol=2**-7, atol=1e-6), layer


@pytest.mark.parametrize("name", PACKED)
def test_gptqmodel_s_layers_in_transformers(name: str, demo: Path, tmp_path: Path, run: Run) -> None:
    if not peers.ready("gptqmodel"):
        pytest.skip("no GPTQModel on this machine: python -m tools.peers gptqmodel")
    code, result = run(demo, "-o", tmp_path / "out", *PACKED[name])
    assert code == 0, result
    ids, logits = tmp_path / "ids.json", tmp_path / "logits.npy"
    ids.write_text(json.dumps(IDS))
    command = [peers.python("gptqmodel"), READS, tmp_path / "out", ids, logits]
    # It writes logs where it is started.
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    # A quantized layer computed, not a plain one that was filled with something else.
    assert done.stdout.strip().splitlines()[-1] != "Linear"
    assert distance(torch.from_numpy(np.load(logits)), expected(demo, tmp_path / "out")) < 5e-3


def test_autoawq_s_unpacker(demo: Path, tmp_path: Path, run: Run) -> None:
    pytest.importorskip("awq", reason="AutoAWQ is not installed: pip install 'mlload[autoawq]'")
    from awq.utils.packing_utils import dequantize_gemm

    code, result = run(demo, "-o", tmp_path / "out", *PACKED["awq"])
    assert code == 0, result
    stored = {name: t for file in (tmp_path / "out").glob("*.safetensors") for name, t in load_file(file).items()}
    mine = dequantized(tmp_path / "out")
    layers = [name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")]
    assert len(layers) == 28
    for layer in layers:
        words = [stored[f"{layer}.{suffix}"] for suffix in ("qweight", "qzeros", "scales")]
        # Its product is rounded to fp16.
        assert torch.allclose(dequantize_gemm(*words, 4, 64).T.float(), mine[layer + ".weight"], rtol=2**-10, atol=1e-7)
