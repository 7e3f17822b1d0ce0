"""The HTTP client: retries, redirects, proxies and certificates."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from mlload.checkpoint.sources import http
from mlload.checkpoint.sources.http import Answer, HttpClient, Unreachable
from tests.servers.small import Reply, answering, tunnelling, write_certificate

pytestmark = pytest.mark.network_servers


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpClient]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    made = HttpClient(user_agent="test/1", backoff=0.0)
    yield made
    made.stop()


def test_a_connection_is_kept_and_one_that_the_server_dropped_is_no_failure(client: HttpClient) -> None:
    addresses = []
    close = {"Connection": "close"}

    def reply(request: BaseHTTPRequestHandler) -> Reply:
        addresses.append(request.client_address)
        if len(addresses) == 2:
            request.close_connection = True  # without a word: the client keeps a dead connection
        return 200, close if len(addresses) == 4 else {}, b"body"

    client.attempts = 1
    with answering(reply) as port:
        for _ in range(5):
            assert client.get(f"http://127.0.0.1:{port}/x").body == b"body"
    assert addresses[0] == addresses[1]
    assert len(set(addresses)) == 3


def test_headers_that_are_sent(client: HttpClient) -> None:
    seen: dict[str, str] = {}

    def reply(request: BaseHTTPRequestHandler) -> Reply:
        seen.update(request.headers.items())
        return 206, {}, b"x" * 5

    with answering(reply) as port:
        client.get(f"http://127.0.0.1:{port}/x?a=b", start=10, length=5)
    assert seen["Range"] == "bytes=10-14"
    assert seen["User-Agent"] == "test/1"
    assert seen["Accept-Encoding"] == "identity"


def test_redirects_end(client: HttpClient) -> None:
    client.attempts = 2
    with (
        answering(lambda request: (302, {"Location": "/again"}, b"")) as port,
        pytest.raises(Unreachable, match="more than 8 redirects"),
    ):
        client.get(f"http://127.0.0.1:{port}/x")
    with (
        answering(lambda request: (302, {"Location": "file:///etc/passwd"}, b"")) as port,
        pytest.raises(Unreachable, match="redirected to file:///etc/passwd"),
    ):
        client.get(f"http://127.0.0.1:{port}/x")
    with answering(lambda request: (304, {}, b"")) as port:
        assert client.get(f"http://127.0.0.1:{port}/x").status == 304


def test_waits_as_asked_and_no_longer_than_is_sane() -> None:
    client = HttpClient(user_agent="test", backoff=0.5)
    for said, seconds in (("7", 7.0), ("86400", http.LONGEST_WAIT_SECONDS)):
        assert client._wait(1, Answer(429, {"retry-after": said}, b"", "")) == seconds
    for attempt, base in ((1, 0.5), (2, 1.0), (3, 2.0)):
        for _ in range(20):
            assert 0.75 * base <= client._wait(attempt, None) <= 1.25 * base
    assert 0.3 < client._wait(1, Answer(429, {"retry-after": "Wed, 21 Oct"}, b"", "")) < 0.7


def test_a_server_that_hangs_up_is_tried_again(client: HttpClient) -> None:
    asked = []

    def reply(request: BaseHTTPRequestHandler) -> Reply | None:
        asked.append(request.path)
        return None if len(asked) < 3 else (200, {}, b"at last")

    with answering(reply) as port:
        assert client.get(f"http://127.0.0.1:{port}/x").body == b"at last"
    assert len(asked) == 3


def test_a_break_at_the_very_end_is_the_end(client: HttpClient) -> None:
    def reply(request: BaseHTTPRequestHandler) -> Reply:
        if "Range" in request.headers:
            return 416, {}, b""
        request.close_connection = True
        return 200, {"Content-Length": "9"}, b"whole"  # claims more than there is, and hangs up

    with answering(reply) as port:
        answer = client.get(f"http://127.0.0.1:{port}/x")
    assert (answer.status, answer.body) == (206, b"whole")


def test_a_body_in_chunks_and_one_without_a_length(client: HttpClient) -> None:
    def reply(request: BaseHTTPRequestHandler) -> Reply | None:
        request.close_connection = True
        chunked = request.path == "/chunked"
        request.wfile.write(b"HTTP/1.1 200 OK\r\n")
        request.wfile.write(b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" if chunked else b"\r\nhello")
        if chunked and len(seen) == 0:
            seen.append(request.path)  # the last chunk is missing: to be asked for again
        elif chunked:
            request.wfile.write(b"0\r\n\r\n")
        return None

    seen: list[str] = []
    with answering(reply) as port:
        assert client.get(f"http://127.0.0.1:{port}/plain").body == b"hello"
        assert client.get(f"http://127.0.0.1:{port}/chunked").body == b"hello"


def test_an_endless_answer_is_cut(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WHOLE_AT_MOST", 1000)
    with answering(lambda request: (200, {}, b"x" * 5000)) as port:
        assert len(client.get(f"http://127.0.0.1:{port}/x").body) == 1000


def test_plain_http_through_a_proxy(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def reply(request: BaseHTTPRequestHandler) -> Reply:
        seen.append((request.path, request.headers["Proxy-Authorization"]))
        return 200, {}, b"from the proxy"

    with answering(reply) as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:p%40ss@127.0.0.1:{port}")
        assert client.get("http://models.example/a?b=c").body == b"from the proxy"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        direct = client.get(f"http://127.0.0.1:{port}/direct")
    assert direct.status == 200
    secret = "Basic " + b64encode(b"me:p@ss").decode()
    assert seen == [("http://models.example/a?b=c", secret), ("/direct", None)]


def test_tls_directly_and_through_a_tunnel(client: HttpClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificate = tmp_path / "localhost.pem"
    write_certificate(certificate)
    seen: list[str] = []
    with answering(lambda request: (200, {}, b"sealed"), certificate) as port, tunnelling(seen) as proxy:
        client.attempts = 1
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            client.get(f"https://localhost:{port}/x")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        trusting = HttpClient(user_agent="test")
        assert trusting.get(f"https://localhost:{port}/x").body == b"sealed"
        assert trusting.get(f"https://localhost:{port}/x").body == b"sealed"
        assert seen == []
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy}")
        tunnelled = HttpClient(user_agent="test")
        assert tunnelled.get(f"https://localhost:{port}/x").body == b"sealed"
        tunnelled.stop()
        trusting.stop()
    assert len(seen) == 1 and seen[0].startswith(f"CONNECT localhost:{port} ")
