"""Imports point one way, and what must answer in a fraction of a second imports nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mlload"

# Layer -> what it may import besides itself and the standard library's own business.
BELOW = {
    "checkpoint": (),
    "profiles": ("checkpoint",),
    "quant.spec": ("checkpoint",),
    "quant.formats": ("checkpoint", "quant.spec"),
    "quant": ("checkpoint", "quant.spec", "quant.formats"),
    "plan": ("checkpoint", "profiles", "quant.spec", "quant.formats", "quant"),
    "kernels.choice": ("checkpoint", "profiles", "quant.spec", "quant.formats"),
    "validators": ("checkpoint", "profiles", "quant.spec", "quant.formats", "quant", "plan", "kernels.choice"),
    "gate": ("checkpoint", "profiles", "quant.spec", "quant.formats", "quant", "plan", "kernels.choice", "validators"),
    "writer": ("checkpoint", "profiles", "quant.spec", "quant.formats", "quant", "plan"),
    "demo": ("checkpoint",),
}
LIGHT = (*BELOW, "cli")
HEAVY = {
    "torch", "transformers", "triton", "numpy", "safetensors", "requests", "httpx", "fsspec", "gguf",
    "huggingface_hub", "asyncio", "http", "urllib.request", "multiprocessing", "concurrent.futures", "unittest",
    "email", "pydoc",
}  # fmt: skip


def layer_of(module: str) -> str:
    """The longest layer name that a dotted path below `mlload` lies in ("plan.mesh" -> "plan"). What runs quantized
    weights, and what makes them, is far above what describes them."""
    for above in ("quant.layers", "quant.algorithms"):
        if module == above or module.startswith(above + "."):
            return above
    names = [name for name in BELOW if module == name or module.startswith(name + ".")]
    return max(names, key=len, default=module.split(".")[0])


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def imports(tree: ast.Module, *, everywhere: bool) -> Iterator[str]:
    """Dotted names imported at module level, or anywhere; never those under TYPE_CHECKING."""
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            stack.extend(node.orelse)
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            stack.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_point_one_way(module: str, path: Path) -> None:
    layer = layer_of(module)
    tree = ast.parse(path.read_text())
    ours = {name.removeprefix("mlload.") for name in imports(tree, everywhere=True) if name.startswith("mlload.")}
    if not module.startswith("cli") and module != "__main__":
        assert not {name for name in ours if name == "cli" or name.startswith("cli.")}, "nothing imports cli"
    if layer in BELOW:
        allowed = {layer, *BELOW[layer]}
        above = {name for name in ours if (PACKAGE / name.split(".")[0]).is_dir() and layer_of(name) not in allowed}
        assert not above, f"{layer} may import {sorted(allowed)} only"


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_light_layers_import_nothing_heavy(module: str, path: Path) -> None:
    if layer_of(module) not in LIGHT:
        return
    at_import = set(imports(ast.parse(path.read_text()), everywhere=False))
    assert not {name for name in at_import if name in HEAVY or name.split(".")[0] in HEAVY}


@pytest.mark.parametrize("command", ["inspect", "validate", "rules", "demo"])
def test_a_command_starts_without_heavy_modules(command: str) -> None:
    code = f"import sys; sys.argv = ['mlload', {command!r}, '--help']\nfrom mlload.cli.app import main; main()\n"
    code += "print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & HEAVY
