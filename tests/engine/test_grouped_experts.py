"""Experts of whole models on the grouped kernel (in Triton's interpreter) against transformers' classes in the floats
that the packed bytes stand for, and against the same layers expert by expert."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mlload.engine.native import NativeEngine
from mlload.engine.run import kernels_json
from mlload.plan.plan import Plan
from mlload.quant.layers import grouped_experts
from mlload.quant.layers.group import ALONE
from tests.engine.packing import FORMATS, Format, fp8, mxfp4
from tests.engine.ranks import on_ranks
from tests.engine.test_quantized import GPT_OSS, LLAMA
from tests.engine.tiny import config_of, planned, save

pytest.importorskip("triton")
pytestmark = [pytest.mark.slow, pytest.mark.transformers]

BLOCK = Format(
    {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    fp8("block", "weight_scale_inv", block=128),
    exact=False,
)
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2}
QWEN = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 256}
OSS = {**GPT_OSS, "hidden_size": 64, "intermediate_size": 64}
FAMILIES: dict[str, dict[str, Any]] = {"mixtral": MIXTRAL, "qwen3_moe": QWEN, "gpt_oss": OSS}
# What 16-bit values between the products may do to a sum of them, as a part of its norm: eight roundings of 2**-9.
ROUNDED = 2.0**-6


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Grouped kernels are asked for, as for an H200, and run in the interpreter, which takes one launch at a time."""
    import tests.kernels.triton.interpreter  # noqa: F401
    from mlload.kernels.triton.experts import FusedExperts

    lock, apply = threading.Lock(), FusedExperts.apply

    def alone(*arguments: Any) -> Tensor:
        with lock:
            return apply(*arguments)

    monkeypatch.setattr(FusedExperts, "apply", alone)
    monkeypatch.setattr(grouped_experts, "asks", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    yield


def folders(root: Path, config: dict[str, Any], form: Format | None) -> tuple[Path, Path]:
    """The model with its experts in a format, and in the floats that these bytes are."""
    save(root / "made", config)
    here: dict[str, Tensor] = {}
    there: dict[str, Tensor] = {}
    for key, value in load_file(root / "made" / "model.safetensors").items():
        value = value.to(torch.bfloat16).float()
        if ".experts." not in key or form is None or key.endswith("_bias"):
            here[key] = there[key] = value
        elif config["model_type"] == "gpt_oss":
            parts = [form.pack(expert.T) for expert in value]
            blocks = torch.stack([part.tensors["weight"] for part in parts])
            here[f"{key}_blocks"] = blocks.reshape(*blocks.shape[:2], -1, 16)
            here[f"{key}_scales"] = torch.stack([part.tensors["weight_scale"] for part in parts])
            there[key] = torch.stack([part.weight.T.float() for part in parts]).contiguous()
        else:
            done = form.pack(value)
            path = key.removesuffix(".weight")
            here |= {f"{path}.{suffix}": tensor.contiguous() for suffix, tensor in done.tensors.items()}
            there[key] = done.weight.float()
    written = config_of(root / "made")
    quantized = written
    if form is not None:
        left = ["lm_head", "re:.*self_attn.*", "re:.*gate$"]
        block = {**form.config, "ignore": left} if "config_groups" in form.config else form.config
        block = block if "config_groups" in block else {**block, "modules_to_not_convert": ["lm_head", "self_attn"]}
        quantized = {**written, "quantization_config": block}
    for name, state, text in (("packed", here, quantized), ("floats", there, written)):
        (root / name).mkdir()
        save_file(state, root / name / "model.safetensors", metadata={"format": "pt"})
        (root / name / "config.json").write_text(json.dumps(text))
    return root / "packed", root / "floats"


def routed(experts: int, top: int, hidden: int, tokens: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(tokens, hidden, generator=generator).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:top] for _ in range(tokens)])
    return x, ids, torch.rand(tokens, top, generator=generator)


def experts_of(plan: Plan, rank: int, group: Any, x: Tensor, ids: Tensor, shares: Tensor) -> tuple[Tensor, set[str]]:
    engine = NativeEngine(plan, rank, group).start()
    layer = engine.model.get_submodule("model.layers.1.mlp.experts")
    rows = [row for row in kernels_json(engine) if row["layer"] == "experts"]
    with torch.inference_mode():
        return layer(x, ids, shares), {str(row["kernel"]) for row in rows}


CASES = [
    ("mixtral", "ct w4a16", FORMATS["ct w4a16"]),
    ("mixtral", "awq", FORMATS["awq"]),
    ("mixtral", "fp8 block", BLOCK),
    ("mixtral", "ct fp8 channel", FORMATS["ct fp8 channel"]),
    ("mixtral", "fp8 static", FORMATS["fp8 static"]),
    ("mixtral", "ct w8a8", FORMATS["ct w8a8"]),
    ("mixtral", "gptq act-order", FORMATS["gptq act-order"]),
    ("qwen3_moe", "ct w8a16", FORMATS["ct w8a16"]),
    ("qwen3_moe", "gptq 4", FORMATS["gptq 4"]),
    ("qwen3_moe", "ct nvfp4", FORMATS["ct nvfp4"]),
    ("qwen3_moe", "ct mxfp4", FORMATS["ct mxfp4"]),
    ("qwen3_moe", "bf16", None),
    ("gpt_oss", "mxfp4", Format({"quant_method": "mxfp4"}, mxfp4("weight"))),
    ("gpt_oss", "bf16", None),
]


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize(("family", "name", "form"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_the_class_in_floats_says_the_same(family: str, name: str, form: Format | None, tmp_path: Path) -> None:
    import transformers

    config = FAMILIES[family]
    packed, floats = folders(tmp_path, config, form)
    count: int = config.get("num_local_experts") or config["num_experts"]
    x, ids, shares = routed(count, config["num_experts_per_tok"], config["hidden_size"])
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(floats, dtype=torch.float32)
    if hasattr(theirs, "set_experts_implementation"):
        theirs.set_experts_implementation("eager")
    with torch.inference_mode():
        want = theirs.model.layers[1].mlp.experts(x.float(), ids, shares)
    one, kernels = experts_of(planned(packed, dtype="bfloat16"), 0, ALONE, x, ids, shares)
    assert kernels == {"fused_moe"}
    # Activations rounded to fp8 or int8 on the way are another matter: 2**-4 and 2**-7 of each.
    room = ROUNDED if form is None or form.exact or "nvfp4" in name or "static" in name else 0.06
    assert error(one, want) < room
    for ep in (False, True):
        plan = planned(packed, 2, dtype="bfloat16", ep=ep)
        if plan.violations:
            continue
        for rank in on_ranks(2, lambda rank, group, plan=plan: experts_of(plan, rank, group, x, ids, shares)):  # type: ignore[misc]
            assert rank[1] == {"fused_moe"}
            assert error(rank[0], want) < room


def error(have: Tensor, want: Tensor) -> float:
    return float((have.float() - want).norm() / want.norm())


@pytest.mark.usefixtures("on_a_gpu")
def test_expert_by_expert_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, _ = folders(tmp_path, QWEN, FORMATS["ct w4a16"])
    x, ids, shares = routed(5, 3, 128)
    plan = planned(packed, dtype="bfloat16")
    grouped, kernels = experts_of(plan, 0, ALONE, x, ids, shares)
    monkeypatch.setattr(grouped_experts, "asks", lambda device: False)
    apart, others = experts_of(plan, 0, ALONE, x, ids, shares)
    assert kernels == {"fused_moe"} and "fused_moe" not in others
    assert error(grouped, apart.float()) < ROUNDED


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "found"])
def test_rows_out_of_order_are_multiplied_at_once(declared: bool, tmp_path: Path) -> None:
    form = FORMATS["gptq act-order"]
    config = form.config if declared else {**form.config, "desc_act": False}
    packed, floats = folders(tmp_path, MIXTRAL, form._replace(config=config))
    x, ids, shares = routed(3, 2, 128)
    found, kernels = experts_of(planned(packed, dtype="bfloat16"), 0, ALONE, x, ids, shares)
    want, _ = experts_of(planned(floats), 0, ALONE, x.float(), ids, shares)
    assert kernels == {"fused_moe"}
    assert error(found, want) < ROUNDED


@pytest.mark.usefixtures("on_a_gpu")
def test_gate_and_up_in_orders_of_their_own_run_expert_by_expert(tmp_path: Path) -> None:
    packed, _ = folders(tmp_path, MIXTRAL, FORMATS["gptq act-order"])
    file = packed / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "layers.1" in name and ".2.w3.g_idx" in name)
    tensors[name] = tensors[name].flip(0)
    save_file(tensors, file, metadata={"format": "pt"})
    engine = NativeEngine(planned(packed, dtype="bfloat16")).start()
    declined = {row.declined for row in engine.kernels()["experts"]}
    assert any("different orders" in reason for rows in declined for _, reason in rows)


@pytest.mark.usefixtures("on_a_gpu")
def test_another_activation_is_declined_and_still_runs(tmp_path: Path) -> None:
    packed, floats = folders(tmp_path, {**MIXTRAL, "hidden_act": "gelu"}, FORMATS["ct w4a16"])
    x, ids, shares = routed(3, 2, 128)
    plan = planned(packed, dtype="bfloat16")
    engine = NativeEngine(plan).start()
    (use,) = engine.kernels()["experts"]
    assert use.kernel != "fused_moe" and "neither silu" in dict(use.declined)["fused_moe"]
    have, _ = experts_of(plan, 0, ALONE, x, ids, shares)
    want, _ = experts_of(planned(floats), 0, ALONE, x.float(), ids, shares)
    assert error(have, want) < ROUNDED
    (plain,) = NativeEngine(planned(floats, dtype="bfloat16")).start().kernels()["experts"]
    assert plain.provider == "transformers" and "neither silu" in dict(plain.declined)["fused_moe"]
