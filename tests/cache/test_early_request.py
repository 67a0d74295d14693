"""A web server is asked for the first shards before a download worker imports the rest."""

import io
import os
import shutil
import tarfile
import threading
from collections import Counter
from concurrent.futures import wait
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cache.conftest import Make
from gpupipe.cache import early_request
from gpupipe.cache.early_listing import list_early
from gpupipe.cache.early_request import choose_first, request_shards
from gpupipe.cache.range_reader import PART
from gpupipe.cache.stored_fill import create_filler
from helpers.faulty_store import serve


@pytest.fixture
def folder(tars: Path, tmp_path: Path) -> Path:
    """Six tars in one folder, and a file whose name needs quotes."""
    root = tmp_path / "store" / "train"
    root.mkdir(parents=True)
    for path in tars.rglob("*.tar"):
        shutil.copy(path, root)
    (root / "a b.tar").touch()
    return root


def describe(url: str, tmp_path: Path, **options: Any) -> dict[str, Any]:
    cache = {"dir": str(tmp_path / "cache"), "max_bytes": "50MB"}
    data = {"source": "remote", "url": url, "shards": "0*.tar", "label": None, "cache": cache}
    return data | options


@pytest.mark.parametrize(("has_ranges", "etag"), [(True, '"a"'), (True, ""), (False, "a")])
def test_the_first_shards_are_those_that_were_asked_for(
    folder: Path, tmp_path: Path, make: Make, has_ranges: bool, etag: str
) -> None:
    with serve(folder.parent) as (url, faults):
        faults.has_ranges, faults.headers["ETag"] = has_ranges, etag
        data = describe(f"{url}/train", tmp_path)
        parts = request_shards(data)
        wait(parts.values())
        assert len(parts) == 3
        assert faults.asked == ["/train/", *(f"/train/{name}" for name in parts)]
        early = list_early(data, parts)
        assert early is not None
        assert len(early.take_rows()) == 6
        made = make({"url": f"{url}/train", "shards": "0*.tar"}, max_bytes="50MB", shard_size=1)
        filler = create_filler(made.folder, made.dataset, early.store)
        for name in parts:
            assert filler.publish_shard() == "published"
            shard = made.folder.commit_log.list_published(0)[-1].name
            assert made.listing.names[int(shard) - 1] == name
            assert made.folder.shard_path(shard).read_bytes() == (folder / name).read_bytes()
        if has_ranges:
            assert sum(path.endswith(".tar") for path in faults.asked) == 3
        assert early.store.ranges.parts == {}


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("has_etag", [True, False])
def test_a_shard_that_changes_after_it_was_asked_for_has_the_bytes_of_one_version(
    folder: Path, tmp_path: Path, make: Make, has_etag: bool, is_large: bool
) -> None:
    path = folder / f"{choose_first(6, 0)[0]:03}.tar"
    if is_large:  # what comes early is not all of it
        with tarfile.open(path, "a") as tar:
            for name, data in (("zz.jpg", bytes(PART)), ("zz.cls", b"0")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    with serve(folder.parent) as (url, faults):
        faults.headers["ETag"] = '"v1"' if has_etag else ""
        settings = describe(f"{url}/train", tmp_path)
        parts = request_shards(settings)
        wait(parts.values())
        assert next(iter(parts)) == path.name
        content = bytearray(path.read_bytes())
        content[600] ^= 1
        path.write_bytes(content)
        os.utime(path, (0, 10**9))
        faults.headers["ETag"] = '"v2"' if has_etag else ""
        early = list_early(settings, parts)
        assert early is not None
        made = make({"url": f"{url}/train", "shards": "0*.tar"}, max_bytes="50MB", shard_size=1)
        filler = create_filler(made.folder, made.dataset, early.store)
        outcomes = [filler.publish_shard() for _ in range(3)]
        assert outcomes == ["published"] * 3, filler.statistics.failed.reasons
        shard = made.folder.commit_log.list_published(0)[0].name
        assert made.folder.shard_path(shard).read_bytes() == content
        asked = sum(path.endswith(".tar") for path in faults.asked)
        assert asked == 3 + (3 if has_etag else 1) + is_large, "a part that did not change is used"


def test_a_shard_that_the_listing_lacks_is_not_fetched(
    folder: Path, tmp_path: Path, make: Make
) -> None:
    with serve(folder.parent) as (url, _):
        parts = request_shards(describe(f"{url}/train", tmp_path))
        lost, *others = parts
        (folder / lost).unlink()
        made = make({"url": f"{url}/train", "shards": "0*.tar"}, max_bytes="50MB", shard_size=1)
        early = list_early(describe(f"{url}/train", tmp_path / "other"), parts)
        assert early is not None
        filler = create_filler(made.folder, made.dataset, early.store)
        assert [filler.publish_shard() for _ in range(6)] == ["published"] * 5 + ["complete"]
        assert early.store.ranges.parts == {}
        published = [int(shard.name) - 1 for shard in made.folder.commit_log.list_published()]
        assert [made.listing.names[row] for row in published[:2]] == others


def test_a_part_that_another_worker_needs_no_more_is_forgotten(
    folder: Path, tmp_path: Path, make: Make
) -> None:
    with serve(folder.parent) as (url, _):
        data = describe(f"{url}/train", tmp_path / "other")
        early = list_early(data, request_shards(data))
        assert early is not None
        made = make({"url": f"{url}/train", "shards": "0*.tar"}, max_bytes="50MB", shard_size=1)
        other = made.another()
        assert [other.publish_shard() for _ in range(7)] == ["published"] * 6 + ["complete"]
        assert len(early.store.ranges.parts) == 3
        filler = create_filler(made.folder, made.dataset, early.store)
        assert filler.publish_shard() == "complete"
        assert early.store.ranges.parts == {}


@pytest.mark.parametrize(
    "options",
    [
        {"storage_options": {"headers": {"a": "b"}}},
        {"manifest": "list.csv"},
        {"shard_format": "webdataset"},
        {"shards": "*.npy"},
        {"shards": "a/*.tar"},
        {"shards": ["0*.tar"]},
        {"shards": "x*.tar"},
        {"cache": {"dir": "/a", "workers": 0}},
        {"cache": {"dir": "/a", "rate_limit": "1MB"}},
        {"cache": {"dir": "/a", "timeout": 5}},
        {"cache": None},
    ],
)
def test_other_data_sets_wait_for_their_listing(
    folder: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with serve(folder) as (url, faults):
        assert request_shards(describe(url, tmp_path, **options)) == {}
        assert faults.asked == ["/"] * (options == {"shards": "x*.tar"})


def test_nothing_is_asked_for_past_a_proxy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(folder) as (url, faults):
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        assert request_shards(describe(url, tmp_path)) == {}
        assert not faults.asked


@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize("shards", ["0*.tar", "**/0*.tar"])
def test_a_part_is_that_of_the_shard_below_the_url(
    folder: Path, tmp_path: Path, shards: str, end: str
) -> None:
    chosen = set()
    with serve(folder.parent) as (url, faults):
        for seed in range(5):
            data = describe(f"{url}/train{end}", tmp_path, shards=shards, seed=seed)
            parts = request_shards(data)
            for name, part in parts.items():
                assert bytes(part.result().data) == (folder / name).read_bytes()
            assert faults.asked == ["/train/", *(f"/train/{name}" for name in parts)]
            faults.asked.clear()
            chosen.add(frozenset(parts))
    assert len(chosen) > 1, "the seed says which"


def test_links_to_other_places_are_not_asked_for(folder: Path, tmp_path: Path) -> None:
    (folder / "index.html").write_text(
        "<A class=x\nHREF='005.tar'>5</A><a href=\"000.tar\">0</a><a href='000.tar'>again</a>"
        "<a href='/train/001.tar'>1</a>"
        "<a href='http://other/002.tar'>2</a><a href='../003.tar'>3</a><a href='004.tar?x'>4</a>"
        "<a href='0%205.tar'>5</a><a href='..'>up</a>"
    )
    with serve(folder.parent) as (url, faults):
        wait(request_shards(describe(f"{url}/train", tmp_path)).values())
        assert sorted(faults.asked) == ["/train/", "/train/000.tar", "/train/005.tar"]


def test_a_listing_is_looked_for_below_the_home_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "listing.idx").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    with serve(folder) as (url, faults):
        data = describe(url, tmp_path, cache={"dir": "~/cache", "max_bytes": "50MB"})
        assert request_shards(data) == {}
        assert faults.asked == []


def test_nothing_is_asked_for_where_a_listing_is(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "listing.idx").touch()
    with serve(folder) as (url, faults):
        assert request_shards(describe(url, tmp_path)) == {}
        for other in (None, [], {}, describe("s3://bucket/train", tmp_path)):
            assert request_shards(other) == {}
        assert faults.asked == []


@pytest.mark.parametrize("fault", ["errors", "forbidden", "gone", "cuts"])
def test_a_page_that_cannot_be_read_is_left_to_the_listing(
    folder: Path, tmp_path: Path, fault: str
) -> None:
    with serve(folder) as (url, faults):
        getattr(faults, fault)["/"] = 1
        assert request_shards(describe(url, tmp_path)) == {}
        assert len(request_shards(describe(url, tmp_path))) == 3


def test_a_page_that_never_ends_is_not_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_request, "_PAGE_SECONDS", 0.5)
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'<a href="0.tar"></a>')
            while not over.wait(0.05):  # each byte begins the timeout of a socket again
                self.wfile.write(b" ")

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        timer = threading.Timer(20, over.set)
        timer.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            assert request_shards(describe(url, tmp_path)) == {}
            assert not over.is_set()
        finally:
            over.set()
            timer.cancel()
            server.shutdown()
            thread.join()


def test_shards_are_drawn_by_weight() -> None:
    assert choose_first(100, 0) == choose_first(100, 0, [1.0] * 100)
    assert choose_first(100, 0) != choose_first(100, 1)
    assert choose_first(2, 0) in ([0, 1], [1, 0])
    assert choose_first(4, 0, [0.0, 1.0, 0.0, 0.0]) == [1]
    counts = Counter(choose_first(10, seed, [3.0] + [1.0] * 9)[0] for seed in range(2000))
    assert 420 < counts.pop(0) < 580, "3 of 12"
    assert all(110 < count < 230 for count in counts.values()), "1 of 12 each"
