"""The column of images in cached shards, which checks each image when a process first uses it.

SampleLocations writes the locations of the images into the column when an epoch begins.
"""

import errno
import mmap
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.settings import CacheOptions
from gpupipe.cache.waiting import refetch_image
from gpupipe.dataset.columns import Column, Rows, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.reading import read_spans_and_crcs
from gpupipe.errors import DataError
from gpupipe.runtime.installation import compute_crc32s

NO_SHARD = 0
"""The shard number of a broken sample, which is in no shard. Shards are numbered from 1."""
_NO_BYTES = np.empty(0, np.uint8)
_GONE_OR_DAMAGED = (errno.ENOENT, errno.ESTALE, errno.EIO)
_checked: dict[str, NDArray[np.int32]] = {}
"""For each folder of shards, an array with one entry per row of the data set, int32 (num_rows,).

The entry is the number of the shard in which this process has checked the row's image; 0 for none.
Forked children share the array.
"""


def forget_checked(root: str, num_rows: int) -> NDArray[np.int32]:
    """Forget which images in the shard folder `root` this process has checked.

    Returns:
        The folder's new array of checks, all 0, int32 (num_rows,). An entry will be the number of
        the shard in which the row's image was checked.
    """
    shards = np.frombuffer(mmap.mmap(-1, 4 * max(num_rows, 1)), np.int32)
    _checked[root] = shards
    return shards


@dataclass(frozen=True, kw_only=True)
class ShardColumn(SpanColumn):
    """The images in the shards of a growing cache. `file` has the number of each image's shard.

    If an image does not match its checksum, or its shard is gone, the download workers fetch the
    shard again, and the reader waits for it.

    Attributes:
        checksum: CRC-32 of each image, uint32 (N,).
        sizes: Bytes of each file in the store, int64 (N,); -1 if unknown.
        cache: The settings of the cache.
        url: The data set's url.
        num_rows: Number of rows of the data set.
        rows: Each row's number in the data set, int64 (N,); None if the column has all its rows.
    """

    checksum: NDArray[np.uint32]
    sizes: NDArray[np.int64]
    cache: CacheOptions
    url: str
    num_rows: int
    rows: Rows | None = None

    def path(self, number: int) -> str:
        return f"{self.root}/{number:08}.tar"  # not in `files`: shards are added at any time

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        contents, crcs = self._read_files(rows)
        for n in self._find_damaged(rows, contents, crcs):
            contents[n] = self._refetch(int(rows[n]))
        return contents

    read_ends = Column.read_ends  # calls `read`; SpanColumn.read_ends would check nothing

    def location(self, row: int, name: str) -> str:
        return f"{self.url}/{name}" if self.file[row] == NO_SHARD else super().location(row, name)

    def accept(self, rows: Rows, contents: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
        accepted = list(contents)
        for n in self._find_damaged(rows, contents):
            try:
                accepted[n] = self._refetch(int(rows[n]))
            except OSError:  # `read` raises it again for the message
                accepted[n] = _NO_BYTES
        return accepted

    def get_sizes(self, rows: Rows) -> list[int | None]:
        """Return the bytes of each of `rows` as the store listed them; None if unknown.

        They do not depend on which rows are in the cache at the moment.
        """
        return [None if size < 0 else size for size in self.sizes[rows].tolist()]

    @property
    def can_sample(self) -> bool:
        return False  # a row may not be in the cache

    def take(self, rows: Rows) -> Self:
        by_row = {
            name: getattr(self, name)[rows]
            for name in ("file", "offset", "length", "checksum", "sizes")
        }
        return replace(self, **by_row, rows=self._rows_in_data_set(rows))

    def _read_files(self, rows: Rows) -> tuple[list[NDArray[np.uint8]], list[int] | None]:
        """Return the bytes of each row, and a list of the rows' CRC-32s or None.

        The list is None if all images were checked before, or if some row cannot be read. If a
        row's shard is missing, too short or unreadable, the row's array is empty.
        """
        try:
            if self._is_checked(rows).all():
                return super().read(rows), None
            return read_spans_and_crcs([self.span(row) for row in rows.tolist()])
        except (OSError, ValueError):
            return [self._read_file(row) for row in rows.tolist()], None

    def _read_file(self, row: int) -> NDArray[np.uint8]:
        try:
            return self.span(row).read()
        except (OSError, ValueError) as e:
            if isinstance(e, OSError) and e.errno not in _GONE_OR_DAMAGED:
                raise
            return _NO_BYTES

    def _find_damaged(
        self, rows: Rows, contents: list[NDArray[np.uint8]], crcs: list[int] | None = None
    ) -> list[int]:
        """Return the positions in `rows` of the images whose bytes in `contents` are damaged.

        Compares the length of each image, and the CRC-32 of images that were not checked before.
        `crcs` are the CRC-32s of `contents`, if the caller has computed them.
        """
        sizes = np.fromiter((len(data) for data in contents), np.int64, len(contents))
        is_whole = sizes == self.length[rows]
        unchecked = np.flatnonzero(is_whole & ~self._is_checked(rows))
        if len(unchecked):
            computed = (
                compute_crc32s([contents[n] for n in unchecked])
                if crcs is None
                else [crcs[n] for n in unchecked]
            )
            is_whole[unchecked] = np.array(computed, np.uint32) == self.checksum[rows[unchecked]]
            self._note_checked(rows[unchecked[is_whole[unchecked]]])
        return np.flatnonzero(~is_whole).tolist()

    def _is_checked(self, rows: Rows) -> NDArray[np.bool_]:
        return np.equal(self._checked_shards()[self._rows_in_data_set(rows)], self.file[rows])

    def _note_checked(self, rows: Rows) -> None:
        self._checked_shards()[self._rows_in_data_set(rows)] = self.file[rows]

    def _listed_row(self, row: int) -> int:
        """Return the row of the listing that a row comes from."""
        return int(self._rows_in_data_set(np.array([row]))[0])

    def _rows_in_data_set(self, rows: Rows) -> Rows:
        return rows if self.rows is None else self.rows[rows]

    def _checked_shards(self) -> NDArray[np.int32]:
        checked = _checked.get(self.root)
        return forget_checked(self.root, self.num_rows) if checked is None else checked

    def _refetch(self, row: int) -> NDArray[np.uint8]:
        """Wait until a row's shard is fetched again, and return the row's image.

        Raises OSError if the sample is broken, or the shard cannot be fetched again.
        """
        if self.file[row] == NO_SHARD:
            raise explain_broken(self.cache, self._listed_row(row))

        def read_whole() -> NDArray[np.uint8] | None:
            image = self._read_file(row)
            return None if self._find_damaged(np.array([row]), [image]) else image

        return refetch_image(self.cache, f"{self.file[row]:08}", read_whole)


def explain_broken(options: CacheOptions, row: int) -> OSError:
    """Return the error of a broken row of the listing, which says why it is in no shard."""
    log = CacheFolder(options).commit_log
    try:
        log.refresh()
    except DataError as e:
        return OSError(str(e))
    why = log.broken_rows().get(row)
    return OSError(why or "changed since it was listed, and was then changed back")


def create_column(folder: CacheFolder, url: str, sizes: NDArray[np.int64]) -> ShardColumn:
    """Return a column for all samples of a data set, in which no sample has a location yet.

    `url` and `sizes` become attributes of the ShardColumn.
    """
    root, rows = str(folder.dir / "shards"), len(sizes)
    forget_checked(root, rows)
    return ShardColumn(
        root,
        StringArray.from_strings([]),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        checksum=np.zeros(rows, np.uint32),
        sizes=sizes,
        cache=folder.options,
        url=url,
        num_rows=rows,
    )
