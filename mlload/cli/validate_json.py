"""`validate --format json`: one object, described in docs/schema-validate.md and docs/schemas/validate-1.json."""

from __future__ import annotations

from typing import Any

from mlload.cli.validate_result import Entry, ValidateResult, serve_command
from mlload.plan.mesh import Mesh

SCHEMA_VERSION = 1


def document(result: ValidateResult) -> dict[str, Any]:
    profile = result.question.profile
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "validate",
        "engine": {"name": profile.engine, "version": profile.version, "assumed": dict(profile.assumed)},
        "not_judged": ["--gpu: its memory"] if fits(result) == "unknown" else [],
        "results": [entry_json(entry, result) for entry in result.entries],
    }


def entry_json(entry: Entry, result: ValidateResult) -> dict[str, Any]:
    mesh = entry.mesh
    return {
        "source": entry.source,
        "tp": mesh.tp,
        "pp": mesh.pp,
        "ep": mesh.ep,
        "dp": mesh.dp,
        "gpu": None if result.question.gpu is None else result.question.gpu.key,
        "starts": entry.verdict.starts,
        "verdict": entry.verdict.verdict,
        "fits": fits(result),
        "unknowns": [unknown._asdict() for unknown in entry.verdict.unknowns],
        "sizes_that_work": [size(mesh) for mesh in entry.sizes_that_work],
        "findings": [finding.as_json() for finding in entry.verdict.findings],
        "ranks": [] if entry.plan is None else ranks(entry),
        "kernels": [choice.as_json() for choice in entry.verdict.kernels],
        "serve": serve_command(entry, result.question),
    }


def fits(result: ValidateResult) -> str | None:
    """Memory is not judged yet: null without a memory size, as promised, and "unknown" with one."""
    gpu = result.question.gpu
    return None if gpu is None or gpu.memory_gib is None else "unknown"


def size(mesh: Mesh) -> dict[str, Any]:
    return {"tp": mesh.tp, "pp": mesh.pp, "ep": mesh.ep, "dp": mesh.dp, "fits": None, "max_model_len": None}


def ranks(entry: Entry) -> list[dict[str, Any]]:
    assert entry.plan is not None
    return [
        {
            "rank": rank.rank,
            "disk_bytes": rank.disk_bytes,
            "weight_bytes": rank.weight_bytes,
            "kv_bytes_per_token": rank.kv_bytes_per_token,
            "kv_state_bytes_per_sequence": rank.kv_state_bytes_per_sequence,
        }
        for rank in entry.plan.ranks()
    ]
