"""Where checkpoints come from: `open_source` turns what a person typed into a `Source`."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources import hub_cache
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.sources.local import FolderSource, open_local
from mlload.checkpoint.sources.progress import Progress

HUB_ID = re.compile(r"(?P<id>[\w][\w.-]*/[\w][\w.-]*)(?:@(?P<revision>[^\s]+))?", re.ASCII)
HUB_PAGE = re.compile(r"(?:https?://(?:www\.)?huggingface\.co/|hf://)(?P<rest>.+)")


class HubId(NamedTuple):
    repo_id: str
    revision: str | None


def open_source(text: str, *, revision: str | None = None, progress: Progress | None = None) -> Source:
    """A folder, one file, `org/name[@revision]` on the Hub, or an fsspec URL such as `s3://bucket/path`.

    What exists on this disk wins over the Hub, and a snapshot in the Hub's cache over the network.
    `progress` is called with a line of text when remote reads take more than a second.
    """
    if text.startswith("file://"):
        text = _path_of(text)
    local = open_local(text) if "://" not in text else None
    if local is not None:
        return local
    page = HUB_PAGE.fullmatch(text)
    if "://" in text and not page:
        from mlload.checkpoint.sources.url import UrlSource

        return UrlSource(text, progress=progress)
    asked = hub_id(page.group("rest") if page else text)
    if asked is None or (page is None and _means_a_path(text)):
        raise _nothing_called(text)
    return _open_hub(asked.repo_id, revision or asked.revision or "main", text, progress)


def hub_id(text: str) -> HubId | None:
    """`org/name`, with a revision after "@" or as the Hub's pages write it ("/tree/<revision>"), else None."""
    head, tree, tail = text.rstrip("/").partition("/tree/")
    match = HUB_ID.fullmatch(f"{head}@{tail}" if tree else head)
    return HubId(match.group("id"), match.group("revision")) if match else None


def _open_hub(repo_id: str, revision: str, label: str, progress: Progress | None) -> Source:
    from mlload.checkpoint.sources.hub import AccessError, HubSource, download, offline

    cached = hub_cache.snapshot(repo_id, revision)
    if cached is not None and (offline() or hub_cache.is_whole(cached)):
        source = FolderSource(str(cached), label)
        source.revision = cached.name
        return source
    if offline():
        raise AccessError(
            f"{repo_id} is not in the Hub cache, and HF_HUB_OFFLINE forbids to ask the Hub",
            hint=f"fetch it where there is a network: {download(repo_id, revision)}, or unset HF_HUB_OFFLINE",
            exit_code=3,
        )
    return HubSource(repo_id, revision, label=label, progress=progress)


def _path_of(url: str) -> str:
    """The path of a file:// URL."""
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(url).path)


def _means_a_path(text: str) -> bool:
    """Whether text that could be a Hub id was rather meant as a path: its first folder is here."""
    first = text.split("/")[0]
    return text.startswith((".", "/", "~")) or os.path.isdir(first)


def _nothing_called(text: str) -> MlloadError:
    import difflib

    parent, name = os.path.split(os.path.expanduser(text.rstrip("/")))
    try:
        siblings = os.listdir(parent or ".")
    except OSError:
        siblings = []
    close = difflib.get_close_matches(name, siblings, n=1)
    said = f"no folder, file or Hub id called {text}"
    if close:
        shown = os.path.join(os.path.split(text.rstrip("/"))[0], close[0])
        return MlloadError(f"{said}. Did you mean {shown}?", exit_code=3)
    return MlloadError(said, hint="a Hub id is written org/name, a bucket s3://bucket/path", exit_code=3)
