"""A real S3 server (moto's) for a folder of checkpoints, which counts what it serves.

Large files are not uploaded: the server's object is made to map the file on disk, so that a
skeleton whose data is a hole of hundreds of gigabytes costs neither memory nor time.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAPPED_FROM = 16 << 20


class S3Server:
    """Use it as a context manager; `put_folder` fills a bucket. Bodies of GET answers are counted, by path."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.bytes_sent: Counter[str] = Counter()

    @property
    def url(self) -> str:
        host, port = self._server.get_host_and_port()
        return f"http://{host}:{port}"

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_sent.values())

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to reach it."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def __enter__(self) -> S3Server:
        self._server.start()
        self._count()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()

    def _count(self) -> None:
        """Put a counter between moto's application and the wire."""
        server: Any = self._server._server
        app = server.app

        def counting(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            for chunk in app(environ, start_response):
                if environ["REQUEST_METHOD"] == "GET":
                    self.bytes_sent[environ["PATH_INFO"]] += len(chunk)
                yield chunk

        server.app = counting

    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )

    def put_folder(self, bucket: str, folder: Path, prefix: str = "") -> None:
        """All files below `folder`, under the key `prefix` + their path in it."""
        client = self.client()
        client.create_bucket(Bucket=bucket)
        for root, _, names in os.walk(folder):
            for name in names:
                path = Path(root) / name
                key = f"{prefix}{path.relative_to(folder)}"
                if path.stat().st_size < MAPPED_FROM:
                    client.upload_file(str(path), bucket, key)
                else:
                    client.put_object(Bucket=bucket, Key=key, Body=b"")
                    _map(bucket, key, path)


def _map(bucket: str, key: str, path: Path) -> None:
    """Let moto's object take its bytes from a file."""
    from moto.s3.models import s3_backends

    stored: Any = s3_backends["123456789012"]["aws"].buckets[bucket].keys[key]

    class Mapped(type(stored)):  # type: ignore[misc]
        @property
        def value(self) -> mmap.mmap:
            return self.mapped

    with path.open("rb") as handle:
        stored.mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    stored.contentsize = path.stat().st_size
    stored.__class__ = Mapped
