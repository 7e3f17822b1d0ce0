"""vLLM's `sharded_state`: each rank's own parameters under vLLM's names, fused, padded and cut as vLLM holds them.

`--load-format sharded_state` copies every tensor into the model's `state_dict` before the layers process their
weights (vllm/model_executor/model_loader/sharded_state_loader.py `load_weights`, base_loader.py `load_model`), and
wants every key of it, once for parameters that are one (the smaller name). So what belongs into the files is the
state as the layers create it, buffers of the attention layers included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from struct import pack

from mlload.checkpoint.finding import MlloadError
from mlload.plan.cutting import allocated_length
from mlload.plan.params import ParamSpec
from mlload.plan.plan import Plan
from mlload.plan.segments import Segment
from mlload.quant.spec import Scheme
from mlload.writer.holdings import Holdings
from mlload.writer.layout import FORMAT, Layout, OutputFile, OutputTensor, Take, output_file
from mlload.writer.rank_tensors import fitted
from mlload.writer.sharded_quantized import fused_along, placeholders
from mlload.writer.sizes import dealt

# Kinds of modules whose parameters are plain: `weight` and `bias`, filled part by part.
PLAIN = {
    "QKVParallelLinear", "MergedColumnParallelLinear", "ColumnParallelLinear", "RowParallelLinear", "ReplicatedLinear",
    "VocabParallelEmbedding", "ParallelLMHead", "Embedding", "RMSNorm", "GemmaRMSNorm", "LayerNorm", "GateLinear",
}  # fmt: skip
EXPERTS = "RoutedExperts"
# The first parameter of a linear, whatever it is quantized with.
FIRST = ("weight", "qweight")
# Scalars that every attention layer registers as buffers, all 1 (vllm/model_executor/layers/attention/attention.py
# `set_default_quant_scales`).
SCALES = ("_k_scale", "_prob_scale", "_q_scale", "_v_scale")
ONE = pack("<f", 1.0)
# Model types whose keys and shapes were compared with the state of the engine's own class (tools/vllm_state.py); its
# loaders take their weights as they are, part by part.
COMPARED = frozenset(
    {
        "cohere", "gemma", "gemma2", "gemma3_text", "glm4", "granite", "llama", "mistral", "mixtral", "olmo", "olmo2",
        "olmoe", "opt", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2",
    }
)  # fmt: skip
# In the metadata of every file, which vLLM's loader does not look at: the values are the checkpoint's own, fused. Its
# saver writes the same names with values that a kernel repacked, and no metadata.
LAYOUT, LAYOUT_VERSION = "mlload.layout", "vllm 1"
# Classes that use the embedding itself as their head, and have no `lm_head` (vllm/model_executor/models/gemma2.py).
HEADLESS = {"gemma2"}


def refuse_quantized(plan: Plan, why: str | None) -> None:
    """Raises MlloadError with the reason for a quantized model that cannot be written."""
    quant = plan.model.quant
    if quant is not None and why is not None and (plan.view.sees_quantization or quant.schemes):
        raise MlloadError(
            f"{plan.model.checkpoint.label} is quantized ({quant.method}): {why}",
            hint="--layout mlload keeps the format on disk and cuts it per rank",
            exit_code=1,
        )


def sharded_state_layout(plan: Plan, holdings: Holdings, limit: int) -> Layout:
    """All ranks of a plan, in parts of at most `limit` bytes."""
    refuse_unknown(plan)
    files: list[OutputFile] = []
    for rank in plan.mesh.ranks:
        if plan.mesh.pp > 1:
            stem = f"model-pp-{plan.mesh.pp_rank(rank)}-tp-{plan.mesh.tp_rank(rank)}"
        else:
            stem = f"model-rank-{rank}"
        for part, tensors in enumerate(dealt(vllm_tensors(plan, rank, holdings), limit, lambda name: name)):
            metadata = {**FORMAT, LAYOUT: LAYOUT_VERSION}
            files.append(output_file(f"{stem}-part-{part}.safetensors", tensors, metadata))
    return Layout(tuple(files))


def refuse_unknown(plan: Plan) -> None:
    """Raises MlloadError for classes whose state has more than its checkpoint, by names that are not known here."""
    label = plan.model.checkpoint.label
    if plan.profile.engine != "vllm":
        raise MlloadError(f"sharded_state is vLLM's; --engine {plan.profile.engine} does not read it")
    kinds = {
        param.spec.kind
        for param in plan.view.params
        if param.spec.engine and not param.spec.draft and (param.stored or param.spec.engine_only)
    }
    strange = sorted(kinds - PLAIN - {EXPERTS})
    if plan.view.mla or strange or any(param.spec.engine_only for param in plan.view.params):
        what = "latent attention" if plan.view.mla else ", ".join(strange) or "parameters that no checkpoint holds"
        raise MlloadError(
            f"{label}: vLLM's class has parameters and buffers beyond its checkpoint ({what}), whose names mlload "
            "does not know, and sharded_state wants every one",
            hint="--layout mlload cuts any model",
            exit_code=1,
        )
    if any(param.spec.mesh == "tower" for param in plan.view.params):
        raise MlloadError(
            f"{label} has a vision or audio tower, whose state mlload does not write for sharded_state",
            hint="--layout mlload cuts any model",
            exit_code=1,
        )
    kind = plan.model.config.text_type
    if kind not in COMPARED:
        raise MlloadError(
            f"{label}: the names of vLLM's parameters for the model type {kind!r} were not compared with vLLM itself, "
            "and its loader wants every one",
            hint="--layout mlload cuts any model",
            exit_code=1,
        )


def vllm_tensors(plan: Plan, rank: int, holdings: Holdings) -> Iterator[OutputTensor]:
    """The entries of one worker's `state_dict`, subtensors left out as vLLM leaves them out."""
    specs: dict[str, ParamSpec] = {}
    quantized: dict[str, tuple[Scheme, str]] = {}
    for param in plan.view.params:
        if param.spec.engine and not param.spec.draft:
            for path in param.modules():
                for stored in param.stored:
                    specs[path + stored.suffix] = param.spec
                    if param.scheme is not None:
                        quantized[path + stored.suffix] = param.scheme, stored.suffix
    groups: dict[str, list[Segment]] = {}
    for segment in plan.segments(rank):
        if segment.engine and segment.tensor in holdings.tensors:
            _, suffix = quantized.get(segment.tensor, (None, ""))
            name = segment.engine + suffix if suffix else _parameter(segment, specs[segment.tensor])
            groups.setdefault(name, []).append(segment)
    padded = _padded_rows(plan)
    tied = _tied(plan)
    for name, members in groups.items():
        spec = specs[members[0].tensor]
        if spec.kind == EXPERTS:
            yield _experts(name, members, specs, holdings)
            continue
        scheme, _ = quantized.get(members[0].tensor, (None, ""))
        tensor = _fused(name, members, holdings, 0 if suffix_of(name) == "bias" else fused_along(scheme))
        rows = padded.get(members[0].engine)
        if rows is not None:
            tensor = replace(tensor, shape=(rows, *tensor.shape[1:]))
        module, _, suffix = name.rpartition(".")
        if module in tied and _is_last(plan, rank):
            tensor = replace(tensor, name=min(name, f"{tied[module]}.{suffix}"))
        yield tensor
        if spec.kind == "QKVParallelLinear" and suffix in FIRST:
            attention = module.rpartition(".")[0] + ".attn."
            for scale in SCALES:
                yield OutputTensor(attention + scale, "F32", (), (), ONE)
            yield from placeholders(plan, attention)


def _parameter(segment: Segment, spec: ParamSpec) -> str:
    """vLLM's name of the parameter that a segment is (a part of)."""
    suffix = "bias" if segment.kind == "bias" else "weight"
    if spec.kind == EXPERTS:
        return f"{segment.engine}.{'w2' if spec.style == 'row' else 'w13'}_{suffix}"
    return f"{segment.engine}.{suffix}"


def suffix_of(name: str) -> str:
    return name.rpartition(".")[2]


def _fused(name: str, members: list[Segment], holdings: Holdings, dim: int = 0) -> OutputTensor:
    """Parts one after another along a dim, each as its rank holds it. A part that is one number becomes an entry."""
    takes: list[Take] = []
    base = 0
    done: str | None = None
    length = 0
    for segment in members:
        if segment.tensor != done:
            base, done = base + length, segment.tensor
            length = segment.shape[dim] if segment.shape else 1
        box, to = fitted(segment, holdings)
        to = to or ((0, 1),)
        moved = (to[dim][0] + base, to[dim][1] + base)
        takes.append(Take(segment.tensor, box, (*to[:dim], moved, *to[dim + 1 :])))
    shape = members[0].shape or (1,)
    sides = (*shape[:dim], base + length, *shape[dim + 1 :])
    return OutputTensor(name, holdings[members[0].tensor].dtype, sides, tuple(takes))


def _experts(name: str, members: list[Segment], specs: Mapping[str, ParamSpec], holdings: Holdings) -> OutputTensor:
    """Experts stored one by one, stacked: w13 [E, 2I, H] holds gate above up, w2 [E, H, I]."""
    first = members[0]
    if "E" in specs[first.tensor].axes:
        raise MlloadError(
            f"{first.tensor}: experts that are stored stacked are not written for sharded_state",
            hint="--layout mlload cuts any model",
            exit_code=1,
        )
    experts: dict[int, list[Segment]] = {}
    for segment in members:
        number = int(segment.tensor.partition(".experts.")[2].split(".")[0])
        experts.setdefault(number, []).append(segment)
    takes: list[Take] = []
    rows = 0
    for slot, expert in enumerate(sorted(experts)):
        rows = 0
        # "gate" before "up", whatever the order on disk.
        for segment in sorted(experts[expert], key=lambda segment: specs[segment.tensor].parts[0].role):
            box, to = fitted(segment, holdings)
            takes.append(Take(segment.tensor, box, ((slot, slot + 1), (rows + to[0][0], rows + to[0][1]), *to[1:])))
            rows += segment.shape[0]
    shape = (len(experts), rows, *first.shape[1:])
    return OutputTensor(name, holdings[first.tensor].dtype, shape, tuple(takes))


def _padded_rows(plan: Plan) -> dict[str, int]:
    """Engine path of every table that is cut by vocabulary -> rows that vLLM allocates on a rank."""
    return {
        param.spec.engine: allocated_length(param.spec, plan.mesh.tp, plan.view.padding)
        for param in plan.view.params
        if param.spec.style == "vocab" and param.spec.engine
    }


def _tied(plan: Plan) -> dict[str, str]:
    """Engine path of a table -> that of the head that is the same parameter."""
    if plan.model.config.text_type in HEADLESS:
        return {}
    engines = {param.spec.module: param.spec.engine for param in plan.view.params}
    return {
        engines[param.spec.alias_of]: param.spec.engine
        for param in plan.view.params
        if param.alias and param.spec.alias_of in engines and param.spec.engine
    }


def tied_names(plan: Plan, name: str) -> tuple[str, ...]:
    """Both names of a parameter that is table and head, () for any other."""
    module, _, suffix = name.rpartition(".")
    for table, head in _tied(plan).items():
        if module in (table, head) and plan.mesh.pp == 1:
            return f"{table}.{suffix}", f"{head}.{suffix}"
    return ()


def _is_last(plan: Plan, rank: int) -> bool:
    return plan.mesh.pp_rank(rank) == plan.mesh.pp - 1
