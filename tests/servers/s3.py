"""A real S3 server (moto's) for a folder of checkpoints, which counts what it serves."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class S3Server:
    """Use it as a context manager; `put_folder` fills a bucket.

    Weight files that are mostly hole are uploaded whole, so keep what goes in here small, or give
    `put_folder` a size to cut files at: what lies behind a header is never asked for.
    """

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
        client = self.client()
        client.create_bucket(Bucket=bucket)
        for root, _, names in os.walk(folder):
            for name in names:
                path = Path(root) / name
                key = f"{prefix}{path.relative_to(folder)}"
                client.upload_file(str(path), bucket, key)
