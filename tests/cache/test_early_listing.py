"""A data set is listed before the task to do so comes, and its first shard is on its way."""

import json
import weakref
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from cache.conftest import Make
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.early_listing import EarlyListing, list_early
from gpupipe.cache.early_request import read_data
from gpupipe.cache.listing import Listing
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.store_listing import list_samples
from gpupipe.cache.stored_fill import create_filler
from gpupipe.errors import DataError
from helpers.faulty_store import serve

YAML = """
data:
  source: remote
  url: {url}
  shards: "**/*.tar"
  label: null
  cache: {{dir: {cache[dir]}, max_bytes: 50MB}}
pipeline: [decode]
"""


def describe(url: str, tmp_path: Path, **options: Any) -> dict[str, Any]:
    cache = {"dir": str(tmp_path / "cache"), "max_bytes": "50MB", **options}
    return {"source": "remote", "url": url, "shards": "**/*.tar", "label": None, "cache": cache}


def list_it(data: Any) -> EarlyListing:
    early = list_early(data)
    assert early is not None
    for part in early.store.ranges.parts.values():
        wait([part])
    return early


@pytest.mark.parametrize("is_text", [False, True])
def test_the_first_worker_asks_for_nothing_again(
    tars: Path, tmp_path: Path, make: Make, is_text: bool
) -> None:
    with serve(tars) as (url, faults):
        data = describe(url, tmp_path)
        line = json.dumps(YAML.format(**data) if is_text else data).encode()
        early = list_it(read_data(line + b"\n"))
        assert not (tmp_path / "cache").exists()
        dataset = DataSet(url=url, shards="**/*.tar", label=None)
        cache = CacheOptions(dir=tmp_path / "cache", max_bytes="50MB")
        assert early.fits(dataset, cache)
        assert not early.fits(dataset.model_copy(update={"seed": 1}), cache)
        assert not early.fits(dataset, cache.model_copy(update={"timeout": 1.0}))
        made = make(dataset.model_dump(exclude_unset=True), max_bytes="50MB", shard_size=1)
        rows = early.take_rows()
        assert rows.fingerprint == made.listing.fingerprint
        assert rows.tags.tolist() == made.listing.tags.tolist()
        filler = create_filler(CacheFolder(cache), dataset, early.store)
        faults.errors = {".tar": 1}  # of the next that is asked for
        for _ in range(3):
            assert filler.publish_shard() == "published"
        asked = [path for path in faults.asked if path.endswith(".tar")]
        assert len(asked) == 3, "the parts that came early are those of the first shards"
        sizes = [(tars / path.lstrip("/")).stat().st_size for path in asked]
        assert filler.statistics.bytes == sum(sizes)
        faults.errors.clear()
        assert filler.publish_shard() == "published"
        assert len([path for path in faults.asked if path.endswith(".tar")]) == 4


def test_the_listing_is_kept_by_nobody_once_it_was_taken(tars: Path, tmp_path: Path) -> None:
    early = list_it(describe(f"file://{tars}", tmp_path))
    assert isinstance(early.outcome, Listing)
    listing = weakref.ref(early.outcome)
    assert len(early.take_rows()) == 6
    assert listing() is None


def test_versions_that_do_not_come_with_bytes_come_before_them(tars: Path, tmp_path: Path) -> None:
    with serve(tars) as (url, faults):

        class Requests(list[str]):
            def append(self, path: str) -> None:
                super().append(path)
                if path.endswith(".tar"):  # all shards change as the first one is sent
                    faults.headers["ETag"] = '"v2"'

        faults.headers["ETag"], faults.asked = '"v1"', Requests()
        options = {"storage_options": {"headers": {"a": "b"}}}  # which fsspec alone has
        early = list_it(describe(url, tmp_path) | options)
        rows = early.take_rows()
        versions = dict(zip(list(rows.names), list(rows.versions), strict=True))
        assert len(early.store.ranges.parts) == 3
        assert {versions[name] for name in early.store.ranges.parts} == {"ETag v1"}


def test_a_part_that_fails_is_asked_for_again(tars: Path, tmp_path: Path, make: Make) -> None:
    with serve(tars) as (url, faults):
        faults.errors = {".tar": 1}
        early = list_it(describe(url, tmp_path))
        made = make({"url": url, "shards": "**/*.tar"}, max_bytes="50MB", shard_size=1)
        filler = create_filler(made.folder, made.dataset, early.store)
        assert filler.publish_shard() == "published"
        asked = [path for path in faults.asked if path.endswith(".tar")]
        assert len(asked) == 4
        assert asked[3] == asked[0]


@pytest.mark.parametrize("options", [{"rate_limit": "1MB"}, {"workers": 0}])
def test_no_part_comes_early_where_nothing_may_be_fetched(
    tars: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with serve(tars) as (url, faults):
        early = list_it(describe(url, tmp_path, **options))
        assert len(early.take_rows()) == 6
        assert not [path for path in faults.asked if path.endswith(".tar")]


def test_why_a_store_cannot_be_listed_is_what_the_task_tells(tmp_path: Path) -> None:
    early = list_it(describe(f"file://{tmp_path}/none", tmp_path))
    with pytest.raises(DataError, match=r"none: no such folder: set data\.url"):
        early.take_rows()


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b'"data: {cache: ["\n',
        b'"pipeline: [decode]"\n',
        b'{"url": "file:///a"}\n',
        b'{"url": "file:///a", "cache": {"dir": "/a", "max_bytes": "little"}}\n',
        b'{"url": "none://a", "cache": {"dir": "/a", "max_bytes": "1GB"}}\n',
        b'{"url": "file:///a", "shards": "*.zarr", "cache": {"dir": "/a", "max_bytes": "1GB"}}\n',
    ],
)
def test_settings_that_are_not_whole_are_left_to_the_task(line: bytes) -> None:
    assert list_early(read_data(line)) is None


def test_shards_that_weigh_nothing_are_not_asked_for(tars: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,weight\na/000.tar,0\nb/001.tar,1\n")
    manifest = {"manifest": str(tmp_path / "list.csv"), "weight": "weight", "shards": "a/*.tar"}
    data = describe(f"file://{tars}", tmp_path) | manifest
    assert list_it(data).store.ranges.parts == {}


def test_a_cache_that_has_a_listing_needs_none(blobs: Path, make: Make) -> None:
    made = make()
    data = {"url": made.dataset.url, "cache": {"dir": str(made.folder.dir), "max_bytes": "4MB"}}
    assert list_early(data) is None
    made.folder.listing_path.unlink()
    rows = list_it(data).take_rows()
    assert rows.fingerprint == list_samples(made.dataset, made.filler._store).fingerprint
