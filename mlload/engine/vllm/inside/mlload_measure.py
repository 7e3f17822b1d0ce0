"""Measures a running vLLM through its own requests: first token, plain English, fixed prompts, throughput."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

TICK_SECONDS = 2.0  # between two signs of life
WARM_UP = 2  # tokens decoded before the clock of decoding runs


def everything(engine: Any, asked: dict[str, Any], tell: Callable[..., None]) -> None:
    """All that was asked for; one event for each result."""
    if asked["weights_only"]:
        return
    vocab = engine.vllm_config.model_config.get_vocab_size()
    longest = engine.vllm_config.model_config.max_model_len
    asker = Asker(engine, tell)
    began = time.perf_counter()
    asker.run([walk(vocab, 8, 0)], tokens=1)
    tell("first", seconds=time.perf_counter() - began)
    tokenizer = tokenizer_of(engine)
    if asked["speak"]:
        tell("speaks", **speak(asker, tokenizer, vocab, asked))
    prompts = asked["recorded"] or (texts_as_ids(tokenizer, vocab, asked["texts"]) if asked["positions"] else [])
    if prompts:
        tell("positions", vocab=vocab, prompts=[positions(asker, ids, asked["positions"]) for ids in prompts])
    decode = min(asked["decode"], longest - 1)
    length = min(asked["prompt_len"], longest - decode)
    for batch in asked["batches"]:
        tell("pacing", batch=batch, prompt_len=length, decode=decode)
        tell("pace", **pace(asker, vocab, batch, length, decode))


def tokenizer_of(engine: Any) -> Any:
    try:
        return engine.get_tokenizer()
    except Exception:  # there is none, or none that can be read: what needs it is not asked
        return None


class Asker:
    """Sends requests of token ids and steps the engine until they are answered."""

    def __init__(self, engine: Any, tell: Callable[..., None]) -> None:
        self.engine = engine
        self.tell = tell
        self.count = 0
        self.told = time.perf_counter()

    def run(self, prompts: list[list[int]], tokens: int, **more: Any) -> tuple[list[Any], list[list[float]]]:
        """The final outputs in the order of the prompts, and for each the times at which a token arrived."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        order: list[str] = []
        final: dict[str, Any] = {}
        times: dict[str, list[float]] = {}
        lengths: dict[str, int] = {}
        for ids in prompts:
            self.count += 1
            name = f"mlload-{self.count}"
            params = SamplingParams(
                max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False,
                output_kind=RequestOutputKind.CUMULATIVE, **more,
            )  # fmt: skip
            self.engine.add_request(name, {"prompt_token_ids": ids}, params)
            order.append(name)
            times[name], lengths[name] = [], 0
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            now = time.perf_counter()
            for output in outputs:
                name = output.request_id
                count = len(output.outputs[0].token_ids)
                # A step may bring several tokens (speculation): each counts, at the same time.
                times[name] += [now] * (count - lengths[name])
                lengths[name] = count
                if output.finished:
                    final[name] = output
            if now - self.told > TICK_SECONDS:
                self.told = now
                self.tell("tick", tokens=sum(lengths.values()), of=tokens * len(prompts))
        return [final[name] for name in order], [times[name] for name in order]


def walk(vocab: int, length: int, seed: int) -> list[int]:
    """Ids that no other seed begins with, so that nothing is found in a prefix cache."""
    chosen = random.Random(seed)
    return [chosen.randrange(vocab) for _ in range(length)]


def pace(asker: Asker, vocab: int, batch: int, length: int, decode: int) -> dict[str, Any]:
    """One batch of equal prompts, decoded greedily together."""
    prompts = [walk(vocab, length, 1000 * batch + number) for number in range(batch)]
    began = time.perf_counter()
    _, times = asker.run(prompts, tokens=decode)
    all_first = max(each[0] for each in times)
    gaps = sorted(later - before for each in times for before, later in pairwise(each[WARM_UP:]))
    # From the moment at which every request decodes and none prefills.
    begin = max(each[min(WARM_UP, len(each) - 1)] for each in times)
    end = max(each[-1] for each in times)
    decoded = sum(1 for each in times for at in each if at > begin)
    return {
        "batch": batch,
        "prompt_len": length,
        "decode": decode,
        "prefill_tokens_per_s": batch * length / (all_first - began),
        "decode_tokens_per_s": decoded / (end - begin) if end > begin else 0.0,
        "first_token_ms": 1e3 * sum(each[0] - began for each in times) / batch,
        "inter_token_ms": {"p50": 1e3 * quantile(gaps, 0.5), "p99": 1e3 * quantile(gaps, 0.99)},
    }


def quantile(ordered: list[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed; 0 of none."""
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)] if ordered else 0.0


def speak(asker: Asker, tokenizer: Any, vocab: int, asked: dict[str, Any]) -> dict[str, Any]:
    """What mlload's judge needs: log-probabilities of a passage, and a greedy continuation."""
    ids = tokenizer.encode(asked["passage"]) if tokenizer is not None else walk(vocab, 32, 7)
    ids = ids[: asker.engine.vllm_config.model_config.max_model_len - 1]
    said = positions(asker, ids, 2)
    found = {"losses": [-value for value in said["actual"]], "tops": said["logprobs"], "tokens": said["tokens"]}
    found["vocab"], found["tokenizer"] = vocab, tokenizer is not None
    if tokenizer is not None:
        prompt = tokenizer.encode(asked["prompt"])
        outputs, _ = asker.run([prompt], tokens=asked["continuation"])
        token_ids = list(outputs[0].outputs[0].token_ids)
        found.update(
            said=token_ids,
            sample=asked["prompt"] + tokenizer.decode(token_ids),
            pad=getattr(tokenizer, "pad_token_id", None),
            eos=getattr(tokenizer, "eos_token_id", None),
        )
    return found


def positions(asker: Asker, ids: list[int], top: int) -> dict[str, Any]:
    """Per position the most likely tokens, most likely first; actual: log-probability of the token that follows.

    The engine tells of a position what it says of the next one of the prompt; what follows the last is generated.
    """
    outputs, _ = asker.run([ids], tokens=1, prompt_logprobs=top, logprobs=top)
    output = outputs[0]
    rows = [row for row in output.prompt_logprobs if row is not None] + [output.outputs[0].logprobs[0]]
    tokens, logprobs = [], []
    for row in rows:
        ranked = sorted(row.items(), key=lambda item: -item[1].logprob)[:top]
        tokens.append([int(token) for token, _ in ranked])
        logprobs.append([float(entry.logprob) for _, entry in ranked])
    actual = [float(row[token].logprob) for row, token in zip(rows[:-1], ids[1:], strict=True)]
    return {"ids": list(ids), "tokens": tokens, "logprobs": logprobs, "actual": actual}


def texts_as_ids(tokenizer: Any, vocab: int, texts: list[str]) -> list[list[int]]:
    """Token ids; without a tokenizer the walk through the vocabulary that mlload's own engine takes."""
    if tokenizer is None:
        return [[(7919 * (i + 1) + 104729 * n) % vocab for i in range(32)] for n in range(len(texts))]
    return [list(tokenizer.encode(text)) for text in texts]
