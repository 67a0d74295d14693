"""The folder as its own ledger: what counts, what is removed, whose it is."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import evict
from gpupipe.cache.cache_folder import CacheFolder, prepare_folder
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.errors import DataError


def options(folder: Path, **changes: Any) -> CacheOptions:
    return CacheOptions(**{"dir": folder, "max_bytes": "4MB", "shard_size": "100kB"} | changes)


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(
        DataError, match=r"holds other files, and is no cache: set data.cache.dir to a new folder"
    ):
        prepare_folder(options(tmp_path), DataSet(url="s3://b"))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_cache_is_of_one_data_set_whatever_reaches_it(tmp_path: Path) -> None:
    cache = options(tmp_path / "c")
    prepare_folder(cache, DataSet(url="s3://b/x", storage_options={"key": "hush"}))
    prepare_folder(cache, DataSet(url="s3://b/x", storage_options={"key": "other"}, seed=5))
    assert "hush" not in "".join(p.read_text() for p in (tmp_path / "c").rglob("*") if p.is_file())
    with pytest.raises(
        DataError,
        match=r"the cache of another data set: data.url 's3://b/x' there, 's3://b/y' here: set "
        r"data.cache.dir to another folder",
    ):
        prepare_folder(cache, DataSet(url="s3://b/y"))
    with pytest.raises(DataError, match=r"data.label 'label' there, empty here"):
        prepare_folder(cache, DataSet(url="s3://b/x", label=None))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        DataError,
        match=r"file/c: the cache's folder cannot be used: Not a directory: set data.cache.dir",
    ):
        prepare_folder(options(tmp_path / "file" / "c"), DataSet(url="s3://b"))


def test_what_a_dead_worker_left_is_counted_until_it_is_removed(make: Any) -> None:
    made = make()
    folder: CacheFolder = made.folder
    made.filler.publish_shard()
    with folder.lock():
        before = folder.count_bytes()
    (folder.dir / "claims" / "00000009").write_text(
        json.dumps({"reserved": 200_000, "rows": [1, 2]})
    )
    (folder.dir / "claims" / "00000010").write_bytes(b"")
    for name in ("00000009", "00000010"):
        (folder.dir / "tmp" / f"{name}.tar").write_bytes(b"half")
        (folder.dir / "tmp" / f"{name}.npy").write_bytes(b"half")
        folder.shard_path(name).write_bytes(b"whole, but never published")
        folder.table_path(name).write_bytes(b"whole, but never published")
    for kind in ("pins", "workers"):
        (folder.dir / kind / "dead").write_text("{}")
    with folder.lock():
        assert folder.count_bytes() >= before + 200_000
        folder.remove_leftovers()
        assert folder.count_bytes() == before
    assert folder.list_present_shards() == {"00000001"}
    assert not list((folder.dir / "tmp").iterdir())


def test_what_the_living_hold_stays(make: Any) -> None:
    folder: CacheFolder = make().folder
    with folder.lock():
        claims = [
            folder.create_claim(kind, name, {"reserved": 5000})
            for kind, name in (
                ("claims", "00000003"),
                ("pins", "p"),
                ("workers", "s"),
                ("runs", "r-0-1"),
            )
        ]
        (folder.dir / "tmp" / "00000003.tar").write_bytes(b"half")
        folder.remove_leftovers()
        assert all(claim.path.exists() for claim in claims)
        assert (folder.dir / "tmp" / "00000003.tar").exists()
    for claim in claims:
        claim.release()


def test_a_reservation_that_does_not_fit_is_refused_beforehand(make: Any) -> None:
    folder: CacheFolder = make(max_bytes="1MB").folder
    with folder.lock():
        room = 1_000_000 - folder.count_bytes() - evict.headroom_bytes(folder)
        assert evict.make_room(folder, room)
        assert not evict.make_room(folder, room + 1)
        claim = folder.create_claim("claims", "00000001", {"reserved": room - 4096})
        assert evict.has_room(folder, 0)
        assert not evict.has_room(folder, 1)
    claim.release()


def test_a_cache_of_another_version_is_refused(make: Any) -> None:
    made = make()
    identity = made.folder.dir / "dataset.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "format": 1}))
    with pytest.raises(DataError, match="the cache of another version of gpupipe"):
        prepare_folder(made.folder.options, made.dataset)


def test_temporary_files_of_killed_processes_are_removed(make: Any) -> None:
    folder: CacheFolder = make().folder
    leftovers = [
        folder.dir / name
        for name in ("dataset.json.0.tmp", "listing.idx.1.tmp", "runs/a.json.2.tmp")
    ]
    for path in leftovers:
        path.touch()
    with folder.lock():
        folder.remove_leftovers()
    assert not any(path.exists() for path in leftovers)
    assert folder.listing_path.exists()


def test_a_list_that_does_not_fit_is_refused(make: Any) -> None:
    with pytest.raises(
        DataError,
        match=r"the list of 40 samples takes [0-9,]+ bytes, and data.cache.max_bytes is 40,000: "
        r"make it larger",
    ):
        make(max_bytes="40kB", shard_size="10kB")
