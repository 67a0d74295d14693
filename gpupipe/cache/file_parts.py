"""The parts that files of a store are fetched in, each a shard: the row groups of Parquet files.

They are found in the end of each file, once, when the data set is listed.
"""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.file_end import FileEnd
from gpupipe.cache.listing import UNKNOWN, Listing, StoredFile, load_table, save_table
from gpupipe.cache.settings import CacheOptions
from gpupipe.cache.store import Store, StoreError, UnfetchableError
from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.source import FilePart, Source
from gpupipe.errors import DataError

_GAP = 1 << 16
"""So many bytes between two needed ranges of a file are fetched, too: it saves a request."""
_WHOLE_SHARE = 0.9
"""A file of which more is needed is fetched whole, so that its digest can be compared."""
_MIN_SHARDS = 8
"""A cache that could hold fewer shards of `shard_size` gets smaller ones."""
_MAX_SAMPLES = 1 << 32
_ATTEMPTS = 2
"""How often the end of a file is read that cannot be understood: it has no digest."""


@dataclass(frozen=True)
class FileParts:
    """Which part of its file each of the N shards of a listing is.

    Attributes:
        first_ids: The id of the first sample of each shard, ascending, int64 (N,).
        samples: The number of samples of each shard, int64 (N,); 0 if its end cannot be read.
        groups: The number in the file of its first group of samples, int64 (N,).
        shifts: How many bytes nearer to the beginning the part has its ranges, int64 (N,).
        beside: About how many bytes are written beside it, int64 (N,).
        starts: The first range of each shard, and R, int64 (N + 1,).
        ranges: Begin and end of each range in its file, int64 (R, 2).
        own_starts: The first of its own pieces of each shard, and P, int64 (N + 1,).
        own_places: The place in the part of each of these pieces, int64 (P,).
        own_begins: The first byte of each piece in `content`, and their sum, int64 (P + 1,).
        content: The bytes of all pieces.
    """

    first_ids: NDArray[np.int64]
    samples: NDArray[np.int64]
    groups: NDArray[np.int64]
    shifts: NDArray[np.int64]
    beside: NDArray[np.int64]
    starts: NDArray[np.int64]
    ranges: NDArray[np.int64]
    own_starts: NDArray[np.int64]
    own_places: NDArray[np.int64]
    own_begins: NDArray[np.int64]
    content: NDArray[np.uint8]

    def get(self, row: int) -> FilePart | None:
        """Return the part in a row of the listing; None if the end of its file was not read."""
        if not self.samples[row]:
            return None
        ranges = self.ranges[self.starts[row] : self.starts[row + 1]].tolist()
        own = range(int(self.own_starts[row]), int(self.own_starts[row + 1]))
        begins = self.own_begins
        return FilePart(
            int(self.samples[row]),
            int(self.groups[row]),
            [(begin, end) for begin, end in ranges],
            int(self.shifts[row]),
            [
                (int(self.own_places[n]), self.content[begins[n] : begins[n + 1]].tobytes())
                for n in own
            ],
            int(self.beside[row]),
        )

    def count_stored(self) -> NDArray[np.int64]:
        """Return how many bytes each part has of its file and of its own, int64 (N,)."""
        sizes = np.concatenate([[0], np.cumsum(self.ranges[:, 1] - self.ranges[:, 0])])
        stored: NDArray[np.int64] = np.diff(sizes[self.starts])
        return stored + np.diff(self.own_begins[self.own_starts])


def build_parts(files: Sequence[Sequence[FilePart]]) -> FileParts:
    """Return the parts of files, in order; a file without parts has one without samples."""
    unknown = [FilePart(0, 0, [], 0, [], 0)]
    every = [part for parts in files for part in parts or unknown]
    first = [
        (n << 32) + number
        for n, parts in enumerate(files)
        for number in itertools.accumulate([p.samples for p in parts][:-1], initial=0)
    ]
    own = [piece for part in every for piece in part.own]
    return FileParts(
        np.array(first, np.int64),
        np.array([part.samples for part in every], np.int64),
        np.array([part.group for part in every], np.int64),
        np.array([part.shift for part in every], np.int64),
        np.array([part.beside for part in every], np.int64),
        np.cumsum([0, *(len(part.ranges) for part in every)], dtype=np.int64),
        np.array([one for part in every for one in part.ranges], np.int64).reshape(-1, 2),
        np.cumsum([0, *(len(part.own) for part in every)], dtype=np.int64),
        np.array([place for place, _ in own], np.int64),
        np.cumsum([0, *(len(content) for _, content in own)], dtype=np.int64),
        np.frombuffer(b"".join(content for _, content in own), np.uint8),
    )


def cut_stored_file(
    file: StoredFile, source: Source, store: Store, max_bytes: float
) -> list[FilePart] | None:
    """Return the parts that a file of a store can be fetched in, by its end.

    Args:
        file: The file, with its size.
        source: The source that reads such files.
        store: The store that has it.
        max_bytes: The most that a part may take, see `Source.cut_file`.

    Returns:
        The parts, with their ranges in ascending order; none if the file has no samples. None if
        the server does not send parts of files.

    Raises:
        ValueError: The file is damaged, or lacks what an option names.
        UnfetchableError: Its end cannot be fetched.
    """
    for left in reversed(range(_ATTEMPTS)):
        end = FileEnd(file.size, lambda begin, last: store.read_range(file.name, begin, last))
        try:
            parts = source.cut_file(end, max_bytes)
            break
        except ValueError:
            if not left:
                raise
    if sum(part.samples for part in parts) >= _MAX_SAMPLES:
        raise ValueError("it says that it has more than 2**32 rows")
    if not end.has_ranges:
        return None
    if not parts:
        return []
    parts = [part._replace(ranges=_join_ranges(part.ranges)) for part in parts]
    fetched = sum(last - begin for begin, last in parts[0].ranges)
    if len(parts) == 1 and fetched > _WHOLE_SHARE * file.size:
        return [parts[0]._replace(group=0, ranges=[(0, file.size)], shift=0, own=[])]
    return parts


def _join_ranges(needed: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in ascending order. Near ones are joined."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(needed):
        if joined and first - joined[-1][1] <= _GAP:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def list_parts(
    listing: Listing, source: Source, store: Store, options: CacheOptions
) -> tuple[Listing, FileParts | None]:
    """Return the listing of the parts of files, and the parts.

    A file without samples, or that the store refuses, or whose end cannot be understood, is one
    shard: when it is fetched, its end is read again, and the fault is found.

    Args:
        listing: The files.
        source: The source that reads them.
        store: The store that has them.
        options: The settings of the cache.

    Returns:
        The listing of all parts, with the names of their files, and the parts. The listing as it
        is, and None, if the server does not send parts of files.

    Raises:
        DataError: The store fails.
    """
    max_bytes = min(int(options.shard_size), options.max_bytes // _MIN_SHARDS)
    has_ranges = True

    def cut(row: int) -> tuple[StoredFile, list[FilePart]]:
        """Return a file, in the version that its end is of, and its parts."""
        nonlocal has_ranges
        file = listing.get_file(row)
        try:
            file = store.retry(lambda: store.complete(file))
            if file.size == UNKNOWN or not has_ranges:
                return file, []
            parts = cut_stored_file(file, source, store, max_bytes)
            has_ranges = has_ranges and parts is not None
            return file, parts or []
        except StoreError as e:
            raise DataError(
                f"{store.url}/{file.name}: its end cannot be read: {e}: see data.url, "
                "data.storage_options and the network"
            ) from e
        except (ValueError, UnfetchableError):
            return file, []

    cut_files = [cut(0)]  # which shows whether the server sends parts of files
    with ThreadPoolExecutor(options.connections) as pool:
        futures = [pool.submit(cut, row) for row in range(1, len(listing))]
        try:
            cut_files += [future.result() for future in futures]
        except DataError:
            pool.shutdown(cancel_futures=True)
            raise
    if not has_ranges:
        return listing, None
    parts = [parts for _, parts in cut_files]
    rows = np.repeat(np.arange(len(parts)), [max(1, len(of_file)) for of_file in parts])
    return _list_shards(listing, [file for file, _ in cut_files], rows), build_parts(parts)


def _list_shards(listing: Listing, files: Sequence[StoredFile], rows: NDArray[np.int64]) -> Listing:
    """Return the listing of parts of files, given all files, and the row of the file of each."""
    return replace(
        listing,
        names=listing.names.take(rows),
        labels=listing.labels[rows],
        sizes=np.array([file.size for file in files], np.int64)[rows],
        tags=np.array([file.tag for file in files], np.uint64)[rows],
        weights=listing.weights[rows] if len(listing.weights) else listing.weights,
        metadata=listing.metadata.take(rows) if len(listing.metadata) else listing.metadata,
        versions=StringArray.from_strings(file.version for file in files).take(rows),
    )


def save(parts: FileParts, folder: CacheFolder) -> None:
    """Save the parts in the cache folder. The caller must hold the cache's lock.

    Raises:
        DataError: They do not fit under max_bytes.
    """
    save_table(parts, folder.parts_path, f"the list of {len(parts.samples):,} parts", folder)


def load(folder: CacheFolder) -> FileParts | None:
    """Return the saved parts, with their arrays memory-mapped; None if shards are whole files.

    Raises:
        DataError: The file is damaged.
    """
    if not folder.parts_path.exists():
        return None
    return load_table(folder.parts_path, FileParts, "the list of the parts")
