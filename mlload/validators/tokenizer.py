"""Rules about the tokenizer: that it is there, can be read, and fits the model's vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint import hints
from mlload.checkpoint.finding import Finding, Hint, Question
from mlload.validators.chat_template_files import templates_of
from mlload.validators.context import Context
from mlload.validators.rules import rule
from mlload.validators.tables import vocabulary_rows
from mlload.validators.tokenizer_classes import OWN_CLASS
from mlload.validators.tokenizer_files import Tokenizer, tokenizer_of

# Classes that build a tokenizer from tokenizer.json alone (transformers 5); any other known one makes an empty
# vocabulary when its files are missing, and starts.
GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast", "PythonBackend", "")


def uses_own_tokenizer(context: Context) -> bool:
    """Whether the engine will read the tokenizer that lies in the checkpoint (nobody named another, or none)."""
    options = context.request.options
    return not (options.get("tokenizer") or options.get("skip-tokenizer-init"))


@rule("FI070", "no tokenizer")
def no_tokenizer(context: Context) -> Iterator[Finding]:
    """The folder holds weights and no file with a vocabulary (tokenizer.json, tokenizer.model, vocab.json with
    merges.txt, vocab.txt, tekken.json, a .tiktoken file). Where the small companions are there (tokenizer_config.json),
    the vocabulary was lost on the way: engines then refuse to start, or, for some tokenizer classes, transformers
    builds an empty vocabulary and every prompt becomes nonsense. The engine starts when another tokenizer is named with
    --tokenizer, or none is wanted (--skip-tokenizer-init). Nothing is said of a source without weights."""
    checkpoint, tokenizer = context.checkpoint, tokenizer_of(context.checkpoint)
    if not tokenizer.known or tokenizer.forms or not checkpoint.tensors or not uses_own_tokenizer(context):
        return
    if checkpoint.format == "gguf" and any("tokenizer.ggml.tokens" in keys for keys in checkpoint.metadata.values()):
        return
    if isinstance(tokenizer.config.get("auto_map"), dict) and tokenizer.config["auto_map"].get("AutoTokenizer"):
        return  # code of the repository's own decides what it reads
    again = hints.download_again(checkpoint.source, "tokenizer.json")
    if not tokenizer.companions:
        empty = context.config.model_type in OWN_CLASS
        effect = "the class of this model type is built with an empty vocabulary, and every prompt is nonsense"
        yield Finding(
            "FI070",
            "error",
            "right" if empty else "starts",
            checkpoint.label,
            f"there is no tokenizer beside the weights: {effect if empty else 'no tokenizer can be built'}",
            hints=(Hint("Name the original model's.", "--tokenizer ORIGINAL"), again),
        )
        return
    kind = tokenizer.config.get("tokenizer_class")
    kind = kind if isinstance(kind, str) else ""
    question: Question = "starts" if kind in GENERIC else "right"
    effect = (
        "no tokenizer can be built"
        if question == "starts"
        else f"{kind} is then built with an empty vocabulary, and every prompt is nonsense"
    )
    yield Finding(
        "FI070",
        "error",
        question,
        tokenizer.companions[0],
        f"{tokenizer.companions[0]} is there and no file with a vocabulary (tokenizer.json or another form): {effect}",
        {"companions": list(tokenizer.companions), "tokenizer_class": kind or None},
        (again, Hint("Name the original model's.", "--tokenizer ORIGINAL")),
    )


@rule("FI071", "tokenizer.json cannot be used")
def broken_tokenizer(context: Context) -> Iterator[Finding]:
    """tokenizer.json is empty, a git-lfs pointer, a saved error page, cut off or otherwise no JSON. Engines read it at
    the start and stop with a JSON error. Fetch it again; another tokenizer can be named with --tokenizer."""
    broken = tokenizer_of(context.checkpoint).broken
    if broken is None or not uses_own_tokenizer(context):
        return
    name, what = broken
    source = context.checkpoint.source
    way = hints.pull_lfs(source, [name]) if "git-lfs" in what else hints.download_again(source, name)
    yield Finding("FI071", "error", "starts", name, f"{name} {what}", hints=(way,))


@rule("FI072", "tokens past the end of the embedding")
def past_the_embedding(context: Context) -> Iterator[Finding]:
    """The tokenizer gives ids that the model has no row for: its vocabulary is larger than vocab_size. A prompt with
    such a token reads past the end of the embedding table: the request is refused, or the engine crashes. It happens
    when tokens were added without resizing the model, or when the tokenizer is another model's. Added tokens that
    neither the chat template nor a special role uses are common in published models and only mentioned. A vocabulary
    smaller than vocab_size is normal: tables are padded."""
    tokenizer, rows = tokenizer_of(context.checkpoint), vocabulary_rows(context.model)
    if not rows or not uses_own_tokenizer(context):
        return
    base = {token: number for token, number in tokenizer.vocab.items() if number >= rows}
    added = {token: number for token, number in tokenizer.added.items() if number >= rows}
    base = {token: number for token, number in base.items() if token not in added}
    if base:
        last = max(base.values())
        yield Finding(
            "FI072",
            "error",
            "right",
            "tokenizer.json",
            f"{len(base):,} token{_s(base)} of the vocabulary have ids up to {last:,}, and the embedding has {rows:,} "
            f"rows (ids to {rows - 1:,}): it is not this model's tokenizer",
            {"largest_id": last, "rows": rows, "tokens": len(base)},
            (Hint("Take the tokenizer that was published with these weights.", "--tokenizer ORIGINAL"),),
        )
    if not added:
        return
    used = dict(sorted(item for item in added.items() if _is_used(context, tokenizer, item[0])))
    shown, last = used or added, max(added.values())
    first = min(shown, key=lambda token: shown[token])
    message = (
        f"{len(shown):,} added token{_s(shown)} ({first!r}, id {shown[first]:,}) {'are' if len(shown) > 1 else 'is'} "
        f"past the {rows:,} rows of the embedding"
    )
    numbers = {"largest_id": last, "rows": rows, "tokens": len(shown), "first": first}
    if used:
        message += ", and the chat template or a special role uses " + ("them" if len(used) > 1 else "it")
        hint = Hint(f"Resize the embedding and the head to {last + 1:,} rows, or train without the added tokens.")
        hint = Hint(hint.what, needs="original weights")
        yield Finding("FI072", "error", "right", "tokenizer.json", message, numbers, (hint,))
    else:
        yield Finding(
            "FI072", "info", "right", "tokenizer.json", f"{message}; nothing here uses {_them(shown)}", numbers
        )


def _is_used(context: Context, tokenizer: Tokenizer, token: str) -> bool:
    """A beginning, an end, or what the chat template writes. Padding is never read by a server."""
    if any(tokenizer.roles.get(role) == token for role in ("bos_token", "eos_token", "unk_token")):
        return True
    return any(token in template.text for template in templates_of(context.checkpoint))


def _s(items: object) -> str:
    return "" if isinstance(items, dict) and len(items) == 1 else "s"


def _them(items: dict[str, int]) -> str:
    return "it" if len(items) == 1 else "them"
