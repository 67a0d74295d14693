"""fsspec's file systems: opens that of a URL, calls it with a timeout, and describes its errors."""

import asyncio
from contextlib import suppress
from typing import Any

from gpupipe.cache.settings import DataSet
from gpupipe.errors import DataError
from gpupipe.runtime.installation import require_extra

_OPTIONS = {"use_listings_cache": False}
S3_URLS = ("s3://", "s3a://")
_S3_OPTIONS = {"max_concurrency": 1}
"""Makes s3fs fetch an object in one request. By default, it asks for the size first, then fetches
parts at the same time. A download worker already fetches many objects at the same time.
"""


def open_file_system(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it.

    Raises:
        DataError: A package is missing, or fsspec refuses the URL or an option.
    """
    require_extra("remote", ("fsspec",), "a remote data set", DataError)
    import fsspec

    preset = _OPTIONS | (_S3_OPTIONS if url.startswith(S3_URLS) else {})
    try:
        file_system_and_path: tuple[Any, str] = fsspec.core.url_to_fs(url, **(preset | options))
    except (ImportError, ValueError, TypeError) as e:
        raise DataError(f"{url}: cannot be opened: {e} (data.url, data.storage_options)") from e
    return file_system_and_path


def import_client(protocol: str) -> None:
    """Import fsspec's client of a protocol, such as "s3". Does nothing if it is not installed."""
    with suppress(ImportError, ValueError):
        import fsspec

        fsspec.get_filesystem_class(protocol)


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
    files, path = open_file_system(url, dataset.storage_options if same_protocol else {})
    data: bytes = files.cat_file(path)
    return data


def call_with_timeout(
    files: Any, timeout: float, method: str, *arguments: Any, **keywords: Any
) -> Any:
    """Call a method of a file system and return its result.

    If the file system is asynchronous, as it is for all network stores, a call that takes
    longer than the timeout raises OSError.
    """
    from fsspec.asyn import AsyncFileSystem, sync

    if not isinstance(files, AsyncFileSystem):
        return getattr(files, method)(*arguments, **keywords)

    async def call() -> Any:
        try:
            return await asyncio.wait_for(
                getattr(files, f"_{method}")(*arguments, **keywords), timeout
            )
        except FileNotFoundError as e:
            if (cause := _find_http_failure(e)) is None:
                raise
            raise OSError(describe_error(cause)) from e
        except TimeoutError as e:
            raise OSError(f"it was not whole after {timeout:g} s (data.cache.timeout)") from e

    return sync(files.loop, call)


def _find_http_failure(error: FileNotFoundError) -> BaseException | None:
    """Return the HTTP error behind a FileNotFoundError if the file may exist, else None.

    fsspec's `info` raises FileNotFoundError for every HTTP error.
    """
    cause = error.__cause__
    if cause is None or not type(cause).__module__.startswith("aiohttp."):
        return None
    return None if getattr(cause, "status", 500) in (404, 410) else cause


def describe_error(error: BaseException) -> str:
    """Return an error as one line, with its type unless it is an OSError with a message."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
    return text if text and isinstance(error, OSError) else f"{type(error).__name__}: {text}"
