"""What a pickle may import: the names that torch.load(weights_only=True) takes.

Source: `_get_allowed_globals` in torch/_weights_only_unpickler.py of torch 2.13.
"""

from __future__ import annotations

_PLAIN = frozenset(
    {"collections.Counter", "collections.OrderedDict", "_codecs.encode"}
    | {f"{module}.{name}" for module in ("builtins", "__builtin__") for name in ("bytearray", "complex", "set")}
    | {"torch.Size", "torch.Tensor", "torch.device", "torch.nn.parameter.Parameter"}
    | {"torch.storage.TypedStorage", "torch.storage.UntypedStorage", "torch.serialization._get_layout"}
    | {"torch.nested._internal.nested_tensor.NestedTensor", "torch.nested._internal.nested_tensor._rebuild_njt"}
    | {"torch.distributed._mesh_layout._MeshLayout", "torch.distributed._mesh_layout._FlatLayout"}
    | {"torch._tensor._rebuild_from_type_v2"}
)
_REBUILDS = frozenset(
    f"torch._utils._rebuild_{name}"
    for name in (
        *("tensor", "tensor_v2", "tensor_v3", "parameter", "parameter_with_state", "qtensor", "sparse_tensor"),
        *("nested_tensor", "wrapper_subclass", "meta_tensor_no_storage"),
        *("device_tensor_from_cpu_tensor", "device_tensor_from_numpy"),
    )
)
_KINDS = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_STORAGES = frozenset(
    {f"{module}.{kind}Storage" for module in ("torch", "torch.cuda") for kind in _KINDS}
    | {f"{module}.Complex{kind}Storage" for module in ("torch", "torch.cuda") for kind in ("Double", "Float")}
    | {f"torch.{kind}Storage" for kind in ("QInt32", "QInt8", "QUInt2x4", "QUInt4x2", "QUInt8")}
)
# Dense and sparse tensor classes, on the CPU and on CUDA; bool has no sparse one.
_TENSORS = frozenset(
    f"torch.{place}{kind}Tensor"
    for place in ("", "cuda.", "sparse.", "cuda.sparse.")
    for kind in _KINDS
    if kind != "Bool" or "sparse" not in place
)
_DTYPES = frozenset(
    f"torch.{name}"
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
        *("float16", "float32", "float64", "bfloat16", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
        *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "qint8", "qint32", "quint8", "quint2x4", "quint4x2"),
        *("per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric"),
        "per_channel_affine_float_qparams",
    )
)
ALLOWED = _PLAIN | _REBUILDS | _STORAGES | _TENSORS | _DTYPES
