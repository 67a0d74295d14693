"""Reads ranges of bytes of a store's files, an attempt each: with obstore if it can, else fsspec.

The first bytes of some files may be on their way before a range of them is wanted.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from gpupipe.cache.listing import StoredFile, has_version
from gpupipe.cache.range_reader import (
    PART,
    FetchedRange,
    NoRangesError,
    RangeReader,
    can_read,
)


class FileRanges:
    """Reads ranges of the files under a URL.

    Args:
        url: The URL.
        reader: Reads them with obstore; None if obstore cannot.
        read_otherwise: Reads bytes of a file with fsspec, given its name, begin and end.
        parts: The first PART bytes of files that were asked for already.

    Attributes:
        parts: Those that were not read yet.
    """

    def __init__(
        self,
        url: str,
        reader: RangeReader | None,
        read_otherwise: Callable[[str, int, int], bytes],
        parts: Mapping[str, Future[FetchedRange]],
    ) -> None:
        self._is_web = url.startswith(("http://", "https://"))
        self._reader, self._read_otherwise = reader, read_otherwise
        self.parts = dict(parts)

    def tells_version(self, name: str) -> bool:
        """Return whether a part of a file comes with its version, of the kind that is listed.

        Google's ETags, for one, are others in a listing.
        """
        return self._is_web and self._reader is not None and can_read(name)

    def prefetch(self, names: Sequence[str]) -> None:
        """Begin to read the first PART bytes of files, one after the other, into `parts`.

        The versions of those of which `tells_version` is False must be known.
        """
        pool = ThreadPoolExecutor(1)
        for name in names:
            reader = self._reader if self.tells_version(name) else None
            read = reader.read if reader else self._request
            self.parts[name] = pool.submit(read, name, 0, PART)

    def drop_changed_part(self, file: StoredFile) -> None:
        """Forget the part of a file in `parts` that was asked for before its version was known.

        Only if it came with another version than the file's.
        """
        part = self.parts.get(file.name)
        if part is None or not file.tag or not self.tells_version(file.name):
            return
        wait([part])
        if part.exception() is None:
            version = part.result().version  # an ETag or a date: the key does not matter
            if not has_version({"ETag": version}, file.tag):
                del self.parts[file.name]

    def read(self, name: str, begin: int, end: int) -> FetchedRange:
        """Return bytes `begin` to `end` of a file; all of it from a server that knows no ranges.

        Raises what the client of the store raises, and OSError if fewer bytes came.
        """
        coming = None if begin else self.parts.pop(name, None)
        try:
            result = coming.result() if coming else self._request(name, begin, end)
        except NoRangesError:  # of a part that was asked for early
            result = self._request(name, begin, end)
        _check_count(len(result.data), end - begin)
        return result

    def copy(
        self, name: str, begin: int, end: int, write: Callable[[bytes | memoryview, int], object]
    ) -> tuple[int, str]:
        """Pass what `read` returns to `write`, in pieces, each with its place in the file.

        Returns:
            How many bytes came, and the file's version as in FetchedRange.
        """
        if self._reader is not None and can_read(name) and name not in self.parts:
            try:
                count, version = self._reader.copy(name, begin, end, write)
                _check_count(count, end - begin)
                return count, version
            except NoRangesError:
                self._reader = None
        data, version = self.read(name, begin, end)
        write(data, begin if len(data) <= end - begin else 0)
        return len(data), version

    def _request(self, name: str, begin: int, end: int) -> FetchedRange:
        if self._reader is not None and can_read(name):
            try:
                return self._reader.read(name, begin, end)
            except NoRangesError:
                self._reader = None
        return FetchedRange(self._read_otherwise(name, begin, end), "")


def _check_count(received: int, expected: int) -> None:
    if received < expected:
        raise OSError(f"{received:,} bytes came in place of {expected:,}")
