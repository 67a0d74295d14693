"""The rows of a remote data set, kept in the cache's folder: their names, labels, sizes, versions
and weights. Made once: a row's number is an id for good.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.disk import on_disk, replaced
from gpupipe.cache.folder import CacheFolder
from gpupipe.cache.shard_files import ShardSample
from gpupipe.dataset.index import StringArray
from gpupipe.errors import DataError

UNKNOWN = -1
_ARRAYS: dict[str, type] = {
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
    """A data set of N rows.

    names: of the files, under the data set's url. labels: int64 (N,), numbers of `classes`. about:
    JSON of further columns, of no row or of each. sizes: int64 (N,), bytes, -1 where the store was
    not asked; tags: uint64 (N,), a hash of what tells a version of a file (ETag...), 0: not known.
    weights: float64 (N,), or (0,) where all are the same. values: (N,) each, what is delivered with
    the samples.
    """

    names: StringArray
    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags: NDArray[np.uint64]
    weights: NDArray[np.float64]
    about: StringArray
    classes: list[str]
    fingerprint: str
    values: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def sample(self, row: int) -> ShardSample:
        label = int(self.labels[row])
        about = json.loads(self.about[row]) if len(self.about) else {}
        return ShardSample(row, self.names[row], label, {"class": self.classes[label]} | about)


def fingerprint(names: StringArray, labels: NDArray[np.int64], classes: list[str]) -> str:
    """What makes two data sets the same for a resume."""
    digest = hashlib.blake2b(json.dumps(classes).encode(), digest_size=16)
    for array in (names.letters, names.ends, labels):
        digest.update(array.tobytes())
    return digest.hexdigest()


def tag(version: str) -> int:
    """A version as a number that is not 0; 0 for none."""
    return (
        int.from_bytes(
            hashlib.blake2b(version.strip('"').encode(), digest_size=8).digest(), "little"
        )
        | 1
        if version
        else 0
    )


def is_there(folder: CacheFolder) -> bool:
    """Whether the data set was listed before."""
    return (folder.dir / "listing" / "listing.json").exists()


def save(listing: Listing, folder: CacheFolder) -> None:
    """Keep it. Raises DataError where it does not fit into the cache. Needs the lock."""
    place = folder.dir / "listing"
    arrays: dict[str, NDArray[Any]] = {name: attrgetter(name)(listing) for name in _ARRAYS}
    arrays |= {f"values.{number}": array for number, array in enumerate(listing.values.values())}
    size = sum(on_disk(array.nbytes + 128) for array in arrays.values())
    if folder.usage() + size > folder.options.max_bytes:
        raise DataError(
            f"the list of {len(listing):,} samples takes {size:,} bytes, and "
            f"data.cache.max_bytes is {folder.options.max_bytes:,}: make it larger"
        )
    for name, array in arrays.items():
        replaced(place / f"{name}.npy", partial(_save, array))
    text = json.dumps(
        {
            "classes": listing.classes,
            "fingerprint": listing.fingerprint,
            "rows": len(listing),
            "values": list(listing.values),
        }
    )
    replaced(place / "listing.json", lambda path: path.write_text(text))


def _save(array: NDArray[Any], path: Path) -> None:
    with path.open("wb") as f:
        np.save(f, array, allow_pickle=False)


def opened(folder: CacheFolder) -> Listing:
    """The listing that was kept, memory-mapped. Raises DataError where it is damaged."""
    place = folder.dir / "listing"
    try:
        about = json.loads((place / "listing.json").read_bytes())
        arrays = {name: _array(place / f"{name}.npy", kind) for name, kind in _ARRAYS.items()}
        names, further = (
            StringArray(arrays.pop(f"{name}.letters"), arrays.pop(f"{name}.ends"))
            for name in ("names", "about")
        )
        values = {
            name: _array(place / f"values.{number}.npy", None)
            for number, name in enumerate(about["values"])
        }
        found = Listing(
            names=names,
            about=further,
            **arrays,
            classes=about["classes"],
            fingerprint=about["fingerprint"],
            values=values,
        )
        if (
            not len(found.names)
            == len(found.labels)
            == len(found.sizes)
            == len(found.tags)
            == about["rows"]
        ):
            raise ValueError("columns of different lengths")
    except (OSError, ValueError, KeyError, TypeError, EOFError) as e:
        raise DataError(
            f"{place}: the list of the samples is damaged ({e}): delete the cache's folder, "
            "and it is filled anew"
        ) from e
    return found


def _array(path: Path, kind: type | None) -> NDArray[Any]:
    found: NDArray[Any] = np.load(
        path, mmap_mode="r" if path.stat().st_size > 4096 else None, allow_pickle=False
    )
    if (kind is not None and found.dtype != kind) or found.ndim != 1:
        raise ValueError(f"{path.name} holds {found.dtype}")
    return found
