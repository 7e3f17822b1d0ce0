"""A model on the Hub: the list of its files in one request, then ranged reads of what is asked for.

Endpoint, token and offline switch are those of huggingface_hub (HF_ENDPOINT, HF_TOKEN,
`hf auth login`, HF_HUB_OFFLINE). Reads are pinned to the commit that the listing named, so that a
push in between cannot mix two versions.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources import hub_cache
from mlload.checkpoint.sources.base import Range, SourceFile
from mlload.checkpoint.sources.http import Answer, HttpClient, Unreachable
from mlload.checkpoint.sources.progress import Progress, Ticker

THREADS = 16
MAX_PAGES = 1000
TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def download(repo_id: str, revision: str) -> str:
    """The command that fetches a repository."""
    return f"hf download {repo_id}" + ("" if revision == "main" else f" --revision {shlex.quote(revision)}")


class HubSource:
    """`org/name` at a revision, read over the network. See `Source` for the methods."""

    kind = "hub"
    remote = True
    # What the Hub calls this sort of repository: in API paths, before the id in addresses, and to people.
    api, prefix, noun = "models", "", "model"

    def __init__(self, repo_id: str, revision: str = "main", *, label: str = "", progress: Progress | None = None):
        self.repo_id = repo_id
        self.label = label or repo_id
        self.asked_revision = revision
        self.endpoint = endpoint()
        self._progress = progress
        self._client = HttpClient(user_agent=_user_agent())
        self._token = token()
        self._places: dict[str, str] = {}  # file -> the URL that its redirects ended at
        info = self._info()
        self.revision: str | None = str(info.get("sha") or revision)
        self._files = self._listing(info)

    def files(self) -> Sequence[SourceFile]:
        return self._files

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if length is not None and length <= 0:
            return b""
        return self._fetch(Range(name, start, length))

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        """One failure does not stop the rest, except those that would meet every file alike (access, network)."""
        from concurrent.futures import ThreadPoolExecutor

        ticker = Ticker(self._progress, self.label, len(ranges))

        def one(asked: Range) -> bytes | Exception:
            try:
                result = self.read(*asked)
            except MlloadError as error:
                return error
            ticker.step(len(result))
            return result

        results: list[bytes | Exception] = []
        pool = ThreadPoolExecutor(max_workers=max(1, min(THREADS, len(ranges))))
        try:
            for result in pool.map(one, ranges):
                if isinstance(result, AccessError):
                    raise result
                results.append(result)
        except BaseException:
            self._client.stop()  # or the threads would go on to wait for the network
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self._client.resume()
            ticker.close()
        return results

    def _info(self) -> dict[str, Any]:
        path = f"/api/{self.api}/{self.repo_id}/revision/{quote(self.asked_revision, safe='')}?blobs=true"
        info, _ = self._json(path)
        if not isinstance(info, dict) or not isinstance(info.get("siblings"), list):
            raise self._no_hub()
        return info

    def _json(self, path: str) -> tuple[Any, dict[str, str]]:
        """An API answer as parsed, and its headers."""
        answer = self._get(path if "://" in path else self.endpoint + path)
        if answer.status != 200:
            raise self._refusal(answer, "")
        try:
            return json.loads(answer.body), answer.headers
        except (ValueError, RecursionError):
            raise self._no_hub() from None

    def _no_hub(self) -> MlloadError:
        return AccessError(
            f"{self.endpoint} answered something other than a {self.noun}'s description for {self.repo_id}",
            hint="check HF_ENDPOINT, and whether a proxy or a login page answers in its place",
            exit_code=3,
        )

    def _listing(self, info: dict[str, Any]) -> list[SourceFile]:
        """Files with sizes: from the description, or from the tree where a mirror leaves the sizes out."""
        entries = info["siblings"]
        if not entries or not all(isinstance(e, dict) and isinstance(e.get("size"), int) for e in entries):
            entries = self._tree()
        found = []
        for entry in entries:
            lfs = entry.get("lfs")
            name = str(entry.get("rfilename") or entry.get("path") or "")
            size = entry.get("size")
            digest = (lfs.get("sha256") or lfs.get("oid")) if isinstance(lfs, dict) else None
            found.append(SourceFile(name, size if isinstance(size, int) else 0, str(digest) if digest else None))
        return sorted(found)

    def _tree(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        path = f"/api/{self.api}/{self.repo_id}/tree/{quote(self.revision or 'main', safe='')}?recursive=true"
        for _ in range(MAX_PAGES):
            page, headers = self._json(path)
            if not isinstance(page, list):
                raise self._no_hub()
            entries += [entry for entry in page if isinstance(entry, dict) and entry.get("type") == "file"]
            link = headers.get("link", "")
            if 'rel="next"' not in link:
                break
            path = link[link.find("<") + 1 : link.find(">")]
        return entries

    def _fetch(self, asked: Range) -> bytes:
        files = f"{self.endpoint}/{self.prefix}{self.repo_id}/resolve"
        url = f"{files}/{quote(self.revision or 'main', safe='')}/{quote(asked.name)}"
        # The signed address of a file is good for all its ranges, until it expires.
        place = self._places.get(asked.name)
        answer = self._get(place or url, asked.start, asked.length)
        if place and answer.status in (401, 403, 404):
            answer = self._get(url, asked.start, asked.length)
        if answer.status == 416:
            return b""
        if answer.status not in (200, 206):
            raise self._refusal(answer, asked.name)
        if answer.url != url:
            self._places[asked.name] = answer.url
        return answer.body

    def _get(self, url: str, start: int = 0, length: int | None = None) -> Answer:
        headers = {}
        if self._token and urlsplit(url).netloc == urlsplit(self.endpoint).netloc:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            return self._client.get(url, headers=headers, start=start, length=length)
        except Unreachable as error:
            raise AccessError(
                f"cannot reach {self.endpoint} for {self.repo_id} ({error})",
                hint="check the network, or fetch it where there is one: "
                + download(self.repo_id, self.asked_revision),
                exit_code=3,
            ) from error

    def _refusal(self, answer: Answer, name: str) -> MlloadError:
        """The sentence for an answer that is not what was asked for."""
        code = answer.headers.get("x-error-code", "")
        page = f"{self.endpoint}/{self.prefix}{self.repo_id}"
        if code == "GatedRepo" or (answer.status == 403 and not code):
            return AccessError(
                f"{self.repo_id} is gated, and this machine has no access to it",
                hint=f"accept its conditions at {page}, then log in: hf auth login (or set HF_TOKEN)",
                exit_code=3,
            )
        if code == "RevisionNotFound":
            return AccessError(
                f"{self.repo_id} has no revision called {self.asked_revision}",
                hint=f"see its branches and tags at {page}/tree/main",
                exit_code=3,
            )
        if code == "EntryNotFound" or (answer.status == 404 and name):
            return MlloadError(f"{self.repo_id} has no file called {name}", exit_code=3)
        if code == "RepoNotFound" or answer.status in (401, 404):
            why = "or this machine's token does not open it" if self._token else "or it is private (not logged in here)"
            return AccessError(
                f"the Hub has no {self.noun} called {self.repo_id}, {why}",
                hint=f"check the spelling; for a private {self.noun} log in: hf auth login (or set HF_TOKEN)",
                exit_code=3,
            )
        if answer.status == 429:
            return AccessError(
                f"{self.endpoint} limits the rate of requests and still refuses after several waits",
                hint="wait some minutes, or log in for a higher limit: hf auth login (or set HF_TOKEN)",
                exit_code=3,
            )
        said = answer.headers.get("x-error-message") or f"status {answer.status}"
        return AccessError(
            f"{self.endpoint} cannot serve {name or self.repo_id} now ({said})",
            hint="try again later; the state of the Hub is at https://status.huggingface.co",
            exit_code=3,
        )


class AccessError(MlloadError):
    """A refusal that all files of a source would meet."""


def endpoint() -> str:
    """The Hub's address, or that of the mirror which the environment names."""
    named = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    return named if "://" in named else f"https://{named}"


def offline() -> bool:
    """Whether the environment forbids the network."""
    return any(os.environ.get(name, "").upper() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def token() -> str | None:
    """The token of this machine. huggingface_hub knows every place for one, but it is slow to import, so it is asked
    only where there may be a stored login; a token in the environment wins there, too."""
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in TRUE:
        return None
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name, "").strip():
            return os.environ[name].strip()
    stored = os.environ.get("HF_TOKEN_PATH") or str(hub_cache.home() / "token")
    if not os.path.exists(os.path.expandvars(os.path.expanduser(stored))):
        return None
    from huggingface_hub import get_token

    return get_token()


def _user_agent() -> str:
    from mlload import __version__

    return f"mlload/{__version__}"
