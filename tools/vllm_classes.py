"""What single vLLM model classes do differently under tensor and pipeline parallelism. Read as AST."""

from __future__ import annotations

import ast
from collections.abc import Iterable

TABLES = ("VocabParallelEmbedding",)
HEADS = ("ParallelLMHead",)
RANKS = ("is_first_rank", "is_last_rank")


def on_every_stage(classes: Iterable[tuple[str, ast.ClassDef]]) -> dict[str, str]:
    """Modules outside the layers that every pipeline stage builds.

    Most classes build the token table on the first stage, the final norm and the head on the last. Some
    ask for no pipeline rank at all, and then every stage holds a whole copy.
    Role ("embedding", "norm", "head") -> file and line of the assignment; a role is left out where any
    class of the model asks.
    """
    found: dict[str, list[tuple[bool, str]]] = {}
    for path, node in classes:
        init = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
        if init is None:
            continue
        assigned = list(_assignments(init, False))
        holds_table = any(call in TABLES for _, call, _, _ in assigned)
        for name, call, asks, line in assigned:
            role = _role(name, call, holds_table)
            if role:
                found.setdefault(role, []).append((asks, f"{path}:{line}"))
    return {role: places[0][1] for role, places in found.items() if not any(asks for asks, _ in places)}


def _role(name: str, call: str, holds_table: bool) -> str:
    if call in TABLES:
        return "embedding"
    if call in HEADS:
        return "head"
    is_norm = "norm" in call.lower() or call == "PPMissingLayer"
    return "norm" if holds_table and is_norm and ("norm" in name or name == "ln_f") else ""


def _assignments(node: ast.AST, asks: bool) -> Iterable[tuple[str, str, bool, int]]:
    """(attribute of self, what is called, whether a pipeline rank was asked for, line)."""
    for child in ast.iter_child_nodes(node):
        inner = asks
        if isinstance(child, ast.If):
            inner = asks or any(rank in ast.unparse(child.test) for rank in RANKS)
        if isinstance(child, ast.Assign) and isinstance(child.value, ast.Call):
            for target in child.targets:
                if isinstance(target, ast.Attribute):
                    yield target.attr, ast.unparse(child.value.func), asks, child.lineno
        yield from _assignments(child, inner)


def delegates(classes: Iterable[tuple[str, ast.ClassDef]]) -> tuple[str, ...]:
    """Architectures that a composite model names for its language model (init_vllm_registered_model)."""
    found: list[str] = []
    for _, node in classes:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "init_vllm_registered_model":
                for keyword in call.keywords:
                    if keyword.arg == "architectures":
                        found += [c.value for c in ast.walk(keyword.value) if isinstance(c, ast.Constant)]
    return tuple(dict.fromkeys(found))


def needs_experts_on_stage(classes: Iterable[tuple[str, ast.ClassDef]]) -> str | None:
    """Where the class raises when its stage has no layer with experts."""
    for path, node in classes:
        for child in ast.walk(node):
            if isinstance(child, ast.Raise) and child.exc is not None:
                text = ast.unparse(child.exc)
                if "No " in text and "layer" in text.lower() and "found" in text:
                    return f"{path}:{child.lineno}"
    return None


def experts_cut_by_world(classes: Iterable[tuple[str, ast.ClassDef]]) -> str | None:
    """Where the class asserts that the experts' width divides by all ranks, whatever cuts the experts."""
    for path, node in classes:
        for child in ast.walk(node):
            if isinstance(child, ast.Assert):
                text = ast.unparse(child.test)
                if "intermediate_size %" in text and "world_size" in text:
                    return f"{path}:{child.lineno}"
    return None


def kv_heads_not_shared(classes: Iterable[tuple[str, ast.ClassDef]]) -> str | None:
    """Where the class divides its KV heads by the ranks without keeping at least one."""
    for path, node in classes:
        text = ast.unparse(node)
        if "kv_heads % tp_size" in text or "tp_size % " in text:
            continue
        for child in ast.walk(node):
            if isinstance(child, ast.Assign) and ast.unparse(child.value) == "config.num_key_value_heads // tp_size":
                return f"{path}:{child.lineno}"
    return None


def tower_replicates(classes: Iterable[tuple[str, ast.ClassDef]]) -> str | None:
    """Where a tower is replicated by itself when its heads do not divide (is_vit_use_data_parallel with the count)."""
    for path, node in classes:
        for child in ast.walk(node):
            if isinstance(child, ast.Call) and child.args and ast.unparse(child.func) == "is_vit_use_data_parallel":
                return f"{path}:{child.lineno}"
    return None


def tower_ignores(classes: Iterable[tuple[str, ast.ClassDef]]) -> list[str] | None:
    """Quantization configs that the class does not hand on to its tower: names of their classes."""
    for _, node in classes:
        for child in ast.walk(node):
            if isinstance(child, ast.FunctionDef) and "ignore_quant_config" in child.name:
                tests = [ast.unparse(test.test) for test in ast.walk(child) if isinstance(test, ast.If)]
                return [text.rpartition(",")[2].rpartition(".")[2].strip(" )") for text in tests]
    return None


# Fact of a model class -> where it is read.
FACTS = {
    "experts_on_every_stage": needs_experts_on_stage,
    "experts_cut_by_world": experts_cut_by_world,
    "kv_heads_not_shared": kv_heads_not_shared,
    "tower_replicates": tower_replicates,
    "tower_ignores": tower_ignores,
}
