"""A small HTTP client for ranged reads: kept connections, retries, redirects, proxies; standard library only.

Reading the headers of a checkpoint is hundreds of requests of a few kilobytes, and importing a
general client costs more time than making them. What matters here is that a `Range` survives
redirects, that credentials do not leave the host they belong to, that a dropped connection is
resumed where it broke, and that no answer is read beyond what was asked for.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin, urlsplit

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPConnection, HTTPResponse

TIMEOUT_SECONDS = 20.0
ATTEMPTS = 5
RETRY_STATUS = frozenset({408, 429, 500, 502, 503, 504})
REDIRECT_STATUS = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS = 8
LONGEST_WAIT_SECONDS = 30.0
# A server that ignores `Range` sends the file from its first byte: skipping more than this is a download.
SKIP_AT_MOST = 1 << 20
# Without a length (API answers, small files) an answer may not be larger than this.
WHOLE_AT_MOST = 256 << 20


class Answer(NamedTuple):
    """status, headers (lower-case names), body, and the URL that gave it after redirects."""

    status: int
    headers: dict[str, str]
    body: bytes
    url: str


class Unreachable(Exception):
    """No answer after all attempts; the message is the last cause."""


class _Broken(Exception):
    """The connection broke while the body was read; `body` is what had arrived."""

    def __init__(self, cause: Exception, answer: Answer) -> None:
        super().__init__(str(cause))
        self.answer = answer


class HttpClient:
    """Safe to use from several threads; every thread borrows a kept connection or opens one."""

    def __init__(self, *, user_agent: str, attempts: int = ATTEMPTS, backoff: float = 0.5) -> None:
        self.user_agent = user_agent
        self.attempts = attempts
        self.backoff = backoff
        self._idle: dict[tuple[str, str], list[HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None
        self._stopped = threading.Event()

    def get(
        self, url: str, *, headers: dict[str, str] | None = None, start: int = 0, length: int | None = None
    ) -> Answer:
        """GET bytes [start, start + length) of `url`; length None is to the end.

        Answers of any status come back, after retries for those that may pass. Raises `Unreachable`.
        """
        cause = ""
        got = b""
        failures = 0
        answer: Answer | None = None
        while failures < self.attempts:
            if failures and self._stopped.wait(self._wait(failures, answer)):
                raise Unreachable("interrupted")
            try:
                answer = self._redirected(
                    url, headers or {}, start + len(got), None if length is None else length - len(got)
                )
            except _Broken as broken:
                answer = None
                cause = str(broken)
                came = broken.answer.body if broken.answer.status in (200, 206) else b""
                got += came
                failures = 1 if came else failures + 1  # bytes came: the other side is alive
                continue
            except (OSError, _http_exception()) as error:
                answer = None
                cause = f"{type(error).__name__}: {error}"
                failures += 1
                continue
            if answer.status == 416 and got:  # the connection broke exactly at the end of the file
                return answer._replace(status=206, body=got)
            if answer.status not in RETRY_STATUS:
                return answer._replace(body=got + answer.body)
            failures += 1
        if answer is not None:
            return answer
        raise Unreachable(cause)

    def _wait(self, attempt: int, answer: Answer | None) -> float:
        from random import uniform

        asked = answer.headers.get("retry-after", "") if answer is not None else ""
        if asked.isdigit():
            return min(float(asked), LONGEST_WAIT_SECONDS)
        return float(self.backoff * 2 ** (attempt - 1) * uniform(0.75, 1.25))

    def _redirected(self, url: str, headers: dict[str, str], start: int, length: int | None) -> Answer:
        host = urlsplit(url).netloc
        for _ in range(MAX_REDIRECTS):
            sent = dict(headers)
            if urlsplit(url).netloc != host:
                sent.pop("Authorization", None)
            answer = self._once(url, sent, start, length)
            location = answer.headers.get("location")
            if answer.status not in REDIRECT_STATUS or not location:
                return answer
            url = urljoin(url, location)
            if urlsplit(url).scheme not in ("http", "https"):
                raise OSError(f"redirected to {url}")
        raise OSError(f"more than {MAX_REDIRECTS} redirects from {host}")

    def _once(self, url: str, headers: dict[str, str], start: int, length: int | None) -> Answer:
        parts = urlsplit(url)
        headers = {"User-Agent": self.user_agent, "Accept-Encoding": "identity", **headers}
        if start or length is not None:
            headers["Range"] = f"bytes={start}-" + ("" if length is None else str(start + length - 1))
        proxy = _proxy(parts.scheme, parts.hostname or "")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if proxy and parts.scheme == "http":
            target = url
            headers.update(_proxy_secret(proxy))
        connection = self._kept(parts.scheme, parts.netloc)
        reused = connection is not None
        connection = connection or self._connect(parts.scheme, parts.netloc, proxy)
        try:
            try:
                connection.request("GET", target, headers=headers)
                response = connection.getresponse()
            except OSError:
                if not reused:
                    raise
                connection.close()  # the server had given up on the kept connection: that is no failure
                connection = self._connect(parts.scheme, parts.netloc, proxy)
                connection.request("GET", target, headers=headers)
                response = connection.getresponse()
        except BaseException:
            connection.close()
            raise
        meta = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, b"", url)
        if response.status == 200 and start > SKIP_AT_MOST:
            connection.close()
            raise OSError(f"{parts.netloc} does not honour byte ranges")
        skip = start if response.status == 200 else 0
        want = WHOLE_AT_MOST if length is None or response.status not in (200, 206) else skip + length
        try:
            body = _read(response, want, meta, skip)
        except BaseException:
            connection.close()
            raise
        if response.isclosed() and not response.will_close:
            self._give_back(parts.scheme, parts.netloc, connection)
        else:  # more was coming than was asked for: a closed connection costs less than reading it
            connection.close()
        return meta._replace(body=body)

    def _kept(self, scheme: str, netloc: str) -> HTTPConnection | None:
        with self._lock:
            idle = self._idle.get((scheme, netloc))
            return idle.pop() if idle else None

    def _give_back(self, scheme: str, netloc: str, connection: HTTPConnection) -> None:
        with self._lock:
            self._idle.setdefault((scheme, netloc), []).append(connection)

    def _connect(self, scheme: str, netloc: str, proxy: str | None) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        via = urlsplit(proxy or f"//{netloc}")
        if scheme == "http":
            return HTTPConnection(via.hostname or "", via.port or 80, timeout=TIMEOUT_SECONDS)
        if self._tls is None:
            self._tls = _tls_context()
        if proxy is None:
            return HTTPSConnection(via.hostname or "", via.port or 443, timeout=TIMEOUT_SECONDS, context=self._tls)
        host = urlsplit(f"//{netloc}")
        connection = HTTPSConnection(via.hostname or "", via.port or 80, timeout=TIMEOUT_SECONDS, context=self._tls)
        connection.set_tunnel(host.hostname or "", host.port or 443, headers=_proxy_secret(proxy))
        return connection

    def stop(self) -> None:
        """Let no thread wait for another attempt, and close the kept connections."""
        self._stopped.set()
        with self._lock:
            for idle in self._idle.values():
                for connection in idle:
                    connection.close()
            self._idle.clear()

    def resume(self) -> None:
        """After `stop`, when those threads have gone."""
        self._stopped.clear()


def _read(response: HTTPResponse, want: int, meta: Answer, skip: int) -> bytes:
    """At most `want` bytes of the body, the first `skip` of them thrown away; `_Broken` where it ends too early."""
    from http.client import IncompleteRead

    chunks: list[bytes] = []
    left = want
    try:
        while left > 0:
            chunk = response.read(min(left, 1 << 20))
            if not chunk:
                break
            chunks.append(chunk)
            left -= len(chunk)
        if left > 0 and response.length:  # read(n) ends silently where the connection does
            raise IncompleteRead(b"", response.length)
        if left == 0 and response.length == 0:
            response.read()
    except IncompleteRead as error:
        body = b"".join([*chunks, error.partial])[skip:]
        raise _Broken(OSError("connection dropped in mid-answer"), meta._replace(body=body)) from error
    except OSError as error:
        raise _Broken(error, meta._replace(body=b"".join(chunks)[skip:])) from error
    return b"".join(chunks)[skip:]


def _http_exception() -> type[Exception]:
    from http.client import HTTPException

    return HTTPException


def _proxy(scheme: str, host: str) -> str | None:
    """The proxy that the environment names for this host, if any."""
    if not any(name.lower() in (f"{scheme}_proxy", "all_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies_environment, proxy_bypass

    proxies = getproxies_environment()
    found = proxies.get(scheme) or proxies.get("all")
    if not found or proxy_bypass(host):
        return None
    return found if "://" in found else f"http://{found}"


def _proxy_secret(proxy: str) -> dict[str, str]:
    """The header for a proxy whose URL carries a name and password."""
    via = urlsplit(proxy)
    if not via.username:
        return {}
    from base64 import b64encode
    from urllib.parse import unquote

    pair = f"{unquote(via.username)}:{unquote(via.password or '')}"
    return {"Proxy-Authorization": "Basic " + b64encode(pair.encode()).decode()}


def _tls_context() -> ssl.SSLContext:
    """The system's certificates, or the bundle that the environment names, or certifi's where the system has none."""
    import ssl

    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        bundle = os.environ.get(name)
        if bundle and os.path.exists(bundle):
            return ssl.create_default_context(cafile=bundle)
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"] and not os.path.isdir(ssl.get_default_verify_paths().capath or ""):
        try:
            import certifi
        except ImportError:
            return context
        context.load_verify_locations(certifi.where())
    return context
