"""The lock: what was approved, as JSON to keep beside a deployment and to compare with later.

A lock holds no date and no host, so that approving the same thing twice gives the same file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlload.checkpoint.finding import Finding, MlloadError
from mlload.gate.digests import Digest
from mlload.gate.waivers import Waived
from mlload.plan.mesh import Mesh
from mlload.profiles.profile import Profile

LOCK_VERSION = 1
PLACE = {"code": str, "where": str}
SHAPE = {
    "engine": {"name": str, "assumed": dict},
    "models": [
        {
            "flags": dict,
            "files": [{"name": str, "size": int, "sha256": str}],
            "judged": [{"tp": int, "pp": int, "dp": int, "verdict": str, "findings": [PLACE], "waived": [PLACE]}],
        }
    ],
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer: a mesh and a GPU (its key, None without one), the verdict, and what was found."""

    mesh: Mesh
    gpu: str | None
    starts: bool | None
    verdict: str
    findings: tuple[Finding, ...]
    waived: tuple[Waived, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            **question(self),
            "starts": self.starts,
            "verdict": self.verdict,
            "findings": [{"code": f.code, "severity": f.severity, "where": f.where} for f in self.findings],
            "waived": [{"code": w.finding.code, "where": w.finding.where, **_why(w)} for w in self.waived],
        }


@dataclass(frozen=True, slots=True)
class Approved:
    """One source: where it came from, its files, what else the engine was asked with (by long names), and the
    answers about it."""

    source: str
    revision: str | None
    files: tuple[Digest, ...]
    judged: tuple[Judged, ...]
    flags: dict[str, Any] = field(default_factory=dict)


def question(judged: Judged) -> dict[str, Any]:
    mesh = judged.mesh
    return {"tp": mesh.tp, "pp": mesh.pp, "ep": mesh.ep, "dp": mesh.dp, "gpu": judged.gpu}


def _why(waived: Waived) -> dict[str, Any]:
    until = waived.waiver.until
    return {"reason": waived.waiver.reason, "until": None if until is None else until.isoformat()}


def document(approved: Iterable[Approved], profile: Profile) -> dict[str, Any]:
    """The lock as JSON."""
    from mlload import __version__

    return {
        "lock_version": LOCK_VERSION,
        "mlload": __version__,
        "engine": engine(profile),
        "models": [
            {
                "source": entry.source,
                "revision": entry.revision,
                "flags": entry.flags,
                "files": [digest._asdict() for digest in entry.files],
                "judged": [judged.as_json() for judged in entry.judged],
            }
            for entry in approved
        ],
    }


def engine(profile: Profile) -> dict[str, Any]:
    """Engine, version, extras that count as installed, and a digest of the facts that it was judged by."""
    import hashlib

    facts = json.dumps([profile.facts, profile.kernels], sort_keys=True, default=str)
    return {
        "name": profile.engine,
        "version": profile.version,
        "assumed": dict(profile.assumed),
        "profile": hashlib.sha256(facts.encode()).hexdigest(),
    }


def fits(value: Any, shape: Any) -> bool:
    """Whether a value has what is read of it: a type, a list of one shape, or keys with theirs."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(fits(value.get(key), inner) for key, inner in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    return isinstance(value, shape)


def read_lock(path: str | Path) -> dict[str, Any]:
    """Raises MlloadError where there is no lock, or one of another version."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise MlloadError(f"cannot read {path}: {error.strerror}") from None
    try:
        found = json.loads(raw.decode("utf-8"))
        version = found["lock_version"]
        usable = version != LOCK_VERSION or fits(found, SHAPE)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MlloadError(
            f"{path} is no lock of mlload", hint=f"mlload validate SOURCE --lock {path} writes one"
        ) from None
    if version != LOCK_VERSION:
        raise MlloadError(f"{path} is a lock of version {version}; this mlload reads version {LOCK_VERSION}")
    if not usable:
        raise MlloadError(f"{path} is a damaged lock", hint=f"mlload validate SOURCE --lock {path} writes one")
    return found  # type: ignore[no-any-return]


def model_of(lock: dict[str, Any], source: str, alone: bool) -> dict[str, Any] | None:
    """The lock's entry of a source; with one source on both sides the name of a folder does not matter."""
    models: Sequence[dict[str, Any]] = lock["models"]
    found = next((model for model in models if model.get("source") == source), None)
    return models[0] if found is None and alone and len(models) == 1 else found
