"""Dense decoders."""

from __future__ import annotations

from tests.plan.architecture_cases.case import Case, bare, small

CASES: dict[str, tuple[Case, ...]] = {
    "llama": (
        small(architectures=["LlamaForCausalLM"]),
        small(architectures=["LlamaModel"], class_name="LlamaModel"),
        small(head_dim=20, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    ),
    "mistral": (small(), small(head_dim=20, sliding_window=8, tie_word_embeddings=True)),
    "ministral": (small(head_dim=12), small(head_dim=20, tie_word_embeddings=True)),
    "ministral3": (small(), small(head_dim=20, tie_word_embeddings=True)),
    "qwen2": (small(), small(tie_word_embeddings=True, use_sliding_window=True, max_window_layers=1)),
    "qwen3": (
        small(),
        small(head_dim=20, attention_bias=True, tie_word_embeddings=True),
        small(architectures=["Qwen3Model"], class_name="Qwen3Model"),
    ),
    "gemma": (small(), small(head_dim=20, attention_bias=True, tie_word_embeddings=False)),
    "gemma2": (small(), small(head_dim=20, attention_bias=True, tie_word_embeddings=False)),
    "gemma3_text": (small(), small(head_dim=20, attention_bias=True, tie_word_embeddings=False)),
    "granite": (small(), small(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "smollm3": (small(), small(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)),
    "internlm3": (
        small(),
        small(head_dim=20, qkv_bias=True, bias=True, tie_word_embeddings=True),
        small(head_dim=None, num_key_value_heads=None),
    ),
    "seed_oss": (
        small(),
        small(head_dim=20, attention_bias=False, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True),
    ),
    "arcee": (small(), small(head_dim=20, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "ernie4_5": (small(), small(head_dim=20, use_bias=True, tie_word_embeddings=False)),
    "exaone4": (small(), small(tie_word_embeddings=True, sliding_window=4, sliding_window_pattern=4)),
    "stablelm": (small(), small(use_qkv_bias=True, tie_word_embeddings=True)),
    "nemotron": (small(), small(head_dim=20, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "starcoder2": (small(), small(use_bias=False, tie_word_embeddings=False, sliding_window=8)),
    "olmo": (small(), small(attention_bias=True, tie_word_embeddings=True)),
    "olmo2": (small(), small(attention_bias=True, tie_word_embeddings=True, num_key_value_heads=4)),
    "olmo3": (small(), small(attention_bias=True, tie_word_embeddings=True)),
    "phi": (small(), small(qk_layernorm=True, tie_word_embeddings=True)),
    "phi3": (small(), small(tie_word_embeddings=True, sliding_window=8, num_key_value_heads=None)),
    "cohere": (small(), small(use_qk_norm=True, attention_bias=True, tie_word_embeddings=False)),
    "cohere2": (small(), small(attention_bias=True, tie_word_embeddings=False, head_dim=20)),
    "glm": (small(), small(head_dim=20, attention_bias=False, tie_word_embeddings=True)),
    "glm4": (small(), small(head_dim=20, attention_bias=False, tie_word_embeddings=True)),
    "apertus": (small(), small(attention_bias=True, tie_word_embeddings=True, hidden_act="silu")),
    "minicpm3": (
        small(q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=10),
        small(q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=6, qk_rope_head_dim=4, tie_word_embeddings=False),
        small(attention_bias=True, mlp_bias=True),
    ),
    "hunyuan_v1_dense": (small(head_dim=12), small(head_dim=20, attention_bias=True, tie_word_embeddings=True)),
    "gpt2": (
        bare(n_embd=48, n_head=4, n_layer=3, n_positions=32),
        bare(n_embd=48, n_head=4, n_layer=2, n_positions=32, n_inner=40, tie_word_embeddings=False),
    ),
    "gpt_bigcode": (
        bare(n_embd=48, n_head=4, n_layer=3, n_positions=32),
        bare(n_embd=48, n_head=4, n_layer=2, n_positions=32, n_inner=40, multi_query=False, tie_word_embeddings=False),
    ),
    "gptj": (
        bare(n_embd=48, n_head=4, n_layer=3, n_positions=32, rotary_dim=8),
        bare(n_embd=48, n_head=4, n_layer=2, n_positions=32, rotary_dim=8, n_inner=40, tie_word_embeddings=True),
    ),
    "gpt_neox": (small(), small(attention_bias=False, tie_word_embeddings=True)),
    "bloom": (
        bare(hidden_size=48, n_head=4, n_layer=3),
        bare(n_embed=48, n_head=4, n_layer=2, tie_word_embeddings=False),
    ),
    "falcon": (
        bare(hidden_size=48, num_attention_heads=4, num_hidden_layers=3),
        bare(hidden_size=48, num_attention_heads=4, num_hidden_layers=2, new_decoder_architecture=True, num_kv_heads=2),
        bare(
            hidden_size=48,
            num_attention_heads=4,
            num_hidden_layers=2,
            multi_query=False,
            parallel_attn=False,
            bias=True,
        ),
        bare(
            hidden_size=48,
            num_attention_heads=4,
            num_hidden_layers=2,
            new_decoder_architecture=True,
            num_kv_heads=2,
            num_ln_in_parallel_attn=1,
            ffn_hidden_size=40,
            tie_word_embeddings=False,
        ),
    ),
    "opt": (
        bare(hidden_size=48, num_attention_heads=4, num_hidden_layers=3, ffn_dim=40, word_embed_proj_dim=48),
        bare(
            hidden_size=48,
            num_attention_heads=4,
            num_hidden_layers=2,
            ffn_dim=40,
            word_embed_proj_dim=24,
            do_layer_norm_before=False,
            enable_bias=False,
            tie_word_embeddings=False,
        ),
        bare(
            hidden_size=48,
            num_attention_heads=4,
            num_hidden_layers=2,
            ffn_dim=40,
            word_embed_proj_dim=48,
            layer_norm_elementwise_affine=False,
        ),
    ),
}
