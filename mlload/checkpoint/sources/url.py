"""A checkpoint behind an fsspec URL: `s3://`, `gs://`, `az://`, `memory://` and what else is installed.

S3 takes its credentials, region and endpoint as every AWS tool does (AWS_PROFILE, AWS_ENDPOINT_URL,
AWS_ENDPOINT_URL_S3, ...). A bucket that refuses for want of credentials is tried once without any,
because public ones answer then.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Range, SourceFile
from mlload.checkpoint.sources.progress import Progress, Ticker

# Protocol -> the package that fsspec wants for it, and the extra of ours that brings it.
EXTRAS = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "gcs": ("gcsfs", "gs"),
    "az": ("adlfs", "az"),
    "abfs": ("adlfs", "az"),
    "abfss": ("adlfs", "az"),
}
AT_ONCE = 32
SINGLE_FILES = (".safetensors", ".gguf")


class UrlSource:
    """A folder or one weight file behind a URL. See `Source` for the methods."""

    kind = "url"
    remote = True
    revision: str | None = None

    def __init__(self, url: str, *, progress: Progress | None = None) -> None:
        self.label = url
        self.protocol = url.split("://", 1)[0].lower()
        self._progress = progress
        self._files: list[SourceFile] = []
        self._root = ""
        self._fs: Any = None
        try:
            self._open(url, {})
        except MlloadError as error:
            if self.protocol not in ("s3", "s3a") or "redentials" not in error.message:
                raise
            self._open(url, {"anon": True})

    def _open(self, url: str, options: dict[str, Any]) -> None:
        self._fs, root = file_system(url, {**_s3_options(self.protocol), **options})
        root = root.rstrip("/")
        try:
            if url.endswith(SINGLE_FILES) and self._fs.isfile(root):
                self._root = root.rpartition("/")[0]
                found = {root: self._fs.info(root)}
            else:
                self._root = root
                found = self._fs.find(root, detail=True)
        except Exception as error:
            raise self._failure(error, url) from error
        if not found:
            raise MlloadError(f"there is nothing at {url}", hint="check the bucket and the path", exit_code=3)
        cut = len(self._root) + 1 if self._root else 0
        self._files = sorted(SourceFile(path[cut:], int(info.get("size") or 0)) for path, info in found.items())

    def files(self) -> Sequence[SourceFile]:
        return self._files

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        result = self._fetch([Range(name, start, length)])[0]
        if isinstance(result, Exception):
            raise result
        return result

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        ticker = Ticker(self._progress, self.label, len(ranges))
        results: list[bytes | Exception] = []
        for at in range(0, len(ranges), AT_ONCE):
            for result in self._fetch(ranges[at : at + AT_ONCE]):
                ticker.step(len(result) if isinstance(result, bytes) else 0)
                results.append(result)
        ticker.close()
        return results

    def _fetch(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        """One round of concurrent reads. Ends are cut at the file's size, as some stores refuse a range beyond it."""
        sizes = {file.name: file.size for file in self._files}
        spans = []
        for name, start, length in ranges:
            size = sizes.get(name, 0)
            stop = size if length is None else min(size, start + length)
            spans.append((f"{self._root}/{name}" if self._root else name, start, max(start, stop)))
        wanted = [span for span in spans if span[2] > span[1]]
        results: dict[tuple[str, int, int], bytes | Exception] = {}
        if wanted:
            paths, starts, stops = map(list, zip(*wanted, strict=True))
            try:
                got = self._fs.cat_ranges(paths, starts, stops, on_error="return")
            except Exception as error:
                got = [error] * len(wanted)
            for span, result in zip(wanted, got, strict=True):
                results[span] = (
                    self._failure(result, f"{self.protocol}://{span[0]}")
                    if isinstance(result, BaseException)
                    else bytes(result)
                )
        return [
            MlloadError(f"{self.label} has no file called {asked.name}", exit_code=3)
            if asked.name not in sizes
            else results.get(span, b"")
            for asked, span in zip(ranges, spans, strict=True)
        ]

    def _failure(self, error: BaseException, url: str) -> MlloadError:
        """The sentence for whatever a file system raised; its own words are kept, in one line."""
        said = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, FileNotFoundError):
            return MlloadError(f"there is nothing at {url}", hint="check the bucket and the path", exit_code=3)
        if isinstance(error, PermissionError):
            return MlloadError(
                f"no access to {url} ({said})",
                hint="check the credentials and the bucket's policy",
                exit_code=3,
            )
        return MlloadError(f"cannot read {url} ({said})", exit_code=3)


def file_system(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The fsspec file system for a URL, and the path inside it."""
    protocol = url.split("://", 1)[0].lower()
    try:
        import fsspec  # type: ignore[import-untyped]
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError as error:
        raise _needs(url, protocol, error) from None
    if protocol not in fsspec.available_protocols():
        raise MlloadError(
            f"{url}: {protocol}:// is not a kind of address that fsspec knows",
            hint="write a folder, a file, org/name on the Hub, or an address such as s3://bucket/path",
            exit_code=3,
        )
    try:
        fs, path = url_to_fs(url, **options)
    except ImportError as error:
        raise _needs(url, protocol, error) from None
    except (ValueError, OSError) as error:
        raise MlloadError(f"{url} cannot be opened ({error})", exit_code=3) from error
    return fs, str(path)


def bucket(url: str) -> tuple[Any, str]:
    """The file system and the path of a URL that is to be written, with the settings that reading it has."""
    return file_system(url, _s3_options(url.split("://", 1)[0].lower()))


def _needs(url: str, protocol: str, error: ImportError) -> MlloadError:
    if protocol in EXTRAS:
        package, extra = EXTRAS[protocol]
        why = f'{url} needs {package}, which is not installed here:  pip install "mlload[{extra}]"'
    else:
        why = f"{url} needs a package that is not installed here ({' '.join(str(error).split())})"
    return MlloadError(why, exit_code=3)


def _s3_options(protocol: str) -> dict[str, Any]:
    """Settings that a store with an address of its own needs: buckets in the path, not in the host name."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if protocol not in ("s3", "s3a") or not endpoint:
        return {}
    return {"endpoint_url": endpoint, "config_kwargs": {"s3": {"addressing_style": "path"}}}
