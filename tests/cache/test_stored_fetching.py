"""Fetching shards in parts from stores that fail: a real HTTP server, and a real S3."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.cache import store_listing
from gpupipe.cache.fetching import FetchStatistics
from gpupipe.cache.rate_limit import RateLimit
from gpupipe.cache.settings import DataSet
from gpupipe.cache.store import Store
from gpupipe.cache.stored_fetching import ShardFetcher
from helpers.stored_shards import NAMES, PATTERN

NAME, ROW = NAMES[0], 0
PART = 1 << 15


class Client:
    """Fetches the first shard, in parts of 32 KiB."""

    def __init__(
        self,
        tmp_path: Path,
        has_obstore: bool,
        retries: int = 2,
        timeout: float = 5.0,
        **data: Any,
    ) -> None:
        dataset = DataSet(**{"shards": PATTERN} | data)
        self.pauses: list[float] = []
        store = Store(dataset, retries, timeout, self.pauses.append)
        self.listing = store_listing.list_samples(dataset, store)
        self.statistics, self.target = FetchStatistics(), tmp_path / "shard"
        limit = RateLimit(tmp_path / "rate", None)
        if not has_obstore:
            store.ranges._reader = None
        assert (store.ranges._reader is not None) == has_obstore
        self._fetcher = ShardFetcher(self.listing, store, limit, 4, self.statistics, PART)

    def fetch(self) -> str:
        """Fetch the shard; return why it failed, "" if it did not."""
        if self._fetcher.fetch(ROW, self.target) is not None:
            return ""
        return self.statistics.failed.reasons[ROW]


@pytest.fixture(params=["fsspec", "obstore"])
def has_obstore(request: pytest.FixtureRequest) -> bool:
    """Whether obstore reads the parts."""
    if request.param == "obstore":
        pytest.importorskip("obstore")
    return bool(request.param == "obstore")


@pytest.fixture
def listed(tmp_path: Path, web_tars: tuple[str, Any], has_obstore: bool) -> Any:
    """Makes a client of the web server, and tells what the server is to do wrong."""
    url, faults = web_tars

    def make(**options: Any) -> tuple[Client, Any]:
        client = Client(tmp_path, has_obstore, url=url, shards=NAME, **options)
        faults.asked.clear()
        return client, faults

    return make


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_shard_comes_in_parts_or_whole(
    listed: Any, tars: Path, has_obstore: bool, has_ranges: bool
) -> None:
    client, faults = listed()
    faults.has_ranges = has_ranges
    content = (tars / NAME).read_bytes()
    assert client.fetch() == ""
    assert client.target.read_bytes() == content
    assert client.statistics.bytes == len(content)
    assert len(faults.asked) == (-(-len(content) // PART) if has_ranges else 1 + has_obstore)


@pytest.mark.parametrize("fault", ["errors", "cuts", "stalls"])
def test_only_a_part_that_failed_is_asked_for_again(listed: Any, tars: Path, fault: str) -> None:
    client, faults = listed(timeout=0.5 if fault == "stalls" else 5.0)
    getattr(faults, fault)[NAME] = 2
    content = (tars / NAME).read_bytes()
    assert client.fetch() == ""
    assert client.target.read_bytes() == content
    assert len(client.pauses) == 2
    assert len(faults.asked) == -(-len(content) // PART) + 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("errors", r"500.*\(3 attempts\)"),
        ("cuts", r"\(3 attempts\)"),
        ("stalls", r"it was not whole after 0.3 s \(data.cache.timeout\) \(3 attempts\)"),
        ("forbidden", "the store denies access .*403"),
        ("gone", f"the store does not have it .*{NAME}"),
        ("changes", r"changed since it was listed \(ETag same, now [0-9]+\)"),
    ],
)
def test_a_shard_that_cannot_be_had_is_named(listed: Any, fault: str, said: str) -> None:
    client, faults = listed(timeout=0.3 if fault == "stalls" else 5.0)
    getattr(faults, fault)[NAME] = 10**6
    reason = client.fetch()
    assert reason.startswith(f"{NAME}: ")
    assert re.search(said, reason), reason
    assert (ROW in client.statistics.changed) == (fault == "changes")
    faults.changes.clear()
    getattr(faults, fault).clear()
    assert client.fetch() == ""


def test_wrong_content_of_the_right_length_is_fetched_again(listed: Any, tars: Path) -> None:
    client, faults = listed()
    content = (tars / NAME).read_bytes()
    faults.headers["Content-MD5"] = base64.b64encode(hashlib.md5(content).digest()).decode()
    faults.wrong[NAME] = 1
    assert client.fetch() == ""
    assert client.target.read_bytes() == content
    assert len(client.pauses) == 1
    faults.wrong[NAME] = 10**6
    assert re.search(r"other content came: its MD5 is .* in place of", client.fetch())


def test_a_shard_in_s3_is_compared_with_its_md5(
    s3: dict[str, Any], tars: Path, tmp_path: Path, has_obstore: bool
) -> None:
    import s3fs
    from moto.s3.models import s3_backends

    files = s3fs.S3FileSystem(**s3)
    if not files.exists("tars"):
        files.mkdir("tars")
    files.put(f"{tars}/", "tars/", recursive=True)
    client = Client(tmp_path, has_obstore, url="s3://tars", storage_options=s3)
    assert [client.listing.names[n] for n in range(6)] == sorted(NAMES)
    assert client.fetch() == ""
    assert client.target.read_bytes() == (tars / NAME).read_bytes()
    (backend,) = (b for regions in s3_backends.values() for b in regions.values() if b.buckets)
    backend.buckets["tars"].keys[NAME]._etag = "0" * 32
    client = Client(tmp_path, has_obstore, url="s3://tars", storage_options=s3)
    assert re.search(r"other content came: its MD5 is .* in place of 0{32}", client.fetch())
    files.pipe(f"tars/{NAME}", b"another")
    assert re.search(r"changed since it was listed \(ETag 0{32}, now .{32}\)", client.fetch())
    assert np.array_equal(client.listing.sizes[:1], [(tars / NAME).stat().st_size])
