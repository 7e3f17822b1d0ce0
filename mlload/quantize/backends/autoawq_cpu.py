"""The fault that ruins models which AutoAWQ 0.2.9 quantizes on a CPU, and its mend.

Its scale search tries 20 ratios on the layer itself and restores the weights after each from what it kept before:
`org_sd = {k: v.cpu() for k, v in module2inspect.state_dict().items()}`. On a GPU `.cpu()` copies. On a CPU it gives the
very same memory, which the first trial multiplies in place: what is restored ever after are weights times the first
trial's scales, while the norm before them is divided by the best ones. Nothing fails: the files are whole and the model
says nonsense.

The mend: while a search runs, the layer's `state_dict()` gives copies. Nothing else of AutoAWQ is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def copied_state(module: nn.Module) -> Iterator[None]:
    """Within it `module.state_dict()` gives tensors of their own memory."""
    own = module.state_dict

    def copies(*words: Any, **options: Any) -> Any:
        return {name: values.clone() for name, values in own(*words, **options).items()}

    module.__dict__["state_dict"] = copies
    try:
        yield
    finally:
        del module.__dict__["state_dict"]
