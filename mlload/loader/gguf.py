"""load_format "gguf": blocks as they lie in the file; a rank's rows or whole blocks of each."""

from __future__ import annotations

from mlload.loader.safetensors import FileLoader


class GGUFLoader(FileLoader):
    load_format = "gguf"
