"""Every configuration that ships, as cases to compile for a GPU that need not be there. Needs triton alone.

A case names its kernel, its argument types and its constants; `targets` are the compute capabilities that
`conditions` admits it on, of those that are compiled here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import triton.language as tl

from mlload.kernels.triton import configs, kv_cache_device, moe_device, quantize_device, w8a8_device, weight_only

TARGETS = (80, 89, 90, 100)
FP8_TARGETS = (89, 90, 100)


class Case(NamedTuple):
    """weights: of one tile, that the main loop takes in one turn; 0 where nothing is counted per weight
    other_warps: on the targets where they differ
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    targets: tuple[int, ...] = TARGETS
    warps: int = 4
    stages: int = 3
    weights: int = 0
    even: tuple[str, ...] = ()
    other_warps: tuple[tuple[int, int], ...] = ()

    def warps_on(self, capability: int) -> int:
        return dict(self.other_warps).get(capability, self.warps)


FLOATS = {"bf16": tl.bfloat16, "fp16": tl.float16}


def cases() -> Iterator[Case]:
    yield from dense()
    yield from routed()
    yield from eight_bits()
    yield from beside()


def dense() -> Iterator[Case]:
    config = configs.BY_ROWS[0][1]
    for dtype in ("bf16", "fp16"):
        for group in (128, 64, 32, -1):
            for zero in (False, True):
                yield weight_only_case("w4a16", "int4", dtype, group, config, zero=zero)
    for _, config in configs.BY_ROWS[1:]:
        yield weight_only_case("w4a16", "int4", "bf16", 128, config)
        yield weight_only_case("w4a16", "int4", "bf16", 128, config, zero=True)
    many = configs.BY_ROWS[2][1]
    yield weight_only_case("w4a16", "int4", "bf16", 32, many, zero=True)
    yield weight_only_case("mxfp4", "e2m1", "bf16", 32, many)
    config = configs.BY_ROWS[0][1]
    yield weight_only_case("w4a16", "int4", "bf16", 128, config, split=True)
    for dtype in ("bf16", "fp16"):
        yield weight_only_case("w8a16", "int8", dtype, -1, config)
        yield weight_only_case("w8a16", "int8", dtype, 128, config, zero=True)
        yield weight_only_case("fp8_weights", "e4m3", dtype, 128, config)
        yield weight_only_case("mxfp4", "e2m1", dtype, 32, config)
        yield weight_only_case("nvfp4", "e2m1", dtype, 16, config, shared=True)


# Of experts: (name, code, group, zero points).
ROUTED = (
    ("float", "float", -1, False),
    ("w4a16", "int4", 128, False),
    ("w4a16", "int4", 128, True),
    ("w4a16", "int4", 32, False),
    ("w4a16", "int4", 32, True),
    ("w8a16", "int8", 128, False),
    ("fp8_weights", "e4m3", 128, False),
    ("mxfp4", "e2m1", 32, False),
    ("nvfp4", "e2m1", 16, False),
)


def routed() -> Iterator[Case]:
    for block in (16, 64):
        for name, code, group, zero in ROUTED:
            tile = configs.Config(128, block, 4, 4)
            shared = name == "nvfp4"
            case = weight_only_case(f"moe_{name}", code, "bf16", group, tile, routed=True, zero=zero, shared=shared)
            warps = tuple((target, moe_device.grouped_warps(code, block, target, group)) for target in TARGETS)
            yield case._replace(other_warps=warps)


def weight_only_case(
    name: str,
    code: str,
    dtype: str,
    group: int,
    config: configs.Config,
    *,
    shared: bool = False,
    zero: bool = False,
    split: bool = False,
    routed: bool = False,
) -> Case:
    planes, widest = {"int4": (4, 32), "e2m1": (4, 32), "float": (1, 64)}.get(code, (2, 64))
    width = widest if group < 0 else min(widest, group)
    words = zero and code == "int4"
    pointer = f"*{dtype}"
    step = tl.int32 if words else tl.float32 if code == "e4m3" else tl.bfloat16 if code == "e2m1" else FLOATS[dtype]
    signature = {
        "x": pointer,
        "w": pointer if code == "float" else "*i16",
        "s": steps(step, width * planes, group),
        "z": "*i32" if words else "*u8" if zero else "*i16",
        "bias": pointer,
        "y": "*fp32" if split else pointer,
        "rows": "*i32",
        "experts": "*i32",
        "global_scale": "*fp32",
        **dict.fromkeys(("M", "N", "K", "x_stride", "k_tiles", "n_rows", "tiles_per_split", "top_k"), "i32"),
    }
    constants = {
        "CODE": code,
        "DTYPE": FLOATS[dtype],
        "STEP": step,
        "ZERO": zero,
        "WORDS": words,
        "BIAS": routed,
        "ROUTED": routed,
        "GLOBAL": shared,
        "EVEN_K": True,
        "SPLIT": split,
        "G": max(group, 0),
        "P": width,
        "PLANES": planes,
        "BN": config.block_n,
        "BM": config.block_m,
        "PTX": True,
    }
    title = f"{name} {dtype} g{group} {'asym ' if zero else ''}{'split ' if split else ''}BM{config.block_m}"
    return Case(
        title,
        weight_only.weight_only_gemm,
        signature,
        constants,
        warps=config.warps,
        stages=config.stages,
        weights=config.block_n * width * planes,
        even=("N", "K", "x_stride", "n_rows"),
        other_warps=tuple((t, configs.warps_for(config, t, group, words=words)) for t in TARGETS),
    )


def steps(step: tl.dtype, columns: int, group: int) -> str:
    """The pointer to scales of a tile of `columns` along K, as `launch.wide` gives it."""
    parts = columns // group if group > 0 else 1
    if parts == 1 and step.is_floating():
        return f"*{step}"
    return "*i32" if parts * step.primitive_bitwidth == 32 else "*i64"


def eight_bits() -> Iterator[Case]:
    for _, config in w8a8_device.BY_ROWS:
        yield _w8a8("fp8_block", config, blocked=True)
    yield _w8a8("fp8_channel", w8a8_device.BY_ROWS[0][1])
    yield _w8a8("moe_fp8_block", configs.Config(64, 16, 4, 4), blocked=True, routed=True)
    yield _w8a8("moe_fp8_channel", configs.Config(64, 16, 4, 4), routed=True)
    yield _w8a8("int8", w8a8_device.BY_ROWS[0][1], int8=True)
    yield _w8a8("moe_int8", configs.Config(64, 16, 4, 4), int8=True, routed=True)


def _w8a8(
    name: str, config: configs.Config, *, blocked: bool = False, int8: bool = False, routed: bool = False
) -> Case:
    element = "*i8" if int8 else "*fp8e4nv"
    signature = {
        "q": element,
        "qs": "*fp32",
        "w": element,
        "ws": "*fp32",
        "bias": "*bf16",
        "y": "*bf16",
        "rows": "*i32",
        "experts": "*i32",
        **dict.fromkeys(("M", "N", "K", "qs_row", "qs_group", "k_tiles", "tiles_per_split", "top_k"), "i32"),
    }
    constants = {
        "BLOCKED": blocked,
        "INT8": int8,
        "BIAS": True,
        "ROUTED": routed,
        "EVEN_K": True,
        "SPLIT": False,
        "BN": config.block_n,
        "BM": config.block_m,
    }
    return Case(
        f"{name} BM{config.block_m}",
        w8a8_device.w8a8_gemm,
        signature,
        constants,
        targets=TARGETS if int8 else FP8_TARGETS,
        warps=config.warps,
        stages=config.stages,
        weights=config.block_n * 128,
        even=("N", "K"),
        other_warps=tuple((t, configs.warps_for(config, t, 128, fp8=True)) for t in TARGETS),
    )


def beside() -> Iterator[Case]:
    """What moves bytes and multiplies nothing."""
    for code, group in (("int4", 128), ("int8", -1), ("e4m3", 128), ("e2m1", 32)):
        planes, widest = (4, 32) if code in ("int4", "e2m1") else (2, 64)
        step = {"e4m3": tl.float32, "int4": tl.int32}.get(code, tl.bfloat16)
        signature = {
            "w": "*i16",
            "s": steps(step, planes * widest, group),
            "z": "*u8",
            "global_scale": "*fp32",
            "y": "*bf16",
            **dict.fromkeys(("N", "K", "k_tiles", "n_rows"), "i32"),
        }
        constants = {
            "CODE": code,
            "STEP": step,
            "ZERO": code == "int4",
            "WORDS": code == "int4",
            "GLOBAL": False,
            "G": max(group, 0),
            "P": widest,
            "PLANES": planes,
            "DTYPE": tl.bfloat16,
            "PTX": True,
        }
        yield Case(f"dequantize {code}", weight_only.dequantize_planes, signature, constants, even=("N", "K", "n_rows"))
    sizes = {"parts": "*fp32", "bias": "*bf16", "y": "*bf16", "elements": "i32", "N": "i32"}
    constants = {"SPLITS": 4, "BIAS": True, "BLOCK": 1024}
    yield Case("reduce splits", weight_only.reduce_splits, sizes, constants, even=("elements", "N"))
    for int8 in (False, True):
        signature = {
            "x": "*bf16",
            "q": "*i8" if int8 else "*fp8e4nv",
            "scale": "*fp32",
            **dict.fromkeys(("M", "K", "x_stride", "G"), "i32"),
        }
        constants = {"STATIC": False, "INT8": int8, "BLOCK": 4096 if int8 else 128}
        yield Case(
            f"quantize {'int8 rows' if int8 else 'e4m3 groups'}",
            quantize_device.quantize_activations,
            signature,
            constants,
            targets=TARGETS if int8 else FP8_TARGETS,
            warps=4 if int8 else 1,
            even=("K", "x_stride", "G"),
        )
    for native in (True, False):
        signature = {
            "k": "*bf16",
            "v": "*bf16",
            "cache_k": "*u8",
            "cache_v": "*u8",
            "slots": "*i64",
            "scale_k": "*fp32",
            "scale_v": "*fp32",
            **dict.fromkeys(("k_stride", "v_stride", "width", "D"), "i32"),
        }
        constants = {"PER_HEAD": False, "NATIVE": native, "BLOCK": 1024}
        yield Case(
            f"kv_cache {'conversion' if native else 'bits'}",
            kv_cache_device.store_fp8,
            signature,
            constants,
            targets=FP8_TARGETS if native else (80,),
            even=("k_stride", "v_stride", "width", "D"),
        )
    signature = {"both": "*bf16", "y": "*bf16", "inner": "i32", "limit": "fp32"}
    yield Case(
        "activate swiglu_oai", moe_device.activate_pairs, signature, {"OAI": True, "BLOCK": 1024}, even=("inner",)
    )
    signature = {
        "x": "*bf16",
        "order": "*i64",
        "rows": "*i32",
        "experts": "*i32",
        "y": "*bf16",
        **dict.fromkeys(("slots", "x_stride", "width", "top_k"), "i32"),
    }
    tile = {"BM": 16, "BLOCK": 1024}
    yield Case("permute columns", moe_device.permute_columns, signature, tile, even=("x_stride", "width"))
    signature = {"out": "*bf16", "weights": "*fp32", "ids": "*i64", "y": "*bf16", "H": "i32"}
    yield Case("combine choices", moe_device.combine_choices, signature, {"TOP_K": 8, "BLOCK": 1024}, even=("H",))
