"""Download workers that are killed at any moment, disks that are full, and what is left behind."""

import errno
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import evict, shard_files
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.stored_fill import row_of
from gpupipe.cache.worker_pool import WorkerPool
from helpers import disks, stored_shards
from helpers.cache_contents import began, disk_size
from helpers.full_product import IS_FULL

KILLS = int(os.environ.get("GPUPIPE_KILLS", "50"))
WORKERS = """
import os, sys
from gpupipe.cache.downloader import Task, DownloadWorker
from gpupipe.cache.cache_folder import CacheFolder
import gpupipe.cache.store, fsspec.implementations.local, numpy.random
task = Task.model_validate_json(sys.stdin.readline())
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        DownloadWorker(CacheFolder(task.cache), task).run()
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("over", flush=True)
"""
"""Starts a worker for each line that it is given, in a moment: all is imported already."""


def check_what_a_reader_sees(folder: CacheFolder) -> int:
    """All that is published is whole, and nothing lies among it that is not.

    Returns how many shards there are.
    """
    reader = CacheFolder(folder.options)
    reader.commit_log.refresh()
    alive = reader.commit_log.live_shards()
    for name, shard in alive.items():
        assert shard_files.hash_file(reader.shard_path(name)) == shard.hash
        assert shard_files.load_table(reader.table_path(name), shard.table_hash).shape == (
            4,
            shard.samples,
        )
        with tarfile.open(reader.shard_path(name)) as tar:
            assert len(tar.getmembers()) == 3 * shard.samples
    for file in (reader.dir / "shards").iterdir():
        with tarfile.open(file) as tar:
            tar.getmembers()
        assert file.read_bytes().endswith(b"\0" * 1024)
    return len(alive)


def kill_workers(made: Any, kills: int, seconds: float, look: Callable[[CacheFolder], int]) -> None:
    """Start a worker, kill it after a random time up to `seconds`, and look; again and again.

    If no kill came while a shard was written, as on a busy machine, there are more, and later ones.
    `look` returns the number of shards; from 16 on, or once all are there, all are evicted.
    """
    task = (
        f'{{"do": "serve", "dataset": {made.dataset.model_dump_json(exclude_defaults=True)}, '
        f'"cache": {made.folder.options.model_dump_json()}}}'
    )
    nursery = subprocess.Popen(
        [sys.executable, "-c", WORKERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert nursery.stdin and nursery.stdout
    nursery.stdin.write(task.replace("\n", "") + "\n")
    dice, orphans, done = random.Random(7), 0, 0
    while done < kills or not orphans:
        assert done < 20 * kills
        nursery.stdin.write("go\n")
        nursery.stdin.flush()
        child = int(nursery.stdout.readline())
        time.sleep(dice.uniform(0, seconds * max(1.0, done / kills)))
        done += 1
        os.kill(child, signal.SIGKILL)
        assert nursery.stdout.readline() == "over\n"
        orphans += len(list((made.folder.dir / "tmp").iterdir()))
        if look(made.folder) >= min(len(made.listing), 16):
            with made.folder.lock():
                evict.evict_down_to(made.folder, 0)
    nursery.stdin.close()
    nursery.stdout.close()
    nursery.wait()


def check_no_leftovers(folder: CacheFolder) -> None:
    for kind in ("tmp", "claims", "workers"):
        assert not list((folder.dir / kind).iterdir())


def test_a_worker_that_is_killed_at_any_moment_leaves_nothing_half_written(make: Any) -> None:
    made = make(max_bytes="4MB", shard_size="60kB", workers=1)
    kill_workers(made, KILLS, 0.08, check_what_a_reader_sees)
    assert made.fill() == "complete"
    check_what_a_reader_sees(made.folder)
    check_no_leftovers(made.folder)
    with made.folder.lock():
        assert made.folder.count_bytes() < 2_000_000


def test_a_worker_that_is_killed_leaves_no_half_of_a_stored_shard(make: Any, tars: Path) -> None:
    """The disk is never fuller than it may be, and each sample of an epoch is one of the store."""
    data = {"url": f"file://{tars}", "shards": stored_shards.PATTERN}
    made = make(data, max_bytes="900kB", workers=1)
    contents = {row: (tars / made.listing.names[row]).read_bytes() for row in range(6)}

    def look(folder: CacheFolder) -> int:
        files = stored_shards.cached(folder)
        for name, file in files.items():
            assert file.read_bytes() == contents[row_of(name)]
        assert disk_size(folder.dir) <= 900_000
        began(folder)  # so that shards may be evicted
        return len(files)

    kill_workers(made, KILLS if IS_FULL else 8, 0.08, look)
    with made.folder.lock():
        evict.evict_down_to(made.folder, 0)
    while made.filler.publish_shard() == "published":
        pass
    assert look(made.folder) >= 2
    check_no_leftovers(made.folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 512 KiB."""
    with disks.mounted(tmp_path / "disk", "512k") as disk:
        yield disk


def test_a_full_disk_pauses_the_workers_who_say_so(
    make: Any, small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = make(dir=small_disk / "cache", max_bytes="4MB", shard_size="60kB")
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 200_000)
    workers = WorkerPool(made.dataset, made.folder.options, 1)
    end = time.monotonic() + 20
    while "paused: the disk is full" not in [
        s.get("state") for s in made.folder.read_claims("workers").values()
    ]:
        assert time.monotonic() < end
        time.sleep(0.05)
    count = check_what_a_reader_sees(made.folder)
    assert count >= 1
    ballast.unlink()
    while check_what_a_reader_sees(made.folder) == count:
        assert time.monotonic() < end
        time.sleep(0.05)
    workers.stop()
    assert (
        f"disk full, and fetching is paused until there is space: {made.folder.dir}"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize("free", range(0, 120_000, 8192))
def test_a_disk_that_fills_up_in_the_middle_of_a_shard_leaves_no_trace(
    make: Any, small_disk: Path, free: int
) -> None:
    made = make(dir=small_disk / "cache", max_bytes="4MB", shard_size="100kB")
    order = made.filler._claim_job(True)
    blocks = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * max(0, blocks.f_bavail * blocks.f_frsize - free))
    try:
        assert made.filler._make_shard(order) == "published"
    except OSError as e:
        assert e.errno == errno.ENOSPC
        assert not made.folder.list_present_shards()
    assert free < 110_000 or made.folder.list_present_shards()
    check_what_a_reader_sees(made.folder)
    for kind in ("tmp", "claims"):
        assert not list((made.folder.dir / kind).iterdir())
    (small_disk / "ballast").unlink()
    assert made.filler.publish_shard() == "published"
    check_what_a_reader_sees(made.folder)


def test_a_disk_that_is_full_is_no_fault_of_the_store(
    make: Any, small_disk: Path, tars: Path
) -> None:
    data = {"url": f"file://{tars}", "shards": stored_shards.PATTERN}
    made = make(data, dir=small_disk / "cache", max_bytes="4MB")
    order = made.filler._claim_job(True)
    disks.fill(small_disk)
    with pytest.raises(OSError, match="No space left on device") as e:
        made.filler._make_shard(order)
    assert e.value.errno == errno.ENOSPC
    assert not made.filler.statistics.failed.reasons
    (small_disk / "ballast").unlink()
    assert made.filler.publish_shard() == "published"
