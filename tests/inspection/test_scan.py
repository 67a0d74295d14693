"""Results are saved part by part, and read again until a file changes."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpupipe import config as configs
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.fill import Filler
from gpupipe.cache.store import Store
from gpupipe.errors import GpupipeError
from gpupipe.inspection.scan import scan
from gpupipe.runtime.progress import ignore_progress
from inspection.conftest import LONG_AGO, Planted


def write_files(root: Path, count: int) -> list[Path]:
    """PNGs in one class, last changed long ago."""
    folder = root / "train" / "0"
    folder.mkdir(parents=True)
    files = [folder / f"{n:03}.png" for n in range(count)]
    for n, file in enumerate(files):
        Image.new("L", (20 + n % 7, 10)).save(file)
        os.utime(file, (LONG_AGO, LONG_AGO))
    return files


def spoil(file: Path, changed: int) -> None:
    """Overwrite a file with as many bytes of no image."""
    file.write_bytes(bytes(file.stat().st_size))
    os.utime(file, (changed, changed))


def test_a_scan_goes_on_after_an_interrupt_and_reads_changed_parts_again(
    tmp_path: Path, cache: Path
) -> None:
    files = write_files(tmp_path, 300)
    config = configs.read(Planted(tmp_path).config("train"))
    index = config.source.index()

    def interrupt(activity: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan("train", config, index, True, interrupt)
    assert len(list(cache.glob("inspect/*/0-8.npz"))) == 1
    spoil(files[0], LONG_AGO)  # with the same size and time: the saved part still holds
    after = scan("train", config, index, True, ignore_progress)
    assert after.errors == {}
    assert after.facts["width"].tolist() == [20 + n % 7 for n in range(300)]
    spoil(files[0], LONG_AGO + 1)
    (row,) = scan("train", config, index, True, ignore_progress).errors
    assert row == 0


def test_only_the_samples_of_the_subset_are_looked_at(tmp_path: Path) -> None:
    write_files(tmp_path, 30)
    ids = []
    for name in ("train", "val"):
        settings = {"split": {"train": 0.8, "val": 0.2}, "subset": name}
        config = configs.read(Planted(tmp_path).config("train") | {"loader": settings})
        part = scan(name, config, config.source.index(), True, ignore_progress)
        assert part.facts["width"].tolist() == [20 + n % 7 for n in part.ids.tolist()]
        ids.append(part.ids.tolist())
    assert sorted(ids[0] + ids[1]) == list(range(30))
    assert len(ids[1]) == 6


def test_only_the_samples_that_are_in_a_growing_cache_are_looked_at(tmp_path: Path) -> None:
    write_files(tmp_path, 30)
    cached = {"dir": str(tmp_path / "cache"), "max_bytes": "1MB", "shard_size": "500B"}
    data = {"source": "remote", "url": (tmp_path / "train").as_uri(), "cache": cached}
    config = configs.read({"data": data, "pipeline": ["decode"]})
    source: Any = config.source
    index = source.index()
    store = Store(source.dataset, 1, 5.0, pause=lambda seconds: None)
    Filler(CacheFolder(source.cache), source.dataset, store).publish_shard()
    part = scan("train", config, index, True, ignore_progress)
    assert 0 < len(part.ids) < 30
    assert part.errors == {}
    assert part.facts["width"].tolist() == [20 + n % 7 for n in part.ids.tolist()]


def test_a_damaged_part_is_made_again(tmp_path: Path, cache: Path) -> None:
    write_files(tmp_path, 3)
    planted = Planted(tmp_path)
    planted.scan("train", headers_only=True)
    (saved,) = cache.glob("inspect/*/*.npz")
    content = saved.read_bytes()
    for damaged in (b"", content[:-30], content[:100] + bytes(50) + content[150:]):
        saved.write_bytes(damaged)
        assert planted.scan("train", headers_only=True).facts["width"].tolist() == [20, 21, 22]


def test_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 8, 8), np.uint8))
    data = {"source": "numpy", "files": str(tmp_path / "x.npy"), "rows": True, "layout": "CHW"}
    config = configs.read({"data": data, "pipeline": [{"resize": {"size": 8}}]})
    with pytest.raises(GpupipeError, match="arrays"):
        scan("train", config, config.source.index(), True, ignore_progress)
