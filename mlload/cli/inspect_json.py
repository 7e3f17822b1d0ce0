"""`inspect --format json`: one object, described in docs/schema-inspect.md and docs/schemas/inspect-1.json."""

from __future__ import annotations

from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.cli.inspect_facts import Files, Quantization
from mlload.cli.inspect_result import InspectResult, Size
from mlload.plan.model import Model
from mlload.plan.plan import Plan
from mlload.quant.spec import Scheme

SCHEMA_VERSION = 1


def document(result: InspectResult) -> dict[str, Any]:
    checkpoint = result.checkpoint
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "command": "inspect",
        "source": checkpoint.label,
        "revision": checkpoint.revision,
        "format": checkpoint.format,
        "fingerprint": checkpoint.fingerprint,
        "architecture": architecture(result),
        "quantization": None if result.quantization is None else quantization(result.quantization),
        "files": files(result.files),
        "bytes": {
            "unit": "dtype" if result.model is None else "component",
            "shares": [share._asdict() for share in result.shares],
        },
        "plan": None if result.plan is None else plan(result.plan),
        "sizes": [size(entry) for entry in result.sizes],
        "problems": [finding.as_json() for finding in result.problems],
        "unknowns": [{"what": "plan", "why": result.unplanned, "how_to_know": None}] if result.unplanned else [],
    }
    if result.tensors is not None:
        found["tensors"] = [{**row._asdict(), "shape": list(row.shape)} for row in result.tensors]
    return found


def architecture(result: InspectResult) -> dict[str, Any]:
    config = ConfigView(result.checkpoint.config) if result.model is None else result.model.config
    return {
        "model_type": config.model_type,
        "class": config.architectures[0] if config.architectures else None,
        "inferred": result.model is not None and result.model.inferred,
        "parameters": None if result.model is None else parameters(result.model),
        "dtype": None if result.model is None else result.model.dtype,
        "layers": config.layers,
        "hidden_size": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "context": whole(config.get("max_position_embeddings")),
        "experts": config.experts,
        "experts_per_token": whole(config.get("num_experts_per_tok")) if config.experts else None,
        "tied_embeddings": config.tied,
    }


def whole(value: Any) -> int | None:
    """A count from a config, where anything may stand."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def parameters(model: Model) -> dict[str, int]:
    return {"total": model.parameters_total, "active": model.parameters_active, "draft": model.parameters_draft}


def quantization(quant: Quantization) -> dict[str, Any]:
    first = quant.schemes[0].scheme if quant.schemes else None
    return {
        "method": quant.method,
        "declared_in": quant.declared_in,
        "bits": first.bits if first is not None else None,
        "group_size": first.group_size if first is not None else None,
        "effective_bits": None if quant.effective_bits is None else round(quant.effective_bits, 4),
        "schemes": [
            {**scheme(use.scheme), "parameters": use.parameters, "effective_bits": round(use.effective_bits, 4)}
            for use in quant.schemes
        ],
        "unquantized": list(quant.unquantized),
        "kv_cache": None
        if quant.kv is None
        else {"bits": quant.kv.bits, "kind": quant.kv.kind, "strategy": quant.kv.strategy},
        "evidence": list(quant.evidence),
    }


def scheme(one: Scheme) -> dict[str, Any]:
    return {
        "format": one.format,
        "layout": one.layout,
        "bits": one.bits,
        "kind": one.kind,
        "strategy": one.strategy,
        "group_size": one.group_size,
        "block": None if one.block is None else list(one.block),
        "symmetric": one.symmetric,
        "act_order": one.act_order,
        "activation": one.activation,
        "activation_bits": one.activation_bits,
    }


def files(found: Files) -> dict[str, Any]:
    return {
        "count": found.total,
        "weights": list(found.weights),
        "weight_bytes": found.weight_bytes,
        "stray": list(found.stray),
        "index": None if found.index is None else {"name": found.index, "agrees": found.index_agrees},
        "tokenizer": found.tokenizer,
        "chat_template": found.chat_template,
    }


def plan(made: Plan) -> dict[str, Any]:
    return {
        "engine": engine(made),
        "tp": made.mesh.tp,
        "pp": made.mesh.pp,
        "ep": made.mesh.ep,
        "dtype": made.dtype,
        "kv_dtype": made.kv_dtype,
        "stages": list(made.stages()),
        "violations": [finding.as_json() for finding in made.violations],
        "unknowns": [unknown._asdict() for unknown in made.unknowns],
        "ranks": [
            {
                "rank": rank.rank,
                "disk_bytes": rank.disk_bytes,
                "weight_bytes": rank.weight_bytes,
                "kv_bytes_per_token": rank.kv_bytes_per_token,
                "kv_state_bytes_per_sequence": rank.kv_state_bytes_per_sequence,
                "weight_bytes_by_component": dict(rank.by_component),
                "weight_bytes_by_dtype": dict(rank.by_dtype),
            }
            for rank in made.ranks()
        ],
    }


def engine(made: Plan) -> dict[str, Any]:
    return {"name": made.profile.engine, "version": made.profile.version}


def size(entry: Size) -> dict[str, Any]:
    """Figures of the largest rank."""
    return {
        "tp": entry.mesh.tp,
        "pp": entry.mesh.pp,
        "ep": entry.mesh.ep,
        "works": entry.works,
        "codes": list(dict.fromkeys(finding.code for finding in entry.errors)),
        "disk_bytes": entry.disk_bytes,
        "weight_bytes": entry.weight_bytes,
        "kv_bytes_per_token": entry.kv_bytes_per_token,
        "kv_state_bytes_per_sequence": entry.kv_state_bytes_per_sequence,
    }
