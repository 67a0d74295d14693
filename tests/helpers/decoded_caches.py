"""What tests of the decoded cache share: a folder in memory of their own, and its files."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gpupipe.decoded_cache.cache_file import create_file
from gpupipe.decoded_cache.layout import CacheHeader, Counters
from gpupipe.decoded_cache.location import list_files
from gpupipe.decoded_cache.record_file import RecordFile

MEMORY = {"where": "memory", "max_bytes": "200MB"}
DISK = {"where": "disk", "max_bytes": "200MB"}


@pytest.fixture(autouse=True)
def shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder in /dev/shm for the caches of one test, and one on the disk."""
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache-of-test"))
    folder = Path(tempfile.mkdtemp(prefix="tests-decoded-cache-", dir="/dev/shm"))
    monkeypatch.setenv("GPUPIPE_SHM", str(folder))
    yield folder
    shutil.rmtree(folder)


def the_file(where: str = "memory") -> Path:
    """The only cache file."""
    (path,) = list_files(where)
    return path


def counters(where: str = "memory") -> Counters:
    """How full the only cache file is."""
    table = RecordFile(the_file(where), 1)
    try:
        return table.read_counters()
    finally:
        table.close()


def new_file(path: Path, size: int = 1_000_000, slots: int = 256, samples: int = 10) -> RecordFile:
    """An empty file of records."""
    create_file(path, CacheHeader(b"k" * 16, size, slots, 4096 + 64 * slots, {}))
    return RecordFile(path, samples)


def key(number: int) -> bytes:
    """A hash of a sample."""
    return np.random.default_rng(number).bytes(16)


def picture(number: int, height: int = 20, width: int = 30) -> NDArray[np.uint8]:
    """The pixels of a sample."""
    random = np.random.default_rng(number)
    return random.integers(0, 256, (height, width, 3), np.uint8)


def epochs_of(loader: Any, count: int) -> list[list[dict[str, torch.Tensor]]]:
    """All batches of some epochs; closes the loader."""
    with loader:
        return [
            [{name: tensor.clone() for name, tensor in batch.items()} for batch in loader]
            for _ in range(count)
        ]


def are_equal(first: Any, second: Any) -> bool:
    """Whether two results of `epochs_of` are the same to the bit."""
    pairs = [
        (a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    return all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in pairs)
