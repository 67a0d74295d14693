"""Fetching the objects of a shard into one ZIP file, from a store that fails."""

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache.fetching import FetchStatistics
from gpupipe.cache.members_fetching import MembersFetcher
from gpupipe.cache.rate_limit import RateLimit
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shard_members import MembersBuilder
from gpupipe.cache.store import Store
from gpupipe.cache.zarr_folders import create_listing
from helpers.faulty_store import Faults, serve

PART = 1 << 14
OBJECTS = {f"x.zarr/{n}": bytes([n]) * size for n, size in enumerate((3, PART, 0, 3 * PART + 5))}
METADATA = b"{}"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Faults]]:
    for name, content in OBJECTS.items():
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with serve(tmp_path / "store") as served:
        yield served


class Client:
    """Fetches one shard of all OBJECTS, of which the store tells the sizes if `is_listed`."""

    def __init__(self, url: str, folder: Path, is_listed: bool) -> None:
        dataset = DataSet(url=url, shards="*.zarr", fields={"image": "/"})
        store = Store(dataset, 2, 5.0, lambda seconds: None)
        infos = store.describe_files(list(OBJECTS), 4)
        builder = MembersBuilder()
        builder.add_content(".zarray", METADATA)
        for (name, content), info in zip(OBJECTS.items(), infos, strict=True):
            assert info["size"] == len(content)
            known: dict[str, Any] = info if is_listed else {}
            builder.add_object(f"c/{name[-1]}", name, known, len(content))
        builder.end_shard()
        self.listing, members = create_listing(["x.zarr[0:4]"], [1.0], dataset, builder)
        self.statistics, self.target = FetchStatistics(), folder / "shard.zip"
        common = (self.listing, store, RateLimit(folder / "rate", None), 3, self.statistics, PART)
        self._fetcher = MembersFetcher(members, *common)

    def fetch(self) -> str:
        """Fetch the shard; return why it failed, "" if it did not."""
        received = self._fetcher.fetch(0, self.target)
        assert (received is None) == (0 in self.statistics.failed.reasons)
        return self.statistics.failed.reasons.get(0, "")


@pytest.mark.parametrize(("has_ranges", "is_listed"), [(True, True), (False, True), (True, False)])
def test_objects_come_in_parts_and_are_members(
    web: tuple[str, Faults], tmp_path: Path, has_ranges: bool, is_listed: bool
) -> None:
    url, faults = web
    client = Client(url, tmp_path, is_listed)
    faults.has_ranges = has_ranges
    faults.errors["x.zarr/3"] = 1
    assert client.fetch() == ""
    with zipfile.ZipFile(client.target) as archive:
        assert archive.testzip() is None
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found == {".zarray": METADATA} | {f"c/{n[-1]}": OBJECTS[n] for n in OBJECTS}
    assert client.target.stat().st_size == client.listing.sizes[0]
    assert client.statistics.bytes == sum(map(len, OBJECTS.values()))
    first = client.target.read_bytes()
    assert client.fetch() == ""
    assert client.target.read_bytes() == first


@pytest.mark.parametrize(
    ("fault", "name", "said"),
    [
        ("errors", "x.zarr/1", "500"),
        ("forbidden", "x.zarr/3", "403"),
        ("gone", "x.zarr/0", "x.zarr/0"),
        ("", "x.zarr/3", "changed since it was listed"),
    ],
)
def test_an_object_that_cannot_be_had_is_named(
    web: tuple[str, Faults], tmp_path: Path, fault: str, name: str, said: str
) -> None:
    url, faults = web
    client = Client(url, tmp_path, is_listed=True)
    if fault:
        getattr(faults, fault)[name] = 10**6
    else:
        os.utime(tmp_path / "store" / name, (1, 1))
    reason = client.fetch()
    assert reason.startswith(f"x.zarr[0:4]: {name}: ")
    assert said in reason.removeprefix(f"x.zarr[0:4]: {name}: ")
    assert (0 in client.statistics.changed) == (not fault)
