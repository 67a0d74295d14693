"""When obstore reads the parts of files, and when fsspec does; test_stored_fetching reads them."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.cache.range_reader import NoRangesError, can_read, create_range_reader
from gpupipe.cache.settings import DataSet
from gpupipe.cache.store import Store
from helpers.faulty_store import serve

pytest.importorskip("obstore")
KEYS = {"key": "k", "secret": "s"}
SERVICE_ACCOUNT = {
    "client_email": "",
    "private_key": "",
    "private_key_id": "",
    "disable_oauth": True,
}


@pytest.mark.parametrize(
    ("url", "options", "is_read"),
    [
        ("https://host/folder", {}, True),
        ("https://host/folder", {"headers": {"A": "b"}}, False),
        ("https://host/folder?sig=x", {}, False),
        ("https://me:secret@host/folder", {}, False),
        ("s3://bucket/folder", KEYS, True),
        ("s3://bucket/folder", {"anon": True}, True),
        ("s3://bucket", KEYS | {"client_kwargs": {"endpoint_url": "http://127.0.0.1:1"}}, True),
        ("s3://bucket/folder", KEYS | {"requester_pays": True}, False),
        ("s3://bucket/folder", {"profile": "training"}, False),
        ("s3://bucket/folder", {}, False),
        ("file:///folder", {}, False),
        ("gs://bucket/folder", {}, False),
        ("gs://bucket/folder", {"token": "google_default", "project": "p"}, True),
        ("gs://bucket/folder", {"token": "browser"}, False),
        ("gcs://bucket/folder", {"token": SERVICE_ACCOUNT}, True),
        ("gs://bucket/folder", {"token": {"client_email": "no more"}}, False),
        ("gs://bucket/folder", {"token": "anon", "requester_pays": True}, False),
        ("az://container/folder", {"account_name": "a", "account_key": "a2V5"}, True),
        ("abfs://container/folder", {"account_name": "a", "anon": True}, True),
        ("abfs://container@a.dfs.core.windows.net/folder", {"account_name": "a"}, False),
        ("az://container/folder", {"account_name": "a"}, False),
        ("az://container/folder", {"connection_string": "AccountName=a"}, False),
        ("az://container/folder", {"connection_string": "AccountName=a;AccountKey=a2V5"}, True),
        (
            "az://c/f",
            {"connection_string": "AccountName=a;AccountKey=a2V5;EndpointSuffix=x"},
            False,
        ),
    ],
)
def test_obstore_reads_where_it_has_the_options(
    monkeypatch: pytest.MonkeyPatch, url: str, options: dict[str, Any], is_read: bool
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")  # or it is asked for
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    assert (create_range_reader(url, options, 5.0) is not None) == is_read


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://a", {"token": "anon"}),
        ("gs://a", {"token": SERVICE_ACCOUNT}),
        ("az://a", {"account_name": "a", "account_key": "a2V5"}),
        ("az://a", {"connection_string": "AccountName=a;AccountKey=a2V5;BlobEndpoint="}),
    ],
)
def test_parts_come_from_a_store_that_speaks_as_google_s_or_azure(
    monkeypatch: pytest.MonkeyPatch,
    web_tars: tuple[str, Any],
    tars: Path,
    url: str,
    options: dict[str, Any],
) -> None:
    own, faults = web_tars
    if url.startswith("gs:"):
        options = options | {"endpoint_url": own}
    if "connection_string" in options:
        options = {"connection_string": options["connection_string"] + own}
    else:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", own)
    reader = create_range_reader(url, options, 5.0)
    assert reader is not None
    data, etag = reader.read("000.tar", 100, 700)
    assert bytes(data) == (tars / "a/000.tar").read_bytes()[100:700]
    assert etag == '"same"'
    assert faults.asked == ["/a/000.tar"]
    faults.gone["000.tar"] = 1
    with pytest.raises(FileNotFoundError):
        reader.read("000.tar", 100, 700)


class _Bucket(BaseHTTPRequestHandler):
    """A bucket in eu-central-1, as S3 answers those who take it for one elsewhere."""

    def do_GET(self) -> None:
        is_right = "/eu-central-1/s3/" in self.headers.get("Authorization", "")
        self.send_response(206 if is_right else self.server.status)  # type: ignore[attr-defined]
        self.send_header("Content-Length", "3" if is_right else "0")
        if is_right:
            self.send_header("Content-Range", "bytes 0-2/3")
            self.send_header("Last-Modified", "Fri, 27 Nov 2026 12:00:00 GMT")
        elif self.server.tells_region:  # type: ignore[attr-defined]
            self.send_header("x-amz-bucket-region", "eu-central-1")
        self.end_headers()
        if is_right:
            self.wfile.write(b"abc")

    do_HEAD = do_GET

    def log_message(self, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "tells_region", "region"),
    [
        (301, True, None),
        (403, True, None),
        (200, True, None),
        (301, False, None),
        (301, True, "x-1"),
    ],
)
def test_the_region_of_a_bucket_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, status: int, tells_region: bool, region: str | None
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Bucket) as server:
        server.status, server.tells_region = status, tells_region  # type: ignore[attr-defined]
        # A daemon: a test that fails before `shutdown` would never end.
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        options = KEYS | {"endpoint_url": f"http://127.0.0.1:{server.server_port}"}
        options |= {"region_name": region} if region else {}
        reader = create_range_reader("s3://bucket/folder", options, 5.0)
        assert reader is not None
        if tells_region and region is None:
            assert bytes(reader.read("a.tar", 0, 3).data) == b"abc"
        else:
            with pytest.raises(NoRangesError):  # fsspec reads it
                reader.read("a.tar", 0, 3)
        server.shutdown()


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_region_and_endpoint_may_be_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(other, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Bucket) as server:
        server.status, server.tells_region = 301, True  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        reader = create_range_reader("s3://bucket/folder", KEYS, 5.0)
        monkeypatch.setenv(name, "x-1")
        other_reader = create_range_reader("s3://bucket/folder", KEYS, 5.0)
        assert reader is not None
        assert other_reader is not None
        assert bytes(reader.read("a.tar", 0, 3).data) == b"abc"
        with pytest.raises(NoRangesError):
            other_reader.read("a.tar", 0, 3)
        server.shutdown()


def test_a_region_is_left_to_fsspec_where_a_request_for_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    options = KEYS | {"endpoint_url": "http://127.0.0.1:1"}
    assert create_range_reader("s3://bucket/folder", options, 5.0) is not None
    for url in ("s3://a bucket/folder", "s3://bücket", "http://host:99999/a", "http://[::1/a"):
        create_range_reader(url, options if url.startswith("s3") else {}, 5.0)


def test_obstore_uses_the_proxy_of_the_environment(
    tars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(tars) as (url, faults):
        monkeypatch.setenv("HTTP_PROXY", url)
        reader = create_range_reader("http://store.invalid/a", {}, 5.0)
        assert reader is not None
        assert len(reader.read("000.tar", 0, 100).data) == 100
        assert faults.asked == ["/a/000.tar"]


def test_a_part_is_copied_in_pieces_which_begin_again_after_a_failure(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(5 << 20)
    (tmp_path / "a.tar").write_bytes(content)
    first, last = 100, len(content) - 100
    pieces: dict[int, bytes] = {}
    with serve(tmp_path) as (url, faults):
        dataset = DataSet(url=url, shards="*.tar")
        store = Store(dataset, retries=1, timeout=5.0, pause=lambda seconds: None)
        faults.cuts["a.tar"] = 1  # the first attempt breaks off after 1,000 bytes
        count, etag = store.copy_range(
            "a.tar", first, last, lambda data, place: pieces.update({place: bytes(data)})
        )
        assert len(faults.asked) == 2
    assert (count, etag) == (last - first, '"same"')
    assert len(pieces) > 1
    assert b"".join(pieces[place] for place in sorted(pieces)) == content[first:last]


def test_names_that_clients_quote_differently_are_left_to_fsspec() -> None:
    assert can_read("a/b-1_2=x.tar")
    assert not any(map(can_read, ("a b.tar", "a%20b.tar", "ä.tar", "a+b", "a?b")))
