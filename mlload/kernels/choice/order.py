"""In which order the candidates are asked: the profile's lists, moved around as vLLM moves them."""

from __future__ import annotations

from mlload.kernels.choice.question import Question


def linear_order(q: Question) -> tuple[str, ...]:
    order = q.profile.order("linear", q.method.family if q.method.family != "nvfp4_weight_only" else "nvfp4")
    if q.method.family == "nvfp4_weight_only":
        return _weight_only_nvfp4(q, order)
    return _humming_first(q, order)


def _weight_only_nvfp4(q: Question, order: tuple[str, ...]) -> tuple[str, ...]:
    """kernels/linear/__init__.py:1188: FlashInfer on 10.x, Humming where it is preferred, Marlin elsewhere."""
    allowed = q.profile.order("linear", "nvfp4_weight_only")
    order = tuple(kernel for kernel in order if kernel in allowed)
    if q.cc in q.profile.constant("humming_before_marlin", ()):
        return _humming_first(q, order)
    first = "FlashInferCuteDslNvFp4W4A16LinearKernel" if q.cc in (100, 103) else "MarlinNvFp4LinearKernel"
    forced = [kernel for kernel in (first, "MarlinNvFp4LinearKernel") if kernel in order]
    return tuple(dict.fromkeys([*forced, *order]))


def _humming_first(q: Question, order: tuple[str, ...]) -> tuple[str, ...]:
    """utils/humming/priority.py:29: on some capabilities Humming moves directly ahead of Marlin."""
    if q.cc not in q.profile.constant("humming_before_marlin", ()):
        return order
    names = [name.lower() for name in order]
    humming = next((i for i, name in enumerate(names) if "humming" in name), None)
    marlin = next((i for i, name in enumerate(names) if "marlin" in name), None)
    if humming is None or marlin is None or humming < marlin:
        return order
    moved = list(order)
    moved.insert(marlin, moved.pop(humming))
    return tuple(moved)


def experts_order(q: Question) -> tuple[str, ...]:
    """The oracle's list, moved around as it moves it (oracle/fp8.py:80, unquantized.py:50, mxfp4.py:402)."""
    if q.method.family == "mxfp4_checkpoint":
        # No list: CUTLASS where it was compiled, Marlin elsewhere (compressed_tensors_moe_w4a4_mxfp4.py:64).
        return ("CUTLASS_MXFP4_MXFP4", "MARLIN")
    order = list(q.profile.order("moe", q.method.family))

    def move(backend: str, to: int) -> None:
        if backend in order:
            order.remove(backend)
            order.insert(to if to >= 0 else len(order), backend)

    if q.method.family == "unquantized":
        if q.cc // 10 == 9:
            move("FLASHINFER_TRTLLM", -1)
            move("FLASHINFER_CUTLASS", -1)
        elif q.layer.dp > 1:
            move("FLASHINFER_CUTLASS", -1)
        return tuple(order)
    if q.method.family == "mxfp4_gpt_oss":
        # Variants for the declared activation format first, then the 16-bit ones (mxfp4.py:614).
        wide = [b for b in order if not b.endswith(("_MXFP8", "_FP8", "_MXFP4_MXFP4"))]
        same = [b for b in order if b.endswith("_MXFP4_MXFP4") or b == "EMULATION"]
        order = [*same, *(b for b in wide if b not in same)] if q.method.activation == "mxfp4_dynamic" else wide
        if q.cc // 10 == 12 and "BATCHED_MARLIN" in order:
            move("TRITON", order.index("BATCHED_MARLIN"))
    if q.method.family == "wna16" or q.method.family.startswith(("nvfp4", "mxfp", "fp8")):
        order = list(_humming_first(q, tuple(order)))
    whole = q.method.weight == "fp8_block" and q.method.block == (128, 128)
    if q.method.family == "fp8" and q.cc == 90 and whole:
        move("FLASHINFER_CUTLASS" if q.layer.ep > 1 else "TRITON", 0)
    return tuple(order)
