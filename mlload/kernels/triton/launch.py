"""Runs the weight-only kernel on torch tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlload.kernels.triton import configs
from mlload.kernels.triton.packed import Spec
from mlload.kernels.triton.weight_only import dequantize_planes, reduce_splits, weight_only_gemm

DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
STEPS = {**DTYPES, torch.float32: tl.float32, torch.int32: tl.int32}


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, which knows no PTX."""
    return not isinstance(weight_only_gemm, triton.JITFunction)


def use_ptx(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None and not interpreting()


def capability_of(x: Tensor) -> int:
    """90 for compute capability 9.0; of Hopper, which the tiles are made for, where there is no GPU."""
    return _capability(x.device.index or 0) if x.device.type == "cuda" else 90


@cache
def _capability(index: int) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return major * 10 + minor


def warps(config: configs.Config, x: Tensor, group: int, *, fp8: bool = False, words: bool = False) -> int:
    return configs.warps_for(config, capability_of(x), group, fp8=fp8, words=words)


@cache
def multiprocessors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def wide(scale: Tensor) -> Tensor:
    """Scales [..., groups a tile] as the integers of 32 or 64 bits that kernels read; as they are where it is one."""
    if scale.shape[-1] == 1:
        return scale
    return scale.view(torch.int32 if scale.shape[-1] * scale.element_size() == 4 else torch.int64)


def matmul(
    x: Tensor,
    packed: Mapping[str, Tensor],
    spec: Spec,
    n: int,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    config: configs.Config | None = None,
) -> Tensor:
    """x [M, K] -> [M, N]. The act-order permutation has been applied."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    (m, k), layout = x.shape, spec.layout
    k_tiles = packed["weight"].shape[1]
    if config is None:
        count = multiprocessors(x.device.index or 0) if x.device.type == "cuda" else configs.MULTIPROCESSORS
        config = configs.fitting(configs.choose(m, n, k_tiles, count, key(x, spec)), capability_of(x), spec.group)
    y = torch.empty(m, n, dtype=out_dtype or x.dtype, device=x.device)
    if not m:
        return y
    per_split = triton.cdiv(k_tiles, config.splits)
    splits = triton.cdiv(k_tiles, per_split)
    target = y if splits == 1 else torch.empty(splits, m, n, dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(m, config.block_m), triton.cdiv(n, config.block_n), splits)
    weight, scale = packed["weight"], packed["scale"]
    weight_only_gemm[grid](
        x,
        weight,
        wide(scale),
        packed.get("zero", scale),
        x if bias is None else bias,
        target,
        scale,
        scale,
        packed.get("global_scale", scale),
        m,
        n,
        k,
        x.stride(0),
        k_tiles,
        scale.shape[-2],
        per_split,
        1,
        CODE=spec.code,
        DTYPE=DTYPES[x.dtype],
        STEP=STEPS[scale.dtype],
        ZERO="zero" in packed or scale.dtype == torch.int32,
        WORDS=scale.dtype == torch.int32,
        BIAS=bias is not None and splits == 1,
        ROUTED=False,
        GLOBAL="global_scale" in packed,
        EVEN_K=k % layout.columns == 0,
        SPLIT=splits > 1,
        G=max(spec.group, 0),
        P=layout.width,
        PLANES=layout.planes,
        BN=config.block_n,
        BM=config.block_m,
        PTX=use_ptx(x.device),
        num_warps=warps(config, x, spec.group, words=scale.dtype == torch.int32),
        num_stages=config.stages,
        enable_fp_fusion=True,
    )
    if splits > 1:
        block = 1024
        reduce_splits[(triton.cdiv(m * n, block),)](
            target, x if bias is None else bias, y, m * n, n, SPLITS=splits, BIAS=bias is not None, BLOCK=block
        )
    return y


def dequantize(packed: Mapping[str, Tensor], spec: Spec, n: int, k: int, dtype: torch.dtype) -> Tensor:
    """The packed weight as [N, K] (K: of the packed columns)."""
    weight, scale, layout = packed["weight"], packed["scale"], spec.layout
    y = torch.empty(n, k, dtype=dtype, device=weight.device)
    k_tiles = weight.shape[1]
    dequantize_planes[(triton.cdiv(n, 64), k_tiles)](
        weight,
        wide(scale),
        packed.get("zero", scale),
        packed.get("global_scale", scale),
        y,
        n,
        k,
        k_tiles,
        scale.shape[-2],
        CODE=spec.code,
        STEP=STEPS[scale.dtype],
        ZERO="zero" in packed or scale.dtype == torch.int32,
        WORDS=scale.dtype == torch.int32,
        GLOBAL="global_scale" in packed,
        G=max(spec.group, 0),
        P=layout.width,
        PLANES=layout.planes,
        DTYPE=DTYPES[dtype],
        PTX=use_ptx(weight.device),
        num_warps=4,
    )
    return y


def key(x: Tensor, spec: Spec) -> str:
    """Under which measured configurations are kept; "" where nothing is measured."""
    if x.device.type != "cuda":
        return ""
    name = torch.cuda.get_device_name(x.device).replace(" ", "-")
    return f"{name}:{spec.code}:{spec.group}:{str(x.dtype).removeprefix('torch.')}"
