"""The Hub: what is asked for and nothing else, however the server behaves."""

from __future__ import annotations

import hashlib
import struct
import time
from pathlib import Path

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources import hub_id, open_source
from mlload.checkpoint.sources.base import Range
from mlload.checkpoint.sources.hub import AccessError, endpoint, token
from tests.checkpoint.sources.conftest import REPO
from tests.servers.hub import HubServer

pytestmark = pytest.mark.network_servers

FIRST = "model-00001-of-00003.safetensors"


def header_of(folder: Path, name: str) -> bytes:
    with (folder / name).open("rb") as handle:
        size = handle.read(8)
        return size + handle.read(struct.unpack("<Q", size)[0])


def test_names_sizes_and_digests_come_with_the_listing(hub: HubServer) -> None:
    source = open_source(REPO)
    folder = hub.root / REPO
    assert [(file.name, file.size) for file in source.files()] == [
        (path.name, path.stat().st_size) for path in sorted(folder.iterdir())
    ]
    digests = {file.name: file.digest for file in source.files()}
    assert digests[FIRST] == hashlib.sha256(FIRST.encode()).hexdigest()
    assert digests["config.json"] is None
    assert (source.kind, source.remote, source.revision) == ("hub", True, hub.commit(REPO))
    assert len(hub.requests) == 1


def test_ranges_are_those_bytes_and_no_others_leave_the_server(hub: HubServer) -> None:
    source = open_source(REPO)
    before = hub.total_bytes
    folder = hub.root / REPO
    names = [file.name for file in source.files() if file.name.endswith(".safetensors")]
    headers = {name: header_of(folder, name) for name in names}
    sizes = source.read_many([Range(name, 0, 8) for name in names])
    assert sizes == [headers[name][:8] for name in names]
    rest = source.read_many([Range(name, 8, len(headers[name]) - 8) for name in names])
    assert rest == [headers[name][8:] for name in names]
    assert hub.total_bytes - before == sum(map(len, headers.values()))


def test_a_redirect_keeps_the_range_and_the_token_stays_at_home(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    hub.switches.gated = {REPO}
    source = open_source(REPO)
    assert source.read(FIRST, 0, 8) == header_of(hub.root / REPO, FIRST)[:8]
    assert hub.leaked == []
    resolved = [path for path in hub.requests if "/resolve/" in path]
    source.read(FIRST, 8, 64)
    assert [path for path in hub.requests if "/resolve/" in path] == resolved, "the signed address was not reused"


def test_an_expired_address_is_asked_for_again(hub: HubServer) -> None:
    hub.switches.expire = 1
    source = open_source(REPO)
    head = header_of(hub.root / REPO, FIRST)
    assert source.read(FIRST, 0, 8) == head[:8]
    assert source.read(FIRST, 8, 40) == head[8:48]


def test_reads_past_the_end_are_short(hub: HubServer) -> None:
    source = open_source(REPO)
    assert source.read("generation_config.json", 3, 1000) == b'os_token_id": 2}'
    assert source.read("generation_config.json", 5000, 10) == b""
    assert source.read("generation_config.json", 0, 0) == b""
    assert source.read("generation_config.json") == b'{"eos_token_id": 2}'


def test_too_many_requests_then_fine(hub: HubServer) -> None:
    hub.switches.busy = 3
    assert open_source(REPO).read("generation_config.json") == b'{"eos_token_id": 2}'
    hub.switches.busy, hub.switches.busy_status = 2, 503
    assert open_source(REPO).read("generation_config.json", 0, 1) == b"{"


def test_a_server_that_stays_busy_gives_a_sentence(hub: HubServer) -> None:
    source = open_source(REPO)
    hub.switches.busy = 1000
    with pytest.raises(MlloadError, match="limits the rate of requests") as caught:
        source.read_many([Range(FIRST, 0, 8)])
    assert caught.value.exit_code == 3
    hub.switches.busy_status = 500
    with pytest.raises(MlloadError, match=r"cannot serve config\.json now"):
        source.read("config.json")


def test_a_dropped_connection_is_resumed_where_it_broke(hub: HubServer) -> None:
    source = open_source(REPO)
    expected = header_of(hub.root / REPO, FIRST)
    hub.switches.drop_after, hub.switches.drops = 100, 3
    before = hub.bytes_sent[FIRST]
    assert source.read(FIRST, 0, len(expected)) == expected
    assert hub.bytes_sent[FIRST] - before == len(expected), "bytes that had arrived were asked for again"


def test_a_connection_that_always_drops_gives_a_sentence(hub: HubServer) -> None:
    source = open_source(REPO)
    hub.switches.drop_after, hub.switches.drops = 0, 1000
    with pytest.raises(MlloadError, match="cannot reach") as caught:
        source.read(FIRST, 0, 500)
    assert "Traceback" not in caught.value.message and caught.value.exit_code == 3


def test_a_server_without_ranges_is_not_downloaded(hub: HubServer) -> None:
    hub.switches.ignore_ranges = True
    source = open_source(REPO)
    expected = header_of(hub.root / REPO, FIRST)
    assert source.read(FIRST, 8, 100) == expected[8:108]
    with pytest.raises(MlloadError, match="does not honour byte ranges"):
        source.read(FIRST, 2_000_000, 100)
    assert hub.bytes_sent[FIRST] < (hub.root / REPO / FIRST).stat().st_size


def test_missing_file_does_not_stop_the_others(hub: HubServer) -> None:
    got = open_source(REPO).read_many([Range("absent.json"), Range("generation_config.json", 0, 1)])
    assert isinstance(got[0], MlloadError) and "has no file called absent.json" in got[0].message
    assert got[1] == b"{"


def test_gated_private_missing_and_unknown_revisions_each_have_a_sentence(hub: HubServer) -> None:
    hub.switches.gated = {REPO}
    with pytest.raises(MlloadError, match="is gated") as gated:
        open_source(REPO).read_many([Range(FIRST, 0, 8)])
    assert f"{hub.url}/{REPO}" in (gated.value.hint or "") and "hf auth login" in (gated.value.hint or "")
    hub.switches.gated = set()
    with pytest.raises(MlloadError, match="no model called acme/absent") as missing:
        open_source("acme/absent")
    assert "not logged in" in missing.value.message
    hub.switches.private = {REPO}
    with pytest.raises(MlloadError, match=f"no model called {REPO}"):
        open_source(REPO)
    hub.switches.private = set()
    with pytest.raises(MlloadError, match="no revision called v9"):
        open_source(f"{REPO}@v9")
    assert gated.value.exit_code == missing.value.exit_code == 3


def test_a_token_opens_private_models(hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.switches.private = {REPO}
    stored = tmp_path / "token"
    stored.write_text("hf_right\n")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert open_source(REPO).files()
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    with pytest.raises(MlloadError):
        open_source(REPO)


def test_revisions(hub: HubServer) -> None:
    commit = hub.commit(REPO)
    for text, revision in ((f"{REPO}@main", None), (f"{REPO}@refs/pr/1", None), (REPO, commit)):
        assert open_source(text, revision=revision).revision == commit


def test_a_renamed_model_is_followed(hub: HubServer) -> None:
    hub.switches.renamed = {"old/name": REPO}
    assert open_source("old/name").revision == hub.commit(REPO)


def test_a_mirror_that_leaves_sizes_out(hub: HubServer, repositories: Path) -> None:
    many = repositories / "acme" / "many"
    many.mkdir(exist_ok=True)
    for number in range(120):
        (many / f"{number:03d}.json").write_text("{}" + " " * number)
    hub.switches.without_sizes, hub.switches.page = True, 50
    assert [file.size for file in open_source("acme/many").files()] == [2 + n for n in range(120)]


def test_no_network_gives_a_sentence(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(MlloadError, match=r"cannot reach http://127\.0\.0\.1:9 for acme/tiny-llama"):
        open_source(REPO)


@pytest.mark.parametrize(
    "body", ["<html>log in</html>", '{"eos_token_id": 2}', "[1]", '{"siblings": 3}', "[" * 100_000]
)
def test_an_answer_that_is_no_description(
    hub: HubServer, repositories: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    (repositories / "acme" / "odd").mkdir(exist_ok=True)
    (repositories / "acme" / "odd" / "page.html").write_text(body)
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/acme/odd/resolve/main/page.html?")
    with pytest.raises(MlloadError, match="answered something other than a model's description"):
        open_source(REPO)


def test_progress_is_told_late_and_cleared(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    source = open_source(REPO, progress=lines.append)
    source.read_many([Range("generation_config.json")] * 4)
    assert lines == [], "a quick job must stay quiet"
    monkeypatch.setattr("mlload.checkpoint.sources.progress.QUIET_SECONDS", -1.0)
    monkeypatch.setattr("mlload.checkpoint.sources.progress.BETWEEN_SECONDS", -1.0)
    source.read_many([Range("generation_config.json")] * 4)
    assert lines == [*(f"{REPO}: {n} of 4 reads, 0.0 MB" for n in range(1, 5)), ""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b", ("a/b", None)),
        ("a/b@v1.0", ("a/b", "v1.0")),
        ("a/b@refs/pr/7", ("a/b", "refs/pr/7")),
        ("a/b/tree/dev", ("a/b", "dev")),
        ("a.c-d/b_e.f/", ("a.c-d/b_e.f", None)),
        ("a", None),
        ("a/b/c", None),
        ("../b", None),
        ("a/b@", None),
        ("a b/c", None),
    ],
)
def test_ids(text: str, expected: tuple[str, str | None] | None) -> None:
    assert hub_id(text) == expected


def test_pages_and_hf_addresses(hub: HubServer) -> None:
    for text in (f"https://huggingface.co/{REPO}", f"hf://{REPO}", f"https://huggingface.co/{REPO}/tree/main"):
        assert open_source(text).revision == hub.commit(REPO)


def test_one_refusal_for_all_does_not_wait_for_the_others(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(REPO)
    real = type(source).read
    monkeypatch.setattr("mlload.checkpoint.sources.http.HttpClient._wait", lambda self, attempt, answer: 3600.0)
    hub.switches.busy = 3  # three files are told to come back, which takes an hour

    def read(self: object, name: str, start: int = 0, length: int | None = None) -> bytes:
        if name != "config.json":
            return real(self, name, start, length)  # type: ignore[arg-type]
        while hub.switches.busy:
            time.sleep(0.01)
        raise AccessError("no access", exit_code=3)

    monkeypatch.setattr(type(source), "read", read)
    names = ["config.json", "generation_config.json", "model.safetensors.index.json", FIRST]
    with pytest.raises(AccessError, match="no access"):
        source.read_many([Range(name) for name in names])
    monkeypatch.undo()
    assert source.read("generation_config.json") == b'{"eos_token_id": 2}', "the source can be used again"


@pytest.mark.parametrize(
    ("named", "address"),
    [("", "https://huggingface.co"), ("hub.example", "https://hub.example"), ("http://h:1/x/", "http://h:1/x")],
)
def test_the_address_of_the_hub(monkeypatch: pytest.MonkeyPatch, named: str, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", named)
    assert endpoint() == address


def test_the_stored_login_is_asked_of_its_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    assert token() is None
    (tmp_path / "token").write_text("hf_stored")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_stored")
    assert token() == "hf_stored"
    monkeypatch.setenv("HF_TOKEN", " hf_env ")
    assert token() == "hf_env"
