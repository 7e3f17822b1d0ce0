"""GPTQ's zero points and group numbers against what the config calls them."""

from __future__ import annotations

from mlload.validators.deep.roles import Role
from mlload.validators.quant_tensors import Label


def label_of(role: Role) -> Label:
    """v2 stores zero points as they are, v1 less one."""
    return "gptq_v2" if role.scheme is not None and role.scheme.layout == "gptq_v2" else "gptq"


def stores_less_one(role: Role) -> bool:
    """Whether a zero point of 0 would have borrowed from its neighbours: asymmetric v1."""
    return role.scheme is not None and not role.scheme.symmetric and label_of(role) == "gptq"
