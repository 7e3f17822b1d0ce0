"""Every table against the class that it describes: names and shapes as transformers saves them, exactly.

transformers builds each class on the meta device from a small config and says how it would be
saved; nothing of ours takes part in that. CASES holds at least two configs per model type, which
differ in the switches that change names and shapes.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures import find
from mlload.plan.params import ParamSpec
from tests.plan.architecture_cases import CASES

pytestmark = [pytest.mark.transformers, pytest.mark.slow]


def expected(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes that mlload expects on disk."""
    view = ConfigView(config)
    architecture = find(view)
    assert architecture is not None, config["model_type"]
    tensors: dict[str, tuple[int, ...]] = {}
    for spec in architecture.params(view):
        tensors.update(tensors_of(spec))
    return tensors


def tensors_of(spec: ParamSpec) -> dict[str, tuple[int, ...]]:
    if spec.alias_of or spec.draft or spec.engine_only or spec.optional:
        return {}
    tensors = {}
    for module in spec.modules():
        tensors[spec.tensor(module)] = spec.shape
        if spec.bias:
            tensors[spec.tensor(module, spec.bias)] = spec.bias_shape
    return tensors


def saved(config: dict[str, Any], class_name: str | None) -> dict[str, tuple[int, ...]]:
    """Names and shapes that transformers would save for a model of this config."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.core_model_loading import revert_weight_conversion

    fields = {key: value for key, value in config.items() if key != "model_type"}
    parsed = transformers.AutoConfig.for_model(config["model_type"], **fields)
    if class_name is None:
        model_class: Any = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING[type(parsed)]
        if isinstance(model_class, tuple):
            model_class = model_class[0]
    else:
        model_class = getattr(importlib.import_module("transformers"), class_name)
    with torch.device("meta"):
        model = model_class(parsed)
    tied = set(model.all_tied_weights_keys)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, state).items()}


@pytest.mark.parametrize("model_type", sorted(CASES))
def test_expected_tensors_are_those_that_transformers_saves(model_type: str) -> None:
    cases = CASES[model_type]
    assert len(cases) >= 2
    for case in cases:
        config = {"model_type": model_type, **case.config}
        ours, theirs = expected(config), saved(config, case.class_name)
        differences = [
            f"{name}: ours {ours.get(name)}, transformers {theirs.get(name)}"
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        ]
        assert not differences, f"{case}\n" + "\n".join(differences[:40])
