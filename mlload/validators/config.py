"""Rules about config.json: fields that are missing, contradict each other, or contradict the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlload.checkpoint.config import TEXT_KEYS
from mlload.checkpoint.finding import Finding, Hint
from mlload.validators.context import Context
from mlload.validators.rules import rule
from mlload.validators.tables import head_and_embedding

# Rope types that vLLM builds (model_executor/layers/rotary_embedding/__init__.py), with the keys each of them reads
# without a default.
ROPE_TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "linear": ("factor",),
    "ntk": ("factor",),
    "dynamic": (),  # "alpha" or "factor"
    "yarn": ("factor", "original_max_position_embeddings"),
    "deepseek_yarn": ("factor", "original_max_position_embeddings"),
    "deepseek_llama_scaling": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor"),
    "mllama4": (),
    "proportional": (),
    "openpangu": ("mrope_section",),
    "bailing_mrope": ("mrope_section",),
    "telechat3-yarn": (),
    "mrope": ("mrope_section",),
    "su": ("short_factor", "long_factor"),
}

# Model types whose config transformers 5.24 checks (models/*/configuration_*.py, `validate_architecture`).
VALIDATED = frozenset(
    {
        "arcee",
        "cwm",
        "deepseek_v2",
        "eurobert",
        "exaone",
        "gemma2",
        "gemma3_text",
        "gemma3n_text",
        "gpt_neox",
        "internlm3",
        "jais2",
        "llama",
        "minicpm3",
        "t5gemma",
        "vaultgemma",
    }
)


@rule("CF001", "a field holds what cannot be meant")
def impossible_field(context: Context) -> Iterator[Finding]:
    """A size or a switch in config.json holds a value that no model class can use: a string where a number belongs,
    a negative or absurd number, a number where true or false belongs. mlload counts the field as absent and goes on
    with the model class's default; an engine fails with a type error, or builds the wrong shapes."""
    for name, value in context.config.problems.items():
        shown = repr(value)
        yield Finding(
            "CF001",
            "error",
            "starts",
            f"config.json: {name}",
            f"{name} is {shown if len(shown) <= 60 else shown[:57] + '...'}, which is no usable value",
            {"value": value if isinstance(value, (int, float, str, bool)) else shown[:200]},
            (Hint(f"write the value that the original model's config.json has for {name}"),),
        )


@rule("CF002", "no model_type")
def no_model_type(context: Context) -> Iterator[Finding]:
    """config.json names no model_type, so neither transformers nor an engine knows which class to build. Checkpoints
    saved by training code of one's own often lack it."""
    if context.checkpoint.config and not context.config.model_type:
        yield Finding(
            "CF002",
            "error",
            "starts",
            "config.json",
            "config.json has no model_type: an engine cannot tell which model class to build",
            hints=(Hint('add "model_type" and "architectures" as in the original model\'s config.json'),),
        )


@rule("CF003", "head_dim left out, and the default is not what the tensors show")
def head_dim_missing(context: Context) -> Iterator[Finding]:
    """Without head_dim a model class takes hidden_size / num_attention_heads. Where the attention heads are wider or
    narrower than that, an exporter that drops the field makes a checkpoint that cannot be loaded again: the rows of
    q_proj and k_proj say one head size, the config's default another. The tensors are right."""
    config = context.config
    if config.given("head_dim") is not None or not config.heads or not config.kv_heads:
        return
    default = config.hidden // config.heads
    tensors = context.checkpoint.tensors
    for param in context.model.params:
        if not param.spec.module.endswith("self_attn.q_proj"):
            continue
        q_name = f"{next(iter(param.modules()), '')}.weight"
        ref, k_ref = tensors.get(q_name), tensors.get(q_name.replace("q_proj", "k_proj"))
        if ref is None or k_ref is None or len(ref.shape) != 2 or len(k_ref.shape) != 2:
            return
        if ref.dtype not in ("BF16", "F16", "F32"):
            return
        rows, k_rows = ref.shape[0], k_ref.shape[0]
        actual = k_rows // config.kv_heads
        if k_rows % config.kv_heads or actual == default or rows != actual * config.heads:
            return
        yield Finding(
            "CF003",
            "error",
            # A rank's part of a tensor that is too small cannot be taken; of a larger one it is taken in silence.
            "starts" if actual < default else "right",
            "config.json: head_dim",
            f"head_dim is not given, so {config.hidden} // {config.heads} = {default} is taken, but q_proj has "
            f"{rows} rows and k_proj {k_rows}: {k_rows} / {config.kv_heads} = {actual} per head",
            {"default": default, "actual": actual, "q_rows": rows, "k_rows": k_rows},
            (Hint(f'add "head_dim": {actual} to config.json'),),
        )
        return


@rule("CF004", "hidden_size is no multiple of the heads")
def hidden_not_multiple(context: Context) -> Iterator[Finding]:
    """For some model types, versions of transformers refuse a config whose hidden_size does not divide by
    num_attention_heads although head_dim is given and the shapes are sound (`validate_architecture`). vLLM reads the
    config through transformers, so the start depends on the version that is installed beside it."""
    config = context.config
    if config.text_type not in VALIDATED or not config.heads or config.given("head_dim") is None:
        return
    if config.hidden % config.heads:
        yield Finding(
            "CF004",
            "warning",
            "starts",
            "config.json: hidden_size",
            f"{config.hidden} % {config.heads} = {config.hidden % config.heads}: transformers versions whose "
            "validate_architecture asks for a multiple refuse this config, although head_dim is given",
            {"hidden_size": config.hidden, "num_attention_heads": config.heads},
            (Hint("use a transformers version that accepts head_dim on its own"),),
        )


@rule("CF005", "the head is neither stored nor tied")
def head_missing(context: Context) -> Iterator[Finding]:
    """The config says that the output head is a weight of its own (tie_word_embeddings false), but no file holds one.
    vLLM does not check the tables: it starts, and generates with whatever was in the head's memory. An embedding
    model has no use for the head, so there it is only a remark."""
    tables = head_and_embedding(context.model)
    if tables.head_spec is None or tables.head_spec.alias_of is not None or tables.head is not None:
        return
    if tables.embedding is None:
        return
    shape = list(tables.embedding.shape)
    names = context.config.architectures
    generates = any(name.endswith(("ForCausalLM", "ForConditionalGeneration")) for name in names)
    nested = context.config.text is not context.config.raw and context.config.text.get("tie_word_embeddings") is True
    why = "tie_word_embeddings is true only inside the nested config" if nested else "tie_word_embeddings is false"
    yield Finding(
        "CF005",
        "error" if generates else "info",
        "right",
        tables.head_spec.module,
        f"{why}, but no file has {tables.head_spec.module}.weight (the embedding is {shape})",
        {"embedding": shape},
        (
            Hint(
                'if the model ties its head, set "tie_word_embeddings": true in config.json (outside the nested config)'
            ),
            Hint("if it does not, download the file that holds the head again", needs="original weights"),
        ),
    )


@rule("CF006", "the tied head is stored as well")
def head_redundant(context: Context) -> Iterator[Finding]:
    """The config ties the output head to the embedding, and the files hold a head too. Quantizers often save both. If
    the two are equal the copy only costs disk; vLLM loads it, compares, and ties again when they match. If they
    differ, the stored head is the right one and the config is wrong: `--deep` compares them."""
    tables = head_and_embedding(context.model)
    if tables.head_spec is None or tables.head_spec.alias_of is None or tables.head is None:
        return
    yield Finding(
        "CF006",
        "info",
        "right",
        tables.head.name,
        f"tie_word_embeddings is true and the files hold the head as well ({tables.head.nbytes:,} bytes): safe to drop "
        "if it equals the embedding",
        {"bytes": tables.head.nbytes},
        (Hint("compare the two", "mlload validate --deep"),),
    )


@rule("CF007", "the nested and the outer config disagree about tying")
def tie_disagreement(context: Context) -> Iterator[Finding]:
    """A composite config says tie_word_embeddings in two places with different values. Versions of transformers
    differ in which of them they follow: with the wrong one the head is left random and the model talks nonsense, with
    no error."""
    raw, text = context.config.raw, context.config.text
    if text is raw:
        return
    outer, inner = raw.get("tie_word_embeddings"), text.get("tie_word_embeddings")
    tables = head_and_embedding(context.model)
    if isinstance(inner, bool) and isinstance(outer, bool) and inner != outer and context.checkpoint.tensors:
        truth = tables.head is None
        yield Finding(
            "CF007",
            "warning",
            "right",
            "config.json: tie_word_embeddings",
            f"the outer config says {_json(outer)}, the nested one {_json(inner)}, and the files hold "
            f"{'no head of its own' if truth else 'a head'}: library versions differ in which they follow",
            {"outer": outer, "nested": inner},
            (Hint(f"set both to {_json(truth)}"),),
        )


@rule("CF008", "two nested language models")
def two_text_configs(context: Context) -> Iterator[Finding]:
    """A composite config nests more than one language model's fields under different names, so that tools take
    different ones. mlload takes the first of text_config, llm_config, language_config."""
    found = [key for key in TEXT_KEYS if isinstance(context.config.raw.get(key), dict)]
    if len(found) > 1:
        yield Finding(
            "CF008",
            "warning",
            "right",
            "config.json",
            f"{len(found)} nested language configs ({', '.join(found)}); {found[0]} is used here",
            {"found": found},
        )


@rule("CF009", "rope settings that no engine builds")
def rope(context: Context) -> Iterator[Finding]:
    """The rotary-position settings name a type that vLLM does not know, lack a key that the type needs, or name two
    different types under the old key (type) and the new one (rope_type). All three stop the start. A type of
    "default" means unscaled and needs nothing."""
    for place, settings in _rope_settings(context.config.text):
        new, old = settings.get("rope_type"), settings.get("type")
        if isinstance(new, str) and isinstance(old, str) and new != old:
            if (old, new) not in (("su", "longrope"), ("mrope", "default")):
                yield Finding(
                    "CF009",
                    "error",
                    "starts",
                    place,
                    f"rope_type is {new!r} and type is {old!r}: only one of them may be given",
                    {"rope_type": new, "type": old},
                    (Hint("remove the key that is wrong"),),
                )
            continue
        kind = new if isinstance(new, str) else old
        if kind is None and settings.get("factor") is not None:
            kind = "default"
        if not isinstance(kind, str):
            continue
        if kind not in ROPE_TYPES:
            yield Finding(
                "CF009",
                "error",
                "starts",
                place,
                f"rope type {kind!r} is unknown to {context.plan.profile.label}",
                {"rope_type": kind},
                (Hint("use a type that the engine builds: " + ", ".join(t for t in ROPE_TYPES if t != "default")),),
            )
            continue
        outer = context.config.text
        missing = [key for key in ROPE_TYPES[kind] if settings.get(key) is None and outer.get(key) is None]
        if missing and not (kind == "llama3" and settings.get("mrope_section")):
            yield Finding(
                "CF009",
                "error",
                "starts",
                place,
                f"rope type {kind!r} needs {' and '.join(missing)}, and the config does not give "
                f"{'it' if len(missing) == 1 else 'them'}",
                {"rope_type": kind, "missing": missing},
                (Hint(f"copy {', '.join(missing)} from the original model's config.json"),),
            )


@rule("CF010", "max_model_len above what the config allows")
def max_model_len(context: Context) -> Iterator[Finding]:
    """The context length asked for is longer than the positions that the model was built for. vLLM refuses it unless
    VLLM_ALLOW_LONG_MAX_MODEL_LEN=1, because positions beyond the table read outside it or give NaN."""
    from mlload.validators.lengths import derived_max_model_len

    asked = context.request.max_model_len
    derived = derived_max_model_len(context.checkpoint, context.config)
    if asked is None or asked <= 0 or derived is None or asked <= derived.length:
        return
    own = context.config.raw.get("model_max_length")
    if isinstance(own, int) and asked <= own:
        return
    allowed = context.request.long_allowed
    message = f"{asked} is longer than {derived.length}, the context that {derived.key} in config.json allows"
    yield Finding(
        "CF010",
        "warning" if allowed else "error",
        "right" if allowed else "starts",
        f"--max-model-len {asked}",
        f"{message}: beyond it answers are nonsense, or the engine fails" if allowed else message,
        {"asked": asked, "derived": derived.length},
        (Hint(f"ask for at most {derived.length}", f"--max-model-len {derived.length}"),),
    )


@rule("CF011", "a draft layer is declared and not there")
def draft_missing(context: Context) -> Iterator[Finding]:
    """The config announces draft (multi-token prediction) layers, but no file holds their tensors: they are not part
    of the model class, so a tool that saved the model lost them. The model itself is whole; speculative decoding with
    its own draft layer is not possible."""
    count = context.config.size("num_nextn_predict_layers")
    if not count or not context.checkpoint.tensors:
        return
    if any(param.stored for param in context.model.params if param.spec.draft):
        return
    head = f".layers.{context.config.layers}."
    if not any("mtp" in name or head in name for name in context.checkpoint.tensors):
        yield Finding(
            "CF011",
            "warning",
            "right",
            "config.json: num_nextn_predict_layers",
            f"{count} draft layer{'s are' if count > 1 else ' is'} declared and none is in the files: speculative "
            "decoding with the model's own draft layer will not work, all else does",
            {"declared": count},
            (Hint("copy the draft layer's tensors from the original checkpoint", needs="original weights"),),
        )


@rule("CF012", "lists per layer of another length than the layers")
def per_layer_lists(context: Context) -> Iterator[Finding]:
    """A list that has one entry a layer (layer_types, no_rope_layers, ...) has another length than num_hidden_layers.
    It happens when somebody cuts layers out of a model and edits only the count. Model classes index the list by
    layer, so a short one stops the start."""
    layers = context.config.layers
    for name in ("layer_types", "block_configs", "no_rope_layers", "layers_block_type", "attn_type_list"):
        value = context.config.text.get(name)
        if isinstance(value, list) and value and layers and len(value) != layers:
            short = len(value) < layers
            yield Finding(
                "CF012",
                "error" if short else "warning",
                "starts" if short else "right",
                f"config.json: {name}",
                f"{name} has {len(value)} entries for {layers} layers",
                {"entries": len(value), "layers": layers},
                (Hint(f"give {name} one entry for each of the {layers} layers"),),
            )


@rule("CF013", "the declared dtype is not the stored one")
def dtype_disagreement(context: Context) -> Iterator[Finding]:
    """The config's dtype is what engines compute in with `--dtype auto`, whatever the files hold. Weights stored in
    float32 under a 16-bit config only cost disk and reading time; weights stored in 16 bits under a float32 config
    are converted as well. A remark, not a fault."""
    declared = context.config.given("torch_dtype")
    stored: dict[str, int] = {}
    for param in context.model.params:
        if param.scheme is None and param.spec.dtype is None:
            for tensor in param.stored:
                if tensor.role == "weight" and tensor.dtype in ("F32", "F16", "BF16"):
                    stored[tensor.dtype] = stored.get(tensor.dtype, 0) + tensor.nbytes * param.count
    names = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
    if context.model.config_only or not stored or not isinstance(declared, str) or declared not in names:
        return
    most = max(stored, key=lambda dtype: stored[dtype])
    if most == "F32" and names[declared] != "F32":
        yield Finding(
            "CF013",
            "info",
            "right",
            "config.json: torch_dtype",
            f"config.json says {declared}, {stored[most]:,} bytes of unquantized weights are stored as {most}: twice "
            "the bytes to download and read, and the engine converts them",
            {"declared": declared, "stored": most, "bytes": stored[most]},
        )


def _rope_settings(text: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rope dicts of a config, one for each layer type where they are nested."""
    for key in ("rope_parameters", "rope_scaling"):
        value = text.get(key)
        if not isinstance(value, dict) or not value:
            continue
        nested = {name: inner for name, inner in value.items() if isinstance(inner, dict)}
        if nested and len(nested) == len(value):
            for name, inner in nested.items():
                yield f"config.json: {key}.{name}", inner
        else:
            yield f"config.json: {key}", value


def _json(value: bool) -> str:
    return "true" if value else "false"
