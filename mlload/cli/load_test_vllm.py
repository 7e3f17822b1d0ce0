"""`mlload load-test --engine vllm`, without a screen: a real vLLM is run, and becomes one JSON object."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlload.checkpoint.finding import MlloadError
from mlload.cli import options
from mlload.cli.load_test_result import SCHEMA, Thresholds, failures
from mlload.cli.load_test_words import EngineLine, engine_line, load_formats, log_file

if TYPE_CHECKING:
    from mlload.engine.vllm.asked import Asked
    from mlload.engine.vllm.environment import Environment
    from mlload.engine.vllm.prediction import Prediction
    from mlload.engine.vllm.session import Outcome

LOADING = ("build", "read", "repack")
NATIVE_ONLY = ("cold", "device", "repeat", "language_only", "lazy_towers")


def run_vllm(
    source: str | None, asked: Mapping[str, Any], words: Sequence[str], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One document for each load format. Raises MlloadError where there is no vLLM, or not the version asked for."""
    from mlload.engine.record_file import read_record
    from mlload.engine.vllm.environment import find

    refuse_native_options(asked)
    found = find(asked["vllm_python"])
    same_version(asked["engine"], found)
    expected = read_record(asked["expect"]) if asked["expect"] is not None else None
    thresholds = Thresholds(asked["max_load_seconds"], asked["min_decode_tps"], asked["max_peak_gib"], asked["max_kl"])
    documents = []
    for load_format in load_formats(asked["load_format"]):
        line = engine_line({**asked, "load_format": load_format}, words, found.version)
        model = source_of(source, line)
        one = run_once(model, asked, line, found, expected, say)
        if "divergence" in one:
            one["divergence"]["limit"] = thresholds.max_kl
        one["failures"] += failures(one, thresholds)
        documents.append(one)
    return documents


def refuse_native_options(asked: Mapping[str, Any]) -> None:
    unset = {"cold": False, "device": "auto", "repeat": 1, "language_only": False, "lazy_towers": False}
    for name in NATIVE_ONLY:
        if asked[name] != unset[name]:
            flag = name.replace("_", "-")
            raise MlloadError(f"--{flag} is of the native engine: vLLM decides that itself")
    if asked["weights_only"] and (asked["record"] or asked["expect"]):
        raise MlloadError("--record and --expect run the model, which --weights-only does not")


def same_version(engine: str, found: Environment) -> None:
    wanted = engine.partition("@")[2].removeprefix("v")
    if wanted and not (found.version + ".").startswith(wanted + "."):
        raise MlloadError(
            f"vLLM {wanted} was asked for, and {found.python} has {found.version}",
            hint="--vllm-python names another environment",
        )


def source_of(source: str | None, line: EngineLine) -> str:
    if source is not None and line.model is not None and source != line.model:
        raise MlloadError(f"two models are named: {source}, and {line.model} after --")
    return line.model or options.source_or_here(source, "load-test")


def run_once(
    source: str,
    asked: Mapping[str, Any],
    line: EngineLine,
    found: Environment,
    expected: dict[str, Any] | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """One start of the engine. The prediction is made before it has loaded anything."""
    from mlload.engine.vllm.asked import Asked
    from mlload.engine.vllm.prediction import Prediction, Question, predict
    from mlload.engine.vllm.session import run

    question = Asked(
        source=source,
        words=line.words,
        log=log_file(asked),
        variables=line.variables,
        batches=options.sizes(asked["batch"], "--batch"),
        prompt_len=asked["prompt_len"],
        decode=asked["decode"],
        weights_only=asked["weights_only"],
        record=asked["record"] is not None,
        recorded=None if expected is None else tuple(tuple(prompt["ids"]) for prompt in expected["prompts"]),
        speak=line.flags.get("load-format") != "dummy",
        start_seconds=asked["start_timeout"],
    )
    before: list[Prediction] = []
    wanted = Question(
        source, asked["revision"], found.version, line.mesh, line.request, {"device": "cpu"}, line.flags,
        {**os.environ, **line.variables}, line.findings,
    )  # fmt: skip

    def note(platform: Mapping[str, Any]) -> None:
        before.append(predict(replace(wanted, platform=platform)))

    outcome = run(found, question, say, note)
    if not before:
        before.append(Prediction("", "vLLM ended before it had said what it runs on"))
    document = as_document(source, line, found, question, before[0], outcome)
    finish(document, question, outcome, expected)
    if asked["record"] is not None and "positions" in outcome.events:
        from mlload.engine.vllm.speech import as_record

        asked["record"].write_text(json.dumps(as_record(outcome.events["positions"])))
    return document


def as_document(
    source: str, line: EngineLine, found: Environment, asked: Asked, prediction: Prediction, outcome: Outcome
) -> dict[str, Any]:
    """The keys of the native engine's result, and those of a real engine."""
    from mlload.engine.vllm.comparison import compare, measured_tokens

    imported, up = outcome.events.get("imported", {}), outcome.events.get("up", {})
    settings: dict[str, Any] = up.get("settings", {})
    timeline = {**outcome.steps}
    timeline.pop("up", None)
    for step in ("build", "read"):
        if f"{step}_seconds" in outcome.log.numbers:
            timeline[step] = outcome.log.numbers[f"{step}_seconds"]
    if "first" in outcome.events:
        timeline["first_token"] = outcome.events["first"]["seconds"]
    held = outcome.events.get("holds", {}).get("ranks", [])
    expected = {rank["rank"]: rank for rank in prediction.ranks}
    nbytes = file_bytes(source)
    mesh = line.mesh
    return {
        "schema_version": SCHEMA,
        "source": source,
        "engine": "vllm",
        "engine_version": imported.get("version", found.version),
        "engine_distribution": f"{found.distribution} {found.version}",
        "engine_python": found.python,
        "engine_words": ["vllm", "serve", source, *line.words],
        "engine_log": str(asked.log),
        "engine_settings": settings,
        "throughput_of": "engine",
        "tp": mesh.tp,
        "pp": mesh.pp,
        "ep": mesh.ep,
        "device": imported.get("platform", {}).get("device"),
        "device_name": imported.get("platform", {}).get("name"),
        "load_format": settings.get("load_format", line.flags.get("load-format", "auto")),
        "dtype": settings.get("dtype"),
        "kv_cache_dtype": settings.get("kv_cache_dtype"),
        "starts": outcome.started,
        "error": None if outcome.fault is None else outcome.fault.sentence,
        "timed_out": outcome.timed_out,
        "doing": outcome.doing,
        "timeline": timeline,
        "start_seconds": up.get("seconds"),
        "load_seconds": sum(timeline.get(step, 0.0) for step in LOADING),
        "loads": [{step: timeline.get(step, 0.0) for step in LOADING}],
        "bytes_read": nbytes,
        "read_gb_per_s": nbytes / timeline["read"] / 1e9 if timeline.get("read") else 0.0,
        "ranks": [rank_json(rank, expected.get(rank["rank"]), prediction) for rank in held],
        "kv_tokens": measured_tokens(outcome),
        "sweep": [{key: value for key, value in pace.items() if key != "at"} for pace in outcome.paces],
        "kernels": [
            {
                "layer": row["layers"],
                "kernel": row["label"],
                "provider": "vllm",
                "version": found.version,
                "packed": True,
                "count": row["count"],
                "declined": [],
            }
            for row in (held[0]["kernels"] if held else [])
        ],
        "announced": [{"kernel": kernel, "runs": runs} for kernel, runs in outcome.log.kernels],
        "not_run": [],
        "speaks": None,
        "sample": None,
        "prediction": {
            "profile": prediction.engine or None,
            "missing": prediction.missing or None,
            "findings": [finding.as_json() for finding in prediction.errors],
            "rows": [row._asdict() for row in compare(prediction, outcome)],
        },
        "failures": [],
    }


def rank_json(held: dict[str, Any], expected: dict[str, int] | None, prediction: Prediction) -> dict[str, Any]:
    """One rank in the native engine's keys. On a CPU oneDNN holds what `moved_bytes` and `copied_bytes` say."""
    weights = held["parameter_bytes"] + held["moved_bytes"]
    return {
        "rank": held["rank"],
        "weight_bytes_predicted": None if expected is None else expected["weight_bytes"],
        "weight_bytes_measured": weights,
        "resident_bytes": weights + held["copied_bytes"],
        "disk_bytes_predicted": None if expected is None else expected["disk_bytes"],
        "kv_bytes_per_token_predicted": None if expected is None else expected["kv_bytes_per_token"],
        **{
            key: held[key]
            for key in ("buffer_bytes", "device_bytes", "peak_host_bytes", "peak_device_bytes", "kv_bytes",
                        "num_blocks", "copied_bytes")
        },
    }  # fmt: skip


def finish(document: dict[str, Any], asked: Asked, outcome: Outcome, expected: dict[str, Any] | None) -> None:
    """What the answers say, and why the run is no success."""
    from mlload.engine.vllm.speech import divergence, spoken

    said = document["failures"]
    if outcome.fault is not None:
        what = "it does not start" if not outcome.started else f"it stopped while {outcome.doing}"
        said.append(document["error"] if outcome.timed_out else f"{what}: {document['error']}")
    for row in document["prediction"]["rows"]:
        if row["what"] == "verdict" and row["agrees"] is False:
            said.append(f"validate says that it {row['predicted']}, and it {row['measured']}")
    if "speaks" in outcome.events:
        answer = spoken(outcome.events["speaks"])
        document["speaks"] = {key: value for key, value in answer._asdict().items() if key != "sample"}
        document["speaks"]["reasons"] = list(answer.reasons)
        document["sample"] = answer.sample
    if expected is not None and "positions" in outcome.events:
        document["divergence"] = divergence(expected, outcome.events["positions"])


def file_bytes(source: str) -> int:
    """Bytes of the weights in the files, which every rank of the engine goes through; 0 where they are not here."""
    from mlload.checkpoint.checkpoint import Checkpoint

    if not os.path.exists(source):
        return 0
    try:
        return sum(tensor.nbytes for tensor in Checkpoint.open(source).tensors.values())
    except MlloadError:
        return 0
