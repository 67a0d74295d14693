"""fsspec's file systems: opens that of a URL, calls it with a timeout, and describes its errors."""

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from ipaddress import IPv6Address
from typing import Any
from urllib.parse import urlsplit

from gpupipe.cache.settings import DataSet
from gpupipe.cache.urls import move_credentials
from gpupipe.errors import DataError, hide_secrets
from gpupipe.runtime.installation import require_extra

_OPTIONS = {"use_listings_cache": False}
S3_URLS = ("s3://", "s3a://")
_S3_OPTIONS = {"max_concurrency": 1}
"""Makes s3fs fetch an object in one request. By default, it asks for the size first, then fetches
parts at the same time. A download worker already fetches many objects at the same time.
"""
_ADDRESS = re.compile(r"(://(?:[^/@]*@)?)\[([0-9a-fA-F:.]+)\]")
_HUB_URL = "hf://"
_HUB_KEYWORDS: dict[str, dict[str, Any]] = {
    "find": {"refresh": True},
    "info": {"refresh": True, "expand_info": True},  # alone, refresh leaves out the version
    "cat_file": {"cache_type": "none"},
}
"""For methods of huggingface_hub's file system. By default it answers from earlier listings, and
reads 5 MB more than it is asked for.
"""


def open_file_system(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it.

    Raises:
        DataError: A package is missing, or fsspec refuses the URL or an option.
    """
    require_extra("remote", ("fsspec",), "a remote data set", DataError)
    import fsspec

    preset = _OPTIONS | (_S3_OPTIONS if url.startswith(S3_URLS) else {}) | find_proxy(url)
    try:
        # fsspec splits a chain of URLs at '::'.
        url = _ADDRESS.sub(lambda host: f"{host[1]}[{IPv6Address(host[2]).exploded}]", url)
        file_system_and_path: tuple[Any, str] = fsspec.core.url_to_fs(url, **(preset | options))
    except (ImportError, ValueError, TypeError) as e:
        fault = hide_secrets(f"{url}: cannot be opened: {e}")
        raise DataError(f"{fault} (data.url, data.storage_options)") from e
    return file_system_and_path


def find_proxy(url: str) -> dict[str, Any]:
    """Return the options that make fsspec's client use the proxy of the environment.

    The clients of S3 and of Azure use it in any case.
    """
    from urllib.request import getproxies, proxy_bypass

    protocol, proxies = url.partition("://")[0], getproxies()
    if protocol in ("gs", "gcs") and proxies:
        return {"session_kwargs": {"trust_env": True}}
    if protocol not in proxies or proxy_bypass(urlsplit(url).hostname or ""):
        return {}
    return {"proxy": proxies[protocol]} if protocol in ("http", "https") else {}


def import_client(protocol: str) -> None:
    """Import fsspec's client of a protocol, such as "s3". Does nothing if it is not installed."""
    with suppress(ImportError, ValueError):
        import fsspec

        fsspec.get_filesystem_class(protocol)


def read_url(url: str, dataset: DataSet) -> bytes:
    """Return the content of a file.

    Args:
        url: A path or a URL.
        dataset: Its storage_options are used if `url` has the same protocol as the data set, and,
            on the web, the same host.

    Raises:
        OSError: The file cannot be read.
        DataError: No file system of fsspec takes the URL.
    """
    count = 3 if url.startswith(("http://", "https://")) else 1  # parts of its protocol and host
    is_same = url.split("/")[:count] == dataset.url.split("/")[:count]
    options = dataset.storage_options if is_same else {}
    files, path = open_file_system(*move_credentials(url, options))
    data: bytes = files.cat_file(path)
    return data


def list_below(files: Any, path: str) -> dict[str, dict[str, Any]]:
    """Return fsspec's description of each file below a path, as the store has them now."""
    keywords = _HUB_KEYWORDS["find"] if files.protocol == "hf" else {}
    entries: dict[str, dict[str, Any]] = files.find(path, detail=True, **keywords)
    return entries


def has_folder(files: Any, path: str) -> bool:
    """Return whether a path exists. Raises the client's error if the store fails.

    fsspec's `exists` returns False if a web server fails.
    """
    try:
        files.ls(path, detail=False)
    except FileNotFoundError:
        return False
    return True


def call_with_timeout(
    files: Any, timeout: float, method: str, *arguments: Any, **keywords: Any
) -> Any:
    """Call a method of a file system and return its result.

    A call that takes longer than the timeout raises OSError, unless the files are local.
    """
    from fsspec.asyn import AsyncFileSystem, sync
    from fsspec.implementations.local import LocalFileSystem

    if files.protocol == "hf":
        keywords = _HUB_KEYWORDS.get(method, {}) | keywords
    if isinstance(files, LocalFileSystem):
        return getattr(files, method)(*arguments, **keywords)
    too_late = f"it was not whole after {timeout:g} s (data.cache.timeout)"
    if not isinstance(files, AsyncFileSystem):
        result = _run_in_thread(lambda: getattr(files, method)(*arguments, **keywords))
        if not wait([result], timeout).done:
            raise OSError(too_late)
        return result.result()

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
            raise OSError(too_late) from e

    return sync(files.loop, call)


def _run_in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Begin `call()` in a thread that does not keep the process from ending."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as e:
            result.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return result


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
    text = hide_secrets(" ".join(str(getattr(error, "strerror", None) or error).split()))[:300]
    return text if text and isinstance(error, OSError) else f"{type(error).__name__}: {text}"


def find_status(error: BaseException) -> int:
    """Return the HTTP status that an error of a store's client has; 0 if it has none."""
    response = getattr(error, "response", None)
    status: int = getattr(error, "status", 0) or getattr(response, "status_code", 0)
    return status


def advise_on_access(url: str) -> str:
    """Return what to do if a store shows less of a URL than it has."""
    if not url.startswith(_HUB_URL):
        return "see data.url and data.storage_options"
    return (
        "see data.url (hf://datasets/OWNER/NAME); if it is private or gated, accept its terms on "
        "its page, and run `hf auth login`, or set HF_TOKEN or data.storage_options.token"
    )
