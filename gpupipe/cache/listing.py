"""The rows of a remote data set: names, labels, sizes, versions and weights.

The listing is written to the cache folder once, so a row's number is its sample's id forever. Each
column is an .npy file of its own. listing.json is written last: it says that they are all there.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.disk import disk_size
from gpupipe.cache.shard_files import ShardSample
from gpupipe.dataset.strings import StringArray
from gpupipe.dataset.table_file import compute_checksum
from gpupipe.errors import DataError
from gpupipe.runtime.files import write_atomically

UNKNOWN = -1
"""The size of a file whose size the store does not report."""
_DTYPES: dict[str, type] = {
    "names.letters": np.uint8,
    "names.ends": np.int64,
    "about.letters": np.uint8,
    "about.ends": np.int64,
    "labels": np.int64,
    "sizes": np.int64,
    "tags": np.uint64,
    "weights": np.float64,
}


@dataclass(frozen=True)
class Listing:
    """The N rows of a remote data set.

    Attributes:
        names: Names of the files under the data set's url.
        labels: int64 (N,), indices into `classes`.
        sizes: int64 (N,), bytes; -1 if unknown.
        tags: uint64 (N,), hash of the file's version (ETag...); 0 if unknown.
        versions: The version of each file with its kind, such as "ETag 4f2a"; "" if unknown.
        weights: float64 (N,), or (0,) if all rows weigh the same.
        metadata: Further columns of the manifest, as a JSON object for each row; or empty.
        classes: Names of the classes.
        fingerprint: Hash of names, labels and classes.
        values: Columns that are delivered with the samples, (N,) each, by name.
    """

    names: StringArray
    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags: NDArray[np.uint64]
    weights: NDArray[np.float64]
    metadata: StringArray
    classes: list[str]
    fingerprint: str
    versions: StringArray
    values: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def get_sample(self, row: int) -> ShardSample:
        """Return row `row` as a sample to write to a shard."""
        label = int(self.labels[row])
        metadata = json.loads(self.metadata[row]) if len(self.metadata) else {}
        return ShardSample(row, self.names[row], label, {"class": self.classes[label]} | metadata)


def compute_fingerprint(names: StringArray, labels: NDArray[np.int64], classes: list[str]) -> str:
    """Return a hash that decides whether a resume finds the same data set.

    Args:
        names: Names of the files.
        labels: int64 (N,), indices into `classes`.
        classes: Names of the classes.

    Returns:
        128-bit BLAKE2b in hexadecimal.
    """
    digest = hashlib.blake2b(json.dumps(classes).encode(), digest_size=16)
    for array in (*names.fingerprint_parts, labels):
        digest.update(array.tobytes())
    return digest.hexdigest()


def hash_version(version: str) -> int:
    """Return the version of a file as a 64-bit number other than 0, or 0 if `version` is empty.

    Quotes around the version are ignored.
    """
    return (
        int.from_bytes(
            hashlib.blake2b(version.strip('"').encode(), digest_size=8).digest(), "little"
        )
        | 1
        if version
        else 0
    )


def is_listed(folder: CacheFolder) -> bool:
    """Return whether the data set has been listed."""
    return (folder.dir / "listing" / "listing.json").exists()


def save(listing: Listing, folder: CacheFolder) -> None:
    """Save the listing in the cache folder. Needs the lock.

    Args:
        listing: The rows.
        folder: The cache.

    Raises:
        DataError: The listing does not fit under max_bytes.
    """
    directory = folder.dir / "listing"
    arrays: dict[str, NDArray[Any]] = {
        **_string_arrays("names", listing.names),
        **_string_arrays("about", listing.metadata),
        **_string_arrays("versions", listing.versions),
        "labels": listing.labels,
        "sizes": listing.sizes,
        "tags": listing.tags,
        "weights": listing.weights,
    }
    arrays |= {f"values.{number}": array for number, array in enumerate(listing.values.values())}
    size = sum(disk_size(array.nbytes + 128) for array in arrays.values())
    if folder.count_bytes() + size > folder.options.max_bytes:
        raise DataError(
            f"the list of {len(listing):,} samples takes {size:,} bytes, and "
            f"data.cache.max_bytes is {folder.options.max_bytes:,}: make it larger"
        )
    for name, array in arrays.items():
        with write_atomically(directory / f"{name}.npy") as path, path.open("xb") as f:
            np.save(f, array, allow_pickle=False)
    header = {
        "classes": listing.classes,
        "fingerprint": listing.fingerprint,
        "rows": len(listing),
        "values": list(listing.values),
        "checksums": {name: compute_checksum(array) for name, array in arrays.items()},
    }
    with write_atomically(directory / "listing.json") as temporary:
        temporary.write_text(json.dumps(header | {"crc": _compute_crc(header)}))


def _compute_crc(header: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(header).encode())


def _string_arrays(key: str, strings: StringArray) -> dict[str, NDArray[Any]]:
    data, ends = strings.fingerprint_parts
    return {f"{key}.letters": data, f"{key}.ends": ends}


def load(folder: CacheFolder) -> Listing:
    """Return the saved listing, with large arrays memory-mapped.

    Raises:
        DataError: The saved listing is damaged or missing.
    """
    directory = folder.dir / "listing"
    try:
        header = _read_header(directory)
        checksums = header.get("checksums", {})
        arrays = {
            name: _load_array(directory / f"{name}.npy", dtype, checksums.get(name))
            for name, dtype in _DTYPES.items()
        }
        names, metadata = (
            StringArray.from_ends(arrays.pop(f"{name}.letters"), arrays.pop(f"{name}.ends"))
            for name in ("names", "about")
        )
        values = {
            name: _load_array(
                directory / f"values.{number}.npy", None, checksums.get(f"values.{number}")
            )
            for number, name in enumerate(header["values"])
        }
        listing = Listing(
            names=names,
            metadata=metadata,
            **arrays,
            classes=header["classes"],
            fingerprint=header["fingerprint"],
            versions=_load_versions(directory, header["rows"], checksums),
            values=values,
        )
        if (
            not len(listing.names)
            == len(listing.labels)
            == len(listing.sizes)
            == len(listing.tags)
            == len(listing.versions)
            == header["rows"]
        ):
            raise ValueError("columns of different lengths")
    except (OSError, ValueError, KeyError, TypeError, EOFError) as e:
        raise DataError(
            f"{directory}: the list of the samples is damaged ({e}): delete the cache's folder, "
            "and it is filled again"
        ) from e
    return listing


def _read_header(directory: Path) -> dict[str, Any]:
    """Return what listing.json holds. A listing of an earlier version has no checksums."""
    header: dict[str, Any] = json.loads((directory / "listing.json").read_bytes())
    crc = header.pop("crc", None)
    if crc is not None and crc != _compute_crc(header):
        raise ValueError("listing.json: its checksum differs")
    return header


def _load_versions(directory: Path, rows: int, checksums: dict[str, int]) -> StringArray:
    """Return the versions; those that an earlier version of gpupipe listed have no texts."""
    if not (directory / "versions.ends.npy").exists():
        return StringArray(np.empty(0, np.uint8), np.zeros(rows + 1, np.int64))
    letters, ends = (
        _load_array(directory / f"{name}.npy", dtype, checksums.get(name))
        for name, dtype in (("versions.letters", np.uint8), ("versions.ends", np.int64))
    )
    return StringArray.from_ends(letters, ends)


def _load_array(path: Path, dtype: type | None, checksum: int | None) -> NDArray[Any]:
    array: NDArray[Any] = np.load(
        path, mmap_mode="r" if path.stat().st_size > 4096 else None, allow_pickle=False
    )
    if (dtype is not None and array.dtype != dtype) or array.ndim != 1:
        raise ValueError(f"{path.name} holds {array.dtype}")
    if checksum is not None and compute_checksum(array) != checksum:
        raise ValueError(f"{path.name}: its checksum differs")
    return array
