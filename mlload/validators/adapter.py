"""Rules about LoRA adapters (`--lora`) against their base. Line numbers are of vLLM 0.33.0."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mlload.checkpoint.finding import Finding, Hint, Question
from mlload.plan.params import ParamSpec
from mlload.validators.adapter_files import Adapter, called, folded, read_adapter
from mlload.validators.context import Context
from mlload.validators.once import per_checkpoint
from mlload.validators.rules import rule

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that --max-lora-rank takes (config/lora.py:24)
DEFAULT_RANK = 16
MOST_TOKENS = 258_048  # of a base's vocabulary (lora/layers/logits_processor.py:91)
CLASSIFIERS = ("classifier", "score")  # the only whole modules that an adapter may bring along
# Ways to initialize that leave the base's weights alone; the others need a converted adapter (peft_helper.py:79).
PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
# adapter_config.json's switches for what vLLM does not compute (peft_helper.py:48).
REFUSED: dict[str, str] = {
    "use_dora": "weight-decomposed LoRA (DoRA)",
    "lora_bias": "biases inside the adapter",
    "alora_invocation_tokens": "activated LoRA (aLoRA)",
    "layer_replication": "replicated layers",
    "use_bdlora": "block-diagonal LoRA",
    "use_qalora": "QALoRA",
}

adapter_of = per_checkpoint(read_adapter)


class Base(NamedTuple):
    """A module of the base that an adapter can name: its family and, for stacked experts, nothing more."""

    spec: ParamSpec
    layers: frozenset[int] | None


def adapters(context: Context) -> Iterator[Adapter]:
    for checkpoint in context.request.lora:
        yield adapter_of(checkpoint)


@rule("LO001", "no usable adapter")
def unusable(context: Context) -> Iterator[Finding]:
    """What was named with --lora is not what vLLM loads as an adapter: there must be an adapter_config.json with r,
    lora_alpha and target_modules, and beside it adapter_model.safetensors (or .bin) with lora_A and lora_B matrices.
    Adapters that are named when the server starts are loaded then, and one that fails stops it."""
    for checkpoint in context.request.lora:
        adapter = adapter_of(checkpoint)
        problems = [problem for problem in checkpoint.problems if problem.severity == "error"]
        for problem in problems:
            if problem.code not in ("FI060", "FI063", "FI064"):  # an adapter needs no config.json
                yield Finding("LO001", "error", "starts", f"{adapter.label}: {problem.where}", problem.message)
        if not adapter.config:
            yield _refusal("LO001", adapter, "adapter_config.json", "there is no adapter_config.json in it")
            continue
        lacking = [name for name in ("r", "lora_alpha", "target_modules") if name not in adapter.config]
        if lacking:
            yield _refusal("LO001", adapter, "adapter_config.json", f"adapter_config.json lacks {', '.join(lacking)}")
        elif not adapter.ranks or min(adapter.ranks) < 1:
            shown = str(adapter.config.get("r"))[:20]
            yield _refusal("LO001", adapter, "adapter_config.json: r", f"the rank r is {shown}, not a number above 0")
        kind = adapter.config.get("peft_type")
        if isinstance(kind, str) and kind.upper() != "LORA":
            yield _refusal("LO001", adapter, "adapter_config.json: peft_type", f"it is a {kind[:20]} adapter, no LoRA")
        elif not adapter.pairs and not problems:
            yield _refusal("LO001", adapter, "adapter_model.safetensors", "it holds no lora_A and lora_B matrices")


def _refusal(code: str, adapter: Adapter, where: str, what: str, *hints: Hint, **numbers: Any) -> Finding:
    return Finding(
        code, "error", "starts", f"{adapter.label}: {where}", f"adapter {adapter.label}: {what}", numbers, hints
    )


@rule("LO002", "rank above --max-lora-rank")
def rank_too_large(context: Context) -> Iterator[Finding]:
    """vLLM reserves memory for adapters of a rank up to --max-lora-rank, 16 unless told, and refuses one with more.
    The flag takes 1, 8, 16, 32, 64, 128, 256, 320 and 512 only; memory grows with it."""
    allowed = _allowed_rank(context)
    for adapter in adapters(context):
        most = max(adapter.ranks, default=0)
        if most <= allowed:
            continue
        fitting = [rank for rank in RANKS if rank >= most]
        hints = (Hint(f"reserve for rank {fitting[0]}", f"--max-lora-rank {fitting[0]}"),) if fitting else ()
        yield _refusal(
            "LO002",
            adapter,
            "adapter_config.json: r",
            f"its rank {most} is above max_lora_rank {allowed}"
            + ("" if fitting else f", and the engine allows at most {RANKS[-1]}"),
            *hints,
            rank=most,
            max_lora_rank=allowed,
        )


def _allowed_rank(context: Context) -> int:
    value = context.request.options.get("max-lora-rank")
    return int(value) if isinstance(value, (int, str)) and str(value).isdigit() else DEFAULT_RANK


@rule("LO003", "kind of adapter that vLLM does not compute")
def refused_features(context: Context) -> Iterator[Finding]:
    """vLLM adds B(Ax) times a factor to a linear layer, and nothing else. It refuses DoRA, biases, whole modules other
    than a classification head (modules_to_save), activated and block-diagonal LoRA, QALoRA, replicated layers, and
    initializations that changed the base's weights (PiSSA, OLoRA, CorDA, LoftQ). rsLoRA is only another factor, and
    fine. Merging the adapter into the base makes any of them servable."""
    for adapter in adapters(context):
        config, found = adapter.config, []
        found += [(name, f"{name}: {what}") for name, what in REFUSED.items() if config.get(name)]
        bias = config.get("bias", "none")
        if bias != "none":
            found.append(("bias", f"bias {str(bias)[:20]!r}"))
        saved = config.get("modules_to_save")
        others = [str(name) for name in saved if name not in CLASSIFIERS] if isinstance(saved, list) else []
        if others:
            found.append(("modules_to_save", f"whole modules ({', '.join(others)[:80]})"))
        init = config.get("init_lora_weights")
        if isinstance(init, str) and init.lower() not in PLAIN_INITS:
            found.append(("init_lora_weights", f"initialized as {init[:20]!r}, which changes the base's weights"))
        for name, what in found:
            yield _refusal(
                "LO003",
                adapter,
                f"adapter_config.json: {name}",
                f"the engine does not compute {what}",
                Hint("merge the adapter into the base (PEFT's merge_and_unload)", needs="original weights"),
            )


@rule("LO004", "modules that the base does not have")
def unknown_modules(context: Context) -> Iterator[Finding]:
    """The adapter's tensors name modules that the base has not, or none that takes an adapter: it was trained on
    another architecture, or on one whose layers have other names. Only linear layers, experts and the two vocabulary
    tables take one. A name whose last part occurs nowhere stops the start ("expected target modules in"); one in a
    layer that the base has not is passed over, and the adapter then has less effect than it was trained for."""
    bases = base_modules(context)
    if not bases or context.model.inferred:
        return
    tables = _tables(context)
    endings = {path.rpartition(".")[2] for path, base in bases.items() if base.spec.op != "embedding"}
    endings |= {"experts", *tables}
    for adapter in adapters(context):
        for family, modules in folded(adapter.pairs).items():
            ending = family.rpartition(".")[2]
            spec = find_base(bases, family)
            where = f"{adapter.label}: {called(family, modules)}"
            if ending not in endings and ".experts" not in family:
                yield Finding(
                    "LO004",
                    "error",
                    "starts",
                    where,
                    f"adapter {adapter.label} has matrices for {called(family, modules)}, and no module of the base "
                    f"that takes an adapter is called {ending}",
                    {"module": ending, "known": sorted(endings)[:40]},
                    (_right_base(adapter),),
                )
                continue
            lost = [module for module in modules if not _there(spec, module)]
            if lost and ".experts" not in family:
                yield Finding(
                    "LO004",
                    "warning",
                    "right",
                    where,
                    f"adapter {adapter.label}: {len(lost)} of its {len(modules)} modules {called(family, modules)} "
                    f"are not in the base ({lost[0]}): their matrices are passed over",
                    {"modules": len(lost), "first": lost[0]},
                    (_right_base(adapter),),
                )


def _right_base(adapter: Adapter) -> Hint:
    base = adapter.config.get("base_model_name_or_path")
    if isinstance(base, str) and base and base.isprintable() and len(base) < 200:
        return Hint(f"serve it with the base that it was trained on: {base}", f"vllm serve {shlex.quote(base)}")
    return Hint("serve it with the base that it was trained on")


def _there(base: Base | None, module: str) -> bool:
    if base is None:
        return False
    if base.layers is None:
        return True
    number = next((int(part) for part in module.split(".") if part.isascii() and part.isdigit()), None)
    return number in base.layers


@rule("LO005", "matrices of another shape than the base's")
def other_shape(context: Context) -> Iterator[Finding]:
    """A must be [r, K] and B [N, r] for a module of the base with N outputs and K inputs, with the r of
    adapter_config.json. Larger ones do not fit what vLLM reserves and stop the start. Smaller ones are copied into a
    part of it without a word, and a rank other than r gives another factor than in training: both answer wrongly."""
    bases = base_modules(context)
    for adapter in adapters(context):
        for family, modules in folded(adapter.pairs).items():
            base = find_base(bases, family)
            for module in modules:
                wrong = list(_differences(adapter, module, None if base is None else base.spec))
                if wrong:
                    question: Question = "starts" if any(larger for _, larger in wrong) else "right"
                    yield Finding(
                        "LO005",
                        "error",
                        question,
                        f"{adapter.label}: {called(family, modules)}",
                        f"adapter {adapter.label}: {module}: {'; '.join(text for text, _ in wrong)}",
                        {"modules": len(modules)},
                        (_right_base(adapter),),
                    )
                    break  # the first of a family stands for it


def _differences(adapter: Adapter, module: str, spec: ParamSpec | None) -> Iterator[tuple[str, bool]]:
    """(what differs, whether it is larger than the base), of one module."""
    pair = adapter.pairs[module]
    if pair.a is None or pair.b is None:
        yield f"lora_{'A' if pair.a is None else 'B'} is missing", True
        return
    if len(pair.a) != 2 or len(pair.b) != 2:
        if ".experts" not in module:
            yield f"A is {list(pair.a)} and B {list(pair.b)}, not matrices", True
        return
    rank = adapter.rank_of(module)
    if pair.a[0] != pair.b[1]:
        yield f"A {list(pair.a)} and B {list(pair.b)} have different ranks: {pair.a[0]} and {pair.b[1]}", True
    elif rank is not None and pair.a[0] != rank and spec is not None and spec.op == "linear":
        yield f"its matrices have rank {pair.a[0]}, and adapter_config.json says {rank}", pair.a[0] > rank
    if spec is None or spec.op != "linear" or pair.embedding:
        return
    if pair.a[1] != spec.k:
        yield f"A is {list(pair.a)}, and the base's module has K = {spec.k:,} inputs", pair.a[1] > spec.k
    if pair.b[0] != spec.n:
        yield f"B is {list(pair.b)}, and the base's module has N = {spec.n:,} outputs", pair.b[0] > spec.n


@rule("LO006", "the base takes no adapters")
def base_without(context: Context) -> Iterator[Finding]:
    """Not every model class of vLLM takes LoRA adapters, and those that take them for their output head do not with a
    vocabulary of more than 258,048 tokens. Merge the adapter into the base instead."""
    if not context.request.lora or context.plan.profile.engine != "vllm":
        return
    merge = Hint("merge the adapter into the base (PEFT's merge_and_unload)", needs="original weights")
    registered = context.plan.profile.architectures
    name = next((name for name in context.config.architectures if name in registered), None)
    if name is not None and registered[name].get("lora") is False:
        yield Finding(
            "LO006",
            "error",
            "starts",
            "--lora",
            f"{name} does not take LoRA adapters",
            {"architecture": name},
            (merge,),
        )
    if "lm_head" in _tables(context) and context.config.vocab > MOST_TOKENS:
        yield Finding(
            "LO006",
            "error",
            "starts",
            "--lora",
            f"the base has {context.config.vocab:,} tokens, and adapters are taken up to {MOST_TOKENS:,}",
            {"vocab_size": context.config.vocab, "limit": MOST_TOKENS},
            (merge,),
        )


def _tables(context: Context) -> set[str]:
    """Vocabulary tables that the model class, or the language model that it is built of, takes adapters for."""
    registered = context.plan.profile.architectures
    records = [registered[name] for name in context.config.architectures if name in registered]
    inner = [registered[name] for record in records for name in record.get("language_model", ()) if name in registered]
    return {table for record in (*records, *inner) for table in record.get("lora_tables", ())}


def base_modules(context: Context) -> dict[str, Base]:
    """Modules of the base that take adapters, by their path on disk with {} for every number."""
    found: dict[str, Base] = {}
    for param in context.model.params:
        spec = param.spec
        if spec.op not in ("linear", "embedding", "experts") or spec.draft:
            continue
        path = spec.module.replace("{layer}", "{}").replace("{expert}", "{}")
        layers = frozenset(spec.layers) if spec.layers is not None else None
        if path in found and layers is not None and found[path].layers is not None:
            layers |= found[path].layers or frozenset()
        found[path] = Base(spec, layers)
    return found


def find_base(bases: Mapping[str, Base], family: str) -> Base | None:
    """By its whole path, else by what follows the first layer number: composite models are saved under several
    prefixes ("model.language_model.layers", "language_model.model.layers")."""
    exact = bases.get(family)
    if exact is not None:
        return exact
    tail = family.partition(".{}.")[2]
    if not tail:
        return next((base for path, base in bases.items() if path.endswith("." + family.rpartition(".")[2])), None)
    alike = [base for path, base in bases.items() if path.partition(".{}.")[2] == tail and base.spec.mesh == "text"]
    return alike[0] if len(alike) == 1 else None
