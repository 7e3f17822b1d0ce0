"""A byte-level BPE tokenizer, trained on the few sentences below each time it is written."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

TEXT = """\
A checkpoint is a folder of tensors, and a server that wants to run it has to know which bytes of which file belong to
which layer. When a model is too large for one device, every rank holds a part: the columns of one matrix, the rows of
the next, some of the heads, some of the experts. Whether a size can be cut into equal parts is a question of simple
arithmetic, and the answer should come before the machines are rented, not after an hour of loading. Quantized weights
make the question harder. Their values are packed into words, and groups of them share a scale, so that a cut is only
possible where a word and a group end together. The plan says where these places are. It counts what each rank reads,
what it keeps in memory, and what is left for the cache of keys and values. If something does not fit, the tool explains
why, with the numbers, and names the sizes that would work. Nothing here is learned: the weights of this little model
are noise, and its words have no meaning. But it has everything that a real one has: a vocabulary, attention, layers
that can be split between three devices and not between two, and a head that turns the last state into a token.
"""


def tokenizer_json(size: int) -> dict[str, Any]:
    """tokenizer.json for a vocabulary of `size`: special tokens, the 256 bytes, and merges."""
    alphabet = byte_alphabet()
    merges = train(TEXT, size - len(SPECIAL_TOKENS) - len(alphabet))
    tokens = [*SPECIAL_TOKENS, *sorted(alphabet), *(left + right for left, right in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, token in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }


def byte_alphabet() -> list[str]:
    """The character that stands for each byte: itself where it prints, else the next free one from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def train(text: str, count: int) -> list[tuple[str, str]]:
    """The `count` most frequent pairs, each merged before the next is counted; ties go to the smaller pair."""
    alphabet = byte_alphabet()
    counted = Counter(re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+", text))
    words = [(["".join(alphabet[b] for b in letter.encode()) for letter in word], n) for word, n in counted.items()]
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for parts, times in words:
            for pair in itertools.pairwise(parts):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for parts, _ in words:
            at = 0
            while at < len(parts) - 1:
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = [best[0] + best[1]]
                at += 1
    return merges
