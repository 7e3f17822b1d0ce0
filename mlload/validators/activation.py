"""The activation that a config names, against the one that the engine's class is built with."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import Finding, Hint
from mlload.validators.context import Context
from mlload.validators.rules import rule


@rule("CF014", "an activation that the engine's class does not have")
def activation(context: Context) -> Iterator[Finding]:
    """hidden_act names the function between the two halves of an MLP. Many of vLLM's classes know one only (mostly
    silu, fused with the product that follows) and refuse to be built with another; which one is read from each
    release."""
    config, profile = context.config, context.plan.profile
    asked = config.given("hidden_act")
    if not isinstance(asked, str):
        return
    for name in config.architectures:
        file = str(profile.architectures.get(name, {}).get("file", "")).partition(":")[0]
        only = profile.value("activations", {}).get(file)
        if only is None or only == asked:
            continue
        yield Finding(
            "CF014",
            "error",
            "starts",
            "config.json: hidden_act",
            f"hidden_act is {asked!r}, and {name} is built with {only!r} alone ({file})",
            {"hidden_act": asked, "only": only},
            (Hint(f"a model trained with {only} has its config damaged: put {only!r} back"),),
        )
        return
