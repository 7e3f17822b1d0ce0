"""config_defaults.json is what its script makes of the installed transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.config_defaults import defaults_of
from mlload.plan.architectures import model_types

pytestmark = [pytest.mark.transformers, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "tools" / "config_defaults.py"


@pytest.fixture(scope="module")
def script() -> Any:
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("config_defaults_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("model_type", model_types())
def test_the_table_is_up_to_date(script: Any, model_type: str) -> None:
    if model_type not in script.CONFIG_MAPPING:
        assert defaults_of(model_type) == {}
        return
    config_class = script.CONFIG_MAPPING[model_type]
    assert defaults_of(model_type) == script.declared(config_class) | script.nested_type(config_class)
