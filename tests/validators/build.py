"""Small checkpoints as headers alone, and the verdict on them.

Shapes follow the formats' own definitions: N = out_features, K = in_features, G = 128.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mlload import profiles
from mlload.checkpoint.finding import Finding
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import make_plan
from mlload.validators.context import Request
from mlload.validators.verdict import Verdict, judge
from tests.quant.checkpoints import checkpoint

Tensors = dict[str, tuple[str, tuple[int, ...]]]

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3_MOE: dict[str, Any] = {
    **LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
FP8_STATIC = {"quant_method": "fp8", "activation_scheme": "static"}
NVFP4: dict[str, Any] = {
    "quant_method": "modelopt_fp4",
    "quant_algo": "NVFP4",
    "group_size": 16,
    "ignore": ["lm_head", "*mlp.gate"],
}
W4A16: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128},
        }
    },
    "ignore": ["lm_head"],
}


def awq(n: int, k: int) -> Tensors:
    return {
        "qweight": ("I32", (k, n // 8)),
        "qzeros": ("I32", (k // 128, n // 8)),
        "scales": ("F16", (k // 128, n)),
    }


def gptq(n: int, k: int, bits: int = 4) -> Tensors:
    return {
        "qweight": ("I32", (k * bits // 32, n)),
        "qzeros": ("I32", (k // 128, n * bits // 32)),
        "scales": ("F16", (k // 128, n)),
        "g_idx": ("I32", (k,)),
    }


def w4a16(n: int, k: int, bits: int = 4) -> Tensors:
    return {
        "weight_packed": ("I32", (n, k * bits // 32)),
        "weight_scale": ("BF16", (n, k // 128)),
        "weight_shape": ("I64", (2,)),
    }


def fp8_block(n: int, k: int) -> Tensors:
    return {"weight": ("F8_E4M3", (n, k)), "weight_scale_inv": ("F32", (-(-n // 128), -(-k // 128)))}


def fp8_static(n: int, k: int) -> Tensors:
    return {"weight": ("F8_E4M3", (n, k)), "weight_scale": ("F32", ()), "input_scale": ("F32", ())}


def nvfp4(n: int, k: int) -> Tensors:
    return {
        "weight": ("U8", (n, k // 2)),
        "weight_scale": ("F8_E4M3", (n, k // 16)),
        "weight_scale_2": ("F32", ()),
        "input_scale": ("F32", ()),
    }


def llama(config: Mapping[str, Any] = LLAMA, *, head: bool = True) -> Tensors:
    """The tensors of a plain decoder; with `num_experts` in the config, of one with experts, each stored apart."""
    hidden, width, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (config["vocab_size"], hidden),
        "model.norm": (hidden,),
    }
    if head:
        shapes["lm_head"] = (config["vocab_size"], hidden)
    mlp = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm": (hidden,),
            f"{at}.post_attention_layernorm": (hidden,),
            f"{at}.self_attn.q_proj": (heads * d, hidden),
            f"{at}.self_attn.k_proj": (kv * d, hidden),
            f"{at}.self_attn.v_proj": (kv * d, hidden),
            f"{at}.self_attn.o_proj": (hidden, heads * d),
        }
        if "num_experts" in config:
            inner = config["moe_intermediate_size"]
            shapes |= {
                f"{at}.self_attn.q_norm": (d,),
                f"{at}.self_attn.k_norm": (d,),
                f"{at}.mlp.gate": (config["num_experts"], hidden),
            }
            for expert in range(config["num_experts"]):
                own = f"{at}.mlp.experts.{expert}"
                shapes |= {
                    f"{own}.gate_proj": (inner, hidden),
                    f"{own}.up_proj": (inner, hidden),
                    f"{own}.down_proj": (hidden, inner),
                }
        else:
            shapes |= {f"{at}.mlp.{name}": shape for name, shape in mlp.items()}
    return {f"{name}.weight": ("BF16", shape) for name, shape in shapes.items()}


def quantized(
    tensors: Tensors, how: Callable[[int, int], Tensors], *, keep: Callable[[str], bool] = lambda module: False
) -> Tensors:
    """The same with every linear of the layers stored as `how` says, but for those that `keep` names and routers."""
    found: Tensors = {}
    for name, (dtype, shape) in tensors.items():
        module = name.removesuffix(".weight")
        linear = len(shape) == 2 and ".layers." in name and name.endswith(".weight") and dtype == "BF16"
        linear = linear and not name.endswith(".mlp.gate.weight")
        if not linear or keep(module):
            found[name] = (dtype, shape)
            continue
        found |= {f"{module}.{suffix}": entry for suffix, entry in how(*shape).items()}
    return found


def verdict(
    config: Mapping[str, Any],
    tensors: Tensors,
    quantization: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh | None = None,
    engine: str = "vllm",
    version: str = "0.33",
    **asked: Any,
) -> Verdict:
    """What all rules say about a checkpoint of these headers."""
    whole = {**config, "quantization_config": quantization} if quantization is not None else config
    model = read_model(checkpoint(whole, tensors))
    return judge(make_plan(model, profiles.load(engine, version), mesh or Mesh()), Request(**asked))


def of(found: Verdict, code: str) -> list[Finding]:
    return [finding for finding in found.findings if finding.code == code]


def without(tensors: Tensors, *endings: str) -> Tensors:
    """The tensors whose names end in none of these."""
    return {name: entry for name, entry in tensors.items() if not name.endswith(endings)}


def problems(found: Verdict) -> list[str]:
    """Codes of errors and warnings."""
    return [finding.code for finding in found.findings if finding.severity != "info"]


def modules(layers: Iterable[int], *names: str) -> list[str]:
    return [f"model.layers.{layer}.{name}" for layer in layers for name in names]
