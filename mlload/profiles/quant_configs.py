"""What each method refuses in a quantization config, when vLLM parses it (`from_config`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mlload.checkpoint.finding import Finding, Hint
from mlload.profiles.profile import Profile
from mlload.profiles.quantization import Quantization

Refusals = Iterator[Finding]


def quant_config_refusals(quantization: Quantization, profile: Profile) -> tuple[Finding, ...]:
    """Refusals of the config alone, without a GPU or a dtype."""
    check = CHECKS.get(quantization.method or "")
    if check is None or not quantization.config:
        return ()
    return tuple(check(quantization.config, profile, quantization.where))


def _error(code: str, where: str, message: str, *hints: Hint, **numbers: Any) -> Finding:
    return Finding(code, "error", "starts", where, message, numbers, hints)


def _required(config: dict[str, Any], where: str, method: str, *alternatives: tuple[str, ...]) -> Refusals:
    """base_config.py `get_from_keys`: one spelling of each field must be there."""
    for names in alternatives:
        if not any(name in config for name in names):
            yield _error("EN030", where, f"{method} needs {' or '.join(names)} in its config", field=names[0])


def _gptq(config: dict[str, Any], profile: Profile, where: str) -> Refusals:
    """auto_gptq.py:104, utils/gptq_utils.py:23."""
    yield from _required(config, where, "GPTQ", ("bits",), ("group_size",), ("desc_act",), ("sym",))
    bits, group, desc, sym = (config.get(name) for name in ("bits", "group_size", "desc_act", "sym"))
    if desc and group != -1:
        yield _act_order(where, f"desc_act with groups of {group}", group)
    dynamic = config.get("dynamic")
    for pattern, rule in dynamic.items() if isinstance(dynamic, dict) else ():
        if str(pattern).startswith("-:") or not isinstance(rule, dict):
            continue
        if rule.get("desc_act", desc) and rule.get("group_size", group) != -1:
            yield _act_order(where, f"desc_act in the dynamic rule {pattern!r}", rule.get("group_size", group))
    known = [tuple(pair) for pair in profile.constant("gptq_bits_sym", ())]
    if bits is not None and sym is not None and (bits, sym) not in known:
        kind = "symmetric" if sym else "asymmetric"
        names = " or ".join(f"{b}-bit" for b, _ in known)
        yield _error("EN023", where, f"{bits}-bit {kind} GPTQ is refused, symmetric {names} is not", bits=bits, sym=sym)


def _act_order(where: str, what: str, group: Any) -> Finding:
    hint = Hint("quantize again with desc_act false (static_groups true)", needs="original weights")
    return _error("EN022", where, f"GPTQ act-order is no longer supported: {what}", hint, group_size=group)


def _awq(config: dict[str, Any], profile: Profile, where: str) -> Refusals:
    """auto_awq.py:187."""
    yield from _required(config, where, "AWQ", ("w_bit", "bits"), ("q_group_size", "group_size"), ("zero_point",))
    bits = config.get("w_bit", config.get("bits"))
    known = profile.constant("awq_bits", ())
    if bits is not None and known and bits not in known:
        yield _error("EN024", where, f"{bits}-bit AWQ is refused, {', '.join(map(str, known))}-bit is not", bits=bits)


def _compressed_tensors(config: dict[str, Any], profile: Profile, where: str) -> Refusals:
    """compressed_tensors.py:303, :1093."""
    groups = config.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        order = weights.get("actorder") if isinstance(weights, dict) else None
        if order in ("group", "dynamic"):
            message = f"actorder {order!r} of {name} is no longer supported; static and weight order are"
            hint = Hint("quantize again with actorder static", needs="original weights")
            yield _error("EN025", where, message, hint, actorder=order)
    sparsity = config.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("targets"):
        yield _error("EN031", where, "the checkpoint has a sparsity config, which is no longer supported")
    kv = config.get("kv_cache_scheme")
    if isinstance(kv, dict):
        bits, kind, strategy = kv.get("num_bits"), kv.get("type"), kv.get("strategy")
        if kind != "float" or bits != 8:
            yield _error("EN032", where, f"a KV cache of {bits}-bit {kind} is refused, 8-bit float is not", bits=bits)
        elif strategy not in ("tensor", "attn_head"):
            yield _error("EN032", where, f"a KV cache scheme of strategy {strategy!r} is refused", strategy=strategy)
        elif not kv.get("symmetric"):
            yield _error("EN032", where, "an asymmetric KV cache scheme is refused")


def _fp8(config: dict[str, Any], profile: Profile, where: str) -> Refusals:
    """fp8.py:95."""
    yield from _required(config, where, "fp8", ("activation_scheme",))
    scheme, block = config.get("activation_scheme"), config.get("weight_block_size")
    if scheme is not None and scheme not in ("static", "dynamic"):
        yield _error("EN026", where, f"the activation scheme {scheme!r} is refused; static and dynamic are known")
    if block is None:
        return
    size = len(block) if isinstance(block, list | tuple) else 0
    if size != 2:
        yield _error("EN026", where, f"weight_block_size must have 2 dimensions, it has {size}", dimensions=size)
    if scheme == "static":
        yield _error("EN026", where, "block scales go with dynamic activations, the scheme is static")


def _quark(config: dict[str, Any], profile: Profile, where: str) -> Refusals:
    """quark.py:266."""
    export = config.get("export")
    if not isinstance(export, dict):
        yield _error("EN027", where, "a Quark config needs its export section")
        return
    yield from _quark_sections(config, export, where)
    yield from _quark_int8(config, where)
    groups = export.get("kv_cache_group") or []
    if not groups:
        return
    from fnmatch import fnmatchcase

    layers = config.get("layer_quant_config")
    layers = layers if isinstance(layers, dict) else {}
    matching = [entry for name, entry in layers.items() if any(fnmatchcase(name, str(pattern)) for pattern in groups)]
    if not matching:
        yield _error("EN027", where, f"kv_cache_group {groups} matches no entry of layer_quant_config")
        return
    outputs = [entry.get("output_tensors") if isinstance(entry, dict) else None for entry in matching]
    if any(output != outputs[0] for output in outputs):
        yield _error("EN027", where, "the KV cache layers of layer_quant_config are quantized differently")
    elif outputs[0] is None:
        yield _error("EN027", where, "the KV cache entry of layer_quant_config has no output_tensors")


def _quark_sections(config: dict[str, Any], export: dict[str, Any], where: str) -> Refusals:
    """quark.py:276, :243, :773: asked for every layer, without a default."""
    needed = ((export, "kv_cache_group", list), (config, "exclude", list), (config, "layer_type_quant_config", dict))
    missing = [
        f"{name} ({kind()} where it is empty)" for held, name, kind in needed if not isinstance(held.get(name), kind)
    ]
    if missing:
        yield _error("EN027", where, f"a Quark config needs {', '.join(missing)}")
    if not isinstance(config.get("global_quant_config"), dict) and not config.get("layer_quant_config"):
        yield _error("EN027", where, "neither global_quant_config nor layer_quant_config says how layers are quantized")


def _quark_int8(config: dict[str, Any], where: str) -> Refusals:
    """quark.py `_is_w8a8_int8`: what linears have without an entry of their own. `layer_type_quant_config` is asked by
    the layer's class and not by its name, so that none of its entries is ever found."""
    entry = config.get("global_quant_config")
    weight = entry.get("weight") if isinstance(entry, dict) else None
    if not isinstance(weight, dict) or weight.get("dtype") != "int8":
        return
    inputs = entry.get("input_tensors") if isinstance(entry, dict) else None
    inputs = inputs if isinstance(inputs, dict) else {}
    static = inputs.get("qscheme") == "per_tensor" and not inputs.get("is_dynamic") and not weight.get("is_dynamic")
    dynamic = inputs.get("qscheme") == "per_channel" and inputs.get("is_dynamic") is True
    if weight.get("symmetric") is not True or weight.get("qscheme") not in ("per_tensor", "per_channel"):
        yield _error("EN027", where, "Quark's int8 weights must be symmetric, per_tensor or per_channel")
    elif inputs.get("dtype") != "int8" or not (static or dynamic):
        told = "Quark's int8 weights go with int8 inputs, static per_tensor or dynamic per_channel"
        yield _error("EN027", where, told)


def _modelopt(config: dict[str, Any], profile: Profile, where: str) -> Refusals:
    """modelopt.py:323, :758."""
    nested = config.get("quantization")
    if nested is not None and not isinstance(nested, dict):
        yield _error("EN028", where, "quantization must be a dictionary")
        return
    source = config if nested is None else nested
    algo = source.get("quant_algo")
    if not algo:
        yield _error("EN028", where, "a ModelOpt config needs a quant_algo")
        return
    known = profile.constant("modelopt_algos", ())
    if known and str(algo).upper() not in known:
        yield _error("EN013", where, f"the ModelOpt algorithm {algo!r} is not known; known: {', '.join(known)}")
    group = source.get("group_size")
    if group is not None and not isinstance(group, int) and not str(group).lstrip("-").isdigit():
        yield _error("EN028", where, f"group_size must be a whole number, it is {group!r}")
    excluded = source.get("exclude_modules", []) if nested is not None else source.get("ignore", [])
    if not isinstance(excluded, list):
        yield _error("EN028", where, "the list of excluded modules must be a list")
    if nested is not None and "NVFP4" in str(algo).upper():
        missing = [name for name in ("group_size", "kv_cache_quant_algo", "exclude_modules") if name not in nested]
        if missing:
            yield _error("EN028", where, f"NVFP4 needs {', '.join(missing)} in its config", missing=missing)


def _inc(config: dict[str, Any], profile: Profile, where: str) -> Refusals:
    """inc/inc.py:70."""
    yield from _required(config, where, "AutoRound", ("bits",), ("group_size",))
    kind = str(config.get("data_type") or "int")
    kind = "fp" if kind == "fp8" else kind
    fields = (
        ("bits", config.get("bits"), profile.constant("inc_bits", ())),
        ("packing_format", config.get("packing_format"), profile.constant("inc_formats", ())),
        ("backend", config.get("backend", config.get("vllm_backend")), profile.constant("inc_backends", ())),
        ("data_type", None if "mx_fp" in kind else kind, profile.constant("inc_dtypes", ())),
    )
    for name, value, known in fields:
        if value is not None and known and value not in known:
            names = ", ".join(map(str, known))
            yield _error("EN029", where, f"{name} {value!r} of AutoRound is refused; known: {names}", value=value)
    packing = config.get("packing_format")
    if kind == "int" and packing in ("auto_round:fp8", "auto_round:llm_compressor"):
        yield _error("EN029", where, f"integer weights do not come in the packing format {packing!r}")
    if kind == "int" and isinstance(config.get("group_size"), list):
        yield _error("EN029", where, f"integer weights need one group size, not {config['group_size']}")
    if "mx_fp" in kind and config.get("group_size") not in (None, 32):
        yield _error("EN029", where, f"MX weights need groups of 32, not {config['group_size']}")


CHECKS: dict[str, Callable[[dict[str, Any], Profile, str], Refusals]] = {
    "auto_gptq": _gptq,
    "auto_awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "quark": _quark,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mxfp8": _modelopt,
    "modelopt_mixed": _modelopt,
    "inc": _inc,
}
