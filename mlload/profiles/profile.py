"""`Profile`: what one engine, at one version, does with a checkpoint. Data, with its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Facts of one engine version, as read from its release by `tools/vllm_profile.py`.

    engine:    "vllm", "transformers", "native"
    version:   the release that the facts were read from
    assumed:   optional extra -> whether it counts as installed; the report's first line names them
    installed: this version is the one installed here (False: asked for, or the newest known)
    facts:     name -> {"value": ..., "source": "file:line"}
    kernels:   "linear" and "moe" candidate orders, "min_capability" by class, "constants" of conditions
    """

    engine: str
    version: str
    assumed: dict[str, bool]
    installed: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    kernels: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As typed: "vllm@0.33.0"."""
        return f"{self.engine}@{self.version}" if self.version else self.engine

    def knows(self, name: str) -> bool:
        return name in self.facts

    def value(self, name: str, default: Any = None) -> Any:
        """A fact's value; `default` where this engine has no such fact."""
        entry = self.facts.get(name)
        return default if entry is None else entry["value"]

    def source(self, name: str) -> str:
        """File and line of a fact, relative to the engine's package."""
        entry = self.facts.get(name)
        return "" if entry is None else str(entry["source"])

    def constant(self, name: str, default: Any = None) -> Any:
        """A number or list that a kernel's condition compares with."""
        entry = self.kernels.get("constants", {}).get(name)
        return default if entry is None else entry["value"]

    def min_capability(self, cls: str) -> int:
        """Least compute capability (90 = 9.0) that a kernel or scheme class asks for; 0 = none."""
        entry = self.kernels.get("min_capability", {}).get(cls)
        return 0 if entry is None else int(entry["value"])

    def order(self, group: str, family: str, platform: str = "cuda") -> tuple[str, ...]:
        """Candidates in the engine's order. group: "linear" (kernel classes) or "moe" (backends)."""
        entry = self.kernels.get(group, {}).get(family)
        if entry is None:
            return ()
        value = entry["value"]
        return tuple(value.get(platform, ()) if isinstance(value, dict) else value)

    # What planning needs by name.
    @property
    def vocab_padding(self) -> int:
        """The vocabulary is padded up to a multiple of this before it is divided; 1 = not padded."""
        return int(self.value("vocab_padding", 1))

    @property
    def tower_mode(self) -> str:
        """How vision and audio towers use tensor parallelism unless told: "weights" or "data"."""
        return str(self.value("mm_encoder_tp_mode", "data"))

    @property
    def architectures(self) -> dict[str, dict[str, Any]]:
        """Registered architecture -> record of its model class."""
        return self.value("architectures", {})  # type: ignore[no-any-return]

    def pipeline(self, architecture: str) -> bool | None:
        """Whether the model class can be split over pipeline stages; None = not registered."""
        record = self.architectures.get(architecture)
        return None if record is None else bool(record.get("pp", False))

    def checks_experts(self, architecture: str) -> bool:
        """Whether the model class refuses a tp_size above its number of experts."""
        return bool(self.architectures.get(architecture, {}).get("experts_at_least_tp"))

    def tower_can_replicate(self, architecture: str) -> bool:
        """Whether the class accepts the data mode for its towers."""
        return bool(self.architectures.get(architecture, {}).get("encoder_tp_data"))

    @property
    def load_formats(self) -> tuple[str, ...]:
        return tuple(self.value("load_formats", ()))

    def dtypes(self, capability: tuple[int, int] | None) -> tuple[str, ...]:
        """Model dtypes that a GPU can use, the preferred one first; None = a GPU with bfloat16."""
        number = 80 if capability is None else capability[0] * 10 + capability[1]
        for least, names in self.value("dtypes_by_capability", []):
            if number >= least:
                return tuple(names)
        return ("float32",)
