"""Schedules of disasters over shards: killed fetchers, trainers and stores, damage on the disk."""

import os
import random
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from gpupipe.cache import listing
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.settings import CacheOptions
from helpers.cache_contents import disk_size
from helpers.cached_loading import Config, alive, load, waited
from helpers.cached_trainer import Trainer
from helpers.disks import PowerDisk
from helpers.faulty_store import StoreProcess
from helpers.full_product import IS_FULL
from helpers.stored_shards import NAMES, write_wide_parquets

COLUMNS = [f"{n}.parquet" for n in range(5)]
STEPS = ["decode", {"center_crop": {"size": 32}}]
MAX_BYTES = {"tars": 900_000, "columns": 1_300_000}
SCHEDULES = range(50) if IS_FULL else [1]
STEPS_EACH = 3
PATIENCE = {"retries": 6, "timeout": 5, "wait": 120}


class Run:
    """A training that goes on over all that happens to its processes.

    Attributes:
        epochs: The ids that each epoch has delivered so far.
        max_bytes: The most that the cache took on the disk.
    """

    def __init__(self, settings: dict[str, Any], digests: dict[int, int]) -> None:
        self._settings, self._digests = settings, digests
        self._trainer, self._state = Trainer(settings), None
        self.folder = CacheFolder(CacheOptions(**settings["data"]["cache"]))
        self.epochs: dict[int, list[int]] = {}
        self._epoch = 0
        self.generations: dict[int, int] = {}
        self.max_bytes, self._is_over = 0, threading.Event()
        self._watch = threading.Thread(target=self._watch_disk)
        self._watch.start()

    def _watch_disk(self) -> None:
        while not self._is_over.wait(0.05):
            with suppress(OSError):  # it is mounted again at the moment
                self.max_bytes = max(self.max_bytes, disk_size(self.folder.dir))

    def train(self) -> None:
        """Train a few steps: each sample has the pixels of the store, and comes once an epoch."""
        for ids, state, digests in self._trainer.steps(STEPS_EACH):
            assert digests == [self._digests[id] for id in ids]
            own = self.epochs.setdefault(self._epoch, [])
            assert not set(ids) & set(own)
            own += ids
            if state["epoch"] > self._epoch:
                self._epoch = state["epoch"]
            else:
                self.generations[self._epoch] = state["generation"]
            self._state = state

    def kill_trainer(self, dice: random.Random | None = None) -> None:
        """Kill the trainer, damage a shard if there are dice, and start another trainer.

        A process checks a sample when it first reads it, so damage comes between two processes.
        """
        self._trainer.kill()
        if dice is not None:
            self._damage(dice)
        self._trainer = Trainer(self._settings, self._state)

    def kill_fetchers(self, count: int = 1) -> list[int]:
        """Kill so many of the fetchers, and return their process ids."""
        killed = []
        for report in list(self.folder.read_claims("workers").values())[:count]:
            if "pid" in report:
                with suppress(ProcessLookupError):  # the trainer's death ended it
                    os.kill(report["pid"], signal.SIGKILL)
                    killed.append(report["pid"])
        return killed

    def cut_power(self, disk: PowerDisk) -> None:
        """End all processes, lose what nobody has synced, and start another trainer."""
        self._trainer.kill()
        fetchers = self.kill_fetchers(9)
        waited(lambda: not any(map(alive, fetchers)))
        disk.cut_power()
        self._trainer = Trainer(self._settings, self._state)

    def _damage(self, dice: random.Random) -> None:
        """Change bytes of a shard on the disk, or remove it."""
        shards = sorted((self.folder.dir / "shards").iterdir())
        path = dice.choice(shards)
        try:
            content = path.read_bytes()
            if dice.random() < 0.3:
                path.unlink()
                return
            with path.open("r+b") as file:
                for at in range(dice.randrange(5000), len(content), 5000):
                    if content[at]:  # a hole, which takes no room, stays one
                        os.pwrite(file.fileno(), bytes([content[at] ^ 0x55]), at)
        except FileNotFoundError:  # it was evicted
            return

    def close(self) -> None:
        self._trainer.kill()
        self._is_over.set()
        self._watch.join()


@pytest.fixture(scope="module")
def columns(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 faces in 5 Parquet files of 3 row groups each, of which some columns are needed."""
    images = [path.read_bytes() for path in sorted(faces.glob("*/*.jpg"))[:50]]
    return write_wide_parquets(tmp_path_factory.mktemp("columns"), COLUMNS, images)


@pytest.fixture
def shards(schedule: int, tars: Path, columns: Path) -> tuple[Path, list[str]]:
    """The folder of the store, and its shards: tars for even schedules, Parquet files for odd."""
    return (columns, COLUMNS) if schedule % 2 else (tars, NAMES)


@pytest.fixture
def digests(shards: tuple[Path, list[str]], tmp_path: Path) -> dict[int, int]:
    """The digest of each sample's pixels, from the shards as they are in the store."""
    root, names = shards
    data = {
        "source": "parquet" if root.name.startswith("columns") else "webdataset",
        "shards": [f"{root}/{name}" for name in sorted(names)],
    }
    with load({"data": data, "pipeline": STEPS}, engine="dataloader", workers=0) as loader:
        names = [loader.index.location(row) for row in range(len(loader.index))]
        paths = list(dict.fromkeys(name.rpartition(":")[0] for name in names))
        found: dict[int, int] = {}
        counts = dict.fromkeys(paths, 0)
        by_row = {
            id: zlib.crc32(image.numpy().tobytes())
            for batch in loader
            for id, image in zip(batch["id"].tolist(), batch["image"], strict=True)
        }
        for row, name in enumerate(names):
            path = name.rpartition(":")[0]
            found[(paths.index(path) << 32) + counts[path]] = by_row[row]
            counts[path] += 1
    return found


@pytest.fixture
def store(shards: tuple[Path, list[str]]) -> Iterator[StoreProcess]:
    process = StoreProcess(shards[0])
    yield process
    process.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    disk = PowerDisk(tmp_path / "disk")
    yield disk
    disk.close()


@pytest.fixture
def training(
    config: Config,
    store: StoreProcess,
    shards: tuple[Path, list[str]],
    digests: dict[int, int],
    disk: PowerDisk,
) -> Iterator[Run]:
    """A training over HTTP."""
    root, names = shards
    max_bytes = MAX_BYTES["columns" if root.name.startswith("columns") else "tars"]
    settings = config(url=store.url, shards=names, max_bytes=max_bytes, low_water=0.6)
    settings["data"]["cache"] |= PATIENCE | {"dir": str(disk.folder / "cache")}
    settings["pipeline"] = STEPS
    run = Run(settings, digests)
    yield run
    run.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_sample_comes_once_an_epoch_whatever_happens(
    training: Run, store: StoreProcess, disk: PowerDisk, schedule: int
) -> None:
    go_through(training, store, disk, schedule)
    if schedule % 2:
        assert len(listing.load(training.folder)) > 2 * 5  # each file came in parts


@pytest.mark.skipif(not IS_FULL, reason="a minute; one schedule of other shards runs always")
@pytest.mark.parametrize("schedule", range(10))
def test_rows_of_zarr_folders_come_once_an_epoch_whatever_happens(
    config: Config, tmp_path: Path, disk: PowerDisk, schedule: int
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 70, 70, 3), np.uint8)
    images[8:12] = 0  # they have no chunk
    root: Any = zarr.open_group(tmp_path / "store/x.zarr", mode="w")
    root.create_array("images", data=images, chunks=(4, 70, 35, 3))
    rows = 12
    digests = {
        (row // rows << 32) + row % rows: zlib.crc32(image.tobytes())
        for row, image in enumerate(images)
    }
    settings = config(shards="*.zarr", max_bytes=MAX_BYTES["tars"], low_water=0.6)
    settings["data"]["cache"] |= PATIENCE | {"shard_size": rows * images[0].nbytes}
    settings["data"]["cache"]["dir"] = str(disk.folder / "cache")
    settings["pipeline"] = []
    store = StoreProcess(tmp_path / "store")
    settings["data"] |= {"url": store.url, "fields": {"image": "images"}}
    training = Run(settings, digests)
    try:
        go_through(training, store, disk, schedule)
    finally:
        training.close()
        store.close()


def go_through(training: Run, store: StoreProcess, disk: PowerDisk, schedule: int) -> None:
    """Train while the disasters of a schedule happen.

    Where no disk can be mounted whose power fails, all processes are killed in place of that.
    """
    dice = random.Random(schedule)
    training.train()
    for disaster in dice.choices(range(7), k=12) if IS_FULL else (5, 6, 1, 3, 5, 4):
        match disaster:
            case 0:
                training.kill_trainer()
            case 1:
                training.kill_fetchers()
            case 2:  # the store is down for a while
                store.plan("errors", "", dice.randrange(1, 4))
            case 3:
                store.plan("cuts", "", dice.randrange(1, 4))
            case 4:
                training.kill_trainer(dice)
            case 5:
                store.restart()
            case 6:
                training.cut_power(disk)
        training.train()
    limit = training.folder.options.max_bytes
    assert 0 < training.max_bytes <= limit
    complete = {epoch for epoch in training.epochs if epoch < max(training.epochs)}
    log = training.folder.commit_log
    log.refresh()
    for epoch in complete & training.generations.keys():
        shards = log.live_shards(training.generations[epoch])
        assert len(training.epochs[epoch]) == sum(s.samples for s in shards.values())
