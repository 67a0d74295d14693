"""Samples that are read through a cache on this machine: by several processes, on a disk that is
full, from a store that fails, and by processes that are killed.
"""

import os
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.cache import listing, read_through, store_listing
from gpupipe.cache.cache_folder import prepare_folder
from gpupipe.cache.read_through import ReadThroughColumn
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.store import Store
from gpupipe.errors import EngineError
from helpers import disks
from helpers.cache_contents import disk_size

pytest.importorskip("diskcache", reason="needs the extra remote")
KILLS = int(os.environ.get("GPUPIPE_KILLS", "20"))
READER = """
import pickle, random, sys
import numpy as np
import s3fs
column, seed, rounds = pickle.load(sys.stdin.buffer)
print("ready", flush=True)
dice = np.random.default_rng(seed)
for _ in range(rounds):
    for row in dice.permutation(len(column)):
        (data,) = column.read(np.array([row]))
        assert bytes(data).startswith(column.names[int(row)].encode()), column.names[int(row)]
print("over", flush=True)
"""


@pytest.fixture(autouse=True)
def close_caches() -> Iterator[None]:
    """Each test opens its own."""
    yield
    read_through._open_on_this_machine.cache_clear()


def column_of(url: str, folder: Path, data: dict[str, Any] | None = None, **cache: Any) -> Any:
    """The column of the files under a url, listed now."""
    sizes = {"max_bytes": "8MB", "shard_size": "100kB", "retries": 0, "connections": 4}
    options = CacheOptions(**{"dir": folder} | sizes | cache)
    dataset = DataSet(url=url, **(data or {}))
    listed = store_listing.list_samples(dataset, Store(dataset, 0, 5.0))
    return read_through.create_column(dataset, options, listed)


def contents(root: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(root.rglob("*.jpg"))]


def read_all(column: ReadThroughColumn) -> list[bytes]:
    return [bytes(data) for data in column.read(np.arange(len(column)))]


def forget() -> None:
    """What another process knows: only what is on the disk."""
    read_through._open_on_this_machine.cache_clear()


def values_of(folder: Path) -> tuple[set[str], set[str]]:
    """The files with samples that the cache's tables name, and those that are there."""
    (database,) = folder.rglob("cache.db")
    with sqlite3.connect(database) as connection:
        names = connection.execute("SELECT filename FROM Cache WHERE filename IS NOT NULL")
        named = {name for (name,) in names}
    there = {str(file.relative_to(database.parent)) for file in database.parent.rglob("*.val")}
    return named, there


def test_a_row_is_fetched_once(web: tuple[str, Any], blobs: Path, tmp_path: Path) -> None:
    url, faults = web
    one = column_of(f"{url}/class1", tmp_path, {"label": None})
    assert read_all(one) == contents(blobs / "class1")
    faults.asked.clear()
    forget()
    assert read_all(pickle.loads(pickle.dumps(one))) == contents(blobs / "class1")
    assert faults.asked == []


def test_chosen_rows_have_their_own_bytes_and_names(blobs: Path, tmp_path: Path) -> None:
    column = column_of(f"file://{blobs}", tmp_path).take(np.array([7, 3]))
    assert [bytes(data)[:14] for data in column.read(np.array([1, 0]))] == [
        b"class0/012.jpg",
        b"class0/028.jpg",
    ]
    assert column.location(0, "") == f"file://{blobs}/class0/028.jpg"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """120 files of 100 kB."""
    root = tmp_path / "large"
    (root / "a").mkdir(parents=True)
    for n in range(120):
        name = f"a/{n:03}.jpg"
        (root / name).write_bytes(name.encode() + os.urandom(100_000))
    return root


@pytest.mark.parametrize("policy", ["fifo", "lru"])
def test_the_folder_stays_under_max_bytes(large: Path, tmp_path: Path, policy: str) -> None:
    cache = tmp_path / "cache"
    column = column_of(f"file://{large}", cache, max_bytes="8MB", policy=policy)
    expected, dice = contents(large), random.Random(3)
    for number in range(300):
        row = dice.randrange(120)
        assert bytes(column.read(np.array([row]))[0]) == expected[row]
        if number % 5 == 0:
            assert disk_size(cache) <= 8_000_000
    named, there = values_of(cache)
    assert named == there
    assert len(named) > 60


def test_the_log_of_the_tables_stays_short(large: Path, tmp_path: Path) -> None:
    """SQLite would let it grow while any of many threads reads it."""
    column = column_of(f"file://{large}", tmp_path / "cache", connections=16)
    for _ in range(3):
        assert read_all(column) == contents(large)
        (log,) = tmp_path.rglob("cache.db-wal")
        assert log.stat().st_size <= read_through._LOG_BYTES
    assert disk_size(tmp_path / "cache") <= 8_000_000


def start(column: ReadThroughColumn, seed: int, rounds: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin and process.stdout
    pickle.dump((column, seed, rounds), process.stdin)
    process.stdin.close()
    process.stdin = None
    return process


def test_two_processes_read_at_once(
    bucket: str, s3: dict[str, Any], tmp_path: Path, blobs: Path
) -> None:
    """They share the folder, which is too small for all samples."""
    small = {"max_bytes": "900kB", "retries": 5}
    column = column_of(bucket, tmp_path, {"storage_options": s3}, **small)
    readers = [start(column, seed, 3) for seed in range(2)]
    assert [reader.communicate(timeout=250)[0] for reader in readers] == [b"ready\nover\n"] * 2
    named, there = values_of(tmp_path)
    assert named == there
    assert read_all(column) == contents(blobs)


FORKING_READER = READER.replace(
    "dice =",
    """
import os, gpupipe.cache.read_through, fsspec.implementations.local, diskcache
for line in sys.stdin:
    if child := os.fork():
        print(child, flush=True)
        os.waitpid(child, 0)
        print("over", flush=True)
    else:
        break
else:
    sys.exit()
dice =""",
)


def test_processes_that_are_killed_leave_nothing_wrong(large: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    column = column_of(f"file://{large}", cache, max_bytes="8MB")
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING_READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin and process.stdout
    pickle.dump((column, 1, 1000), process.stdin)
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
    dice, orphans = random.Random(5), 0
    for _ in range(KILLS):
        process.stdin.write(b"go\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        time.sleep(dice.uniform(0.05, 0.3))
        os.kill(child, signal.SIGKILL)
        assert process.stdout.readline() == b"over\n"
        named, there = values_of(cache) if list(cache.rglob("cache.db")) else (set(), set())
        orphans += len(there - named)
    process.stdin.close()
    process.wait(60)
    process.stdout.close()
    print(f"{KILLS} kills, which left {orphans} files that nothing refers to")
    assert read_all(column) == contents(large)
    named, there = values_of(cache)
    assert named == there
    assert disk_size(cache) <= 8_000_000


def test_a_changed_file_is_never_taken_for_the_listed_one(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    file = root / "a" / "x.jpg"
    for old, new in ((b"old" * 100, b"new" * 100), (b"old" * 100, b"longer" * 100)):
        file.write_bytes(old)
        before = column_of(f"file://{root}", tmp_path / "cache")
        file.write_bytes(new)
        os.utime(file, (1, 1))
        with pytest.raises(OSError, match=r"changed|came in place of"):
            before.read(np.array([0]))
        assert read_all(column_of(f"file://{root}", tmp_path / "cache")) == [new]
        file.write_bytes(old)
        again = column_of(f"file://{root}", tmp_path / "cache")
        assert read_all(again) == [old]
        file.unlink()
        assert read_all(again) == [old], "it is in the cache"


def test_a_file_that_is_gone_is_an_error_of_the_sample(blobs: Path, tmp_path: Path) -> None:
    root = tmp_path / "root" / "a"
    root.mkdir(parents=True)
    (root / "x.jpg").write_bytes(b"x")
    column = column_of(f"file://{root.parent}", tmp_path / "cache")
    (root / "x.jpg").unlink()
    with pytest.raises(OSError, match="cannot be fetched: the store does not have it"):
        column.read(np.array([0]))


def test_a_store_that_fails_is_no_error_of_a_sample(
    web: tuple[str, Any], tmp_path: Path, blobs: Path
) -> None:
    url, faults = web
    column = column_of(f"{url}/class1", tmp_path, {"label": None}, retries=0)
    faults.errors[column.names[0]] = 1
    with pytest.raises(EngineError, match=rf"{url}/class1/{column.names[0]}: cannot be fetched"):
        column.read(np.array([0]))
    assert read_all(column) == contents(blobs / "class1")


def test_a_full_disk_is_no_error_of_a_sample(large: Path, tmp_path: Path) -> None:
    with disks.mounted(tmp_path / "disk", "1m") as disk:
        column = column_of(f"file://{large}", disk / "cache", max_bytes="4MB")
        with pytest.raises(EngineError, match=r"(?s)disk/cache.*cannot be used.*data.cache.dir"):
            read_all(column)
        forget()


def test_a_folder_that_cannot_be_made_is_named(blobs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    column = column_of(f"file://{blobs}", tmp_path / "file")
    with pytest.raises(EngineError, match=r"tmp.*/file.*cannot be used"):
        read_all(column)


def test_damage_on_the_disk_is_noticed(large: Path, tmp_path: Path) -> None:
    column = column_of(f"file://{large}", tmp_path / "cache", max_bytes="16MB")
    read_all(column)
    first, second = sorted((tmp_path / "cache").rglob("*.val"))[:2]
    kept = first.read_bytes()
    first.write_bytes(kept[:50_000] + bytes([kept[50_000] ^ 1]) + kept[50_001:])
    second.write_bytes(b"")
    forget()
    assert read_all(column) == contents(large)


def test_no_pickle_is_read(large: Path, tmp_path: Path) -> None:
    column = column_of(f"file://{large}", tmp_path / "cache", max_bytes="16MB")
    read_all(column)
    (database,) = (tmp_path / "cache").rglob("cache.db")
    bomb = pickle.dumps(Bomb(str(tmp_path / "exploded")))
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE Cache SET mode = 4, filename = NULL, value = ?", (bomb,))
    forget()
    assert read_all(column) == contents(large)
    assert not (tmp_path / "exploded").exists()


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_the_source_has_all_samples_without_a_growing_cache(
    config: Any, faces: Path, tmp_path: Path
) -> None:
    from gpupipe import config as configs

    checked = configs.read(config(workers=0))
    index = checked.source.index()
    through = checked.source.read_through(index)
    assert (len(through), through.fingerprint) == (60, index.fingerprint)
    assert [bytes(through.read(n)) for n in range(60)] == contents(faces)
    assert through.location(0).startswith(f"file://{faces}/")
    source: Any = checked.source
    folder = prepare_folder(source.cache, source.dataset)
    assert not listing.load(folder).weights.size
    assert not list((tmp_path / "cache" / "shards").iterdir())
