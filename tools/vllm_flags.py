#!/usr/bin/env python3
"""Read the command-line flags of `vllm serve` from one vLLM release, with how each takes its value.

    tools/vllm_flags.py WHEEL_OR_FOLDER -o mlload/profiles/vllm_flags_0_33_0.json

The release is read as text (ast), never imported. vLLM builds its parser from the annotations of its config
classes (engine/arg_utils.py `_compute_kwargs`); the same is done here: a bool becomes a pair of switches, a list
takes several words, a dict or a config class takes JSON.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __package__:
    from tools.vllm_profile import Release, fact
else:
    from vllm_profile import Release, fact  # type: ignore[import-not-found, no-redef]

ARGUMENTS = "engine/arg_utils.py"
FRONTENDS = ("entrypoints/common/cli_args.py", "entrypoints/launchers/cli_args.py", "entrypoints/openai/cli_args.py")
# Integers that may be written 32k (1,000) or 32K (1,024); `max_model_len` also takes "auto" and -1.
HUMAN = "human_readable_int_args"


class Annotations:
    """What a field of a config class may hold: names of builtin types, "literal" with its values, "json"."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.classes: dict[str, ast.ClassDef] = {}
        self.aliases: dict[str, ast.expr] = {}
        for path in release.texts:
            if not path.startswith(("config/", "entrypoints/", "engine/", "v1/attention/backends/registry")) and (
                path not in ("renderers/__init__.py", "renderers/chat_utils.py", "tool_parsers/tool_strict_level.py")
            ):
                continue
            for node in release.tree(path).body:
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, node)
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.aliases.setdefault(node.targets[0].id, node.value)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                    self.aliases.setdefault(node.target.id, node.value)

    def fields(self, cls: str) -> dict[str, ast.AnnAssign]:
        """Fields of a config class and of those that it inherits from, in order."""
        node = self.classes[cls]
        found: dict[str, ast.AnnAssign] = {}
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.classes:
                found.update(self.fields(base.id))
        for child in node.body:
            if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
                found[child.target.id] = child
        return found

    def hints(self, node: ast.expr, depth: int = 0) -> Iterator[tuple[str, Any]]:
        """(kind, detail) of each alternative: ("int", None), ("literal", values), ("list", elements), ("json", None)"""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from self.hints(ast.parse(node.value, mode="eval").body, depth)
        elif isinstance(node, ast.Constant):
            yield "none", None
        elif isinstance(node, ast.BinOp):
            yield from self.hints(node.left, depth)
            yield from self.hints(node.right, depth)
        elif isinstance(node, ast.Subscript):
            name = ast.unparse(node.value).rsplit(".", 1)[-1]
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if name == "Literal":
                yield "literal", list(self._literal(node.slice))
            elif name in ("Annotated", "SkipValidation", "InitVar", "Optional"):
                yield from self.hints(inner[0], depth)
            elif name == "Union":
                for part in inner:
                    yield from self.hints(part, depth)
            elif name in ("list", "tuple", "set"):
                yield "list", list(self.hints(inner[0], depth))
            elif name == "dict":
                yield "dict", None
            else:
                yield "other", None
        elif isinstance(node, ast.Name | ast.Attribute):
            name = ast.unparse(node).rsplit(".", 1)[-1]
            if name in ("bool", "int", "float", "str", "dict"):
                yield name, None
            elif name in self.aliases and depth < 8:
                yield from self.hints(self.aliases[name], depth + 1)
            elif name in self.classes:
                yield self._kind(self.classes[name]), None
            else:
                yield "other", None
        else:
            yield "other", None

    def _kind(self, cls: ast.ClassDef) -> str:
        """What a class of the release stands for: a config class is given as JSON, a subclass of dict as a dict."""
        if any("dict" in ast.unparse(base) for base in cls.bases):
            return "dict"
        decorators = [ast.unparse(decorator) for decorator in cls.decorator_list]
        return "json" if any("config" in text or "dataclass" in text for text in decorators) else "other"

    def _literal(self, node: ast.expr) -> Iterator[Any]:
        for item in node.elts if isinstance(node, ast.Tuple) else [node]:
            if isinstance(item, ast.Constant):
                yield item.value
            elif isinstance(item, ast.Name | ast.Subscript):  # a Literal of Literals
                inner = self.aliases.get(item.id) if isinstance(item, ast.Name) else item
                for kind, values in self.hints(inner) if inner is not None else ():
                    yield from values if kind == "literal" else ()

    def takes(self, annotation: ast.expr) -> dict[str, Any]:
        """How a flag made from this annotation takes its value (engine/arg_utils.py `_compute_kwargs`)."""
        hints = dict(reversed(list(self.hints(annotation))))
        if "json" in hints:
            return {"takes": "value", "type": "json"}
        if {"bool", "str"} == hints.keys() - {"none"} and "none" in hints:
            return {"takes": "optional", "type": "str"}
        if "bool" in hints:
            return {"takes": "switch", "no": True}
        if "literal" in hints:
            values = hints["literal"]
            record = {"takes": "value", "type": type(values[0]).__name__}
            return record if "str" in hints else {**record, "choices": sorted(values)}
        if "list" in hints:
            inner = dict(hints["list"])
            if "literal" in inner:
                return {"takes": "list", "type": "str", "choices": sorted(inner["literal"])}
            return {"takes": "list", "type": "str" if len(inner) != 1 else next(iter(inner))}
        if "int" in hints:
            return {"takes": "value", "type": "int"}
        if "float" in hints:
            return {"takes": "value", "type": "float"}
        if "dict" in hints:
            return {"takes": "value", "type": "json or text" if {"str", "other"} & hints.keys() else "json"}
        return {"takes": "value", "type": "str"}


def engine_flags(release: Release, annotations: Annotations) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Flags of EngineArgs and AsyncEngineArgs."""
    tree = release.tree(ARGUMENTS)
    human = human_integers(tree)
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for method in cls.body:
            if not (isinstance(method, ast.FunctionDef) and method.name == "add_cli_args"):
                continue
            tables: dict[str, str] = {}  # name of a kwargs dict -> config class
            single: dict[str, tuple[str, str]] = {}  # name of one field's kwargs -> (config class, field)
            for node in ast.walk(method):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    name, value = node.targets[0].id, node.value
                    if (config := called(value)) is not None:
                        tables[name] = config
                    elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
                        owner = called(value.value) or tables.get(ast.unparse(value.value))
                        if owner:
                            single[name] = (owner, str(value.slice.value))
            typed, dropped = retyped(method), removed_choices(method, annotations)
            for call in added(method):
                names = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
                record = explicit(call)
                field = field_of(call, tables, single)
                if field is not None:
                    declared = annotations.fields(field[0]).get(field[1])
                    record = annotations.takes(declared.annotation) if declared is not None else record
                    if field[1] in human and record.get("type") == "int":
                        record["type"] = "human int"
                    if "choices" in record:
                        record["choices"] = [c for c in record["choices"] if c not in dropped.get(field[1], ())]
                    if field[1] in typed:
                        record = {"takes": "value", "type": typed[field[1]]}
                yield names, {**record, "line": f"{ARGUMENTS}:{call.lineno}"}


def frontend_flags(release: Release, annotations: Annotations) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Flags of the HTTP server, and those of the `serve` subcommand itself."""
    path = next(path for path in FRONTENDS if path in release.texts)
    tree = release.tree(path)
    customized = ast.unparse(tree)
    for name, declared in annotations.fields("FrontendArgs").items():
        record = annotations.takes(declared.annotation)
        if f"frontend_kwargs['{name}']['type'] = json.loads" in customized:
            record = {"takes": "value", "type": "json"}
        elif f"frontend_kwargs['{name}']['action'] = 'append'" in customized:
            record = {"takes": "value", "type": "str", "repeats": True}
        elif f"frontend_kwargs['{name}']['type'] = optional_type(str)" in customized:
            record["type"] = "str"  # an action of its own reads the text
        yield ["--" + name.replace("_", "-")], {**record, "line": f"{path}:{declared.lineno}"}
    for call in added(tree):
        names = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
        if names and names[0].startswith("-"):
            yield names, {**explicit(call), "line": f"{path}:{call.lineno}"}


def called(node: ast.expr) -> str | None:
    """ "X" of `get_kwargs(X)`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "get_kwargs" and isinstance(node.args[0], ast.Name):
        return node.args[0].id
    return None


def added(node: ast.AST) -> Iterator[ast.Call]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            yield call


def field_of(
    call: ast.Call, tables: dict[str, str], single: dict[str, tuple[str, str]]
) -> tuple[str, str] | None:  # fmt: skip
    """(config class, field) whose kwargs a call unpacks, in a dict of its own or not."""
    for keyword in call.keywords:
        if keyword.arg is not None:
            continue
        values = [keyword.value]
        if isinstance(keyword.value, ast.Dict):
            values = [v for k, v in zip(keyword.value.keys, keyword.value.values, strict=True) if k is None]
        for value in values:
            if isinstance(value, ast.Name) and value.id in single:
                return single[value.id]
            if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
                return tables[ast.unparse(value.value)], str(value.slice.value)
    return None


def explicit(call: ast.Call) -> dict[str, Any]:
    """How a flag with its own keywords takes its value."""
    words = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg}
    action = words.get("action", "")
    if "BooleanOptionalAction" in action:
        return {"takes": "switch", "no": True}
    if action == "'store_true'":
        return {"takes": "switch", "no": False}
    kind = words.get("type", "str")
    return {"takes": "value", "type": kind if kind in ("int", "float") else "str"}


def retyped(method: ast.FunctionDef) -> dict[str, str]:
    """Fields whose kwargs are given another type afterwards: `kwargs["x"]["type"] = optional_type(json.loads)`."""
    found: dict[str, str] = {}
    for node in ast.walk(method):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)):
            continue
        target = node.targets[0]
        inner = target.value
        if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Constant) and "json" in ast.unparse(node):
            found[str(inner.slice.value)] = "json"
    return found


def removed_choices(method: ast.FunctionDef, annotations: Annotations) -> dict[str, set[Any]]:
    """Fields of whose choices some are not offered: `kwargs["x"]["choices"].remove(NAME)`."""
    found: dict[str, set[Any]] = {}
    for call in ast.walk(method):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "remove":
            words = [node.value for node in ast.walk(call.func) if isinstance(node, ast.Constant)]
            gone = annotations.aliases.get(ast.unparse(call.args[0]))
            if "choices" in words and isinstance(gone, ast.Constant):
                found.setdefault(next(str(word) for word in words if word != "choices"), set()).add(gone.value)
    return found


def human_integers(tree: ast.Module) -> set[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == HUMAN:
            return {"max_model_len", *ast.literal_eval(node.value)}
    return {"max_model_len"}


def flags(release: Release) -> dict[str, Any]:
    """Long name without dashes -> how it takes its value, its other spellings, file and line."""
    annotations = Annotations(release)
    found: dict[str, Any] = {}
    for names, record in (*engine_flags(release, annotations), *frontend_flags(release, annotations)):
        long = next(name for name in names if name.startswith("--"))
        others = [name for name in names if name != long]
        found[long.removeprefix("--")] = {**record, **({"also": others} if others else {})}
    text = release.texts.get("utils/argparse_utils.py", "")
    inverse = "class EnableDisableAction" in text
    line = next((n for n, row in enumerate(text.splitlines(), 1) if "class EnableDisableAction" in row), 0)
    return {
        "engine": "vllm",
        "version": release.field("Version"),
        "enable_disable": fact(inverse, "utils/argparse_utils.py", line),
        "flags": found,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path, help="vLLM wheel, or a folder that holds the package")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    data = flags(Release(args.release, "vllm"))
    rows = [f"  {json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(data.pop("flags").items())]
    head = json.dumps(data, indent=1).removesuffix("\n}")
    args.output.write_text(head + ',\n "flags": {\n' + ",\n".join(rows) + "\n }\n}\n", encoding="utf-8")
    print(f"vllm {data['version']}: {len(rows)} flags", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
