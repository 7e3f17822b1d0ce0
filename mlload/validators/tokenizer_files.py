"""What a checkpoint's tokenizer files say: which forms there are, the tokens and their ids.

Large files are not read whole: of tokenizer.json (up to 33 MB) only the lists that hold ids are parsed, and of a
remote one only its start, where the added tokens stand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlload.checkpoint import json_text
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.json_text import BadJson
from mlload.checkpoint.sniff import lfs_fields, sniff
from mlload.validators.once import per_checkpoint

# Files that hold a vocabulary, by the libraries that write them: tokenizers; sentencepiece; GPT-2's pair; WordPiece;
# Mistral's own; OpenAI's. The pair counts as one.
VOCABULARIES = re.compile(
    r"(tokenizer\.json|tekken\.json|vocab\.txt|vocab\.json|(tokenizer|spiece|spm|sentencepiece\.bpe|source|target)"
    r"\.(model|spm)|tokenizer\.model\.v\d+|.+\.tiktoken|tiktoken\.model|.+\.spm|.+\.bpe\.model|vocab\.bpe|bpe\.codes"
    r"|vocab\.model|ice_text\.model)"
)
# Small files that exist only beside a tokenizer.
COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
LARGEST = 256 * 1024 * 1024
WHOLE = 1024 * 1024  # parsed completely up to this; json.loads takes 10 ms a megabyte
START = 256 * 1024  # of a remote tokenizer.json
_VOCAB = re.compile(r'"vocab"\s*:\s*(?=[\[{])')
_ADDED = re.compile(r'"added_tokens"\s*:\s*(?=\[)')


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """known:    the listing tells what is there (False for a single file, or headers without one)
    forms:       names of the files that hold a vocabulary
    companions:  small files that belong to a tokenizer
    added:       added token -> id, from tokenizer.json, else tokenizer_config.json, else added_tokens.json
    vocab:       token -> id of the model's own vocabulary; {} where it was not read
    roles:       "eos_token" -> the token, as tokenizer_config.json or special_tokens_map.json names it
    config:      tokenizer_config.json, {} when there is none
    broken:      (file, end of a sentence) where tokenizer.json cannot be used
    """

    known: bool = False
    forms: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    added: Mapping[str, int] = field(default_factory=dict)
    vocab: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    broken: tuple[str, str] | None = None

    def id_of(self, token: str) -> int | None:
        number = self.added.get(token)
        return self.vocab.get(token) if number is None else number

    def token_of(self, number: int) -> str | None:
        """An added token by its id, else one of the vocabulary."""
        for tokens in (self.added, self.vocab):
            for token, known in tokens.items():
                if known == number:
                    return token
        return None


@per_checkpoint
def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """Reads what the tokenizer files of a checkpoint say. A file that cannot be read is `broken`, never an error."""
    config = checkpoint.json_files.get("tokenizer_config.json")
    config = config if isinstance(config, dict) else {}
    names = {file.name: file.size for file in checkpoint.files}
    forms = tuple(name for name in names if VOCABULARIES.fullmatch(name))
    if forms == ("vocab.json",) and "merges.txt" not in names and not config.get("tokenizer_class"):
        forms = ()
    broken: tuple[str, str] | None = None
    added: dict[str, int] = {}
    vocab: dict[str, int] = {}
    if "tokenizer.json" in names:
        try:
            added, vocab = _tables(checkpoint, names["tokenizer.json"])
        except BadJson as cause:
            broken = ("tokenizer.json", str(cause))
    return Tokenizer(
        known=bool(names) and getattr(checkpoint.source, "kind", "file") != "file",
        forms=forms,
        companions=tuple(name for name in COMPANIONS if name in names),
        added={**_added_elsewhere(checkpoint, config), **added},
        vocab=vocab,
        roles=_roles(checkpoint, config),
        config=config,
        broken=broken,
    )


def _tables(checkpoint: Checkpoint, size: int) -> tuple[dict[str, int], dict[str, int]]:
    """(added tokens, vocabulary) of tokenizer.json."""
    if size > LARGEST:
        raise BadJson(f"has {size:,} bytes; no tokenizer is that large")
    remote = checkpoint.source.remote
    try:
        raw = checkpoint.source.read("tokenizer.json", 0, START if remote else size)
    except (MlloadError, OSError) as error:
        raise BadJson(f"cannot be read: {getattr(error, 'message', error)}") from None
    if not raw:
        raise BadJson("is empty: 0 bytes, where JSON is expected")
    kind = sniff(raw[:512])
    if kind.kind == "lfs":
        real = lfs_fields(raw[:1024])[1]
        raise BadJson("is a git-lfs pointer" + (f" of a file of {real:,} bytes" if real else "") + ": never fetched")
    if kind.kind in ("html", "xml"):
        raise BadJson(f"is {kind.what}: a download saved the error, not the file")
    if remote and size > START:
        return _added(_list_after(_ADDED, raw.decode("utf-8", "replace"))), {}
    if len(raw) > WHOLE:
        found = _parts(json_text.decode(raw))
        if found is not None:
            return found
    return _from_whole(json_text.parse_object(raw))


def _parts(text: str) -> tuple[dict[str, int], dict[str, int]] | None:
    """The two lists with ids, without the merges, which are most of the text; None where that does not work out."""
    if not text.rstrip().endswith("}") or not text.lstrip().startswith("{"):
        return None
    added = _list_after(_ADDED, text)
    place = _VOCAB.search(text)
    if place is None:
        return None
    try:
        vocab, _ = json.JSONDecoder().raw_decode(text, place.end())
    except (ValueError, RecursionError):
        return None
    return _added(added), _numbered(vocab)


def _list_after(key: re.Pattern[str], text: str) -> Any:
    place = key.search(text)
    if place is None:
        return []
    try:
        return json.JSONDecoder().raw_decode(text, place.end())[0]
    except (ValueError, RecursionError):
        return []


def _from_whole(value: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    model = value.get("model")
    if not isinstance(model, dict):
        raise BadJson("has no model in it, so it is no tokenizer")
    return _added(value.get("added_tokens")), _numbered(model.get("vocab"))


def _added(entries: Any) -> dict[str, int]:
    found = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and type(entry.get("id")) is int:
            found[entry["content"]] = entry["id"]
    return found


def _numbered(vocab: Any) -> dict[str, int]:
    """BPE and WordPiece store token -> id, Unigram a list of [token, score] in the order of the ids."""
    if isinstance(vocab, dict):
        return {token: number for token, number in vocab.items() if type(number) is int}
    found = {}
    for number, entry in enumerate(vocab if isinstance(vocab, list) else ()):
        if isinstance(entry, list) and entry and isinstance(entry[0], str):
            found[entry[0]] = number
    return found


def _added_elsewhere(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    plain = checkpoint.json_files.get("added_tokens.json")
    for token, number in plain.items() if isinstance(plain, dict) else ():
        if type(number) is int:
            found[token] = number
    decoder = config.get("added_tokens_decoder")
    for number, entry in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and number.isascii() and number.isdigit():
            found[entry["content"]] = int(number)
    return found


def _roles(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, str]:
    special = checkpoint.json_files.get("special_tokens_map.json")
    found = {}
    for role in ROLES:
        for place in (config, special if isinstance(special, dict) else {}):
            token = place.get(role)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and token:
                found[role] = token
                break
    return found
