"""tokenizer.json and tokenizer_config.json from a GGUF file's vocabulary.

Two kinds: "gpt2" (byte-level BPE with merges, and a pre-tokenizer that the file only names), and "llama"
(sentencepiece: pieces with scores; a pair is merged where the result is a piece, best score first).
The files' form is that of the tokenizers library; nothing of it is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlload.checkpoint.finding import MlloadError

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "▁"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# How text is divided before bytes are merged, by `tokenizer.ggml.pre`.
SPLITS = {
    "llama-bpe": f"{_SHORT}|{_WORDS}|\\p{{N}}{{1,3}}|{_REST}",
    "qwen2": f"{_SHORT}|{_WORDS}|\\p{{N}}|{_REST}",
}
SAME_AS = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2", "megrez": "qwen2"}
DIGITS_APART = {"smollm", "starcoder", "refact"}
PLAIN = {"gpt-2", "default", "phi-2"}
KEYS = ("tokens", "token_type", "scores", "merges")


def tokenizer_files(metadata: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """File name -> content as JSON values. kind: the model_type. Raises MlloadError for a kind of vocabulary that
    is not known."""
    model = metadata.get("tokenizer.ggml.model")
    tokens = _array(metadata, "tokens")
    types = _array(metadata, "token_type") or [NORMAL] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise MlloadError("the file has no vocabulary", hint="--no-tokenizer converts the weights alone")
    if model == "gpt2":
        body = _byte_level(metadata, tokens)
    elif model == "llama":
        body = _sentencepiece(metadata, tokens, types, kind)
    else:
        raise MlloadError(
            f"vocabularies of the kind {model!r} are not rebuilt; gpt2 and llama are",
            hint="--no-tokenizer converts the weights alone",
        )
    config = _config(metadata, tokens, body["model"])
    # A control token is never made from text; a user-defined one is, as a whole.
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": types[number] in (CONTROL, UNKNOWN),
        }
        for number, token in enumerate(tokens)
        if types[number] in (CONTROL, USER) or (types[number] == UNKNOWN and token)
    ]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": body["normalizer"],
        "pre_tokenizer": body["pre_tokenizer"],
        "post_processor": _bos_first(metadata, tokens, config) or body["post_processor"],
        "decoder": body["decoder"],
        "model": body["model"],
    }
    return {"tokenizer.json": document, "tokenizer_config.json": config}


def _array(metadata: Mapping[str, Any], key: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    return value if isinstance(value, list) else []


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    named = metadata.get("tokenizer.ggml.pre", "default")
    pre = SAME_AS.get(named, named)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pre not in SPLITS}
    before: list[dict[str, Any]] = []
    if pre in SPLITS:
        before = [{"type": "Split", "pattern": {"Regex": SPLITS[pre]}, "behavior": "Isolated", "invert": False}]
    elif pre in DIGITS_APART:
        before = [{"type": "Digits", "individual_digits": True}]
    elif pre not in PLAIN:
        raise MlloadError(
            f"the file's pre-tokenizer is called {named!r}, and how that divides text is not known here",
            hint="--no-tokenizer converts the weights alone; take tokenizer.json from the original model",
        )
    return {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*before, level]} if before else level,
        "post_processor": {**level, "trim_offsets": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": _array(metadata, "merges"),
        },
    }


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], kind: str
) -> dict[str, Any]:
    scores = _array(metadata, "scores")
    if len(scores) != len(tokens):
        raise MlloadError("the file's vocabulary has no scores", hint="--no-tokenizer converts the weights alone")
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", not kind.startswith("gemma")))
    unknown = next((token for token, which in zip(tokens, types, strict=True) if which == UNKNOWN), None)
    spaces: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    start: list[dict[str, Any]] = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    strip: list[dict[str, Any]] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*start, spaces]} if start else spaces,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": merges(tokens, scores, types),
        },
    }


def merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[list[str]]:
    """Every pair of pieces that makes a piece, the best result first; of one result, the pair with the earliest
    pieces first."""
    place = {token: number for number, token in enumerate(tokens)}
    found: list[tuple[float, int, int, int]] = []
    for number, token in enumerate(tokens):
        if types[number] not in (NORMAL, USER, UNUSED):
            continue
        for cut in range(1, len(token)):
            left, right = place.get(token[:cut]), place.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[number], number, left, right))
    # Scores fall with the number in most files; where they are equal, the number decides.
    found.sort()
    return [[tokens[left], tokens[right]] for _, _, left, right in found]


def _config(metadata: Mapping[str, Any], tokens: Sequence[str], model: Mapping[str, Any]) -> dict[str, Any]:
    def named(key: str) -> str | None:
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        return tokens[number] if isinstance(number, int) and 0 <= number < len(tokens) else None

    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": named("bos"),
        "eos_token": named("eos"),
        "pad_token": named("padding"),
        "unk_token": model.get("unk_token") or named("unknown"),
        "add_bos_token": _adds_bos(metadata),
    }
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    return {key: value for key, value in config.items() if value is not None}


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    """As the file says; else llama.cpp's own default, which is yes for sentencepiece and Llama 3."""
    value = metadata.get("tokenizer.ggml.add_bos_token")
    if isinstance(value, bool):
        return value
    pre = metadata.get("tokenizer.ggml.pre", "")
    return metadata.get("tokenizer.ggml.model") == "llama" or SAME_AS.get(pre, pre) == "llama-bpe"


def _bos_first(metadata: Mapping[str, Any], tokens: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any] | None:
    bos = config.get("bos_token")
    if not config["add_bos_token"] or bos is None:
        return None
    first = {"SpecialToken": {"id": bos, "type_id": 0}}

    def sequence(letter: str, number: int) -> dict[str, Any]:
        return {"Sequence": {"id": letter, "type_id": number}}

    return {
        "type": "TemplateProcessing",
        "single": [first, sequence("A", 0)],
        "pair": [first, sequence("A", 0), {"SpecialToken": {"id": bos, "type_id": 1}}, sequence("B", 1)],
        "special_tokens": {bos: {"id": bos, "ids": [metadata["tokenizer.ggml.bos_token_id"]], "tokens": [bos]}},
    }
