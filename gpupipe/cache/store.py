"""A remote store, accessed through fsspec: lists its files and fetches them.

A fetched file is complete, and has the version that was listed.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable
from typing import Any

from gpupipe.cache.listing import UNKNOWN, hash_version
from gpupipe.cache.settings import DataSet
from gpupipe.errors import DataError
from gpupipe.runtime.extras import require_extra

_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "generation",
    "mtime",
    "Last-Modified",
    "LastModified",
    "last_modified",
    "created",
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_OPTIONS = {"use_listings_cache": False}
_S3_OPTIONS = {"max_concurrency": 1}
"""Stops s3fs from fetching parts of an object at the same time, for which it first asks for the
size. A download worker already fetches many objects at the same time.
"""


class Unfetchable(Exception):
    """A sample could not be fetched; the message says why."""


class StoreFailed(Unfetchable):
    """The store or the network failed at every attempt. The sample may be there."""


class _Changed(OSError):
    """A file is another one than was listed."""


def file_version(info: dict[str, Any]) -> str:
    """Return what identifies the version of a file: its ETag, MD5, time of change...

    Args:
        info: What the store reports about the file.

    Returns:
        The version, or "" if the store reports none.
    """
    return next((str(info[key]) for key in _VERSIONS if info.get(key)), "")


def _file_system(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it. Raises DataError."""
    require_extra("remote", ("fsspec",), "a remote data set", DataError)
    import fsspec

    preset = _OPTIONS | (_S3_OPTIONS if url.startswith(("s3://", "s3a://")) else {})
    try:
        file_system_and_path: tuple[Any, str] = fsspec.core.url_to_fs(url, **(preset | options))
    except (ImportError, ValueError, TypeError) as e:
        raise DataError(f"{url}: cannot be opened: {e} (data.url, data.storage_options)") from e
    return file_system_and_path


def read_url(url: str, dataset: DataSet) -> bytes:
    """Return the content of a file.

    Args:
        url: A path or a URL.
        dataset: Its storage_options are used if `url` has the same protocol as the data set.

    Raises:
        OSError: The file cannot be read.
        DataError: No file system of fsspec takes the URL.
    """
    same_protocol = url.partition("://")[0] == dataset.url.partition("://")[0]
    files, path = _file_system(url, dataset.storage_options if same_protocol else {})
    data: bytes = files.cat_file(path)
    return data


class Store:
    """The files under a data set's url.

    Args:
        dataset: The url, and options of its file system.
        retries: Attempts to fetch a file after the first one.
        timeout: Seconds that an attempt may take.
        pause: Waits a number of seconds.

    Attributes:
        url: The data set's url.
    """

    def __init__(
        self,
        dataset: DataSet,
        retries: int,
        timeout: float,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url, self._retries, self._timeout, self._pause = dataset.url, retries, timeout, pause
        self._files, self._root = _file_system(dataset.url, dataset.storage_options)

    def list_files(self) -> dict[str, dict[str, Any]]:
        """Return what the store reports about every file, by its name under the url.

        Raises:
            DataError: The store cannot be listed.
        """
        try:
            entries = self._files.find(self._root, detail=True)
        except Exception as e:  # whatever the clients of the stores raise
            raise DataError(
                f"{self.url}: cannot be listed: {describe_error(e)}: see data.url and "
                "data.storage_options"
            ) from e
        if not entries and not self._files.exists(self._root):
            raise DataError(f"{self.url}: no such folder: set data.url")
        prefix = self._root.rstrip("/") + "/"
        return {
            path.removeprefix(prefix): info
            for path, info in entries.items()
            if info.get("type") != "directory"
        }

    def fetch(self, name: str, size: int = UNKNOWN, version_hash: int = 0) -> bytes:
        """Return the content of a file.

        Args:
            name: Path under the url.
            size: Its expected bytes; -1 if unknown.
            version_hash: `hash_version` of the expected version; 0 if unknown.

        Raises:
            StoreFailed: All attempts failed.
            Unfetchable: The file is missing, was changed, or access is denied.
        """
        kind: type[Unfetchable] = StoreFailed
        for attempt in range(self._retries + 1):
            try:
                return self._fetch_once(name, size, version_hash)
            except (FileNotFoundError, PermissionError) as e:
                raise Unfetchable(describe_error(e)) from e
            except Exception as e:  # whatever the clients of the stores raise
                reason = describe_error(e)
                kind = Unfetchable if isinstance(e, _Changed) else StoreFailed
            if attempt < self._retries:
                self._pause(
                    min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * random.uniform(0.5, 1.5)
                )
        raise kind(f"{reason} ({self._retries + 1} attempts)")

    def _fetch_once(self, name: str, size: int, version_hash: int) -> bytes:
        path = f"{self._root.rstrip('/')}/{name}"
        if size == UNKNOWN or not version_hash:
            before = self._call_with_timeout("info", path)
            size = (
                before["size"] if size == UNKNOWN and isinstance(before.get("size"), int) else size
            )
            version_hash = version_hash or hash_version(file_version(before))
        data: bytes = self._call_with_timeout("cat_file", path)
        if size not in (UNKNOWN, len(data)):
            is_whole = self._call_with_timeout("info", path).get("size") == len(data)
            kind = _Changed if is_whole else OSError
            raise kind(f"{len(data):,} bytes came in place of {size:,}")
        if version_hash and version_hash != hash_version(
            hashlib.md5(data, usedforsecurity=False).hexdigest()
        ):
            now = file_version(self._call_with_timeout("info", path))
            if hash_version(now) != version_hash:
                raise _Changed(
                    "it was changed since it was listed (its version is now "
                    f"{now or 'not known'}): to list the data set again, delete the cache's "
                    "folder"
                )
        return data

    def _call_with_timeout(self, method: str, path: str) -> Any:
        """Return the result of a call of the file system.

        If the file system is asynchronous, as those of networks are, a stalled call raises OSError.
        """
        from fsspec.asyn import AsyncFileSystem, sync

        if not isinstance(self._files, AsyncFileSystem):
            return getattr(self._files, method)(path)

        async def call() -> Any:
            try:
                return await asyncio.wait_for(
                    getattr(self._files, f"_{method}")(path), self._timeout
                )
            except asyncio.TimeoutError as e:
                raise OSError(
                    f"it was not whole after {self._timeout:g} s (data.cache.timeout)"
                ) from e

        return sync(self._files.loop, call)


def describe_error(error: BaseException) -> str:
    """Return an error as one line, with its type unless it is an OSError with a message."""
    text = " ".join(
        str(error.strerror if isinstance(error, OSError) and error.strerror else error).split()
    )
    return (
        f"{type(error).__name__}: {text[:300]}"
        if not isinstance(error, OSError) or not text
        else text[:300]
    )
