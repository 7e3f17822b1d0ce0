"""Texts of the engine's refusals: `mlload rules CODE` and docs/rules.md show them."""

from __future__ import annotations

# Code -> (title, explanation).
CODES: dict[str, tuple[str, str]] = {
    "EN001": (
        "remote code needed",
        "config.json names a Python class of the repository (`auto_map`) for a model type that neither Transformers "
        "nor the engine knows. The engine refuses to run that code unless it is told to trust it.",
    ),
    "EN002": (
        "unknown model type",
        "Neither Transformers nor the engine's own registry of configs knows this model type, and the repository "
        "brings no code for it.",
    ),
    "EN003": (
        "architecture removed",
        "The engine supported this architecture until an older version and has dropped it since.",
    ),
    "EN004": (
        "architecture lives in a plugin",
        "The engine leaves this architecture to a plugin that has to be installed beside it.",
    ),
    "EN005": (
        "architecture not registered",
        "The engine has no class of this name. It may still run through its Transformers backend, which is slower "
        "and has rules of its own.",
    ),
    "EN006": (
        "unknown architecture",
        "Neither the engine nor Transformers has a class of this name, and the repository brings no code for it.",
    ),
    "EN010": (
        "unknown quantization method",
        "The quantization method of the checkpoint is not among those that the engine knows.",
    ),
    "EN011": (
        "deprecated quantization method",
        "The engine is about to drop this quantization method and refuses it unless --allow-deprecated-quantization "
        "is given.",
    ),
    "EN012": (
        "--quantization contradicts the checkpoint",
        "The method that was asked for is not the one that the checkpoint resolves to. Leave the flag out.",
    ),
    "EN013": (
        "unknown ModelOpt algorithm",
        "The quant_algo of a ModelOpt checkpoint is not among those that the engine knows.",
    ),
    "EN014": (
        "float16 refused",
        "This model type is numerically unstable in float16, and the engine refuses the dtype for it.",
    ),
    "EN015": (
        "bfloat16 needs a newer GPU",
        "GPUs below compute capability 8.0 have no bfloat16; asked for by name it is refused. With dtype auto the "
        "engine falls back to float16 by itself.",
    ),
    "EN016": (
        "unknown dtype",
        "The engine knows auto, half, float16, bfloat16, float and float32.",
    ),
    "EN020": (
        "quantization method needs a newer GPU",
        "The quantization method has a least compute capability. Where a single scheme of it asks for more, that is "
        "KN003.",
    ),
    "EN021": (
        "dtype not supported by the quantization method",
        "A quantization method runs in some dtypes only. A dtype that the GPU or the model type forced can be the "
        "cause: float16 models that may not use float16 run in float32 on GPUs without bfloat16.",
    ),
    "EN022": (
        "GPTQ act-order",
        "Groups whose rows were reordered by activation (desc_act with a group size) are no longer supported. With "
        "one group a column (group_size -1) the order does not matter, and the checkpoint is accepted.",
    ),
    "EN023": (
        "GPTQ bits",
        "GPTQ weights must be symmetric with 4 or 8 bits.",
    ),
    "EN024": (
        "AWQ bits",
        "AWQ weights must have 4 bits.",
    ),
    "EN025": (
        "compressed-tensors activation order",
        "Groups ordered by activation at load time (actorder group or dynamic) are no longer supported; weight and "
        "static order are.",
    ),
    "EN026": (
        "fp8 config",
        "The fp8 method takes serialized float8 weights with a static or dynamic activation scheme; block scales are "
        "two-dimensional and go with dynamic activations only.",
    ),
    "EN027": (
        "Quark config",
        "A Quark checkpoint's config needs its sections (export with kv_cache_group, exclude, layer_type_quant_config, "
        "and a global or layer entry; empty ones will do where nothing is to be said), and for a quantized KV cache a "
        "matching entry in layer_quant_config that has output_tensors. int8 weights are symmetric there, and their "
        "inputs int8 too.",
    ),
    "EN028": (
        "ModelOpt config",
        "A ModelOpt checkpoint's config needs a quant_algo, an integer group_size and lists where lists belong; "
        "NVFP4 in the nested form also names group_size, kv_cache_quant_algo and exclude_modules.",
    ),
    "EN029": (
        "AutoRound config",
        "Bits, data type, packing format and backend of an AutoRound (INC) checkpoint must be among those that the "
        "engine supports, and fit together.",
    ),
    "EN030": (
        "quantization config lacks a field",
        "The quantization method needs this field, and the config does not have it.",
    ),
    "EN031": (
        "sparsity no longer supported",
        "compressed-tensors checkpoints with a sparsity config are refused.",
    ),
    "EN032": (
        "KV cache scheme",
        "A compressed-tensors KV cache scheme must be symmetric float8 with one scale a tensor or an attention head.",
    ),
    "EN033": (
        "no config for the method that was asked for",
        "With --quantization and no quantization_config in config.json, the method reads a side file of its own; "
        "there must be exactly one.",
    ),
    "EN050": (
        "unknown flag",
        "The engine's server has no such flag at this version, and ends at once when it is given one. Flags come and "
        "go with versions: --engine vllm@VERSION asks about another one. A plugin of the engine may add flags, which "
        "cannot be known here.",
    ),
    "EN051": (
        "flag cannot take this value",
        "The engine's server reads the flag as a number, as JSON or as one of a few words, and refuses anything else.",
    ),
}
