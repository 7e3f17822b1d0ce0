"""load_format "runai_streamer": Run:ai's streamer, many threads in C++, from disk or straight from a bucket.

A bucket's address and credentials are those of every other AWS tool; a server of one's own (AWS_ENDPOINT_URL_S3) is
asked with the bucket in the path, since it seldom has a host name for each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Source
from mlload.loader.streamed import StreamedLoader, paths

BUCKETS = ("s3", "gs", "az")


class RunaiStreamerLoader(StreamedLoader):
    load_format = "runai_streamer"
    package = "runai_model_streamer"
    extra = "runai"

    def whole_tensors(
        self, source: Source, names: dict[str, list[str]], device: torch.device
    ) -> Iterator[tuple[str, Tensor]]:
        library = self.imported()
        files = self._paths(source, list(names))
        wanted = [name for held in names.values() for name in held]
        try:
            with library.SafetensorsStreamer() as streamer:
                streamer.stream_files(files, tensor_names=wanted, owned=False)
                yield from streamer.get_tensors()
        except MlloadError:
            raise
        except Exception as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise MlloadError(f"runai_streamer cannot read {source.label}: {said}", exit_code=3) from error

    def _paths(self, source: Source, names: list[str]) -> list[str]:
        protocol = getattr(source, "protocol", "")
        if protocol not in BUCKETS:
            return paths(source, names, self.load_format)
        if protocol == "s3":
            self.imported("runai_model_streamer_s3")
            point_at_endpoint()
        root = source.label.rstrip("/")
        if names == [root.rpartition("/")[2]]:
            return [root]
        return [f"{root}/{name}" for name in names]


def point_at_endpoint() -> None:
    """The streamer knows AWS_ENDPOINT_URL alone, and asks for a host of the bucket's name unless told not to."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        os.environ.setdefault("AWS_ENDPOINT_URL", endpoint)
        os.environ.setdefault("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0")
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
