"""A remote store, accessed through fsspec: lists its files and fetches them.

`Store.fetch` returns only complete files of the listed version. If the store reports a file's MD5
or CRC-32C, `Store.fetch` also compares it with the content.
"""

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

from gpupipe.cache.digests import (
    Digest,
    Kind,
    can_compute_crc32c,
    compute_digest,
    find_crc32c,
    find_digest,
)
from gpupipe.cache.file_ranges import FileRanges
from gpupipe.cache.file_system import (
    S3_URLS,
    advise_on_access,
    call_with_timeout,
    describe_error,
    find_status,
    has_folder,
    list_below,
    open_file_system,
)
from gpupipe.cache.listing import (
    UNKNOWN,
    StoredFile,
    describe_change,
    file_version,
    find_etag_md5,
    has_version,
    hash_file_version,
    hash_version,
)
from gpupipe.cache.range_reader import FetchedRange, create_range_reader
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shared_files import DISK_FULL
from gpupipe.errors import DataError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_DENIED, _GONE = (401, 403), (404, 410)
_ENDS_IN_MD5 = re.compile(r"\b[0-9a-f]{32}$")


class UnfetchableError(Exception):
    """A sample could not be fetched; the message says why."""


class StoreError(UnfetchableError):
    """The store or the network failed at every attempt. The sample may exist."""


class ChangedError(UnfetchableError):
    """A file has changed since it was listed."""


class _NotAsListedError(OSError):
    """A file seems to have changed since it was listed, but another attempt may succeed."""

    def __init__(self, how: str) -> None:
        advice = "delete the cache's folder to list the data set again"
        super().__init__(f"changed since it was listed ({how}): {advice}")


class Store:
    """The files under a data set's url.

    Args:
        dataset: The url, and options of its file system.
        retries: Attempts to fetch a file after the first one.
        timeout: Seconds that an attempt may take.
        pause: Called between two attempts, with the number of seconds to sleep.
        parts: The first PART bytes of files that were asked for already.

    Attributes:
        url: The data set's url.
        ranges: Reads ranges of the files, an attempt each, and their first bytes early.
    """

    def __init__(
        self,
        dataset: DataSet,
        retries: int,
        timeout: float,
        pause: Callable[[float], None] = time.sleep,
        parts: Mapping[str, Future[FetchedRange]] = {},
    ) -> None:
        self.url, self._retries, self._timeout, self._pause = dataset.url, retries, timeout, pause
        self._files, self._root = open_file_system(dataset.url, dataset.storage_options)
        reader = None
        if dataset.shards is not None:
            reader = create_range_reader(dataset.url, dataset.storage_options, timeout)
        self.ranges = FileRanges(dataset.url, reader, self._read_range, parts)

    def list_files(self, folder: str = "") -> dict[str, dict[str, Any]]:
        """List the files below the url, or below a folder of it.

        Returns:
            Maps the path of each file below the url to fsspec's description, such as its size.

        Raises:
            DataError: The store cannot be listed.
        """
        path = self._path(folder) if folder else self._root
        try:
            entries = list_below(self._files, path)
            is_there = bool(entries) or has_folder(self._files, self._root)
        except Exception as e:  # whatever the clients of the stores raise
            raise DataError(
                f"{self.url}: cannot be listed: {describe_error(e)}: {advise_on_access(self.url)}"
            ) from e
        if not is_there:
            raise DataError(f"{self.url}: no such folder: set data.url")
        prefix = self._root.rstrip("/") + "/"
        return {
            path.removeprefix(prefix): info
            for path, info in entries.items()
            if info.get("type") != "directory"
        }

    def describe_files(self, names: Sequence[str], connections: int) -> list[dict[str, Any]]:
        """Return fsspec's description of each file; {} for a file that is missing or denied.

        Args:
            names: Paths under the url.
            connections: How many files to ask the store about at the same time.

        Raises:
            DataError: The store fails.
        """
        with ThreadPoolExecutor(connections) as pool:
            try:
                return list(pool.map(self._describe_file, names))
            except StoreError as e:
                pool.shutdown(cancel_futures=True)
                raise DataError(
                    f"{self.url}: the versions of its files cannot be read: {e}: see data.url, "
                    "data.storage_options and the network"
                ) from e

    def _describe_file(self, name: str) -> dict[str, Any]:
        try:
            info: dict[str, Any] = self.retry(
                lambda: self._call_with_timeout("info", self._path(name))
            )
        except StoreError:
            raise
        except UnfetchableError:  # fetching it says why
            return {}
        return info

    def fetch(self, file: StoredFile) -> bytes:
        """Return the content of a file.

        Raises:
            StoreError: All attempts failed.
            ChangedError: The file was changed since it was listed.
            UnfetchableError: The file is missing, or access is denied.
        """
        data: bytes = self.retry(lambda: self._fetch_once(file))
        return data

    def retry(self, call: Callable[[], Any]) -> Any:
        """Return `call()`. If it fails, pause and try again, in all up to 1 + `retries` times.

        Raises UnfetchableError at once if a file is missing or access is denied, and OSError if the
        disk that `call` writes to is full. After the last attempt, raises ChangedError if the file
        is not as listed, else StoreError.
        """
        kind: type[UnfetchableError] = StoreError
        for attempt in range(self._retries + 1):
            try:
                return call()
            except UnfetchableError:
                raise
            except Exception as e:  # whatever the clients of the stores raise
                if isinstance(e, OSError) and e.errno in DISK_FULL:  # of the target
                    raise
                reason, status = describe_error(e), find_status(e)
                if isinstance(e, FileNotFoundError) or status in _GONE:
                    raise UnfetchableError(f"the store does not have it ({reason})") from e
                if isinstance(e, PermissionError) or status in _DENIED:
                    denial = f"the store denies access ({reason}): {advise_on_access(self.url)}"
                    raise UnfetchableError(denial) from e
                kind = ChangedError if isinstance(e, _NotAsListedError) else StoreError
            if attempt < self._retries:
                self._pause(
                    min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * random.uniform(0.5, 1.5)
                )
        raise kind(f"{reason} ({self._retries + 1} attempts)")

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _fetch_once(self, file: StoredFile) -> bytes:
        path, before = self._path(file.name), self.complete(file)
        data: bytes = self._call_with_timeout("cat_file", path)
        self.check(before, len(data), lambda kind: compute_digest(kind, [data]))
        return data

    def complete(self, file: StoredFile) -> StoredFile:
        """Return a file with what the store says now of its size and version, if they are unknown.

        Asks the store only if one of them is unknown.
        """
        if file.size != UNKNOWN and file.tag:
            return file
        now = self._call_with_timeout("info", self._path(file.name))
        if file.size == UNKNOWN and isinstance(now.get("size"), int):
            file = file._replace(size=now["size"])
        if not file.tag:
            file = file._replace(tag=hash_file_version(now), version=file_version(now))
        return file

    def check(self, file: StoredFile, received: int, compute: Callable[[Kind], str]) -> None:
        """Raise OSError if what came is not all of the file, in the version that was listed.

        Args:
            file: The file, with its size and version if the store told them.
            received: How many bytes came.
            compute: Returns a digest of these bytes, in hexadecimal. Called only if the store may
                have this digest.
        """
        path, (_, size, version_hash, version) = self._path(file.name), file
        is_whole = size in (UNKNOWN, received)
        if is_whole and not version_hash:
            return
        compute = cache(compute)
        if (
            is_whole
            and (not version or _ENDS_IN_MD5.search(version))
            and version_hash == hash_version(compute("MD5"))
        ):
            return  # the ETag of most objects in S3
        now = self.check_version(file)
        if not is_whole and now.get("size") == received:
            raise _NotAsListedError(f"{size:,} bytes, now {received:,}")
        if not is_whole:
            raise OSError(f"{received:,} bytes came in place of {size:,}")
        expected = find_digest(now) or self._find_s3_digest(path, now)
        if expected is not None and expected.value != (found := compute(expected.kind)):
            raise OSError(
                f"other content came: its {expected.kind} is {found} in place of {expected.value}"
            )

    def check_version(self, file: StoredFile) -> dict[str, Any]:
        """Return fsspec's description of a file.

        Raises OSError if the file has another version than it was listed with.
        """
        now: dict[str, Any] = self._call_with_timeout("info", self._path(file.name))
        if file.tag and not has_version(now, file.tag):
            raise _NotAsListedError(describe_change(file.version, now))
        return now

    def refuse_change(self, file: StoredFile) -> None:
        """Raise ChangedError if a file has another version than it was listed with.

        Raises:
            UnfetchableError: The file is missing, access is denied, or all attempts failed.
        """
        now = self.retry(lambda: self._call_with_timeout("info", self._path(file.name)))
        if file.tag and not has_version(now, file.tag):
            raise ChangedError(str(_NotAsListedError(describe_change(file.version, now))))

    def read_range(self, name: str, begin: int, end: int) -> FetchedRange:
        """Return bytes `begin` to `end` of a file; all of it from a server that knows no ranges.

        Raises:
            StoreError: All attempts failed.
            UnfetchableError: The file is missing, or access is denied.
        """
        result: FetchedRange = self.retry(lambda: self.ranges.read(name, begin, end))
        return result

    def copy_range(
        self, name: str, begin: int, end: int, write: Callable[[bytes | memoryview, int], object]
    ) -> tuple[int, str]:
        """Pass what `read_range` returns to `write`, in pieces, each with its place in the file.

        After a failed attempt, `write` is called again with the pieces from `begin` on. Raises what
        `read_range` raises, and what `write` does.

        Returns:
            How many bytes came, and the file's version as in FetchedRange.
        """
        result: tuple[int, str] = self.retry(lambda: self.ranges.copy(name, begin, end, write))
        return result

    def _read_range(self, name: str, begin: int, end: int) -> bytes:
        data: bytes = self._call_with_timeout("cat_file", self._path(name), start=begin, end=end)
        return data

    def _find_s3_digest(self, path: str, info: dict[str, Any]) -> Digest | None:
        """Return the digest of an object in S3; None if S3 has none, or this is another store.

        It is the ETag if that is the MD5 of the content, else the CRC-32C of the whole object.
        Encrypted objects, objects that came in parts, and objects in buckets whose names end in
        --x-s3 have other ETags.
        """
        etag = find_etag_md5(info)
        if not self.url.startswith(S3_URLS) or not (etag or can_compute_crc32c()):
            return None
        bucket, key, _ = self._files.split_path(path)
        head = self._call_with_timeout(
            "call_s3",
            "head_object",
            self._files.kwargs,
            Bucket=bucket,
            Key=key,
            ChecksumMode="ENABLED",
        )
        is_plain = head.get("ServerSideEncryption") in (None, "AES256")
        has_md5 = is_plain and "SSECustomerAlgorithm" not in head and not bucket.endswith("--x-s3")
        return Digest("MD5", etag) if etag and has_md5 else find_crc32c(head.get("ChecksumCRC32C"))

    def _call_with_timeout(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return call_with_timeout(self._files, self._timeout, method, *arguments, **keywords)
