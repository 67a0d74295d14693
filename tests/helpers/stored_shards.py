"""Shards as stores have them, of each format, and what a cache of them holds."""

import io
import json
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpupipe.cache import stored_table
from gpupipe.cache.cache_folder import CacheFolder
from helpers import tfrecords

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


def write_parquet(path: Path, images: list[bytes], first: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    numbers = range(first, first + len(images))
    table = pa.table({"image": images, "label": list(numbers), "v": [n / 2 for n in numbers]})
    pa.parquet.write_table(table, path, row_group_size=3)


def write_wide_parquets(root: Path, names: Sequence[str], images: list[bytes]) -> Path:
    """Write Parquet files of 10 images each, with columns that no config needs. Return `root`."""
    for n, name in enumerate(names):
        _write_wide_parquet(root / name, images[10 * n : 10 * n + 10], 10 * n)
    return root


def _write_wide_parquet(path: Path, images: list[bytes], first: int) -> None:
    """Write a shard with a column that no config needs, before and after those that are needed."""
    import pyarrow as pa
    import pyarrow.parquet

    numbers = range(first, first + len(images))
    noise = [np.random.default_rng(n).bytes(40_000) for n in numbers]
    named = [{"bytes": image, "path": f"{n}.jpg"} for n, image in zip(numbers, images, strict=True)]
    table = pa.table({"before": noise, "image": named, "label": list(numbers), "after": noise})
    pa.parquet.write_table(table, path, row_group_size=4, write_page_checksum=True)


def write_tfrecord(path: Path, images: list[bytes], first: int) -> None:
    records = [
        tfrecords.record(
            tfrecords.images(image),
            tfrecords.entry("image/class/label", tfrecords.field(3, b"\x08" + bytes([n]))),
            tfrecords.entry("v", tfrecords.field(3, b"\x08" + bytes([n]))),
        )
        for n, image in enumerate(images, first)
    ]
    path.write_bytes(tfrecords.framed(*records))


def write_mds(path: Path, images: list[bytes], first: int) -> None:
    """Write a shard as Streaming does: see tests/formats/test_mds.py for one of its own."""
    config = {
        "column_names": ["image", "label", "v"],
        "column_encodings": ["jpeg", "int", "float64"],
        "column_sizes": [None, 8, 8],
        "format": "mds",
    }
    text = json.dumps(config).encode()
    samples = [
        struct.pack("<I", len(image)) + image + struct.pack("<qd", n, n / 2)
        for n, image in enumerate(images, first)
    ]
    head = 4 * (len(samples) + 2) + len(text)
    offsets = np.cumsum([head, *map(len, samples)]).astype("<u4")
    path.write_bytes(struct.pack("<I", len(samples)) + offsets.tobytes() + text + b"".join(samples))


def write_npz(path: Path, images: list[bytes], first: int) -> None:
    """Write rows of numbers, which begin with the number of the sample."""
    rows = np.arange(first, first + len(images), dtype=np.float32)[:, None] + np.zeros((1, 5))
    np.savez(path, x=rows.astype(np.float32), y=np.arange(first, first + len(images)))


def write_npy(path: Path, images: list[bytes], first: int) -> None:
    rows = np.arange(first, first + len(images), dtype=np.float32)[:, None, None]
    np.save(path, np.broadcast_to(rows, (len(images), 2, 3)))


def write_hdf5(path: Path, images: list[bytes], first: int) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        rows = file.create_dataset("image", (len(images),), h5py.vlen_dtype(np.uint8))
        for n, image in enumerate(images):
            rows[n] = np.frombuffer(image, np.uint8)
        file["label"] = np.arange(first, first + len(images))
        file["v"] = np.arange(first, first + len(images)) / 2


WRITERS = {
    "parquet": write_parquet,
    "tfrecord": write_tfrecord,
    "mds": write_mds,
    "npz": write_npz,
    "npy": write_npy,
    "h5": write_hdf5,
}
"""What writes a shard of each format, by its ending."""
