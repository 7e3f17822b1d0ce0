"""Rules about the chat template: that there is one, that it renders, that what ends a turn ends a generation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, Hint, Severity
from mlload.validators import chat_render
from mlload.validators.chat_render import AGAIN, ANSWER, USER, Rendered
from mlload.validators.chat_template_files import FILE, Template, templates_of
from mlload.validators.context import Context
from mlload.validators.once import per_checkpoint
from mlload.validators.rules import rule
from mlload.validators.special_tokens import stops
from mlload.validators.tokenizer import uses_own_tokenizer
from mlload.validators.tokenizer_files import Tokenizer, tokenizer_of

RENDERED = 4  # templates of one checkpoint that are tried
# Tokens that end a turn in the chat formats in use (ChatML, Llama 3 and 4, Gemma, Phi, OpenChat, Command R, harmony).
# A model that stops at one of them was trained to chat.
TURN_ENDS = frozenset(
    (
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<end_of_turn>", "<turn|>", "<|end|>"),
        *("<|end_of_turn|>", "<|return|>", "<|END_OF_TURN_TOKEN|>", "[|endofturn|]", "<|endofturn|>", "<|role_end|>"),
        *("<|user|>", "[EOT]"),
    )
)
# Text that is meant as one token.
MARKER = re.compile(r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>]{1,40}｜>|</?[a-z]+_of_turn>|</s>")


class Shown(NamedTuple):
    """A template and what came of it: case -> Rendered, with contents as the template wants them."""

    template: Template
    cases: Mapping[str, Rendered]


@per_checkpoint
def rendered(checkpoint: Checkpoint) -> tuple[Shown, ...]:
    """Every template of a name once, the place that engines prefer first; () where jinja2 is not installed."""
    chosen: dict[str, Template] = {}
    for template in templates_of(checkpoint):
        if all(template.text != other.text for other in chosen.values()):
            chosen.setdefault(template.name, template)
    kept = list(chosen.values())[:RENDERED]
    if not kept or not chat_render.available():
        return ()
    asked = chat_render.cases(tokenizer_of(checkpoint).roles)
    results = chat_render.render([template.text for template in kept], asked)
    return tuple(Shown(template, _form(result)) for template, result in zip(kept, results, strict=True))


def not_rendered(checkpoint: Checkpoint) -> bool:
    """There are templates, and none was tried: jinja2, which rendering needs, is not installed."""
    return bool(templates_of(checkpoint)) and not chat_render.available()


def _form(result: Mapping[str, Rendered]) -> dict[str, Rendered]:
    """Contents as text, or as parts where only they come through: engines look which of them a template reads."""
    strings = {case: entry for case, entry in result.items() if not case.endswith(" parts")}
    parts = {case.removesuffix(" parts"): entry for case, entry in result.items() if case.endswith(" parts")}
    return strings if _through(strings) or not _through(parts) else parts


def _through(cases: Mapping[str, Rendered]) -> bool:
    text = cases["prompt"].text
    return text is not None and USER in text


@rule("FI080", "chat model without a chat template")
def no_template(context: Context) -> Iterator[Finding]:
    """The model stops at a token that ends a turn of a chat (<|im_end|>, <|eot_id|>, <end_of_turn>, ...), so it was
    trained to chat, and no chat template is found in any of its places: chat_template.jinja, tokenizer_config.json,
    chat_template.json, additional_chat_templates/, GGUF metadata. The engine starts; chat requests are refused, or
    answered in a format that the model does not know. Base models, which end at a text's end, have none and need
    none."""
    checkpoint, tokenizer = context.checkpoint, tokenizer_of(context.checkpoint)
    if not tokenizer.known or templates_of(checkpoint) or not uses_own_tokenizer(context):
        return
    if context.request.options.get("chat-template") or not checkpoint.tensors:
        return
    if {"params.json", "tekken.json"} & {file.name for file in checkpoint.files}:
        return  # Mistral's own tokenizer renders chats without a template
    names = {number: token for token, number in tokenizer.added.items()}
    where = {names.get(stop.id, ""): stop.place for stop in stops(context)}
    chat = sorted(token for token in where if token in TURN_ENDS)
    if chat:
        yield Finding(
            "FI080",
            "warning",
            "right",
            checkpoint.label,
            f"it stops at {chat[0]} ({where[chat[0]]}) as chat models do, and there is no chat template in "
            f"tokenizer_config.json, {FILE} or any other place: chat requests fail",
            {"end_of_turn": chat},
            (
                Hint(f"Copy {FILE} or the tokenizer_config.json of the original model."),
                Hint("Name a template file.", "--chat-template FILE"),
            ),
        )


@rule("FI081", "chat template fails")
def template_fails(context: Context) -> Iterator[Finding]:
    """The chat template was rendered in jinja2's immutable sandbox with the settings of transformers, for a plain
    question, a system message, tools, and a conversation that goes on, each with the prompt for an answer. Here it
    raised an error, did not end, or lost the question on the way. A template that refuses a system message by its own
    raise_exception is only mentioned: some models have no such role. The engine starts; the requests concerned
    fail."""
    for template, cases in rendered(context.checkpoint):
        yield from _failures(template, cases)


def _failures(template: Template, cases: Mapping[str, Rendered]) -> Iterator[Finding]:
    first = cases["prompt"] if cases["prompt"].text is None else cases["plain"]
    if template.name == "default" or first.kind in ("syntax", "time", "stopped"):
        if first.text is None:
            yield _failure(template, "plain", first, "error", "every chat request fails")
            return
        if USER not in (cases["prompt"].text or ""):
            yield Finding(
                "FI081",
                "error",
                "right",
                template.place,
                "the chat template leaves out the user's message: the model answers something else",
                hints=_way(template),
            )
            return
    effects = {
        "system": "requests with a system message fail",
        "tools": "requests with tools fail",
        "going on": "a chat fails at its second question",
        "answered": "a chat that ends in an answer cannot be rendered",
    }
    for case, effect in effects.items():
        if template.name == "default" or (template.name == "tool_use" and case == "tools"):
            entry = cases[case]
            if entry.text is None:
                yield _failure(template, case, entry, "info" if entry.kind == "refused" else "warning", effect)


def _failure(template: Template, case: str, entry: Rendered, severity: Severity, effect: str) -> Finding:
    line = f" in line {entry.line}" if entry.line else ""
    known = {"refused": f"refuses ({entry.error})", "syntax": f"is no valid template: {entry.error}"}
    what = known.get(entry.kind, f"fails: {entry.error}")
    if entry.kind in ("time", "stopped"):
        what = entry.error
        return Finding("FI081", "error", "right", template.place, f"the chat template: {what}", {"case": case})
    return Finding(
        "FI081",
        severity,
        "right",
        template.place,
        f"the chat template {what}{line}: {effect}",
        {"case": case, "line": entry.line, "kind": entry.kind},
        () if severity == "info" else _way(template),
    )


def _way(template: Template) -> tuple[Hint, ...]:
    file = template.place.partition(":")[0]
    return (
        Hint(f"Take {file} of the original model."),
        Hint("Name another template.", "--chat-template FILE"),
    )


@rule("FI083", "the end of a turn does not end a generation")
def turn_does_not_stop(context: Context) -> Iterator[Finding]:
    """The token with which the chat template ends an answer is the one that the model learned to end with. vLLM stops
    at the tokenizer's eos_token and at the eos_token_id of generation_config.json (of config.json, where there is no
    such file). Where the turn's end is not among them, the model writes it and goes on: it asks itself the next
    question, until the length is used up."""
    tokenizer = tokenizer_of(context.checkpoint)
    found = stops(context)
    ids = {stop.id for stop in found}
    if not found or not uses_own_tokenizer(context) or context.request.options.get("chat-template"):
        return
    for template, cases in rendered(context.checkpoint):
        if template.name != "default":
            continue
        ends = dict.fromkeys(end for case in ("answered", "going on") if (end := turn_end(cases[case], tokenizer)))
        known = {end: tokenizer.id_of(end) for end in ends}
        if not ends or any(number in ids for number in known.values()):
            continue
        if tokenizer.roles.get("eos_token") in ends or (None in known.values() and not tokenizer.vocab):
            continue
        end, number = next(iter(known.items()))
        listed = ", ".join(f"{stop.id} {tokenizer.token_of(stop.id) or ''}".strip() for stop in found)
        places = " and ".join(dict.fromkeys(stop.place for stop in found))
        called = f"{end} (id {number})" if number is not None else f"{end}, which is no token of this tokenizer"
        hints: tuple[Hint, ...] = ()
        if number is not None:
            wanted = [number, *sorted(ids)]
            hints = (
                Hint(
                    f'Write "eos_token_id": {wanted} into generation_config.json, or override it.',
                    f"--override-generation-config '{{\"eos_token_id\": {wanted}}}'",
                ),
            )
        yield Finding(
            "FI083",
            "warning",
            "right",
            template.place,
            f"the chat template ends an answer with {called}, and the engine stops at {listed} ({places}): "
            "generations will not stop",
            {"end_of_turn": end, "end_of_turn_id": number, "eos_token_ids": sorted(ids)},
            hints,
        )


def turn_end(entry: Rendered, tokenizer: Tokenizer) -> str | None:
    """The token that follows an answer: one that the tokenizer knows, or text that is meant as one; else None."""
    if entry.text is None or ANSWER not in entry.text:
        return None
    tail = entry.text.rpartition(ANSWER)[2].partition(AGAIN)[0].lstrip()
    known = [token for token in (*tokenizer.added, *tokenizer.roles.values()) if token and tail.startswith(token)]
    if known:
        return max(known, key=len)
    marker = MARKER.match(tail)
    return marker[0] if marker else None


@rule("FI084", "where the chat template is")
def place_of_template(context: Context) -> Iterator[Finding]:
    """transformers saves the chat template as chat_template.jinja today, and no longer in tokenizer_config.json. vLLM
    reads it in either place. Text Generation Inference, and engines on a transformers from before 2025, know
    tokenizer_config.json only and find none: said where another engine than vLLM is asked about. Where two places
    hold different templates, the first of chat_template.jinja, chat_template.json, processor_config.json,
    tokenizer_config.json wins."""
    templates = [template for template in templates_of(context.checkpoint) if template.name == "default"]
    places = [template.place for template in templates]
    if places == [FILE] and context.plan.profile.engine != "vllm":
        yield Finding(
            "FI084",
            "info",
            "right",
            FILE,
            f"the chat template is in {FILE} alone: Text Generation Inference and engines on a transformers from "
            "before 2025 look in tokenizer_config.json only",
        )
    elif len({template.text.strip() for template in templates}) > 1:
        yield Finding(
            "FI084",
            "info",
            "right",
            places[0],
            f"{' and '.join(places)} hold different chat templates; the first of them is used",
            {"places": places},
        )
