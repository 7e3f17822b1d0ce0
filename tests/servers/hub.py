"""A local server with the endpoints of the Hub that reading a model takes, which counts what it serves.

`python -m tests.servers.hub FOLDER` serves `FOLDER/org/name/` until interrupted, for benchmarks and by hand.
A model's weight files answer with a redirect to another host name, as the Hub's do to its store.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

STORED_APART = (".safetensors", ".gguf", ".bin")
CHUNK = 1 << 16


@dataclass
class Switches:
    """What the server does wrong, or refuses.

    gated:          models whose files need `token`
    private:        models that pretend not to exist without `token`
    token:          the one that opens gated and private models
    busy:           answers with `busy_status` for the next so many file requests
    drop_after:     breaks the connection after so many bytes of a body, for the next `drops` bodies
    ignore_ranges:  sends whole files
    page:           entries of a tree's page
    without_sizes:  the description leaves sizes out, as some mirrors do
    expire:         signed addresses answer 403 after so many uses
    renamed:        old id -> new id
    """

    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    token: str = "hf_right"
    busy: int = 0
    busy_status: int = 429
    drop_after: int = 0
    drops: int = 0
    ignore_ranges: bool = False
    page: int = 1000
    without_sizes: bool = False
    expire: int = 0
    renamed: dict[str, str] = field(default_factory=dict)


class HubServer:
    """Serves `root/org/name/...`; use it as a context manager.

    bytes_sent: of bodies, by file ("" for API answers); requests: by path; leaked: requests to the
    store that carried credentials
    """

    def __init__(self, root: Path, *, latency: float = 0.0) -> None:
        self.root = root
        self.latency = latency
        self.switches = Switches()
        self.bytes_sent: Counter[str] = Counter()
        self.requests: list[str] = []
        self.leaked: list[str] = []
        self.uses: Counter[str] = Counter()
        self.lock = threading.Lock()
        server = self

        class Handler(_Handler):
            hub = server

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that hangs up early is part of the tests."""

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store(self) -> str:
        return f"http://localhost:{self.port}/store"

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_sent.values())

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def commit(self, repo: str) -> str:
        """A commit hash that stays the same for a model's name."""
        return hashlib.sha1(repo.encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait for an ACK

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        if self.hub.latency:
            time.sleep(self.hub.latency)
        with self.hub.lock:
            self.hub.requests.append(path)
        parts = path.strip("/").split("/")
        # Datasets lie in `root/datasets/org/name/`, under addresses of their own.
        if parts[:2] == ["api", "datasets"] and len(parts) >= 6 and parts[4] in ("revision", "tree"):
            self.describe("/".join(parts[1:4]), parts[4], "/".join(parts[5:]), parse_qs(url.query))
        elif parts[0] == "datasets" and len(parts) >= 6 and parts[3] == "resolve":
            self.resolve("/".join(parts[:3]), parts[4], "/".join(parts[5:]))
        elif parts[:2] == ["api", "models"] and len(parts) >= 6 and parts[4] in ("revision", "tree"):
            self.describe("/".join(parts[2:4]), parts[4], "/".join(parts[5:]), parse_qs(url.query))
        elif len(parts) >= 5 and parts[2] == "resolve":
            self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        elif parts[0] == "store":
            self.from_store("/".join(parts[1:3]), "/".join(parts[3:]))
        else:
            self.refuse(404, "RepoNotFound", "Repository not found")

    def allowed(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.hub.switches.token}"

    def known(self, repo: str, revision: str) -> bool:
        """Answers itself, and says False, where the model or revision is not there for this reader."""
        switches = self.hub.switches
        if not (self.hub.root / repo).is_dir() or (repo in switches.private and not self.allowed()):
            self.refuse(404 if self.allowed() else 401, "RepoNotFound", "Repository not found")
        elif revision not in ("main", self.hub.commit(repo), "refs/pr/1"):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return True
        return False

    def describe(self, repo: str, what: str, revision: str, query: dict[str, list[str]]) -> None:
        if repo in self.hub.switches.renamed:
            new = self.hub.switches.renamed[repo]
            self.reply(307, b"", {"Location": self.path.replace(repo, new, 1)})
            return
        if not self.known(repo, revision):
            return
        sizes = not self.hub.switches.without_sizes or what == "tree"
        entries = []
        for name, file in self.listing(repo):
            size = file.stat().st_size
            entry: dict[str, object] = {"type": "file", "path": name} if what == "tree" else {"rfilename": name}
            if sizes and (what == "tree" or query.get("blobs")):
                entry["size"] = size
                if name.endswith(STORED_APART):
                    entry["lfs"] = {"sha256": self.digest(name), "oid": self.digest(name), "size": size}
            entries.append(entry)
        if what == "tree":
            at = int(query.get("cursor", ["0"])[0])
            end = at + self.hub.switches.page
            page, rest = entries[at:end], entries[end:]
            link = {"Link": f'<{self.hub.url}{urlsplit(self.path).path}?cursor={end}>; rel="next"'} if rest else {}
            self.reply(200, json.dumps(page).encode(), link)
        else:
            gated = "auto" if repo in self.hub.switches.gated else False
            body = {"id": repo, "sha": self.hub.commit(repo), "gated": gated, "siblings": entries}
            self.reply(200, json.dumps(body).encode(), {})

    def listing(self, repo: str) -> list[tuple[str, Path]]:
        root = self.hub.root / repo
        return sorted((str(file.relative_to(root)), file) for file in root.rglob("*") if file.is_file())

    def digest(self, name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()

    def resolve(self, repo: str, revision: str, name: str) -> None:
        switches = self.hub.switches
        if not self.known(repo, revision):
            return
        if repo in switches.gated and not self.allowed():
            self.refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo", "Access is restricted")
            return
        file = self.hub.root / repo / name
        if not file.is_file():
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        with self.hub.lock:
            busy = switches.busy > 0
            switches.busy -= busy
        if busy:
            self.reply(switches.busy_status, b"slow down", {})
            return
        headers = {"X-Repo-Commit": self.hub.commit(repo), "ETag": f'"{self.digest(name)}"', "Accept-Ranges": "bytes"}
        if name.endswith(STORED_APART):
            headers["X-Linked-Size"] = str(file.stat().st_size)
            headers["X-Linked-ETag"] = f'"{self.digest(name)}"'
            self.reply(302, b"", {**headers, "Location": f"{self.hub.store}/{repo}/{name}?signature=1"})
        else:
            self.send_file(file, name, headers)

    def from_store(self, repo: str, name: str) -> None:
        if self.headers.get("Authorization"):
            self.hub.leaked.append(self.path)
        with self.hub.lock:
            self.hub.uses[name] += 1
            expired = self.hub.switches.expire and self.hub.uses[name] % (self.hub.switches.expire + 1) == 0
        if expired:
            self.reply(403, b"expired", {})
            return
        self.send_file(self.hub.root / repo / name, name, {"Accept-Ranges": "bytes"})

    def send_file(self, file: Path, name: str, headers: dict[str, str]) -> None:
        size = file.stat().st_size
        start, stop, status = 0, size, 200
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes=") and not self.hub.switches.ignore_ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop, status = int(first), min(size, int(last) + 1 if last else size), 206
            if start >= size:
                self.reply(416, b"", {"Content-Range": f"bytes */{size}"})
                return
            headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(stop - start)}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        with self.hub.lock:
            drop = self.hub.switches.drops > 0
            self.hub.switches.drops -= drop
        budget = self.hub.switches.drop_after if drop else stop - start
        with file.open("rb") as handle:
            handle.seek(start)
            left = min(budget, stop - start)
            while left > 0:
                chunk = handle.read(min(CHUNK, left))
                with self.hub.lock:  # before the write: a reader that has the bytes may look at the count at once
                    self.hub.bytes_sent[name] += len(chunk)
                self.wfile.write(chunk)
                left -= len(chunk)
        if budget < stop - start:
            self.wfile.flush()
            self.close_connection = True

    def refuse(self, status: int, code: str, message: str) -> None:
        self.reply(status, message.encode(), {"X-Error-Code": code, "X-Error-Message": message})

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            with self.hub.lock:
                self.hub.bytes_sent[""] += len(body)
            self.wfile.write(body)


def main() -> None:
    import sys

    with HubServer(Path(sys.argv[1])) as hub:
        print(hub.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
