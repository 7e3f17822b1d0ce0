"""Changes that must not change a verdict, and single sizes that must change exactly one rule's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlload.plan.mesh import Mesh
from tests.truth_rows import Row, capability, folder, own_rows
from tests.validators.build import (
    AWQ,
    FP8_BLOCK,
    GPTQ,
    LLAMA,
    NVFP4,
    QWEN3_MOE,
    W4A16,
    Tensors,
    awq,
    fp8_block,
    gptq,
    llama,
    nvfp4,
    quantized,
    verdict,
    w4a16,
)
from tests.validators.cases.folders import validate, write

FORMATS: dict[str, tuple[dict[str, Any], Callable[[int, int], Tensors]]] = {
    "awq": (AWQ, awq),
    "gptq": (GPTQ, gptq),
    "w4a16": (W4A16, w4a16),
    "fp8": (FP8_BLOCK, fp8_block),
    "nvfp4": (NVFP4, nvfp4),
}


def stripped(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what repeats the name of the source."""
    return {name: value for name, value in result.items() if name not in ("source", "serve")}


@pytest.fixture(params=[None, *FORMATS])
def checkpoint(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Tensors, dict[str, Any] | None]:
    if request.param is None:
        return LLAMA, llama(), None
    quant, how = FORMATS[request.param]
    return LLAMA, quantized(llama(), how), quant


Given = tuple[dict[str, Any], Tensors, dict[str, Any] | None]


@pytest.mark.parametrize("name", ["model-AWQ", "llama-70b-gptq-int4", "x", "a b (copy)", "fp8.safetensors.d"])
def test_the_name_of_the_folder_says_nothing(tmp_path: Path, checkpoint: Given, name: str) -> None:
    first, second = (write(tmp_path / where, *checkpoint) for where in ("plain", name))
    for tp in ("2", "3", "8"):
        assert stripped(validate(first, "--tp", tp)) == stripped(validate(second, "--tp", tp))


def test_the_order_of_keys_says_nothing(tmp_path: Path, checkpoint: Given) -> None:
    config, tensors, quant = checkpoint
    shuffled = list(config.items())
    random.Random(7).shuffle(shuffled)
    backwards = dict(reversed(list(quant.items()))) if quant else None
    names = dict(sorted(tensors.items(), reverse=True))
    first = write(tmp_path / "first", config, tensors, quant)
    second = write(tmp_path / "second", dict(shuffled), names, backwards)
    for tp in ("1", "3", "8"):
        assert stripped(validate(first, "--tp", tp)) == stripped(validate(second, "--tp", tp))


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "notes.txt", ".gitattributes", "plot.png", "runs/log.jsonl"])
def test_a_stray_file_says_nothing(tmp_path: Path, checkpoint: Given, name: str) -> None:
    first = validate(write(tmp_path / "m", *checkpoint), "--tp", "2")
    (tmp_path / "m" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "m" / name).write_text("hello\n")
    assert validate(tmp_path / "m", "--tp", "2") == first


@pytest.mark.slow
def test_twice_the_layers_start_alike() -> None:
    """Every row of vLLM's own, with its config deepened; configs that list something for each layer aside."""
    seen: dict[str, bool] = {}
    changed = []
    for row in own_rows():
        config = json.loads((folder(row) / "config.json").read_text())
        if row["pp"] != 1 or not isinstance(config.get("num_hidden_layers"), int) or per_layer(config):
            continue
        key = f"{row['config']} tp {row['tp']} ep {row['ep']} at {row['capability']}"
        if key in seen:
            continue
        seen[key] = starts(row, config)
        if starts(row, {**config, "num_hidden_layers": 2 * config["num_hidden_layers"]}) is not seen[key]:
            changed.append(key)
    assert changed == []
    assert len(set(seen.values())) == 2 and len(seen) > 400


def per_layer(config: dict[str, Any]) -> bool:
    return any(isinstance(value, list) and len(value) == config["num_hidden_layers"] for value in config.values())


def starts(row: Row, config: dict[str, Any]) -> bool:
    major, minor = capability(row)
    mesh = Mesh(row["tp"], row["pp"], row["ep"])
    return verdict(config, {}, mesh=mesh, capability=f"{major}.{minor}").starts is True


# One size off its divisor at tp 4: the config, what is changed, and the one rule that then speaks. Everything else
# divides: 8 heads and 4 KV heads of 64, widths and vocabulary with room to spare.
EVEN: dict[str, Any] = {
    **LLAMA,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
}
EVEN_MOE: dict[str, Any] = {
    **QWEN3_MOE,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 512,
}


@pytest.mark.parametrize(
    ("config", "quant", "change", "tp", "codes"),
    [
        (EVEN, None, {"num_attention_heads": 9}, 4, {"TP001"}),
        (EVEN, None, {"num_key_value_heads": 6, "num_attention_heads": 12}, 4, {"TP002"}),
        (EVEN, None, {"intermediate_size": 1026}, 4, {"TP003", "TP004"}),
        ({**EVEN, "vocab_size": 576}, None, {"vocab_size": 512}, 3, {"TP005"}),
        (EVEN_MOE, None, {"moe_intermediate_size": 514}, 4, {"TP006"}),
        (EVEN, W4A16, {"intermediate_size": 1024 + 64}, 4, {"TP021"}),
        (EVEN, AWQ, {"intermediate_size": 1024 + 64}, 4, {"TP021"}),
        ({**EVEN, "head_dim": 128}, FP8_BLOCK, {"intermediate_size": 1024 + 64}, 4, {"TP023"}),
        (EVEN_MOE, GPTQ, {"moe_intermediate_size": 512 + 64}, 4, {"TP025"}),
    ],
    ids=lambda value: value.get("quant_method") if isinstance(value, dict) and "quant_method" in value else None,
)
def test_one_size_off_its_divisor_is_one_rule(
    config: dict[str, Any], quant: dict[str, Any] | None, change: dict[str, Any], tp: int, codes: set[str]
) -> None:
    if tp == 3:
        config = {**config, "num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 768}
        config = {**config, "intermediate_size": 1536}
    whole = {**config, "quantization_config": quant} if quant else config
    good = verdict(whole, {}, mesh=Mesh(tp))
    assert good.starts is True and [f for f in good.findings if f.severity != "info"] == []
    bad = verdict({**whole, **change}, {}, mesh=Mesh(tp))
    assert bad.starts is False
    assert {finding.code for finding in bad.findings if finding.severity == "error"} == codes


@pytest.mark.parametrize("tp", [1, 2, 3, 4, 8])
def test_a_text_config_means_what_the_same_fields_mean_outside(tmp_path: Path, tp: int) -> None:
    """A composite around a decoder of 6 heads and 2 KV heads: the same sizes start, for the same reasons."""
    text = {**LLAMA, "hidden_size": 384, "num_attention_heads": 6, "model_type": "mistral"}
    outer = {**text, "architectures": ["MistralForCausalLM"]}
    nested = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 192,
            "intermediate_size": 384,
            "num_attention_heads": 24,
            "head_dim": 8,
            "num_hidden_layers": 1,
            "image_size": 28,
            "patch_size": 14,
        },
    }
    flat = validate(write(tmp_path / "flat", outer), "--tp", str(tp))
    inner = validate(write(tmp_path / "nested", nested), "--tp", str(tp))
    assert flat["starts"] is inner["starts"]
    assert {finding["message"] for finding in flat["findings"] if finding["severity"] == "error"} <= {
        finding["message"] for finding in inner["findings"]
    }
