"""One rank of a load test, from the plan to the last token, as one JSON object.

Predictions are written down before the first tensor is read; measurements come from allocated storages.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.local import LocalSource
from mlload.engine.lengths import fitted
from mlload.engine.memory import PeakMemory, device_peak, resident_bytes, storage_bytes
from mlload.engine.native import NativeEngine, load_format_of
from mlload.engine.perplexity import perplexity, windows_of
from mlload.engine.record import compare, prompts, record
from mlload.engine.settings import Settings
from mlload.engine.speak import speak, tokenizer_of
from mlload.engine.sweep import pace
from mlload.engine.towers import LAZY, has_towers, without_towers
from mlload.loader.whole import whole_checkpoint
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import Plan, make_plan
from mlload.quant.layers.group import Group
from mlload.quant.layers.method import KernelUse

Say = Callable[[str], None]


def planned(settings: Settings) -> Plan:
    """The plan of the native engine. dtype auto is the checkpoint's own."""
    checkpoint = Checkpoint.open(settings.source, revision=settings.revision)
    model = read_model(whole_checkpoint(checkpoint))
    names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
    dtype = names.get(model.dtype, "float32") if settings.dtype == "auto" else settings.dtype
    return make_plan(
        model,
        profiles.load("native", None),
        Mesh(settings.tp, ep=settings.ep),
        dtype=dtype,
        kv_dtype=settings.kv_cache_dtype,
    )


def run_rank(
    settings: Settings, group: Group, say: Say | None = None, expected: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Everything one rank measures. say: told lines of progress. Raises MlloadError."""
    say = say or (lambda _: None)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = torch.device("cuda", group.rank % torch.cuda.device_count()) if settings.device == "cuda" else None
    timeline: dict[str, float] = {}
    started = time.perf_counter()
    plan = planned(settings)
    shortened = ""
    if not settings.weights_only:
        settings, shortened = fitted(plan.model, settings)
    timeline["plan"] = time.perf_counter() - started
    load_format = load_format_of(plan) if settings.load_format == "auto" else settings.load_format
    engine = NativeEngine(plan, group.rank, group, device or torch.device("cpu"), settings.towers)
    predicted = engine.plan.ranks()[group.rank]
    loads: list[dict[str, float]] = []

    def reading(count: int) -> None:
        say(f"reading {count / 1e9:.2f} of {predicted.disk_bytes / 1e9:.2f} GB")

    with PeakMemory() as peak:
        for turn in range(max(1, settings.repeat)):
            engine.built = None
            say(f"building {type(plan.model).__name__.lower()} for rank {group.rank}")
            before = time.perf_counter()
            engine.build()
            timeline["build"] = time.perf_counter() - before
            weights = engine.predicted_bytes()
            if settings.cold:
                drop_cache(plan)
            loaded = engine.load(load_format, reading)
            measured = engine.weight_bytes()
            before = time.perf_counter()
            say(f"repacking (load {turn + 1} of {settings.repeat})")
            engine.repack()
            seconds = time.perf_counter() - before
            placing = loaded.copy_seconds
            loads.append({"read": loaded.read_seconds - placing, "copy": placing, "repack": seconds})
    timeline.update(loads[-1])
    result: dict[str, Any] = {
        "rank": group.rank,
        "ep": settings.ep,
        "weight_bytes_predicted": weights,
        "weight_bytes_measured": measured,
        "resident_bytes": resident_bytes(engine.model),
        "buffer_bytes": storage_bytes(engine.model.buffers()),
        "disk_bytes_predicted": predicted.disk_bytes,
        "bytes_read": loaded.bytes_read,
        "read_seconds": loaded.read_seconds,
        "tensors": loaded.tensors,
        "peak_host_bytes": peak.peak,
        "host_bytes_before": peak.start,
        "peak_device_bytes": device_peak(engine.device),
        "kv_bytes": 0,
        "kv_bytes_per_token_predicted": predicted.kv_bytes_per_token,
        "load_format": load_format,
        "dtype": plan.dtype,
        "kv_cache_dtype": plan.kv_dtype,
        "kernels": kernels_json(engine),
        "loads": loads,
        "timeline": timeline,
        "sweep": [],
        "shortened": shortened or None,
        "speaks": None,
        "sample": None,
    }
    if not settings.weights_only:
        if getattr(engine.model.config, "is_encoder_decoder", False):
            raise MlloadError(
                f"{plan.model.checkpoint.label} answers to sound or to another text, and load-test has neither",
                hint="--weights-only loads it",
                exit_code=3,
            )
        _measure(engine, settings, result, say, expected)
    if has_towers(plan):
        result["towers"] = _towers(engine, plan, settings, timeline, say)
    result["peak_device_bytes"] = device_peak(engine.device)
    return result


def _towers(
    engine: NativeEngine, plan: Plan, settings: Settings, timeline: dict[str, float], say: Say
) -> dict[str, Any]:
    """What became of vision and audio; the lazy ones are loaded now, as their first use would."""
    predicted = plan.ranks()[engine.rank].weight_bytes - without_towers(plan).ranks()[engine.rank].weight_bytes
    found: dict[str, Any] = {"mode": settings.towers, "weight_bytes_predicted": predicted}
    if settings.towers == LAZY:
        say("loading the towers")
        before, held = time.perf_counter(), engine.weight_bytes()
        loaded = engine.load_towers()
        timeline["towers"] = time.perf_counter() - before
        found["weight_bytes_measured"] = engine.weight_bytes() - held
        found["bytes_read"] = loaded.bytes_read if loaded is not None else 0
    return found


def _measure(
    engine: NativeEngine, settings: Settings, result: dict[str, Any], say: Say, expected: dict[str, Any] | None
) -> None:
    timeline = result["timeline"]
    say("warming up")
    before = engine.synchronize()
    warm = pace(engine, 1, min(8, settings.prompt_len), 1)
    timeline["warm_up"] = engine.synchronize() - before
    timeline["first_token"] = warm.first_token_ms / 1e3
    tokenizer = tokenizer_of(settings.source, engine.plan.model.checkpoint.label)
    if result["load_format"] != "dummy":
        say("asking whether it speaks")
        spoken = speak(engine, tokenizer)
        result["speaks"] = {"ok": spoken.ok, "reasons": list(spoken.reasons), "loss": spoken.loss}
        result["sample"] = spoken.sample
    ids = prompts(tokenizer, int(engine.plan.model.config.vocab))
    if settings.record:
        result["record"] = record(engine, ids)
    if expected is not None:
        if expected.get("vocab") != int(engine.plan.model.config.vocab):
            raise MlloadError(
                f"the record is of a vocabulary of {expected.get('vocab')} tokens, this model has "
                f"{engine.plan.model.config.vocab}"
            )
        result["divergence"] = compare(engine, expected)._asdict()
    if settings.perplexity:
        text = windows_of(tokenizer, settings.perplexity, settings.windows, settings.window)
        say(f"perplexity of {text.shape[0]} windows of {text.shape[1]} tokens")
        result["perplexity"] = perplexity(engine, text)._asdict()
    for batch in settings.batches:
        say(f"batch {batch}: {settings.prompt_len} tokens of prompt, {settings.decode} to decode")
        paced = pace(engine, batch, settings.prompt_len, settings.decode)
        result["sweep"].append(paced.as_json())
        result["kv_bytes"] = max(result["kv_bytes"], paced.kv_bytes)


def kernels_json(engine: NativeEngine) -> list[dict[str, Any]]:
    """One row for each kind of layer and kernel."""
    rows = []
    for kind, uses in engine.kernels().items():
        for use in sorted(uses, key=lambda one: one.kernel):
            rows.append({"layer": kind, **kernel_json(use)})
    return rows


def kernel_json(use: KernelUse) -> dict[str, Any]:
    return {
        "kernel": use.kernel,
        "provider": use.provider,
        "version": f"torch {torch.__version__}" if use.provider == "torch" else None,
        "packed": use.packed,
        "declined": [one._asdict() for one in use.declined],
    }


def drop_cache(plan: Plan) -> None:
    """Ask the kernel to forget the pages of the checkpoint's files (clean ones; no privilege is needed)."""
    source = plan.model.checkpoint.source
    if not isinstance(source, LocalSource) or not hasattr(os, "posix_fadvise"):
        raise MlloadError("--cold needs local files, and a system with posix_fadvise")
    gc.collect()  # pages that an earlier load still maps are not forgotten
    for file in plan.model.checkpoint.files:
        if file.used:
            descriptor = os.open(source.path(file.name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
