"""Rules about speculative decoding (`--speculative`): the settings, and a draft against its target.

Line numbers are of vLLM 0.33.0, config/speculative.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.finding import Finding, Hint, MlloadError
from mlload.plan.model import Model, read_model
from mlload.validators.context import Context
from mlload.validators.once import per_checkpoint
from mlload.validators.rules import rule
from mlload.validators.speculative_config import HEADS, METHODS, WITHOUT_MODEL, Speculative
from mlload.validators.tokenizer_files import tokenizer_of

WHERE = "--speculative"
NEED_MODEL = ("draft_model", *HEADS)


@per_checkpoint
def draft_model(checkpoint: Checkpoint) -> Model | MlloadError:
    """The draft as a model, or why it cannot be read as one."""
    try:
        return read_model(checkpoint)
    except MlloadError as error:
        return error


def _error(code: str, where: str, message: str, *hints: Hint, **numbers: Any) -> Finding:
    return Finding(code, "error", "starts", where, message, numbers, hints)


@rule("DR001", "speculative settings that are refused")
def refused_settings(context: Context) -> Iterator[Finding]:
    """speculative_config must name a known method, a draft model where the method needs one, and
    num_speculative_tokens above 0 where no draft gives it. The draft's tensor-parallel size can be 1 or the target's,
    and is called draft_tensor_parallel_size. The windows of n-gram lookup must not be reversed."""
    asked = context.request.speculative
    if asked is None:
        return
    config, method = asked.config, asked.method
    if method not in METHODS:
        yield _error("DR001", f"{WHERE}: method", f"the engine knows no method {method[:40]!r}: {', '.join(METHODS)}")
        return
    if method in NEED_MODEL and not config.get("model") and method != "dspark":
        hint = Hint("name one", '--speculative-config \'{"model": "DRAFT", "num_speculative_tokens": 5}\'')
        yield _error("DR001", f"{WHERE}: model", f"the method {method} needs a draft model, and none is named", hint)
    if "tensor_parallel_size" in config:
        yield _error(
            "DR001",
            f"{WHERE}: tensor_parallel_size",
            "tensor_parallel_size is no setting of speculative decoding: it is called draft_tensor_parallel_size",
        )
    yield from _token_count(asked, context)
    size = config.get("draft_tensor_parallel_size")
    if size is not None and size not in (1, context.plan.mesh.tp):
        yield _error(
            "DR001",
            f"{WHERE}: draft_tensor_parallel_size",
            f"draft_tensor_parallel_size is {str(size)[:20]}: it can be 1 or the target's {context.plan.mesh.tp}",
            tp=context.plan.mesh.tp,
        )
    least, most = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
    if method.startswith("ngram") and type(least) is int and type(most) is int and least > most:
        message = f"prompt_lookup_min {least} is above prompt_lookup_max {most}"
        yield _error("DR001", f"{WHERE}: prompt_lookup_min", message, least=least, most=most)


def _token_count(asked: Speculative, context: Context) -> Iterator[Finding]:
    """num_speculative_tokens; a draft config's own count stands in for it (:1586)."""
    count = asked.config.get("num_speculative_tokens")
    where = f"{WHERE}: num_speculative_tokens"
    own = _own_count(asked, context)
    if count is None:
        if asked.complete and asked.method not in ("suffix", "dspark") and (own is None or asked.method == "mtp"):
            yield _error("DR001", where, "num_speculative_tokens is not given, and no draft config gives it")
        return
    if type(count) is not int or count < 1:
        yield _error("DR001", where, f"num_speculative_tokens is {str(count)[:20]!r}, not a number above 0")
    elif asked.method == "mtp" and own is not None and count > own and count % own:
        hint = Hint(f"ask for {own} or a multiple of it")
        message = (
            f"num_speculative_tokens {count} is no multiple of the {own} draft layers ({count} % {own} = {count % own})"
        )
        yield _error("DR001", where, message, hint, asked=count, layers=own)


def _own_count(asked: Speculative, context: Context) -> int | None:
    view = ConfigView(asked.draft.config) if asked.draft is not None else context.config
    given = view.given("num_nextn_predict_layers") if asked.method == "mtp" else view.given("n_predict")
    return given if type(given) is int and given > 0 else None


@rule("DR002", "draft and target count tokens differently")
def other_vocabulary(context: Context) -> Iterator[Finding]:
    """An independent draft model proposes token ids, which the target checks as its own. vLLM refuses a draft whose
    vocab_size differs, unless use_heterogeneous_vocab is set. Two models of one family can differ by padding alone,
    and are refused all the same. With equal sizes and another tokenizer the engine starts, the ids mean other words,
    and nearly every proposal is thrown away: slower than without a draft."""
    asked = context.request.speculative
    if asked is None or asked.draft is None or asked.method not in NEED_MODEL:
        return
    draft, target = ConfigView(asked.draft.config), context.config
    if asked.config.get("use_heterogeneous_vocab") is True:
        return
    if draft.vocab and target.vocab and draft.vocab != target.vocab:
        independent = asked.method == "draft_model"
        yield Finding(
            "DR002",
            "error",
            "starts" if independent else "right",
            f"{asked.draft.label}: config.json: vocab_size",
            f"the draft has vocab_size {draft.vocab:,} and the target {target.vocab:,}"
            + ("" if independent else ": a draft head uses the target's tables"),
            {"draft": draft.vocab, "target": target.vocab},
            (
                Hint(
                    "let the engine use the tokens that both have",
                    'add "use_heterogeneous_vocab": true to the settings',
                )
                if independent
                else Hint("take a draft head that was trained for this target"),
            ),
        )
        return
    ours, theirs = tokenizer_of(context.checkpoint), tokenizer_of(asked.draft)
    tokens = ours.vocab.keys() & theirs.vocab.keys()
    same = sum(ours.vocab[token] == theirs.vocab[token] for token in tokens)
    most = max(len(ours.vocab), len(theirs.vocab))
    if asked.method == "draft_model" and ours.vocab and theirs.vocab and same < 0.95 * most:
        yield Finding(
            "DR002",
            "warning",
            "right",
            f"{asked.draft.label}: tokenizer.json",
            f"only {same:,} of {most:,} tokens have the same id in the draft's tokenizer and the target's: the "
            "draft's proposals mean other words",
            {"same": same, "tokens": most},
            (Hint("take a draft model of the target's own family"),),
        )


@rule("DR003", "no draft layers for multi-token prediction")
def no_draft_layers(context: Context) -> Iterator[Finding]:
    """The method mtp uses draft layers that the target's own checkpoint brings along. Its config must count them
    (num_nextn_predict_layers, mtp_num_hidden_layers), and the files must hold their tensors: tools that save a model
    by its class lose them. Without, the engine does not start with this setting; without speculation it does."""
    asked = context.request.speculative
    if asked is None or asked.method != "mtp" or asked.config.get("model"):
        return
    off = Hint("serve without speculative decoding")
    count = context.config.size("num_nextn_predict_layers")
    drafts = [param for param in context.model.params if param.spec.draft]
    if not count:
        if not any(".mtp." in name or name.startswith("mtp.") for name in context.checkpoint.tensors):
            yield _error(
                "DR003",
                "config.json: num_nextn_predict_layers",
                f"the model type {context.config.model_type!r} declares no draft layers, which the method mtp needs",
                off,
            )
    elif context.checkpoint.tensors and drafts and not any(param.stored for param in drafts):
        again = Hint("copy the draft layer's tensors from the original checkpoint", needs="original weights")
        message = f"{count} draft layer{'s are' if count > 1 else ' is'} declared, and no file holds the tensors"
        yield _error("DR003", "config.json: num_nextn_predict_layers", message, off, again, declared=count)


@rule("DR004", "draft that does not fit")
def draft_does_not_fit(context: Context) -> Iterator[Finding]:
    """The draft model is a checkpoint like any other: its files must be whole, its architecture known, and its sizes
    must divide by its own tensor-parallel size, which is the target's unless draft_tensor_parallel_size is 1."""
    asked = context.request.speculative
    if asked is None or asked.draft is None or asked.method in WITHOUT_MODEL:
        return
    label = asked.draft.label
    whole = asked.draft.format in ("safetensors", "torch")
    for problem in asked.draft.problems:
        if problem.severity == "error":
            yield replace(problem, where=f"{label}: {problem.where}", message=f"draft model: {problem.message}")
    if not whole and asked.draft.tensors:
        return
    model = draft_model(asked.draft)
    if isinstance(model, MlloadError):
        if asked.method == "draft_model":
            yield _error("DR004", label, f"draft model: {model.message}")
        return
    if asked.method in HEADS:
        yield from _head_widths(asked, context)
        return
    if model.inferred:
        return
    from mlload.plan.mesh import Mesh
    from mlload.plan.plan import make_plan
    from mlload.profiles.refusals import config_refusals

    size = asked.config.get("draft_tensor_parallel_size", context.plan.mesh.tp)
    size = size if type(size) is int and size > 0 else context.plan.mesh.tp
    profile, trusted = context.plan.profile, context.request.trust_remote_code
    plan = make_plan(model, profile, Mesh(tp=size), capability=context.plan.capability)
    alone = Hint("let every rank hold the whole draft", '"draft_tensor_parallel_size": 1 in the settings')
    refusals = config_refusals(asked.draft.config, profile, trust_remote_code=trusted)
    for finding in (*refusals, *model.findings, *plan.violations):
        if finding.severity == "error":
            hints = (alone, *finding.hints) if finding in plan.violations and size > 1 else finding.hints
            message = f"draft model at tp {size}: {finding.message}"
            yield replace(finding, where=f"{label}: {finding.where}", message=message, hints=hints)


def _head_widths(asked: Speculative, context: Context) -> Iterator[Finding]:
    """A head reads the target's hidden states and its embedding."""
    assert asked.draft is not None
    own, target = ConfigView(asked.draft.config), context.config
    inner = asked.draft.config.get("transformer_layer_config")
    if isinstance(inner, Mapping) or not own.hidden or not target.hidden:
        return  # a wrapper's config, which nests the head's
    reads = asked.draft.config.get("target_hidden_size")
    width = reads if type(reads) is int else own.hidden
    if width != target.hidden:
        yield Finding(
            "DR004",
            "error",
            "starts",
            f"{asked.draft.label}: config.json: hidden_size",
            f"the draft head works on hidden states of {width:,}, and the target's are {target.hidden:,} wide",
            {"draft": width, "target": target.hidden},
            (Hint("take a draft head that was trained for this target"),),
        )
    layers = asked.draft.config.get("eagle_aux_hidden_state_layer_ids")
    beyond = (
        [layer for layer in layers if type(layer) is int and layer > target.layers] if isinstance(layers, list) else []
    )
    if beyond and target.layers:
        yield Finding(
            "DR004",
            "error",
            "starts",
            f"{asked.draft.label}: config.json: eagle_aux_hidden_state_layer_ids",
            f"the draft head reads the states of layer {beyond[0]}, and the target has {target.layers} layers",
            {"layer": beyond[0], "layers": target.layers},
            (Hint("take a draft head that was trained for this target"),),
        )


@rule("DR005", "draft with a shorter context")
def shorter_draft(context: Context) -> Iterator[Finding]:
    """An independent draft model proposes tokens only as far as its own context goes. Requests longer than that are
    served by the target alone, at its own speed."""
    from mlload.validators.lengths import derived_max_model_len

    asked = context.request.speculative
    if asked is None or asked.draft is None or asked.method != "draft_model":
        return
    draft = derived_max_model_len(asked.draft, ConfigView(asked.draft.config))
    target = derived_max_model_len(context.checkpoint, context.config)
    if draft is None or target is None:
        return
    wanted = context.request.max_model_len
    served = wanted if wanted is not None and wanted > 0 else target.length
    own = asked.config.get("max_model_len")
    if type(own) is int and own > min(draft.length, served):
        limit = min(draft.length, served)
        message = f"max_model_len of the draft is {own:,}, above the {limit:,} that draft and target allow"
        yield _error("DR005", f"{WHERE}: max_model_len", message, asked=own, limit=limit)
    elif draft.length < served:
        yield Finding(
            "DR005",
            "info",
            "right",
            f"{asked.draft.label}: config.json: {draft.key}",
            f"the draft's context is {draft.length:,} tokens and the target is served with {served:,}: longer "
            "requests run without speculation",
            {"draft": draft.length, "target": served},
        )
