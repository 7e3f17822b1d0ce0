"""Texts of the plan's rules: `mlload rules CODE` and docs/rules.md show them."""

from __future__ import annotations

# Code -> (title, explanation).
CODES: dict[str, tuple[str, str]] = {
    "TN001": (
        "missing tensors",
        "The architecture expects tensors that the files do not hold. vLLM compares what it loaded with what the model "
        "has only for unquantized models, and leaves out every linear, table and expert even there: a missing norm "
        "stops the start, a missing linear is served with whatever was in memory.",
    ),
    "TN002": (
        "tensors nobody asks for",
        "The files hold tensors under names that the model class does not know. vLLM stops at the first of them. Some "
        "are left out by every class (biases of layers that have none, rotary tables), and some composite classes drop "
        "the parts of other modalities: those are a remark and a warning.",
    ),
    "TN003": (
        "another shape than the config says",
        "A tensor's shape in the files is not what config.json leads to. The files are the truth: either the config "
        "was edited or belongs to another model. Along the axis that ranks divide, vLLM takes the part that the config "
        "asks for, so channels beyond it are lost without a word; all other differences stop the start. To reach a "
        "tensor-parallel size, pad with zeros before quantizing instead of cutting channels off.",
    ),
    "TN004": (
        "whole layers are missing",
        "None of the tensors of some layers are in the files: a shard was not downloaded, or layers were cut and the "
        "config still counts them. Unquantized, vLLM misses their norms and stops; quantized, it does not check.",
    ),
    "TN005": (
        "a block under another prefix",
        "All tensors of a block are in the files, under another prefix than the model class asks for. It happens when "
        "the language model of a composite class is saved by itself. None of the weights is found: older engines "
        "skipped them with a warning each and served random weights, newer ones stop at the first.",
    ),
    "TN006": (
        "renamed tensor",
        "A tensor of a linear is missing, and another of the same shape is there under a name that the format does not "
        "have. An exporter renamed it; an engine finds no place for it. Renaming it back is enough.",
    ),
    "TN007": (
        "more layers than the config counts",
        "The files hold layers with numbers beyond num_hidden_layers. vLLM has no module for them and stops. Draft "
        "layers that the config declares (num_nextn_predict_layers and its like) are no such layers.",
    ),
    "TP001": (
        "attention heads",
        "Tensor parallelism gives every rank a whole number of attention heads, so their count must be a multiple of "
        "the tensor-parallel size. Engines check this first, for every model.",
    ),
    "TP002": (
        "KV heads",
        "With at least as many KV heads as ranks, their count must be a multiple of the tensor-parallel size. With "
        "fewer, the size must be a multiple of their count: then each KV head is held by several ranks. vLLM stops "
        "with a bare assertion that says neither number.",
    ),
    "TP003": (
        "outputs of a column-parallel layer",
        "A column-parallel layer divides its outputs among the ranks, each fused part by itself: the width of every "
        "part must be a multiple of the tensor-parallel size.",
    ),
    "TP004": (
        "inputs of a row-parallel layer",
        "A row-parallel layer divides its inputs among the ranks: their number must be a multiple of the "
        "tensor-parallel size.",
    ),
    "TP005": (
        "vocabulary",
        "Embedding tables and heads are padded up to a multiple that the engine fixes (64 rows in vLLM) and then "
        "divided among the ranks. The padded number must be a multiple of the tensor-parallel size, which sizes with a "
        "factor of 3, 5 or 7 often miss. Position tables that use the same class count too.",
    ),
    "TP006": (
        "width of an expert",
        "Without expert parallelism every rank holds a slice of every expert, so the intermediate size of one expert "
        "must be a multiple of the number of ranks that share it. With expert parallelism experts stay whole.",
    ),
    "TP007": (
        "width of the shared expert",
        "Shared experts are ordinary layers: they are divided by the tensor-parallel size, with expert parallelism "
        "too.",
    ),
    "TP008": (
        "heads of a tower",
        "Vision and audio towers are divided like the text model unless the engine is told otherwise, so their own "
        "attention heads must be a multiple of the tensor-parallel size too. With --mm-encoder-tp-mode data every rank "
        "holds the whole tower, where the class supports it.",
    ),
    "TP009": (
        "widths of a tower",
        "The MLP and the projector of a vision or audio tower are divided like the text model: their widths must be "
        "multiples of the tensor-parallel size.",
    ),
    "TP010": (
        "heads and groups of a recurrent mixer",
        "Mamba and linear-attention layers divide their heads among the ranks, and their groups too: both counts must "
        "be multiples of the tensor-parallel size. A single group is held by every rank.",
    ),
    "TP011": (
        "pipeline partition",
        "The numbers of layers per stage must be as many as there are stages and add up to the model's layers.",
    ),
    "TP012": (
        "pipeline parallelism of the model class",
        "The engine's class for this architecture does not support pipeline parallelism.",
    ),
    "TP013": (
        "stages without experts",
        "The engine's class for this architecture looks for a layer with experts on its stage and stops where there is "
        "none. With many stages, some hold no layer at all, or dense ones only.",
    ),
    "TP014": (
        "more ranks than experts",
        "The engine's class for this architecture refuses a tensor-parallel size above its number of experts.",
    ),
    "TP015": (
        "expert parallelism without experts",
        "Expert parallelism was asked for, and the config has no experts.",
    ),
    "TP016": (
        "KV heads are not shared",
        "The engine's class for this architecture does not give one KV head to several ranks: with more ranks than KV "
        "heads a rank would have none, and construction fails with a division by zero.",
    ),
    "TP017": (
        "expert width against all ranks",
        "The engine's class for this architecture asserts that the width of an expert is a multiple of the whole "
        "distributed world (tp x pp x dp), even where expert parallelism keeps experts whole. Whether that world is "
        "there when the class is built depends on how the engine is launched, so this is a warning.",
    ),
    "TP018": (
        "idle pipeline stages",
        "There are more pipeline stages than layers, so that some stages hold no layer. The engine starts; the GPUs of "
        "those stages do nothing.",
    ),
    "TP021": (
        "quantization groups straddle ranks",
        "A row-parallel layer divides its input channels among the ranks, and a quantized one shares one scale among a "
        "group of them. Where a rank's channels are no whole number of groups, a group would belong to two ranks. AWQ "
        "and compressed-tensors layers are refused. GPTQ layers are accepted by vLLM, which then cuts the scales at "
        "the wrong places: the model starts and its answers are wrong.",
    ),
    "TP022": (
        "packed words straddle ranks",
        "Several quantized values share one stored word. A rank's part of every fused layer must be a whole number of "
        "words; otherwise the values behind it are read shifted.",
    ),
    "TP023": (
        "scale blocks straddle ranks",
        "With block scales one scale stands for a square of the weight. The channels that a rank holds of every fused "
        "part must be whole blocks, along the outputs of column-parallel and the inputs of row-parallel layers.",
    ),
    "TP024": (
        "small scale blocks straddle ranks",
        "NVFP4 shares a scale among 16 input channels, MXFP4 and MXFP8 among 32. A rank's input channels must be a "
        "whole number of such runs.",
    ),
    "TP025": (
        "quantized experts cannot be cut",
        "The slice of an expert that a rank would hold is no whole number of quantization groups or blocks, and the "
        "engine has no finer grid for it. Expert parallelism keeps experts whole and avoids the cut.",
    ),
    "TP026": (
        "groups of experts are refined",
        "The slice of an expert that a rank holds is no whole number of groups. vLLM uses a finer group and repeats "
        "the scales, so the numbers stay right, with more bytes for scales and fewer kernels to choose from.",
    ),
}
