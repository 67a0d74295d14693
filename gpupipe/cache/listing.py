"""The rows of a remote data set, kept in the cache's folder: their names, labels, sizes, versions and weights. Made once: a row's number is an id for good."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.disk import on_disk, replaced
from gpupipe.cache.folder import Folder
from gpupipe.cache.shards import Sample
from gpupipe.errors import DataError

UNKNOWN = -1
_ARRAYS: dict[str, type] = {
    "names": np.uint8, "ends": np.int64, "labels": np.int64, "sizes": np.int64, "tags": np.uint64, "weights": np.float64, "about": np.uint8, "about_ends": np.int64,
}  # fmt: skip


@dataclass(frozen=True)
class Listing:
    """A data set of N rows.

    names: uint8 (bytes,), UTF-8, all behind one another; ends: int64 (N,), where each ends. labels: int64 (N,), numbers of `classes`.
    sizes: int64 (N,), bytes, -1 where the store was not asked; tags: uint64 (N,), a hash of what tells a version of a file (ETag...), 0: not known.
    weights: float64 (N,) or (0,): all the same. about: uint8 (bytes,) and about_ends: JSON of further columns, or empty.
    """

    names: NDArray[np.uint8]
    ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags: NDArray[np.uint64]
    weights: NDArray[np.float64]
    about: NDArray[np.uint8]
    about_ends: NDArray[np.int64]
    classes: list[str]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, row: int) -> str:
        """Under the data set's url."""
        return _text(self.names, self.ends, row)

    def sample(self, row: int) -> Sample:
        label = int(self.labels[row])
        about = json.loads(_text(self.about, self.about_ends, row)) if len(self.about_ends) else {}
        return Sample(row, self.name(row), label, {"class": self.classes[label]} | about)


def _text(letters: NDArray[np.uint8], ends: NDArray[np.int64], row: int) -> str:
    return letters[ends[row - 1] if row else 0 : ends[row]].tobytes().decode()


def packed(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Texts behind one another, and where each ends."""
    encoded = [t.encode() for t in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([len(e) for e in encoded], dtype=np.int64)


def fingerprint(names: NDArray[np.uint8], ends: NDArray[np.int64], labels: NDArray[np.int64], classes: list[str]) -> str:
    """What makes two data sets the same for a resume."""
    digest = hashlib.blake2b(json.dumps(classes).encode(), digest_size=16)
    for array in (names, ends, labels):
        digest.update(array.tobytes())
    return digest.hexdigest()


def tag(version: str) -> int:
    """A version as a number that is not 0; 0 for none."""
    return int.from_bytes(hashlib.blake2b(version.strip('"').encode(), digest_size=8).digest(), "little") | 1 if version else 0


def is_there(folder: Folder) -> bool:
    """Whether the data set was listed before."""
    return (folder.dir / "listing" / "listing.json").exists()


def save(listing: Listing, folder: Folder) -> None:
    """Keep it. Raises DataError where it does not fit into the cache. Needs the lock."""
    place = folder.dir / "listing"
    size = sum(on_disk(getattr(listing, name).nbytes + 128) for name in _ARRAYS)
    if folder.usage() + size > folder.options.max_bytes:
        raise DataError(f"the list of {len(listing):,} samples takes {size:,} bytes, and data.cache.max_bytes is {folder.options.max_bytes:,}: make it larger")
    for name in _ARRAYS:
        array = getattr(listing, name)
        replaced(place / f"{name}.npy", lambda path, array=array: _save(path, array))  # type: ignore[misc]  # mypy takes no default of a lambda
    text = json.dumps({"classes": listing.classes, "fingerprint": listing.fingerprint, "rows": len(listing)})
    replaced(place / "listing.json", lambda path: path.write_text(text) and None)


def _save(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as f:
        np.save(f, array, allow_pickle=False)


def opened(folder: Folder) -> Listing:
    """The listing that was kept, memory-mapped. Raises DataError where it is damaged."""
    place = folder.dir / "listing"
    try:
        about = json.loads((place / "listing.json").read_bytes())
        arrays = {name: _array(place / f"{name}.npy", kind) for name, kind in _ARRAYS.items()}
        found = Listing(**arrays, classes=about["classes"], fingerprint=about["fingerprint"])
        if not len(found.ends) == len(found.labels) == len(found.sizes) == len(found.tags) == about["rows"]:
            raise ValueError("columns of different lengths")
    except (OSError, ValueError, KeyError, TypeError, EOFError) as e:
        raise DataError(f"{place}: the list of the samples is damaged ({e}): delete the cache's folder, and it is filled anew") from e
    return found


def _array(path: Path, kind: type) -> NDArray[Any]:
    found: NDArray[Any] = np.load(path, mmap_mode="r" if path.stat().st_size > 4096 else None, allow_pickle=False)
    if found.dtype != kind or found.ndim != 1:
        raise ValueError(f"{path.name} holds {found.dtype}")
    return found
