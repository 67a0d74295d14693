"""Shards as stores have them: tars of faces, and what a cache of them holds."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

from gpupipe.cache import stored_table
from gpupipe.cache.cache_folder import CacheFolder

PATTERN = "**/*.tar"
NAMES = [f"{'ab'[n % 2]}/{n:03}.tar" for n in range(6)]
"""The paths of the shards. Their order by name is not that of their numbers."""


def write_tar(path: Path, samples: list[dict[str, bytes]], first: int = 0) -> None:
    """Write samples, each a content by ending, to a tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for n, sample in enumerate(samples, first):
            for ending, content in sample.items():
                info = tarfile.TarInfo(f"s/{n:06}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def write_tars(root: Path, faces: Path) -> Path:
    """Write 60 faces to 6 shards: 10 + n - 2.5 of them to shard n. The label is the number."""
    images = [path.read_bytes() for path in sorted(faces.glob("*/*.jpg"))[:60]]
    ends = np.cumsum([0, 7, 9, 9, 11, 12, 12]).tolist()
    for name, begin, end in zip(NAMES, ends[:-1], ends[1:], strict=True):
        numbers = range(begin, end)
        samples = [{"jpg": images[n], "cls": str(n).encode()} for n in numbers]
        write_tar(root / name, samples, begin)
    return root


def cached(folder: CacheFolder) -> dict[str, Path]:
    """The files of the published shards, by name, once all of them were found whole."""
    reader = CacheFolder(folder.options)
    reader.commit_log.refresh()
    files = {}
    for name, shard in reader.commit_log.live_shards().items():
        files[name] = reader.shard_path(name)
        assert stored_table.hash_files(*reader.list_shard_paths(name)) == shard.hash
        assert len(stored_table.load_table(reader.table_path(name))) == shard.samples
    return files
