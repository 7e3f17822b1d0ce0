#!/usr/bin/env python3
"""Which fields of a config transformers takes in one type only, and of which model types, as data for the rule CF015.

    .venv/bin/python tools/config_types.py        writes mlload/validators/config_types.json

Read from the annotations of the config classes that are installed: transformers 5 checks them when it reads a config.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

from mlload.validators.field_types import FIELDS

PATH = Path(__file__).resolve().parent.parent / "mlload" / "validators" / "config_types.json"


def annotation(config_class: type, name: str) -> object:
    """What the nearest class in the line of inheritance says of a field; a type or its name."""
    for each in config_class.__mro__:
        found = inspect.get_annotations(each).get(name)
        if found is not None:
            return found
    return None


def main() -> None:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    declared: dict[str, dict[str, object]] = {
        name: {"type": kind.__name__, "model_types": []} for name, kind in FIELDS.items()
    }
    for model_type in sorted(CONFIG_MAPPING.keys()):
        try:
            config_class = CONFIG_MAPPING[model_type]
        except (ImportError, AttributeError):
            continue
        for name, kind in FIELDS.items():
            if annotation(config_class, name) in (kind, kind.__name__):
                listed = declared[name]["model_types"]
                assert isinstance(listed, list)
                listed.append(model_type)
    content = {"source": f"transformers {transformers.__version__}", "fields": declared}
    PATH.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    print(PATH, {name: len(entry["model_types"]) for name, entry in declared.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
