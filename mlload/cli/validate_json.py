"""`validate --format json`: one object, described in docs/schema-validate.md and docs/schemas/validate-1.json."""

from __future__ import annotations

from typing import Any

from mlload.cli.generations import Generation
from mlload.cli.validate_result import Entry, ValidateResult, WorkingSize, serve_command
from mlload.plan.memory import MemoryAnswer

SCHEMA_VERSION = 1


def document(result: ValidateResult) -> dict[str, Any]:
    profile = result.question.profile
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "validate",
        "engine": {"name": profile.engine, "version": profile.version, "assumed": dict(profile.assumed)},
        "not_judged": list(result.not_judged),
        "results": [entry_json(entry, result) for entry in result.entries],
        "upgrades": [found.as_json() for found in result.upgrades],
    }


def entry_json(entry: Entry, result: ValidateResult) -> dict[str, Any]:
    mesh, gpu = entry.mesh, (entry.question or result.question).gpu
    return {
        "source": entry.source,
        "tp": mesh.tp,
        "pp": mesh.pp,
        "ep": mesh.ep,
        "dp": mesh.dp,
        "gpu": None if gpu is None else gpu.key,
        "starts": entry.verdict.starts,
        "verdict": entry.verdict.verdict,
        "fits": entry.verdict.fits,
        "unknowns": [unknown._asdict() for unknown in entry.verdict.unknowns],
        "sizes_that_work": [size(found) for found in entry.sizes_that_work],
        "findings": [finding.as_json() for finding in entry.verdict.findings],
        "waived": [{**waived.finding.as_json(), "waiver": waived.waiver.as_json()} for waived in entry.waived],
        "ignored": entry.ignored,
        "ranks": [] if entry.plan is None else ranks(entry),
        "kernels": [choice.as_json() for choice in entry.verdict.kernels],
        "serve": serve_command(entry, result.question),
        "judged_for": judged_for(result),
        "generations": [generation(row) for row in entry.generations],
        "memory": None if entry.verdict.memory is None else memory(entry.verdict.memory),
        "deep": contents(entry),
    }


def contents(entry: Entry) -> dict[str, Any] | None:
    """What the bytes were looked at for, file by file."""
    if entry.looked is None:
        return None
    from mlload.cli.validate_deep import as_json

    return as_json(entry.looked, entry.checkpoint)


def judged_for(result: ValidateResult) -> str | None:
    """The compute capability that starts, verdict and kernels are for."""
    capability = result.question.capability
    return None if capability is None else f"cc:{capability[0]}.{capability[1]}"


def generation(row: Generation) -> dict[str, Any]:
    assert row.gpu.capability is not None
    return {
        "gpu": row.gpu.key,
        "capability": ".".join(map(str, row.gpu.capability)),
        "starts": row.starts,
        "verdict": row.verdict,
        "codes": list(row.codes),
    }


def memory(answer: MemoryAnswer) -> dict[str, Any]:
    """Figures of the rank that decides; pairs are "at least" and "at most"."""
    return {
        "budget_bytes": answer.settings.budget,
        "gpu_memory_utilization": answer.settings.utilization,
        "max_num_seqs": answer.settings.max_num_seqs,
        "max_num_batched_tokens": answer.settings.max_num_batched_tokens,
        "peak_rank": answer.peak.rank,
        "buffer_bytes": answer.peak.buffer_bytes,
        "beside_bytes": list(answer.peak.beside),
        "cache_bytes": list(answer.peak.cache),
        "block_size": answer.cache.block_size,
        "block_bytes": answer.peak.block_bytes,
        "request_tokens": answer.request,
        "tokens": list(answer.tokens),
        "concurrency": [round(share, 2) for share in answer.concurrency],
        "max_model_len": answer.max_model_len,
    }


def size(found: WorkingSize) -> dict[str, Any]:
    mesh = found.mesh
    return {
        "tp": mesh.tp,
        "pp": mesh.pp,
        "ep": mesh.ep,
        "dp": mesh.dp,
        "fits": found.fits,
        "max_model_len": found.max_model_len,
    }


def ranks(entry: Entry) -> list[dict[str, Any]]:
    assert entry.plan is not None
    nodes = 1 if entry.question is None else entry.question.asked.nodes
    return [
        {
            "rank": rank.rank,
            "node": entry.mesh.node(rank.rank, nodes),
            "disk_bytes": rank.disk_bytes,
            "weight_bytes": rank.weight_bytes,
            "kv_bytes_per_token": rank.kv_bytes_per_token,
            "kv_state_bytes_per_sequence": rank.kv_state_bytes_per_sequence,
        }
        for rank in entry.plan.ranks()
    ]
