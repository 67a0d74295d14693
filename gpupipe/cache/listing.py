"""The rows of a remote data set: names, labels, sizes, versions and weights.

The listing is written to the cache folder once, so a row's number is its sample's id forever. The
version of a file changes with the file: its ETag, MD5 or modification time, as the store reports.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.shard_files import ShardSample
from gpupipe.cache.shared_files import disk_size
from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.table_file import count_bytes, open_table, write_table
from gpupipe.errors import DataError

T = TypeVar("T")
UNKNOWN = -1
"""The size of a file whose size the store does not report."""
_LABELS = {
    "ETag": "ETag",
    "etag": "ETag",
    "md5Hash": "MD5",
    "blob_id": "blob",
    "generation": "generation",
    "mtime": "mtime",
    "Last-Modified": "Last-Modified",
    "LastModified": "Last-Modified",
    "last_modified": "Last-Modified",
    "created": "created",
    "Content-MD5": "MD5",
}
"""For keys in fsspec's description of a file, their names in messages; the best key is first.

What the description has under these keys changes when the file changes.
"""
_MD5 = re.compile(r"[0-9a-f]{32}")


class StoredFile(NamedTuple):
    """A file of a store, in the version that was listed.

    Attributes:
        name: Path under the data set's url.
        size: Bytes; -1 if unknown.
        tag: The hash of the version, from `hash_file_version`; 0 if unknown.
        version: The version, from `file_version`, for messages; "" if unknown.
    """

    name: str
    size: int = UNKNOWN
    tag: int = 0
    version: str = ""


@dataclass(frozen=True)
class Listing:
    """The N rows of a remote data set.

    Attributes:
        names: Names of the files under the data set's url.
        labels: int64 (N,), indices into `classes`; -1 if samples have no class.
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

    def get_file(self, row: int) -> StoredFile:
        """Return the file of row `row`."""
        return StoredFile(
            self.names[row], int(self.sizes[row]), int(self.tags[row]), self.versions[row]
        )

    def get_sample(self, row: int) -> ShardSample:
        """Return row `row` as a sample to write to a shard."""
        label = int(self.labels[row])
        metadata = json.loads(self.metadata[row]) if len(self.metadata) else {}
        if label >= 0:
            metadata = {"class": self.classes[label]} | metadata
        return ShardSample(row, self.names[row], label, metadata)


def is_listed(folder: CacheFolder) -> bool:
    """Return whether the listing of the data set is in the cache folder."""
    return folder.listing_path.exists()


def save(listing: Listing, folder: CacheFolder) -> None:
    """Save the listing in the cache folder. The caller must hold the cache's lock.

    Args:
        listing: The rows.
        folder: The cache.

    Raises:
        DataError: The listing does not fit under max_bytes.
    """
    save_table(listing, folder.listing_path, f"the list of {len(listing):,} samples", folder)


def save_table(table: Any, path: Path, described: str, folder: CacheFolder) -> None:
    """Save a table of the store's objects. The caller must hold the cache's lock.

    Args:
        table: A dataclass, as write_table() takes it.
        path: Its file in the cache.
        described: What it is, for an error.
        folder: The cache.

    Raises:
        DataError: The table does not fit under max_bytes.
    """
    size = disk_size(count_bytes(table))
    if folder.count_bytes() + size > folder.options.max_bytes:
        raise DataError(
            f"{described} takes {size:,} bytes, and data.cache.max_bytes is "
            f"{folder.options.max_bytes:,}: make it larger"
        )
    write_table(path, table, is_durable=True)


def load(folder: CacheFolder) -> Listing:
    """Return the saved listing, with its arrays memory-mapped.

    Raises:
        DataError: The saved listing is damaged or missing.
    """
    return load_table(folder.listing_path, Listing, "the list of the samples")


def load_table(path: Path, model: type[T], described: str) -> T:
    """Return what `save_table` has saved, with its arrays memory-mapped.

    Args:
        path: Its file in the cache.
        model: The class of the dataclass.
        described: What it is, for an error.

    Raises:
        DataError: The file is damaged or missing.
    """
    try:
        return open_table(path, model)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise DataError(
            f"{path}: {described} is damaged ({e}): delete the cache's folder, and it is filled "
            "again"
        ) from e


# --- versions of files


def hash_version(version: str) -> int:
    """Return a 64-bit hash of a file's version, or 0 if and only if `version` is empty.

    Quotes around the version are ignored.
    """
    if not version:
        return 0
    digest = hashlib.blake2b(version.strip('"').encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


def _list_versions(info: dict[str, Any]) -> list[tuple[str, str]]:
    """Return kind and value of each version of a file, such as ("ETag", "4f2a"), best first."""
    return [
        (label, str(info[key]).removeprefix("W/").strip('"'))
        for key, label in _LABELS.items()
        if info.get(key)
    ]


def file_version(info: dict[str, Any]) -> str:
    """Return the best version of a file with its kind, such as "ETag 4f2a".

    Args:
        info: fsspec's description of the file.

    Returns:
        The version, or "" if the store reports none.
    """
    return next((f"{label} {text}" for label, text in _list_versions(info)), "")


def hash_file_version(info: dict[str, Any]) -> int:
    """Return the hash of a file's best version; 0 if the store reports none.

    Only the value is hashed, such as "4f2a", and not its kind, such as "ETag".
    """
    return next((hash_version(text) for _, text in _list_versions(info)), 0)


def has_version(info: dict[str, Any], version_hash: int) -> bool:
    """Return whether a version in fsspec's description of a file has the hash `version_hash`."""
    return any(hash_version(text) == version_hash for _, text in _list_versions(info))


def find_size(info: dict[str, Any]) -> int:
    """Return the bytes of a file, from fsspec's description of it; -1 if it does not tell them."""
    size = info.get("size")
    return size if type(size) is int and size >= 0 else UNKNOWN


def describe_change(listed: str, info: dict[str, Any]) -> str:
    """Return how a file's version changed, such as "ETag a, now b".

    Args:
        listed: The `file_version` in the listing; "" if it is unknown.
        info: fsspec's current description of the file.
    """
    now = file_version(info) or "not known"
    if not listed:
        return f"its version is now {now}"
    return f"{listed}, now {now.removeprefix(listed.partition(' ')[0]).lstrip()}"


def find_etag_md5(info: dict[str, Any]) -> str | None:
    """Return the ETag of an object in S3 if it has the form of an MD5, 32 hex digits; else None.

    The ETag of a multipart upload has a dash, so the result is None. The ETag of an encrypted
    object may have the form of an MD5 without being the MD5 of the content. It is returned too, so
    the caller must check whether the object is encrypted.
    """
    etag = str(info.get("ETag") or "").strip('"')
    return etag if _MD5.fullmatch(etag) else None
