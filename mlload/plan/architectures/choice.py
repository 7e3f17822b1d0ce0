"""Which table a checkpoint is read with: its model type's, the same under GGUF's names, or a guess."""

from __future__ import annotations

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.finding import MlloadError
from mlload.plan.architectures import find
from mlload.plan.architectures.architecture import Architecture


def config_of(checkpoint: Checkpoint) -> ConfigView:
    """The config of the weights: a GGUF's own metadata, whatever config.json lies beside it, else config.json."""
    if checkpoint.format != "gguf":
        return ConfigView(checkpoint.config)
    from mlload.checkpoint.gguf_config import config_from_gguf

    metadata = {key: value for one in checkpoint.metadata.values() for key, value in one.items()}
    return ConfigView(config_from_gguf(metadata, checkpoint.tensors) or checkpoint.config)


def choose(checkpoint: Checkpoint) -> tuple[ConfigView, Architecture]:
    """Config and architecture. Raises MlloadError when there is nothing to go by."""
    config = config_of(checkpoint)
    architecture = find(config)
    if architecture is not None and checkpoint.format == "gguf":
        from mlload.plan.architectures.gguf import as_gguf

        # Of other types GGUF's names are not known here: they are guessed.
        architecture = as_gguf(architecture) if config.model_type in _gguf_types() else None
    if architecture is not None:
        if architecture.variants:
            from mlload.plan.architectures.layout import fitting

            return config, fitting(architecture, config, checkpoint.tensors)
        return config, architecture
    if not checkpoint.tensors:
        faults = [found.message for found in checkpoint.problems if found.severity == "error"]
        if faults and not config.model_type:  # files that are damaged or absent, rather than a model nobody knows
            raise MlloadError(faults[0], exit_code=3)
        raise MlloadError(
            f"the model type {config.model_type!r} is not in the tables, and there are no weights to infer it from",
            exit_code=3,
        )
    from mlload.plan.architectures.inferred import infer

    return config, infer(checkpoint, config)


def _gguf_types() -> frozenset[str]:
    from mlload.checkpoint.gguf_config import MODEL_TYPES

    return frozenset(MODEL_TYPES.values()) | {"mixtral"}
