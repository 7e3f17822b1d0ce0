"""A LoRA adapter against its base. The base: hidden 256, 4 heads and 2 KV heads of 64, 4 layers, 512 tokens.

Right shapes come from the definition: A [r, K], B [N, r].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.validators.verdict import Verdict
from tests.checkpoint.build import write_safetensors
from tests.validators.build import LLAMA, QWEN3_MOE, llama, of
from tests.validators.build import verdict as verdict_of

BASE = llama()
N_K = {"q_proj": (256, 256), "k_proj": (128, 256), "v_proj": (128, 256), "o_proj": (256, 256)}
CONFIG = {
    "peft_type": "LORA",
    "r": 8,
    "lora_alpha": 16,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
    "base_model_name_or_path": "org/base",
}


def pairs(rank: int = 8, layers: int = 4, names: tuple[str, ...] = ("q_proj", "v_proj")) -> dict[str, list[int]]:
    shapes = {}
    for layer in range(layers):
        for name in names:
            n, k = N_K[name]
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            shapes |= {f"{at}.lora_A.weight": [rank, k], f"{at}.lora_B.weight": [n, rank]}
    return shapes


def adapter(folder: Path, shapes: Mapping[str, list[int]] | None = None, **config: Any) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    fields = {key: value for key, value in {**CONFIG, **config}.items() if value is not ...}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    tensors = pairs() if shapes is None else shapes
    write_safetensors(folder / "adapter_model.safetensors", {name: ("BF16", dims) for name, dims in tensors.items()})
    return Checkpoint.open(str(folder))


def served(checkpoint: Checkpoint, config: Mapping[str, Any] = LLAMA, **asked: Any) -> Verdict:
    return verdict_of(config, llama(config), lora=(checkpoint,), **asked)


def codes(verdict: Verdict) -> list[tuple[str, str, str]]:
    return [(f.code, f.severity, f.question) for f in verdict.findings if f.code.startswith("LO")]


def test_a_fitting_adapter_is_clean(tmp_path: Path) -> None:
    verdict = served(adapter(tmp_path))
    assert (codes(verdict), verdict.starts) == ([], True)


@pytest.mark.parametrize("extra", [{"use_rslora": True}, {"init_lora_weights": "gaussian"}, {"rank_pattern": {}}])
def test_what_is_only_another_factor_or_start_is_fine(tmp_path: Path, extra: dict[str, Any]) -> None:
    assert codes(served(adapter(tmp_path, **extra))) == []


# r, what --max-lora-rank is, whether it starts, what the hint says
@pytest.mark.parametrize(
    ("rank", "allowed", "starts", "hint"),
    [
        (16, None, True, None),
        (17, None, False, "--max-lora-rank 32"),
        (64, "32", False, "--max-lora-rank 64"),
        (64, "64", True, None),
        (300, None, False, "--max-lora-rank 320"),
        (512, "512", True, None),
        (513, "512", False, None),
    ],
)
def test_ranks(tmp_path: Path, rank: int, allowed: str | None, starts: bool, hint: str | None) -> None:
    options = {} if allowed is None else {"max-lora-rank": allowed}
    verdict = served(adapter(tmp_path, pairs(rank), r=rank), options=options)
    assert (verdict.starts, [f.code for f in of(verdict, "LO002")]) == (starts, [] if starts else ["LO002"])
    if not starts:
        (finding,) = of(verdict, "LO002")
        assert [h.command for h in finding.hints] == ([hint] if hint else [])
        assert finding.numbers["rank"] == rank


def test_the_largest_rank_of_a_pattern_counts(tmp_path: Path) -> None:
    shapes = pairs() | pairs(rank=32, names=("k_proj",))
    verdict = served(adapter(tmp_path, shapes, rank_pattern={"k_proj": 32}))
    assert [(f.code, f.numbers.get("rank")) for f in verdict.findings if f.code.startswith("LO")] == [("LO002", 32)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_dora", True),
        ("lora_bias", True),
        ("bias", "all"),
        ("modules_to_save", ["lm_head", "embed_tokens"]),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "loftq"),
        ("alora_invocation_tokens", [1, 2]),
        ("layer_replication", [[0, 4], [2, 4]]),
        ("use_qalora", True),
        ("use_bdlora", {"a": 1}),
    ],
)
def test_kinds_that_the_engine_refuses(tmp_path: Path, field: str, value: Any) -> None:
    verdict = served(adapter(tmp_path, **{field: value}))
    assert codes(verdict) == [("LO003", "error", "starts")]
    assert of(verdict, "LO003")[0].where.endswith(f"adapter_config.json: {field}")


@pytest.mark.parametrize("value", [["score"], ["classifier"], None, []])
def test_a_classifier_may_come_along(tmp_path: Path, value: Any) -> None:
    assert codes(served(adapter(tmp_path, modules_to_save=value))) == []


def test_modules_of_another_architecture(tmp_path: Path) -> None:
    shapes = {
        f"base_model.model.transformer.h.{layer}.attn.c_attn.lora_{side}.weight": dims
        for layer in range(4)
        for side, dims in (("A", [8, 256]), ("B", [768, 8]))
    }
    verdict = served(adapter(tmp_path, shapes))
    assert codes(verdict) == [("LO004", "error", "starts")]
    assert "transformer.h.0-3.attn.c_attn" in of(verdict, "LO004")[0].where


def test_layers_that_the_base_does_not_have_are_passed_over(tmp_path: Path) -> None:
    """Trained on 6 layers, served with 4: layers 4 and 5, two modules each, are lost."""
    verdict = served(adapter(tmp_path, pairs(layers=6)))
    assert codes(verdict) == [("LO004", "warning", "right")] * 2
    assert [f.numbers["modules"] for f in of(verdict, "LO004")] == [2, 2]
    assert verdict.starts is True


@pytest.mark.parametrize(
    ("change", "question", "says"),
    [
        (("q_proj.lora_A", [8, 320]), "starts", "K = 256"),
        (("q_proj.lora_A", [8, 128]), "right", "K = 256"),
        (("v_proj.lora_B", [256, 8]), "starts", "N = 128"),
        (("v_proj.lora_B", [64, 8]), "right", "N = 128"),
        (("v_proj.lora_B", [128, 4]), "starts", "different ranks: 8 and 4"),
        (("v_proj.lora_B", None), "starts", "lora_B is missing"),
    ],
)
def test_shapes(tmp_path: Path, change: tuple[str, list[int] | None], question: str, says: str) -> None:
    ending, dims = change
    shapes = {name: dims if ending in name else old for name, old in pairs().items()}
    verdict = served(adapter(tmp_path, {name: dims for name, dims in shapes.items() if dims is not None}))
    assert codes(verdict) == [("LO005", "error", question)]
    (finding,) = of(verdict, "LO005")
    assert says in finding.message and finding.numbers == {"modules": 4}
    assert verdict.starts is (question == "right") and verdict.verdict == "fail"


def test_a_rank_that_the_matrices_do_not_have(tmp_path: Path) -> None:
    verdict = served(adapter(tmp_path, pairs(rank=8), r=16))
    assert codes(verdict) == [("LO005", "error", "right")] * 2
    assert "rank 8, and adapter_config.json says 16" in of(verdict, "LO005")[0].message


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"r": ...}, "lacks r"),
        ({"lora_alpha": ..., "target_modules": ...}, "lacks lora_alpha, target_modules"),
        ({"r": 0}, "not a number above 0"),
        ({"r": "8"}, "not a number above 0"),
        ({"peft_type": "IA3"}, "IA3 adapter"),
    ],
)
def test_settings_that_are_no_adapters(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    verdict = served(adapter(tmp_path, **config))
    assert says in of(verdict, "LO001")[0].message and verdict.starts is False


def test_a_model_is_no_adapter(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a.weight": ("BF16", [4, 4])})
    assert "no adapter_config.json" in of(served(Checkpoint.open(str(tmp_path))), "LO001")[0].message


def test_a_truncated_adapter_stops_the_start(tmp_path: Path) -> None:
    adapter(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    verdict = served(Checkpoint.open(str(tmp_path)))
    assert codes(verdict) == [("LO001", "error", "starts")]


def test_adapters_of_the_experts(tmp_path: Path) -> None:
    """One pair an expert: gate [256 out, 256 in]."""
    shapes = {}
    for expert in range(8):
        at = f"base_model.model.model.layers.0.mlp.experts.{expert}.gate_proj"
        shapes |= {f"{at}.lora_A.weight": [8, 256], f"{at}.lora_B.weight": [256, 8]}
    assert codes(served(adapter(tmp_path, shapes), QWEN3_MOE)) == []
    wrong = {name: [dims[0], 300] if "experts.3.gate_proj.lora_A" in name else dims for name, dims in shapes.items()}
    verdict = served(adapter(tmp_path / "wrong", wrong), QWEN3_MOE)
    assert codes(verdict) == [("LO005", "error", "starts")]
    assert "experts.3.gate_proj" in of(verdict, "LO005")[0].message


def test_a_class_that_takes_none(tmp_path: Path) -> None:
    config = {**LLAMA, "architectures": ["FalconForCausalLM"]}
    assert ("LO006", "error", "starts") in codes(served(adapter(tmp_path), config))


@pytest.mark.parametrize(("tokens", "fine"), [(258_048, True), (258_049, False)])
def test_a_vocabulary_too_large_for_the_head(tmp_path: Path, tokens: int, fine: bool) -> None:
    verdict = served(adapter(tmp_path), {**LLAMA, "vocab_size": tokens})
    assert codes(verdict) == ([] if fine else [("LO006", "error", "starts")])


ODD: list[Any] = [None, True, -1, 1e400, "x", [], {}, [None], {"a": 1}, {"a.b": "c"}, "\x00"]


@pytest.mark.parametrize("value", ODD, ids=[repr(value)[:20] for value in ODD])
def test_odd_settings_are_findings(tmp_path: Path, value: Any) -> None:
    fields = (*CONFIG, "rank_pattern", "alpha_pattern", "modules_to_save", "init_lora_weights", "layer_replication")
    verdict = served(adapter(tmp_path, **dict.fromkeys(fields, value)))
    assert [unknown.what for unknown in verdict.unknowns] == []
