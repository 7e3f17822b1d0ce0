"""Where chat templates are kept: five places, which readers of different age know."""

from __future__ import annotations

from typing import NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.validators.once import per_checkpoint

LARGEST = 1024 * 1024  # published templates have up to some 30 KB
FILE, FOLDER = "chat_template.jinja", "additional_chat_templates/"


class Template(NamedTuple):
    """place: the file, with the key or name inside it; name: "default", "tool_use", "rag", ..."""

    place: str
    name: str
    text: str


@per_checkpoint
def templates_of(checkpoint: Checkpoint) -> tuple[Template, ...]:
    """Every template, those that engines prefer first: a file of its own, the processor's, the tokenizer's, GGUF's.
    Empty ones count as absent. Which are older forms of the same thing is for the rules to say."""
    found = [*_files(checkpoint), *_json(checkpoint), *_gguf(checkpoint)]
    return tuple(template for template in found if template.text.strip())


def _files(checkpoint: Checkpoint) -> list[Template]:
    found = []
    for file in checkpoint.files:
        extra = file.name.startswith(FOLDER) and file.name.endswith(".jinja")
        if (file.name != FILE and not extra) or file.size > LARGEST:
            continue
        name = file.name.removeprefix(FOLDER).removesuffix(".jinja") if extra else "default"
        try:
            text = checkpoint.source.read(file.name).decode("utf-8", "replace")
        except (MlloadError, OSError):
            continue  # a file that cannot be read has its finding already
        found.append(Template(file.name, name, text))
    return sorted(found, key=lambda template: template.name != "default")


def _json(checkpoint: Checkpoint) -> list[Template]:
    found = []
    for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        value = checkpoint.json_files.get(name)
        template = value.get("chat_template") if isinstance(value, dict) else None
        if isinstance(template, str):
            found.append(Template(f"{name}: chat_template", "default", template))
        elif isinstance(template, dict):
            found += [
                Template(f"{name}: chat_template", str(key), text)
                for key, text in template.items()
                if isinstance(text, str)
            ]
        elif isinstance(template, list):
            for entry in template:
                if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                    called = str(entry.get("name", "default"))
                    found.append(Template(f"{name}: chat_template {called!r}", called, entry["template"]))
    return found


def _gguf(checkpoint: Checkpoint) -> list[Template]:
    found = []
    for file, keys in checkpoint.metadata.items():
        for key, text in keys.items():
            if key.startswith("tokenizer.chat_template") and isinstance(text, str):
                name = key.removeprefix("tokenizer.chat_template").lstrip(".") or "default"
                found.append(Template(f"{file}: {key}", name, text))
    return found
