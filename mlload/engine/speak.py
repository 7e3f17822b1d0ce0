"""Asks a loaded native engine whether it speaks; `judge` decides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlload.engine.judge import ALIKE, CONTINUATION, PASSAGE, PROMPT, Spoken, judged
from mlload.engine.native import NativeEngine


def speak(engine: NativeEngine, tokenizer: Any | None) -> Spoken:
    """Ask a loaded engine. Every rank must call it."""
    vocab = int(engine.plan.model.config.vocab)
    if tokenizer is None:
        ids = torch.arange(32).remainder(max(vocab, 1))[None]
        reasons = faults(engine.logits(ids)[0])
        return Spoken(False if reasons else None, reasons, None, None)
    ids = torch.tensor([tokenizer.encode(PASSAGE)])
    logits = engine.logits(ids)[0].float()
    loss = float(torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:].to(logits.device)))
    prompt = torch.tensor([tokenizer.encode(PROMPT)])
    said = engine.greedy(prompt, CONTINUATION)[0].tolist()
    pad = getattr(tokenizer, "pad_token_id", None)
    eos = getattr(tokenizer, "eos_token_id", None)
    found = judged(faults(logits), loss, vocab, said, pad, eos)
    return Spoken(not found, found, loss, PROMPT + tokenizer.decode(said))


def faults(logits: Tensor) -> tuple[str, ...]:
    """What is wrong with logits [positions, vocab] whatever they say."""
    if not torch.isfinite(logits).all():
        bad = int((~torch.isfinite(logits)).sum())
        return (f"{bad:,} of {logits.numel():,} logits are NaN or infinite",)
    if float(logits.float().std(-1).max()) == 0:
        return ALIKE[:1]
    if len(logits) > 1 and float((logits - logits[:1]).abs().max()) == 0:
        return ALIKE[1:]
    return ()


def tokenizer_of(source: str, label: str) -> Any | None:
    """The tokenizer beside the weights, None where there is none that transformers reads."""
    import os

    from transformers import AutoTokenizer

    folder = source if os.path.isdir(source) else os.path.dirname(source) or "."
    arguments: dict[str, Any] = {}
    if source.endswith(".gguf"):
        if not os.path.exists(os.path.join(folder, "tokenizer.json")):
            arguments["gguf_file"] = os.path.basename(source)
    elif not os.path.isdir(source):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, **arguments)
    except Exception:  # a tokenizer of any kind may be broken in any way; the load test goes on without it
        return None
