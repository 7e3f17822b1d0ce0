"""Compares what `mlload shard --layout vllm` writes with the state that a real vLLM's classes have.

    python -m tools.vllm_state       needs `python -m tools.vllm_cpu`

For each tiny model below: a checkpoint is written, cut for tp 1, and its names and shapes are compared with the
`state_dict` of vLLM's own class, without the tensors that its sharded_state loader leaves out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from mlload.cli.app import main as mlload
from tests.plan.tiny_models import LLAMA
from tests.writer.build import read_safetensors, write_checkpoint, write_quantized
from tools import vllm_cpu

BASE: dict[str, Any] = {
    **LLAMA, "hidden_size": 128, "head_dim": 32, "num_attention_heads": 4, "intermediate_size": 256,
    "num_hidden_layers": 2, "vocab_size": 128, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
    "hidden_act": "silu", "rope_theta": 10000.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GEMMA = {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32}


def made(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {**BASE, "model_type": kind, "architectures": [name], **more}


# Mixtures first: vLLM makes its expert group with the first model.
MODELS = [
    made("mixtral", "MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    made("olmoe", "OlmoeForCausalLM", num_experts=4, num_experts_per_tok=2),
    made("llama", "LlamaForCausalLM"),
    made("llama", "LlamaForCausalLM", tie_word_embeddings=True),
    made("mistral", "MistralForCausalLM"),
    made("qwen2", "Qwen2ForCausalLM"),
    made("qwen3", "Qwen3ForCausalLM"),
    made("phi3", "Phi3ForCausalLM"),
    made("gemma", "GemmaForCausalLM", **GEMMA),
    made("gemma2", "Gemma2ForCausalLM", **GEMMA),
    made("gemma3_text", "Gemma3ForCausalLM", sliding_window=64, **GEMMA),
    made("smollm3", "SmolLM3ForCausalLM", no_rope_layers=[1, 0]),
    made("seed_oss", "SeedOssForCausalLM"),
    made("glm4", "Glm4ForCausalLM", partial_rotary_factor=0.5),
    made("olmo", "OlmoForCausalLM"),
    made("olmo2", "Olmo2ForCausalLM"),
    made("granite", "GraniteForCausalLM"),
    made("cohere", "CohereForCausalLM", tie_word_embeddings=True, layer_norm_eps=1e-5),
    made("stablelm", "StableLmForCausalLM", layer_norm_eps=1e-5, partial_rotary_factor=0.25),
    made("starcoder2", "Starcoder2ForCausalLM", norm_epsilon=1e-5, use_bias=True),
    made("opt", "OPTForCausalLM", ffn_dim=256, word_embed_proj_dim=128, do_layer_norm_before=True),
]

# Quantized ones, by the name that tests/writer/build.py has for them; heads of 128, so that every block fits.
QUANTIZED = ("awq", "w8a8", "fp8")
WIDE = made(
    "llama", "LlamaForCausalLM", hidden_size=1024, intermediate_size=2048, num_hidden_layers=1, num_attention_heads=8,
    num_key_value_heads=2, head_dim=128, vocab_size=320,
)  # fmt: skip

STATE = """
import json, os, sys
os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_LOGGING_LEVEL="ERROR")
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype
for number, folder in enumerate(sys.argv[1:]):
    settings = dict(skip_tokenizer_init=True, enforce_eager=True, max_model_len=64)
    config = EngineArgs(model=folder, **settings).create_engine_config()
    with set_current_vllm_config(config):
        if not number:
            init_distributed_environment(1, 0, "tcp://127.0.0.1:29577", 0, "gloo")
            ensure_model_parallel_initialized(1, 1)
        with set_default_torch_dtype(config.model_config.dtype):
            model = initialize_model(vllm_config=config)
    state = ShardedStateLoader._filter_subtensors(model.state_dict())
    print("STATE", json.dumps({key: list(tensor.shape) for key, tensor in state.items()}), flush=True)
"""


def main() -> int:
    if not vllm_cpu.ready():
        raise SystemExit("no vLLM here: python -m tools.vllm_cpu makes it")
    with tempfile.TemporaryDirectory() as scratch:
        folders = [write_checkpoint(Path(scratch) / str(n), config, files=1) for n, config in enumerate(MODELS)]
        folders += [write_quantized(Path(scratch) / name, name, WIDE) for name in QUANTIZED]
        names = [*(config["model_type"] for config in MODELS), *QUANTIZED]
        script = Path(scratch) / "state.py"
        script.write_text(STATE)
        told = subprocess.run([vllm_cpu.python(), script, *folders], stdout=subprocess.PIPE, text=True, check=True)
        states = [json.loads(line[6:]) for line in told.stdout.splitlines() if line.startswith("STATE ")]
        wrong = 0
        for name, folder, state in zip(names, folders, states, strict=True):
            out = folder.with_name(folder.name + "-vllm")
            with redirect_stdout(StringIO()):
                refused = mlload(["shard", str(folder), "-o", str(out), "--layout", "vllm"])
            if refused:
                wrong += 1
                continue
            held = read_safetensors(out / "model-rank-0-part-0.safetensors")
            ours = {key: list(shape) for key, (_, shape, _) in held.items()}
            odd = sorted(key for key in ours.keys() | state.keys() if ours.get(key) != state.get(key))
            print(name, "equal" if not odd else f"differs: {odd[:5]}", file=sys.stderr)
            wrong += bool(odd)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
