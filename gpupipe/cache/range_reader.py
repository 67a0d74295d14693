"""Reads parts of files with obstore, whose client is compiled and waits without the interpreter.

fsspec lists the files and tells their versions in any case. It also reads the parts if obstore is
not installed, or an option of the store has no counterpart in obstore.
"""

import os
import re
import time
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_.=/-]+")
"""Names whose URLs are the same, however a client quotes them."""
_S3_OPTIONS = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "region_name": "region",
}
"""The options of s3fs that obstore has too, and its names for them."""


class NoRangesError(Exception):
    """The server does not send parts of files."""


class RangeReader:
    """Reads parts of the files under a URL.

    Args:
        store: The store of obstore.
        timeout: Seconds that a request may take, for messages.
    """

    def __init__(self, store: Any, timeout: float) -> None:
        self._store, self._timeout = store, timeout

    def read(self, name: str, begin: int, end: int) -> memoryview:
        """Return bytes `begin` to `end` of a file; fewer if it ends before.

        Raises:
            NoRangesError: The server does not send parts of files.
            FileNotFoundError, PermissionError, OSError: The part cannot be read.
        """
        import obstore
        from obstore import exceptions

        began = time.monotonic()
        try:
            return memoryview(obstore.get_range(self._store, name, start=begin, end=end))
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as e:
            raise PermissionError(_first_line(e)) from e
        except exceptions.NotSupportedError as e:
            raise NoRangesError from e
        except exceptions.BaseError as e:
            text = _first_line(e)
            if "non-partial" in text:
                raise NoRangesError from e
            if time.monotonic() - began >= self._timeout:  # the text does not always say so
                text = f"it was not whole after {self._timeout:g} s (data.cache.timeout)"
            raise OSError(text) from e


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def can_read(name: str) -> bool:
    """Return whether obstore asks for a file by the same URL as fsspec."""
    return bool(_NAME.fullmatch(name))


def create_range_reader(url: str, options: Mapping[str, Any], timeout: float) -> RangeReader | None:
    """Return a reader of the files under a URL; None if fsspec is to read them.

    Args:
        url: The URL of a folder: s3://, http:// or https://.
        options: The options of fsspec's file system.
        timeout: Seconds that a request may take.
    """
    try:
        from obstore import store as stores
    except ImportError:
        return None
    client = {"timeout": f"{timeout:g}s", "connect_timeout": f"{timeout:g}s", "allow_http": True}
    common: Any = {"client_options": client, "retry_config": {"max_retries": 0}}
    if url.startswith(("http://", "https://")) and not options and "?" not in url:
        return RangeReader(stores.HTTPStore.from_url(url, **common), timeout)
    if url.startswith("s3://"):
        config: Any = _translate(options)
        if config is not None:
            return RangeReader(stores.S3Store.from_url(url, config=config, **common), timeout)
    return None


def _translate(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of s3fs as those of obstore; None if one has no counterpart.

    So it is if neither options nor the environment have credentials: obstore finds no profiles.
    """
    every = {**options, **options.get("client_kwargs", {})}
    every.pop("client_kwargs", None)
    if not every.keys() <= _S3_OPTIONS.keys():
        return None
    if not (every.get("anon") or "key" in every or os.environ.get("AWS_ACCESS_KEY_ID")):
        return None
    return {_S3_OPTIONS[name]: value for name, value in every.items()}
