"""What layers remember, in numbers worked out by hand from published sizes."""

from __future__ import annotations

from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures import AttentionSpec, find


def memory(config: dict[str, Any]) -> tuple[AttentionSpec, ...]:
    view = ConfigView(config)
    architecture = find(view)
    assert architecture is not None
    return architecture.attention(view)


def values(spec: AttentionSpec) -> dict[str, tuple[int, str]]:
    """State -> (values per sequence in one layer, over all ranks; dtype)."""
    return {state.name: (sum(part.length for part in state.parts) * state.rest, state.dtype) for state in spec.states}


MLA = {
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_head_dim": 128,
    "index_n_heads": 64,
}


def test_latent_attention_keeps_one_vector_a_position() -> None:
    (spec,) = memory({"model_type": "deepseek_v3", "num_hidden_layers": 61, **MLA})
    assert (spec.kind, len(spec.layers), spec.latent, spec.index_dim) == ("mla", 61, 576, 0)


def test_sparse_attention_keeps_a_key_for_its_indexer_too() -> None:
    (spec,) = memory({"model_type": "deepseek_v32", "num_hidden_layers": 61, **MLA})
    assert (spec.kind, spec.latent, spec.index_dim) == ("mla", 576, 128)


def test_layers_that_reuse_an_earlier_choice_have_no_indexer() -> None:
    config = {"model_type": "glm_moe_dsa", "num_hidden_layers": 5, "index_topk_pattern": "FSSFS", **MLA}
    own, rest = memory(config)
    assert (own.layers, own.index_dim) == ((0, 3), 128)
    assert (rest.layers, rest.index_dim) == ((1, 2, 4), 0)


def test_gated_delta_net() -> None:
    text = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
    }
    full, linear = memory({"model_type": "qwen3_5", "text_config": text, "vision_config": {}})
    assert (full.kind, full.layers, full.kv_heads, full.head_dim) == ("full", tuple(range(3, 64, 4)), 4, 256)
    assert (linear.kind, len(linear.layers)) == ("linear", 48)
    # (2 x 16 x 128 + 48 x 128) channels x 3 inputs; 48 heads x 128 x 128
    assert values(linear) == {"conv": (30720, "model"), "ssm": (786432, "F32")}


NEMOTRON = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M*",
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "attention_head_dim": 128,
    "mamba_num_heads": 256,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 256,
    "conv_kernel": 4,
}


def test_mamba2() -> None:
    full, ssm, idle = memory(NEMOTRON)
    assert (full.kind, full.layers, full.kv_heads, full.head_dim) == ("full", (3,), 8, 128)
    assert (idle.kind, idle.layers) == ("none", (1,))
    # (256 x 64 + 2 x 8 x 256) channels x 3 inputs; 256 heads x 64 x 256; float32 unless the config says otherwise
    assert values(ssm) == {"conv": (61440, "model"), "ssm": (4194304, "F32")}
    assert (ssm.kind, ssm.layers) == ("ssm", (0, 2))


def test_the_only_group_of_a_mixer_is_every_ranks() -> None:
    groups = memory({**NEMOTRON, "n_groups": 1})
    conv = groups[1].states[0]
    assert [(part.role, part.length, part.cut) for part in conv.parts] == [
        ("x", 16384, "split"),
        ("B", 256, "replicate"),
        ("C", 256, "replicate"),
    ]


def test_mamba_1() -> None:
    (spec,) = memory(
        {
            "model_type": "falcon_mamba",
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "intermediate_size": 8192,
            "state_size": 16,
            "conv_kernel": 4,
        }
    )
    assert values(spec) == {"conv": (8192 * 3, "model"), "ssm": (8192 * 16, "ssm")}


def test_short_convolutions() -> None:
    config = {"model_type": "lfm2", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8}
    kinds = ["conv", "full_attention"]
    full, conv = memory({**config, "num_hidden_layers": 2, "layer_types": kinds, "conv_L_cache": 3})
    assert (full.layers, conv.layers, values(conv)) == ((1,), (0,), {"conv": (4096, "model")})


def test_gemma_4_has_two_kinds_of_keys_and_shares_them() -> None:
    text = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "sliding_window": 1024,
        "num_kv_shared_layers": 2,
    }
    near, far = memory({"model_type": "gemma4", "text_config": text})
    assert (near.kind, near.layers, near.shares, near.window) == ("sliding", (0, 1, 3, 4), (4,), 1024)
    assert (near.kv_heads, near.head_dim) == (8, 256)
    assert (far.kind, far.layers, far.shares, far.window) == ("full", (2, 5), (5,), None)
    assert (far.kv_heads, far.head_dim) == (2, 512)


def test_llama_4_looks_at_chunks_where_it_has_rotary_positions() -> None:
    text = {
        "model_type": "llama4_text",
        "num_hidden_layers": 8,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_chunk_size": 8192,
    }
    near, far = memory({"model_type": "llama4", "text_config": text})
    assert (near.kind, near.layers, near.window) == ("chunked", (0, 1, 2, 4, 5, 6), 8192)
    assert (far.kind, far.layers) == ("full", (3, 7))


def test_whisper_keeps_the_encoders_positions_beside_its_own() -> None:
    (spec,) = memory(
        {
            "model_type": "whisper",
            "d_model": 1280,
            "decoder_layers": 32,
            "decoder_attention_heads": 20,
            "max_source_positions": 1500,
        }
    )
    assert (spec.kind, len(spec.layers), spec.kv_heads, spec.head_dim) == ("full", 32, 20, 64)
    assert values(spec) == {"cross": (2 * 1280 * 1500, "model")}


def test_encoders_remember_nothing() -> None:
    (spec,) = memory({"model_type": "bert", "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768})
    assert spec.kind == "none"
