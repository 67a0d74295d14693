"""A remote store through fsspec: what lies in it, and how a sample is fetched so that it is whole
and of the version that was listed.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable
from typing import Any

from gpupipe.cache.listing import UNKNOWN, tag
from gpupipe.cache.settings import DataSet
from gpupipe.errors import DataError

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
_OF_ALL = {"use_listings_cache": False}
_OF_S3 = {"max_concurrency": 1}
"""A sampler fetches many objects at a time, and needs no parts of one at a time, for which s3fs
would ask for its size first.
"""


class Unfetchable(Exception):
    """A sample that could not be fetched, and why."""


def version(info: dict[str, Any]) -> str:
    """What tells one version of a file from another, of what a store says about it; "" where it
    says nothing of the kind.
    """
    return next((str(info[key]) for key in _VERSIONS if info.get(key)), "")


def _file_system(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it. Raises DataError."""
    try:
        import fsspec
    except ImportError as e:
        raise DataError(
            "a remote data set is read with fsspec, which is not installed: run 'pip "
            "install gpupipe[remote]'"
        ) from e
    preset = _OF_ALL | (_OF_S3 if url.startswith(("s3://", "s3a://")) else {})
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url, **(preset | options))
    except (ImportError, ValueError, TypeError) as e:
        raise DataError(f"{url}: cannot be opened: {e} (data.url, data.storage_options)") from e
    return found


def opened(url: str, dataset: DataSet) -> bytes:
    """The content of a file at a path or a URL; with the data set's storage_options where it is in
    the same kind of store. Raises OSError, DataError.
    """
    same = url.partition("://")[0] == dataset.url.partition("://")[0]
    files, path = _file_system(url, dataset.storage_options if same else {})
    data: bytes = files.cat_file(path)
    return data


class Store:
    """The files below a data set's url.

    attempts: after the first; timeout: seconds that one may take; pause: waits so many seconds.
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

    def files(self) -> dict[str, dict[str, Any]]:
        """What the store says of every file, by name below the url. Raises DataError."""
        try:
            found = self._files.find(self._root, detail=True)
        except Exception as e:  # whatever the clients of the stores raise
            raise DataError(
                f"{self.url}: cannot be listed: {said(e)}: see data.url and data.storage_options"
            ) from e
        start = self._root.rstrip("/") + "/"
        return {
            path.removeprefix(start): info
            for path, info in found.items()
            if info.get("type") != "directory"
        }

    def fetch(self, name: str, size: int = UNKNOWN, listed: int = 0) -> bytes:
        """The bytes of a file, of `size` and the version `listed` where those are known.

        Raises Unfetchable when all attempts failed.
        """
        for attempt in range(self._retries + 1):
            try:
                return self._fetch_once(name, size, listed)
            except (FileNotFoundError, PermissionError) as e:
                raise Unfetchable(said(e)) from e
            except Exception as e:  # whatever the clients of the stores raise
                reason = said(e)
            if attempt < self._retries:
                self._pause(
                    min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * random.uniform(0.5, 1.5)
                )
        raise Unfetchable(f"{reason} ({self._retries + 1} attempts)")

    def _fetch_once(self, name: str, size: int, listed: int) -> bytes:
        path = f"{self._root.rstrip('/')}/{name}"
        if size == UNKNOWN or not listed:
            before = self._timely("info", path)
            size = (
                before["size"] if size == UNKNOWN and isinstance(before.get("size"), int) else size
            )
            listed = listed or tag(version(before))
        data: bytes = self._timely("cat_file", path)
        if size not in (UNKNOWN, len(data)):
            raise OSError(f"{len(data):,} bytes came in place of {size:,}")
        if listed and listed != tag(hashlib.md5(data, usedforsecurity=False).hexdigest()):
            now = version(self._timely("info", path))
            if tag(now) != listed:
                raise OSError(
                    "it was changed since it was listed (its version is now "
                    f"{now or 'not known'}): to list the data set anew, delete the cache's "
                    "folder"
                )
        return data

    def _timely(self, what: str, path: str) -> Any:
        """The outcome of a call of the file system.

        Where that is asynchronous, as those of networks are, a call that stalls is a TimeoutError.
        """
        from fsspec.asyn import AsyncFileSystem, sync

        if not isinstance(self._files, AsyncFileSystem):
            return getattr(self._files, what)(path)

        async def call() -> Any:
            try:
                return await asyncio.wait_for(getattr(self._files, f"_{what}")(path), self._timeout)
            except asyncio.TimeoutError as e:
                raise OSError(
                    f"it was not whole after {self._timeout:g} s (data.cache.timeout)"
                ) from e

        return sync(self._files.loop, call)


def said(error: BaseException) -> str:
    """An error in a line."""
    text = " ".join(
        str(error.strerror if isinstance(error, OSError) and error.strerror else error).split()
    )
    return (
        f"{type(error).__name__}: {text[:300]}"
        if not isinstance(error, OSError) or not text
        else text[:300]
    )
