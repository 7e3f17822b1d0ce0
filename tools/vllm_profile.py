#!/usr/bin/env python3
"""Read one vLLM release and write what it does with checkpoints as a profile.

    tools/vllm_profile.py WHEEL_OR_FOLDER [--transformers WHEEL_OR_FOLDER] -o mlload/profiles/vllm_0_33_0.json

The release is read as text (ast), never imported: no torch, no GPU, no installation. Every fact
keeps the file and line that it was read from. `--transformers` names the Transformers release
that this vLLM would pull in; its list of model types decides what needs remote code.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

if __package__:
    from tools.vllm_classes import FACTS, delegates, on_every_stage
else:
    from vllm_classes import FACTS, delegates, on_every_stage

LINEAR = "model_executor/kernels/linear/__init__.py"
QUANT = "model_executor/layers/quantization"
ORACLE = "model_executor/layers/fused_moe/oracle"
REGISTRY = "model_executor/models/registry.py"


class Release:
    """The Python files of a wheel or of an unpacked folder, parsed on demand."""

    def __init__(self, path: Path, package: str) -> None:
        self.package = package
        self.texts: dict[str, str] = {}
        self.metadata = ""
        if path.is_dir():
            root = path if path.name == package else path / package
            for file in sorted(root.rglob("*.py")):
                self.texts[file.relative_to(root).as_posix()] = file.read_text(encoding="utf-8")
            for file in root.parent.glob(f"{package}-*.dist-info/METADATA"):
                self.metadata = file.read_text(encoding="utf-8")
        else:
            with zipfile.ZipFile(path) as wheel:
                for name in sorted(wheel.namelist()):
                    if name.startswith(package + "/") and name.endswith(".py"):
                        self.texts[name[len(package) + 1 :]] = wheel.read(name).decode("utf-8")
                    elif name.endswith(".dist-info/METADATA"):
                        self.metadata = wheel.read(name).decode("utf-8")
        self._trees: dict[str, ast.Module] = {}

    def tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse(self.texts[path])
        return self._trees[path]

    def field(self, name: str) -> str:
        return next((line.split(": ", 1)[1] for line in self.metadata.splitlines() if line.startswith(name + ": ")), "")

    def requires(self, distribution: str) -> str:
        for line in self.metadata.splitlines():
            if line.startswith(f"Requires-Dist: {distribution}") and "extra ==" not in line:
                return line.removeprefix(f"Requires-Dist: {distribution}").split(";")[0].strip()
        return ""


class Class(NamedTuple):
    """A class somewhere in the release: its file, node, and the names that its file imports."""

    path: str
    node: ast.ClassDef


def fact(value: Any, path: str, node: ast.AST | int) -> dict[str, Any]:
    line = node if isinstance(node, int) else getattr(node, "lineno", 0)
    return {"value": value, "source": f"{path}:{line}"}


def assigned(tree: ast.AST, name: str) -> tuple[ast.expr, int]:
    """The value and line of the first assignment to `name`, at any depth."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            return node.value, node.lineno
    raise KeyError(name)


def literal(node: ast.expr) -> Any:
    """A literal, with names and attributes standing for themselves ("torch.half" -> "half")."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {str(literal(k)): literal(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and node.args:
        return literal(node.args[0])
    return ast.literal_eval(node)


def function(tree: ast.AST, name: str) -> ast.FunctionDef:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise KeyError(name)


def returned(node: ast.FunctionDef) -> ast.expr | None:
    return next((n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None), None)


class Classes:
    """Every class of a release and what its name means inside another file."""

    def __init__(self, release: Release, roots: tuple[str, ...]) -> None:
        self.release = release
        self.by_path: dict[str, dict[str, ast.ClassDef]] = {}
        self.imports: dict[str, dict[str, tuple[str, str]]] = {}
        for path in release.texts:
            if not path.startswith(roots):
                continue
            tree = release.tree(path)
            self.by_path[path] = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
            self.imports[path] = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom):
                    origin = self._origin(path, node)
                    for alias in node.names:
                        self.imports[path][alias.asname or alias.name] = (origin, alias.name)

    def _origin(self, path: str, node: ast.ImportFrom) -> str:
        if node.level == 0:
            module = node.module or ""
            return module.removeprefix(self.release.package + ".").replace(".", "/")
        parts = path.split("/")[: -node.level]
        return "/".join([*parts, *(node.module or "").split(".")]).rstrip("/")

    def find(self, path: str, name: str, depth: int = 0) -> Class | None:
        """The class that `name` denotes in the file `path`."""
        if name in self.by_path.get(path, {}):
            return Class(path, self.by_path[path][name])
        if depth > 6 or name not in self.imports.get(path, {}):
            return None
        origin, original = self.imports[path][name]
        for candidate in (origin + ".py", origin + "/__init__.py"):
            if candidate in self.by_path:
                return self.find(candidate, original, depth + 1)
        return None

    def mro(self, start: Class) -> list[Class]:
        """The class and everything that it inherits from, nearest first; unknown bases left out."""
        seen: list[Class] = []
        queue = [start]
        while queue:
            cls = queue.pop(0)
            if cls in seen:
                continue
            seen.append(cls)
            for base in cls.node.bases:
                name = base.value if isinstance(base, ast.Subscript) else base
                if isinstance(name, ast.Name) and (found := self.find(cls.path, name.id)):
                    queue.append(found)
        return seen

    def method(self, cls: Class, name: str) -> tuple[ast.FunctionDef, str] | None:
        for ancestor in self.mro(cls):
            for node in ancestor.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return node, ancestor.path
        return None

    def attribute(self, cls: Class, name: str) -> Any:
        for ancestor in self.mro(cls):
            for node in ancestor.node.body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                        return literal(node.value)
        return None

    def reachable(self, start: Class) -> set[tuple[str, str]]:
        """Classes of the models folder that the class is built of: inherited, or named in its body."""
        seen: set[tuple[str, str]] = set()
        queue = [start]
        while queue:
            cls = queue.pop()
            if (key := (cls.path, cls.node.name)) in seen:
                continue
            seen.add(key)
            for node in ast.walk(cls.node):
                if isinstance(node, ast.Name) and (found := self.find(cls.path, node.id)):
                    queue.append(found)
        return seen


def architectures(release: Release) -> dict[str, Any]:
    """Registered architectures: file, class, pipeline interface, expert check, encoder data mode."""
    tree = release.tree(REGISTRY)
    classes = Classes(release, ("model_executor/models/", "models/"))
    checks: dict[tuple[str, str], int] = {}
    for path, found in classes.by_path.items():
        for name, node in found.items():
            for test in ast.walk(node):
                if isinstance(test, ast.If) and any(isinstance(n, ast.Raise) for n in test.body):
                    text = ast.unparse(test.test)
                    if text.startswith("self.tp_size > ") and "expert" in text:
                        checks[(path, name)] = test.lineno
    registered: dict[str, Any] = {}
    for group in ("TEXT_GENERATION", "EMBEDDING", "LATE_INTERACTION", "REWARD", "TOKEN_CLASSIFICATION",
                  "SEQUENCE_CLASSIFICATION", "MULTIMODAL", "SPECULATIVE_DECODING", "TRANSFORMERS_SUPPORTED",
                  "TRANSFORMERS_BACKEND"):  # fmt: skip
        try:
            value, _ = assigned(tree, f"_{group}_MODELS")
        except KeyError:
            continue
        assert isinstance(value, ast.Dict)
        for key, entry in zip(value.keys, value.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(entry, ast.Tuple):
                continue
            module, name = (str(ast.literal_eval(item)) for item in entry.elts[:2])
            where = (
                module.removeprefix("vllm.").replace(".", "/")
                if module.startswith("vllm.")
                else "model_executor/models/" + module.replace(".", "/")
            )
            cls = next((c for suffix in (".py", "/__init__.py") if (c := classes.find(where + suffix, name))), None)
            record: dict[str, Any] = {"class": name, "kind": group.lower(), "line": key.lineno}
            if cls is None:
                record["file"] = where
            else:
                record["file"] = f"{cls.path}:{cls.node.lineno}"
                interfaces = {
                    base.id
                    for ancestor in classes.mro(cls)
                    for base in ancestor.node.bases
                    if isinstance(base, ast.Name)
                }
                record["pp"] = "SupportsPP" in interfaces
                record["lora"] = "SupportsLoRA" in interfaces
                if tables := classes.attribute(cls, "embedding_modules"):
                    record["lora_tables"] = sorted(tables)
                inside = classes.reachable(cls)
                if hits := sorted(
                    f"{path}:{line}" for (path, owner), line in checks.items() if (path, owner) in inside
                ):
                    record["experts_at_least_tp"] = hits
                built = [(path, classes.by_path[path][owner]) for path, owner in sorted(inside)]
                if everywhere := on_every_stage(built):
                    record["every_stage"] = everywhere
                record.update({name: place for name, read in FACTS.items() if (place := read(built))})
                if named := delegates(built):
                    record["language_model"] = list(named)
                if classes.attribute(cls, "supports_encoder_tp_data"):
                    record["encoder_tp_data"] = True
            registered.setdefault(str(key.value), record)
    return {"value": registered, "source": REGISTRY}


def quant_methods(release: Release) -> dict[str, Any]:
    """Quantization methods: their config class, minimum capability, activation dtypes."""
    path = f"{QUANT}/__init__.py"
    tree = release.tree(path)
    names, line = assigned(tree, "QuantizationMethods")
    assert isinstance(names, ast.Subscript)
    classes = Classes(release, (QUANT, "models/"))
    table, _ = assigned(tree, "method_to_config")
    assert isinstance(table, ast.Dict)
    configs = {str(literal(k)): literal(v) for k, v in zip(table.keys, table.values, strict=True) if k is not None}
    methods: dict[str, Any] = {}
    for name in literal(names.slice):
        config = configs.get(name, "OnlineQuantizationConfig")
        record: dict[str, Any] = {"config": config}
        cls = classes.find(path, config)
        if cls is not None:
            record["file"] = f"{cls.path}:{cls.node.lineno}"
            for key, method in (
                ("min_capability", "get_min_capability"),
                ("act_dtypes", "get_supported_act_dtypes"),
                ("config_files", "get_config_filenames"),
            ):
                found = classes.method(cls, method)
                value = returned(found[0]) if found else None
                if found and value is not None:
                    try:
                        record[key] = literal(value)
                        record[f"{key}_source"] = f"{found[1]}:{value.lineno}"
                    except (ValueError, SyntaxError):
                        continue
        methods[name] = record
    return {"value": methods, "source": f"{path}:{line}"}


def kernel_orders(release: Release) -> dict[str, Any]:
    """Candidate kernels of each linear family in the engine's order, by platform."""
    tree = release.tree(LINEAR)
    families = {
        "mixed_precision": "_POSSIBLE_KERNELS",
        "fp8": "_POSSIBLE_FP8_KERNELS",
        "fp8_block": "_POSSIBLE_FP8_BLOCK_KERNELS",
        "fp8_weight_only": "_POSSIBLE_WFP8A16_KERNELS",
        "int8": "_POSSIBLE_INT8_KERNELS",
        "nvfp4": "_POSSIBLE_NVFP4_KERNELS",
        "mxfp8": "_POSSIBLE_MXFP8_KERNELS",
        "mxfp6": "_POSSIBLE_MXFP6_KERNELS",
        "mxfp4": "_POSSIBLE_MXFP4_KERNELS",
    }
    out: dict[str, Any] = {}
    for family, name in families.items():
        value, line = assigned(tree, name)
        orders = literal(value)
        out[family] = fact({p.lower(): orders[p] for p in ("CUDA", "ROCM", "CPU") if p in orders}, LINEAR, line)
    table, line = assigned(tree, "a16_kernels")
    out["nvfp4_weight_only"] = fact(literal(table), LINEAR, line)
    return out


def moe_orders(release: Release) -> dict[str, Any]:
    """Candidate MoE backends of each oracle in the engine's order (CUDA, before any reordering)."""
    wanted = {
        "fp8": ("fp8.py", "_get_priority_backends", "DEEPGEMM"),
        "int8": ("int8.py", "_get_priority_backends", "TRITON"),
        "wna16": ("int_wna16.py", "_get_priority_backends", "MARLIN"),
        "nvfp4": ("nvfp4.py", "select_nvfp4_moe_backend", "MARLIN"),
        "mxfp4_gpt_oss": ("mxfp4.py", "_get_priority_backends_for_gpt_oss", "TRITON"),
        "mxfp4": ("mxfp4.py", "_get_priority_backends", "DEEPGEMM_MXFP4"),
        "unquantized": ("unquantized.py", "_get_priority_backends", "FLASHINFER_TRTLLM"),
    }
    out: dict[str, Any] = {}
    for oracle, (file, name, member) in wanted.items():
        path = f"{ORACLE}/{file}"
        for node in ast.walk(function(release.tree(path), name)):
            if isinstance(node, ast.List) and len(node.elts) > 1 and member in (names := literal(node)):
                out[oracle] = fact(names, path, node)
                break
    path = f"{ORACLE}/mxfp8.py"
    value, line = assigned(release.tree(path), "_SUPPORTED_BACKENDS")
    out["mxfp8"] = fact(literal(value), path, line)
    return out


def capabilities(release: Release, roots: tuple[str, ...]) -> dict[str, Any]:
    """Constant `get_min_capability` of every kernel and scheme class."""
    out: dict[str, Any] = {}
    for path in release.texts:
        if not path.startswith(roots):
            continue
        for node in release.tree(path).body:
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "get_min_capability":
                        value = returned(method)
                        if isinstance(value, ast.Constant) and isinstance(value.value, int):
                            out[node.name] = fact(value.value, path, value)
    return out


def constants(release: Release) -> dict[str, Any]:
    """Numbers that kernel conditions compare with."""
    out: dict[str, Any] = {}

    def put(key: str, path: str, name: str) -> None:
        value, line = assigned(release.tree(path), name)
        out[key] = fact(literal(value), path, line)

    mp = "model_executor/kernels/linear/mixed_precision"
    put("marlin_group_sizes", f"{QUANT}/utils/marlin_utils.py", "MARLIN_SUPPORTED_GROUP_SIZES")
    put("machete_block", f"{QUANT}/utils/machete_utils.py", "MACHETE_PREPACKED_BLOCK_SHAPE")
    put("conch_group_sizes", f"{mp}/conch.py", "_CONCH_SUPPORTED_GROUP_SIZES")
    put("triton_w4a16_group_sizes", f"{mp}/triton_w4a16.py", "TRITON_W4A16_SUPPORTED_GROUP_SIZES")
    put("humming_before_marlin", f"{QUANT}/utils/humming/priority.py", "_HUMMING_PREFERRED_CAPABILITIES")
    put("deep_gemm_excluded", "utils/deep_gemm.py", "_DEEPGEMM_BLACKWELL_EXCLUDED_MODEL_TYPES")
    if isinstance(names := out["deep_gemm_excluded"]["value"], list):
        # Before 0.33 a plain set of types, off for the generations that the function names.
        check = function(release.tree("utils/deep_gemm.py"), "should_auto_disable_deep_gemm")
        families = [n.value for n in ast.walk(check) if isinstance(n, ast.Constant) and type(n.value) is int]
        out["deep_gemm_excluded"]["value"] = {name: sorted(set(families)) for name in names}
    experts = release.texts[f"{ORACLE}/fp8.py"]
    line = experts[: experts.find("should_auto_disable_deep_gemm")].count("\n") + 1
    excluded = "should_auto_disable_deep_gemm" in experts
    out["deep_gemm_excluded_in_experts"] = fact(excluded, f"{ORACLE}/fp8.py", line if excluded else 0)
    put("deep_gemm_n", "utils/deep_gemm.py", "N_MULTIPLE")
    put("deep_gemm_k", "utils/deep_gemm.py", "K_MULTIPLE")
    put("mxfp8_block", f"{QUANT}/utils/mxfp8_utils.py", "MXFP8_BLOCK_SIZE")
    path = f"{QUANT}/utils/machete_utils.py"
    sizes = returned(function(release.tree(path), "query_machete_supported_group_sizes"))
    assert sizes is not None
    out["machete_group_sizes"] = fact(literal(sizes), path, sizes)
    for key, path, name in (
        ("awq_bits", f"{QUANT}/auto_awq.py", "TYPE_MAP"),
        ("gptq_bits_sym", f"{QUANT}/auto_gptq.py", "TYPE_MAP"),
    ):
        table, line = assigned(release.tree(path), name)
        assert isinstance(table, ast.Dict)
        out[key] = fact([literal(k) for k in table.keys if k is not None], path, line)
    table, line = assigned(release.tree(f"{QUANT}/modelopt.py"), "LINEAR_ALGOS")
    out["modelopt_algos"] = fact([*literal(table), "MIXED_PRECISION"], f"{QUANT}/modelopt.py", line)
    path = f"{QUANT}/compressed_tensors/schemes/compressed_tensors_wNa16.py"
    table, line = assigned(release.tree(path), "WNA16_SUPPORTED_TYPES_MAP")
    out["compressed_tensors_wna16_bits"] = fact([int(k) for k in literal(table)], path, line)
    path = f"{QUANT}/inc/inc.py"
    for name in ("SUPPORTED_BITS", "SUPPORTED_DTYPES", "SUPPORTED_FORMATS", "SUPPORTED_BACKENDS"):
        value, line = assigned(release.tree(path), name)
        out[f"inc_{name.removeprefix('SUPPORTED_').lower()}"] = fact(sorted(literal(value)), path, line)
    return out


def model_config(release: Release) -> dict[str, Any]:
    """What the configuration stage knows and refuses."""
    out: dict[str, Any] = {}
    path = "config/model.py"
    value, line = assigned(release.tree(path), "_FLOAT16_NOT_SUPPORTED_MODELS")
    out["float16_refused"] = fact(sorted(literal(value)), path, line)
    value, line = assigned(function(release.tree(path), "_verify_quantization"), "overrides")
    out["quant_override_order"] = fact(literal(value), path, line)
    path = f"{QUANT}/__init__.py"
    value, line = assigned(release.tree(path), "DEPRECATED_QUANTIZATION_METHODS")
    out["quant_deprecated"] = fact(literal(value), path, line)
    path = "transformers_utils/config.py"
    registry, line = assigned(release.tree(path), "_CONFIG_REGISTRY")
    assert isinstance(registry, ast.Call)
    out["config_registry"] = fact(sorted(k.arg for k in registry.keywords if k.arg), path, line)
    value, line = assigned(release.tree(path), "_SPECULATIVE_DECODING_CONFIGS")
    out["speculative_configs"] = fact(sorted(literal(value)), path, line)
    try:
        value, line = assigned(release.tree(path), "_ARCHITECTURE_TO_MODEL_TYPE")
        out["architecture_to_model_type"] = fact(literal(value), path, line)
    except KeyError:
        out["architecture_to_model_type"] = fact({}, path, 0)
    path = "platforms/cuda.py"
    dtypes: list[list[Any]] = []
    node = function(release.tree(path), "supported_dtypes")
    for test in ast.walk(node):
        if isinstance(test, ast.If) and isinstance(test.test, ast.Call) and isinstance(test.body[0], ast.Return):
            assert test.body[0].value is not None
            dtypes.append([literal(test.test), literal(test.body[0].value)])
    out["dtypes_by_capability"] = fact(dtypes, path, node)
    out["fp8_capability"] = _int_in(release, path, "supports_fp8")
    path = "model_executor/model_loader/__init__.py"
    value, line = assigned(release.tree(path), "LoadFormats")
    assert isinstance(value, ast.Subscript)
    out["load_formats"] = fact(literal(value.slice), path, line)
    value, line = assigned(release.tree(REGISTRY), "_PREVIOUSLY_SUPPORTED_MODELS")
    out["architectures_removed"] = fact(literal(value), REGISTRY, line)
    value, line = assigned(release.tree(REGISTRY), "_OOT_SUPPORTED_MODELS")
    out["architectures_plugin"] = fact(literal(value), REGISTRY, line)
    path = "model_executor/layers/vocab_parallel_embedding.py"
    value, line = assigned(release.tree(path), "DEFAULT_VOCAB_PADDING_SIZE")
    out["vocab_padding"] = fact(literal(value), path, line)
    path = "config/cache.py"
    value, line = assigned(release.tree(path), "CacheDType")
    assert isinstance(value, ast.Subscript)
    out["kv_cache_dtypes"] = fact(literal(value.slice), path, line)
    value, line = assigned(release.tree(path), "gpu_memory_utilization")
    assert isinstance(value, ast.Call)
    out["gpu_memory_utilization"] = fact(
        next(literal(k.value) for k in value.keywords if k.arg == "default"), path, line
    )
    path = "config/vllm.py"
    try:
        node = function(release.tree(path), "_reject_mismatched_float_kv_cache")
        out["kv_cache_float_matches"] = fact(True, path, node)
    except KeyError:
        out["kv_cache_float_matches"] = fact(False, path, 0)
    path = "config/multimodal.py"
    value, line = assigned(release.tree(path), "mm_encoder_tp_mode")
    out["mm_encoder_tp_mode"] = fact(literal(value), path, line)
    return out


def _int_in(release: Release, path: str, name: str) -> dict[str, Any]:
    value = returned(function(release.tree(path), name))
    assert isinstance(value, ast.Call)
    return fact(literal(value), path, value)


def transformers_types(release: Release) -> dict[str, Any]:
    """Model types that a Transformers release knows."""
    types: set[str] = set()
    source = ""
    for path in ("models/auto/auto_mappings.py", "models/auto/configuration_auto.py"):
        if path not in release.texts:
            continue
        for node in ast.walk(release.tree(path)):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CONFIG_MAPPING_NAMES":
                source = source or f"{path}:{node.lineno}"
                types |= {
                    str(pair.elts[0].value)
                    for pair in ast.walk(node)
                    if isinstance(pair, ast.Tuple) and len(pair.elts) == 2 and isinstance(pair.elts[0], ast.Constant)
                }
                types |= {
                    str(key.value)
                    for table in ast.walk(node)
                    if isinstance(table, ast.Dict)
                    for key in table.keys
                    if isinstance(key, ast.Constant)
                }
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "CONFIG_MAPPING_NAMES.update":
                types |= set(literal(node.args[0]))
    return {"value": sorted(types), "source": f"transformers {release.field('Version')} {source}"}


def transformers_classes(release: Release, registered: set[str]) -> dict[str, Any]:
    """Model classes of Transformers that vLLM does not register: it may run them through its Transformers backend."""
    path = "models/auto/modeling_auto.py"
    endings = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ForSequenceClassification", "Model")
    names = {
        str(node.elts[1].value)
        for node in ast.walk(release.tree(path))
        if isinstance(node, ast.Tuple) and len(node.elts) == 2 and all(isinstance(e, ast.Constant) for e in node.elts)
        if isinstance(node.elts[1], ast.Constant) and isinstance(node.elts[1].value, str)
    }
    value = sorted(name for name in names - registered if name.endswith(endings))
    return {"value": value, "source": f"transformers {release.field('Version')} {path}"}


def activations(release: Release) -> dict[str, Any]:
    """Model file -> the one activation that its layers are built with: `if hidden_act != "silu": raise`."""
    found: dict[str, str] = {}
    for path in release.texts:
        if not path.startswith("model_executor/models/"):
            continue
        for node in ast.walk(release.tree(path)):
            if not isinstance(node, ast.If) or not isinstance(node.body[0], ast.Raise):
                continue
            test = node.test
            if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.NotEq):
                continue
            only = test.comparators[0]
            named = test.left.attr if isinstance(test.left, ast.Attribute) else getattr(test.left, "id", "")
            if named == "hidden_act" and isinstance(only, ast.Constant):
                found[path] = str(only.value)
    return {"value": found, "source": "model_executor/models"}


def profile(release: Release, transformers: Release | None) -> dict[str, Any]:
    """The whole profile of one release."""
    facts: dict[str, Any] = {
        **model_config(release),
        "architectures": architectures(release),
        "activations": activations(release),
        "quant_methods": quant_methods(release),
    }
    if transformers is not None:
        facts["transformers_types"] = transformers_types(transformers)
        facts["transformers_classes"] = transformers_classes(transformers, set(facts["architectures"]["value"]))
    return {
        "engine": "vllm",
        "version": release.field("Version"),
        "requires": {"transformers": release.requires("transformers"), "torch": release.requires("torch")},
        "assumed": {
            "humming": True, "triton": True, "deep_gemm": True, "triton_kernels": True, "flashinfer": False,
            "conch": False, "b12x": False, "fbgemm_gpu": False, "quark": False,
        },
        "facts": facts,
        "kernels": {
            "linear": kernel_orders(release),
            "moe": moe_orders(release),
            "min_capability": capabilities(release, ("model_executor/kernels/linear", f"{QUANT}/compressed_tensors",
                                                      f"{QUANT}/quark")),
            "constants": constants(release),
        },
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path, help="vLLM wheel, or a folder that holds the package")
    parser.add_argument("--transformers", type=Path, help="Transformers wheel or folder")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    other = Release(args.transformers, "transformers") if args.transformers else None
    data = profile(Release(args.release, "vllm"), other)
    text = json.dumps(data, indent=1, sort_keys=True)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(f"{data['engine']} {data['version']}: {len(data['facts'])} facts, {len(text):,} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
