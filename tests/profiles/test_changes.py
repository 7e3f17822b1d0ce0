"""What an upgrade of the engine changes."""

from __future__ import annotations

from dataclasses import replace

from mlload.profiles import load
from mlload.profiles.changes import changes

OLD, NEW = load("vllm", "0.32.0"), load("vllm", "0.33.0")


def test_nothing_changes_against_itself() -> None:
    assert changes(NEW, NEW) == ()


def test_an_upgrade_names_architectures_and_constants() -> None:
    found = {(change.subject, change.name): change.what for change in changes(OLD, NEW)}
    assert found[("architectures", "MedusaModel")] == "MedusaModel is gone"
    assert found[("kernels of mxfp8", "TorchMxFp8LinearKernel")] == "TorchMxFp8LinearKernel is new"


def test_a_line_that_moved_is_no_change() -> None:
    assert not [change for change in changes(OLD, NEW) if change.name == "LlamaForCausalLM"]


def test_another_order_is_a_change() -> None:
    linear = dict(NEW.kernels["linear"])
    order = list(reversed(NEW.order("linear", "int8")))
    linear["int8"] = {**linear["int8"], "value": {**linear["int8"]["value"], "cuda": order}}
    other = replace(NEW, kernels={**NEW.kernels, "linear": linear})
    (change,) = changes(NEW, other)
    assert change.what == f"the order becomes {', '.join(order)}"
