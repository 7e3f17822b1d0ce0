#!/usr/bin/env python3
"""What vLLM's own allocator says of the cache of hand-made models, kept as expected values for tests.

    PYTHON-WITH-VLLM tools/vllm_cache_numbers.py > tests/data/vllm/cache_numbers.json

Runs where vLLM can be imported, a GPU is not needed: the functions that divide the cache are plain
Python. Every model is written down twice, for them and (in the same record) for whoever compares.
"""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace
from typing import Any

GIB = 2**30

# name -> classes [kind, layers, KV heads, head size (latent: its width; state: bytes a sequence), window].
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"classes": [["full", list(range(30)), 3, 64, None]]},
    "one window": {"classes": [["sliding", list(range(32)), 8, 128, 4096]]},
    "every other layer slides": {
        "classes": [["full", list(range(1, 24, 2)), 8, 64, None], ["sliding", list(range(0, 24, 2)), 8, 64, 128]]
    },
    "five of six slide, 26 layers": {
        "classes": [
            ["full", [5, 11, 17, 23], 1, 256, None],
            ["sliding", [i for i in range(26) if i % 6 != 5], 1, 256, 512],
        ]
    },
    "three of four chunked": {
        "classes": [
            ["full", list(range(3, 48, 4)), 8, 128, None],
            ["chunked", [i for i in range(48) if i % 4 != 3], 8, 128, 8192],
        ]
    },
    "sliding layers twice as wide": {
        "classes": [
            ["full", [5, 11, 17, 23, 29], 2, 512, None],
            ["sliding", [i for i in range(30) if i % 6 != 5], 8, 256, 1024],
        ]
    },
    "latent": {"classes": [["mla", list(range(61)), 1, 576, None]]},
    "recurrent layers, three of four": {
        "classes": [
            ["full", list(range(3, 32, 4)), 4, 256, None],
            ["state", [i for i in range(32) if i % 4 != 3], 1, 3200000, None],
        ],
        # The least multiple of 16 whose page, 16 x 4 x 512 x 2 bytes a step, covers the state.
        "block": 784,
    },
    "almost as many sliding": {
        "classes": [["full", list(range(13)), 8, 64, None], ["sliding", list(range(13, 25)), 8, 64, 128]]
    },
}
CASES = [(8192, 8192), (131072, 8192), (4096, 2048)]


def spec(interface: Any, torch: Any, entry: list[Any], block: int) -> Any:
    kind, _, heads, head, window = entry
    fields: dict[str, Any] = {"block_size": block, "num_kv_heads": heads, "head_size": head, "dtype": torch.bfloat16}
    if kind == "full":
        return interface.FullAttentionSpec(**fields)
    if kind == "mla":
        return interface.MLAAttentionSpec(**fields)
    if kind == "state":
        page = block * 4 * 512 * 2
        return interface.MambaSpec(
            block_size=block,
            shapes=((head // 2,),),
            dtypes=(torch.bfloat16,),
            page_size_padded=page,
            mamba_cache_mode="align",
        )
    if kind == "sliding":
        return interface.SlidingWindowSpec(sliding_window=window, **fields)
    return interface.ChunkedLocalAttentionSpec(attention_chunk_size=window, **fields)


def numbers(planning: Any, utils: Any, interface: Any, layout: Any, torch: Any) -> list[dict[str, Any]]:
    found = []
    for name, model in MODELS.items():
        for length, batched in CASES:
            cache = SimpleNamespace(
                num_gpu_blocks_override=None,
                prefix_cache_retention_interval=None,
                mamba_cache_mode="align",
                get_resolved_kv_cache_layout=lambda: layout,
            )
            config = SimpleNamespace(
                cache_config=cache,
                model_config=SimpleNamespace(max_model_len=length, original_max_model_len=length),
                parallel_config=SimpleNamespace(
                    decode_context_parallel_size=1, tensor_parallel_size=1, pipeline_parallel_size=1
                ),
                scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
                attention_config=SimpleNamespace(hisparse_config=None),
                speculative_config=None,
                max_in_flight_tokens=2 * batched,
                num_prefill_lookahead_tokens=0,
            )
            specs = {
                f"model.layers.{layer}.attn": spec(interface, torch, entry, model.get("block", 16))
                for entry in model["classes"]
                for layer in entry[1]
            }
            groups = planning.get_kv_cache_groups(config, dict(sorted(specs.items())))
            made = planning.get_kv_cache_config_from_groups(config, groups, 10 * GIB)
            share = utils.get_max_concurrency_for_kv_cache_config(config, made)
            found.append(
                {
                    "model": name,
                    "classes": model["classes"],
                    "max_model_len": length,
                    "max_num_batched_tokens": batched,
                    "memory": 10 * GIB,
                    "groups": len(groups),
                    "num_blocks": made.num_blocks,
                    "tokens": int(share * length),
                    "concurrency": share,
                }
            )
    return found


def main() -> int:
    torch, vllm = (importlib.import_module(name) for name in ("torch", "vllm"))
    interface, utils = (
        importlib.import_module(f"vllm.v1.{name}") for name in ("kv_cache_interface", "core.kv_cache_utils")
    )
    layout = importlib.import_module("vllm.v1.kv_cache_layout").KVCacheLayout.LBNHC
    try:
        planning = importlib.import_module("vllm.v1.core.kv_cache_planning")
    except ImportError:
        planning = utils  # one module until 0.32
    record: dict[str, Any] = {
        "made_by": "tools/vllm_cache_numbers.py",
        "vllm": vllm.__version__,
        "rows": numbers(planning, utils, interface, layout, torch),
    }
    rows = ",\n".join(json.dumps(row) for row in record.pop("rows"))
    print(json.dumps(record)[:-1] + ', "rows": [\n' + rows + "\n]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
