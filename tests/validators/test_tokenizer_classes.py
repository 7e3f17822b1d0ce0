"""Which tokenizer class a model type has, against the transformers that is installed."""

from __future__ import annotations

import pytest

from mlload.validators.tokenizer_classes import OWN_CLASS


@pytest.mark.slow
@pytest.mark.transformers
def test_model_types_with_a_class_of_their_own() -> None:
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto")
    generic = {None, "TokenizersBackend", "MistralCommonBackend", "PreTrainedTokenizerFast", "PythonBackend"}
    known = auto.TOKENIZER_MAPPING_NAMES
    # Types come and go between releases; of those that both know, none has changed sides.
    assert {name for name in OWN_CLASS if name in known} == {n for n in OWN_CLASS if known.get(n, None) not in generic}
    assert {"qwen2", "gemma2", "gpt2"} <= OWN_CLASS
    assert not {"llama", "mistral", "phi3", "deepseek_v3"} & OWN_CLASS
