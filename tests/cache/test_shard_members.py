"""The list of the objects that shards are made of: what is kept of it, and what is refused."""

from pathlib import Path

import pytest

import gpupipe
from gpupipe.cache import shard_members
from gpupipe.cache.cache_folder import CacheFolder, prepare_folder
from gpupipe.cache.listing import UNKNOWN
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.shard_members import MembersBuilder
from gpupipe.formats.zip_layout import ZipLayout

DATA = DataSet(url="file:///store", shards="*.zarr", fields={"image": "images"})


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return prepare_folder(CacheOptions(dir=tmp_path / "cache", max_bytes=300_000), DATA)


def build() -> MembersBuilder:
    builder = MembersBuilder()
    builder.add_content(".zarray", b"{}")
    builder.add_object("0.0", "x.zarr/4.0", {"size": 70, "ETag": '"a"'}, 99)
    builder.end_shard()
    builder.end_shard()  # without members
    builder.add_object("0.0", "x.zarr/5.0", {}, 99)
    builder.add_content(".zattrs", b"[]!")
    builder.end_shard()
    return builder


def test_members_are_what_was_added(folder: CacheFolder) -> None:
    assert shard_members.load(folder) is None
    builder = build()
    unknown = ZipLayout(["0.0", ".zattrs"], [99, 3]).size
    assert builder.sizes == [ZipLayout([".zarray", "0.0"], [2, 70]).size, 98, unknown]
    with folder.lock():
        shard_members.save(builder.build(), folder)
    members = shard_members.load(folder)
    assert members is not None
    shards = [list(members.iter_members(row)) for row in range(3)]
    assert [[member.name for member in shard] for shard in shards] == [
        [".zarray", "0.0"],
        [],
        ["0.0", ".zattrs"],
    ]
    assert shards[0][0].file is None
    assert shards[0][0].content.tobytes() == b"{}"
    assert shards[2][1].content.tobytes() == b"[]!"
    listed, unlisted = shards[0][1].file, shards[2][0].file
    assert listed is not None
    assert (listed.name, listed.size, listed.version) == ("x.zarr/4.0", 70, "ETag a")
    assert listed.tag
    assert unlisted == ("x.zarr/5.0", UNKNOWN, 0, "")


def test_a_list_that_is_too_large_or_damaged_is_named(folder: CacheFolder) -> None:
    builder = build()
    builder.add_content("large", bytes(300_000))
    builder.end_shard()
    with folder.lock(), pytest.raises(gpupipe.DataError, match=r"list of 5 objects .*300,000"):
        shard_members.save(builder.build(), folder)
    folder.members_path.write_bytes(b"x")
    with pytest.raises(gpupipe.DataError, match=r"members.idx: the list of the objects is damaged"):
        shard_members.load(folder)
