"""Tables guessed from tensors: the same models as their own tables describe, under a type that nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.architectures import find
from mlload.plan.architectures.inferred import infer, numbered
from mlload.plan.architectures.roles import guess
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.params import ParamSpec
from mlload.plan.plan import make_plan

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}


def checkpoint(tensors: dict[str, tuple[str, tuple[int, ...]]], config: dict[str, Any]) -> Checkpoint:
    refs = {name: TensorRef(name, dtype, shape, 0, 0, 0) for name, (dtype, shape) in tensors.items()}
    return Checkpoint(
        label="here",
        source=None,  # type: ignore[arg-type]  # inference reads headers only
        format="safetensors",
        tensors=refs,
        stray={},
        config=config,
        json_files={},
        metadata={},
        index=None,
        files=(),
        fingerprint="",
        problems=(),
    )


def saved(model_type: str, **fields: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What a model of a known type has on disk."""
    view = ConfigView({**SIZES, "model_type": model_type, **fields})
    table = find(view)
    assert table is not None
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for spec in table.params(view):
        if spec.alias_of or spec.engine_only or spec.optional:
            continue
        for module in spec.modules():
            found[spec.tensor(module)] = ("BF16", spec.shape)
            if spec.bias:
                found[spec.tensor(module, spec.bias)] = ("BF16", spec.bias_shape)
    return found


def inferred(tensors: dict[str, tuple[str, tuple[int, ...]]], **config: Any) -> dict[str, ParamSpec]:
    raw = {**SIZES, "model_type": "something_new", **config}
    architecture = infer(checkpoint(tensors, raw), ConfigView(raw))
    assert architecture.inferred
    return {spec.module: spec for spec in architecture.params(ConfigView(raw))}


LIKE_LLAMA = [
    "llama",
    "qwen2",
    "qwen3",
    "gemma2",
    "starcoder2",
    "phi3",
    "glm4",
    "olmo2",
    "qwen3_moe",
    "olmoe",
    "mixtral",
]
OTHERS = ["gpt_neox", "opt", "bloom", "internlm2", "gptj"]


@pytest.mark.parametrize("model_type", LIKE_LLAMA + OTHERS)
def test_names_and_shapes_are_all_accounted_for(model_type: str) -> None:
    tensors = saved(model_type)
    found: dict[str, tuple[int, ...]] = {}
    for spec in inferred(tensors).values():
        for module in spec.modules():
            found[spec.tensor(module)] = spec.shape
            if spec.bias:
                found[spec.tensor(module, spec.bias)] = spec.bias_shape
    assert found == {name: shape for name, (_, shape) in tensors.items()}


@pytest.mark.parametrize("model_type", LIKE_LLAMA + OTHERS)
def test_cuts_are_those_of_the_types_own_table(model_type: str) -> None:
    view = ConfigView({**SIZES, "model_type": model_type})
    table = find(view)
    assert table is not None
    guessed = inferred(saved(model_type))
    for spec in table.params(view):
        if spec.alias_of or spec.engine_only or spec.optional or spec.module == "lm_head.bias":
            continue
        assert guessed[spec.module].style == spec.style, spec.module
        if spec.groups == 1:
            assert [tuple(part) for part in guessed[spec.module].parts] == [tuple(part) for part in spec.parts]


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "mixtral"])
def test_the_engines_view_is_that_of_the_types_own_table(model_type: str) -> None:
    view = ConfigView({**SIZES, "model_type": model_type})
    table = find(view)
    assert table is not None
    guessed = inferred(saved(model_type))
    for spec in table.params(view):
        if spec.optional:
            continue
        assert guessed[spec.module].kind == spec.kind, spec.module
        assert guessed[spec.module].component == spec.component, spec.module


STACKED: dict[str, tuple[str, tuple[int, ...]]] = {
    "model.layers.0.mlp.experts.gate_up_proj": ("BF16", (4, 64, 64)),
    "model.layers.0.mlp.experts.down_proj": ("BF16", (4, 64, 32)),
}


def test_stacked_experts_are_one_module_of_the_engine() -> None:
    found = inferred({**saved("llama"), **STACKED}, num_hidden_layers=3)
    assert {found[name.replace(".0.", ".{layer}.")].engine for name in STACKED} == {"model.layers.{layer}.mlp.experts"}


@pytest.mark.parametrize("lost", STACKED)
@pytest.mark.parametrize("quant", [None, "mxfp4", "fp8", "awq:g32", "nvfp4"])
def test_experts_of_which_half_is_lost_are_planned(lost: str, quant: str | None) -> None:
    tensors = {name: tensor for name, tensor in {**saved("llama"), **STACKED}.items() if name != lost}
    of = read_model(checkpoint(tensors, {**SIZES, "model_type": "something_new"}), assume_quant=quant)
    (rank,) = make_plan(of, profiles.load("vllm", "0.33"), Mesh()).ranks()
    assert rank.weight_bytes > 0


def test_layers_beyond_the_models_own_are_drafts() -> None:
    tensors = saved("llama", num_hidden_layers=4)
    found = inferred(tensors, num_hidden_layers=3)
    drafts = [spec for spec in infer_all(tensors, 3) if spec.draft]
    assert {tuple(spec.layers or ()) for spec in drafts} == {(3,)}
    assert len(drafts) == 9  # two norms, q, k, v, o, gate, up and down
    assert "model.norm" in found


def infer_all(tensors: dict[str, tuple[str, tuple[int, ...]]], layers: int) -> list[ParamSpec]:
    raw = {**SIZES, "model_type": "something_new", "num_hidden_layers": layers}
    return list(infer(checkpoint(tensors, raw), ConfigView(raw)).params(ConfigView(raw)))


def test_layers_of_another_shape_are_a_family_of_their_own() -> None:
    tensors = saved("llama")
    tensors["model.layers.1.mlp.down_proj.weight"] = ("BF16", (64, 48))
    families = [spec for spec in infer_all(tensors, 3) if spec.module.endswith("down_proj")]
    assert sorted((tuple(spec.layers or ()), spec.shape) for spec in families) == [((0, 2), (64, 96)), ((1,), (64, 48))]


Q = "model.layers.0.self_attn.q_proj"  # [128, 64]


@pytest.mark.parametrize(
    ("parts", "quantization"),
    [
        # AWQ: qweight [K, N / 8], scales [K / G, N].
        ({"qweight": ("I32", (64, 16)), "qzeros": ("I32", (2, 16)), "scales": ("F16", (2, 128))}, {"bits": 4}),
        # GPTQ: qweight [K x bits / 32, N].
        ({"qweight": ("I32", (8, 128)), "g_idx": ("I32", (64,)), "scales": ("F16", (2, 128))}, {"bits": 4}),
        ({"qweight": ("I32", (16, 128)), "g_idx": ("I32", (64,)), "scales": ("F16", (2, 128))}, {"bits": 8}),
        # compressed-tensors: weight_packed [N, K x bits / 32].
        (
            {"weight_packed": ("I32", (128, 8)), "weight_scale": ("BF16", (128, 2)), "weight_shape": ("I64", (2,))},
            {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
        ),
        # NVFP4, in compressed-tensors' names and in ModelOpt's: two values a byte.
        ({"weight_packed": ("U8", (128, 32)), "weight_scale": ("F8_E4M3", (128, 4))}, {}),
        ({"weight": ("U8", (128, 32)), "weight_scale": ("F8_E4M3", (128, 4)), "weight_scale_2": ("F32", ())}, {}),
        # fp8 and int8 keep their shape.
        ({"weight": ("F8_E4M3", (128, 64)), "weight_scale_inv": ("F32", (1, 1))}, {}),
        ({"weight": ("I8", (128, 64)), "weight_scale": ("F32", (128, 1))}, {"bits": 8}),
    ],
)
def test_the_plain_shape_is_found_behind_a_quantized_one(
    parts: dict[str, tuple[str, tuple[int, ...]]], quantization: dict[str, Any]
) -> None:
    tensors = {f"{Q}.{suffix}": value for suffix, value in parts.items()}
    found = inferred(tensors, quantization_config=quantization)
    assert list(found) == ["model.layers.{layer}.self_attn.q_proj"]
    spec = found["model.layers.{layer}.self_attn.q_proj"]
    assert (spec.shape, spec.axes, spec.style) == ((128, 64), ("N", "K"), "column")


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("model.layers.3.mlp.experts.7.w1", ("model.layers.{layer}.mlp.experts.{expert}.w1", 3, 7)),
        ("visual.blocks.3.mlp.0", ("visual.blocks.{layer}.mlp.0", 3, None)),
        ("model.norm", ("model.norm", None, None)),
        ("h.99999999999999999999.w", ("h.99999999999999999999.w", None, None)),
        ("h.٣.w", ("h.٣.w", None, None)),
        ("", ("", None, None)),
    ],
)
def test_numbers_in_names(module: str, expected: tuple[str, int | None, int | None]) -> None:
    assert numbered(module) == expected


@pytest.mark.parametrize(
    ("module", "job", "component"),
    [
        ("h.{layer}.attn.c_proj", "out", "attention"),
        ("h.{layer}.mlp.c_proj", "down", "mlp"),
        ("layers.{layer}.attention.wo", "out", "attention"),
        ("layers.{layer}.feed_forward.w2", "down", "mlp"),
        ("model.layers.{layer}.mlp.shared_expert.up_proj", "up", "shared_expert"),
        ("model.layers.{layer}.mlp.gate", "router", "router"),
        ("model.visual.blocks.{layer}.attn.proj", "out", "vision"),
        ("audio_tower.layers.{layer}.fc1", "up", "audio"),
        ("blk.{layer}.attn_output", "out", "attention"),
        ("blk.{layer}.ffn_down", "down", "mlp"),
        ("blk.{layer}.ffn_gate_exps", "gate", "experts"),
        ("blk.{layer}.ffn_up_shexp", "up", "shared_expert"),
        ("model.layers.{layer}.strange", "", "other"),
    ],
)
def test_names_say_what_modules_are(module: str, job: str, component: str) -> None:
    assert guess(module)[:2] == (job, component)


def test_towers_stay_whole() -> None:
    found = inferred({"visual.blocks.0.attn.q_proj.weight": ("BF16", (64, 64))})
    spec = found["visual.blocks.{layer}.attn.q_proj"]
    assert (spec.style, spec.mesh, spec.stage) == ("replicated", "tower", "first")


def test_a_table_without_a_head_is_on_both_ends() -> None:
    found = inferred({"model.embed_tokens.weight": ("BF16", (128, 64))})
    assert found["model.embed_tokens"].stage == "ends"


def test_odd_tensors_do_no_harm() -> None:
    odd: dict[str, tuple[str, tuple[int, ...]]] = {
        "": ("BF16", ()),
        "weight": ("BF16", (3,)),
        ".": ("BF16", (2, 2)),
        "a.b.c.5.6.7.weight": ("BF16", (1, 2, 3, 4, 5)),
        "x.qweight": ("I32", (7,)),
        "x.weight_packed": ("I32", ()),
        "k_scale": ("F32", ()),
        "layers.0.k_proj.k_scale": ("F32", (1,)),
        "layers.0.experts.0.gate_up_proj": ("BF16", (4, 8, 6)),
        "m.q_proj.weight": ("BF16", (0, 0)),
        "m.qkv.weight": ("BF16", (3, 0)),
    }
    raw: dict[str, Any] = {"model_type": 7, "num_attention_heads": "x"}
    architecture = infer(checkpoint(odd, raw), ConfigView(raw))
    for spec in architecture.params(ConfigView(raw)):
        list(spec.modules())
    assert architecture.attention(ConfigView(raw)) == ()
