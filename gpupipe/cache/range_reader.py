"""Reads parts of files with obstore, whose client is compiled and waits without the interpreter.

fsspec lists the files and tells their versions in any case. It also reads the parts if obstore is
not installed, or an option of the store has no counterpart in obstore.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

PART = 8 << 20
"""How many bytes of a large file are read at a time."""
_PIECE = 1 << 20
"""Bytes of a piece of a part: it is written while the processor's cache has it. To join 8 MB first
takes three times as long.
"""
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
_AZURE_OPTIONS = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "anon": "skip_signature",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
}
"""The options of adlfs that obstore has too, and its names for them."""
_AZURE_CREDENTIALS = ("account_key", "sas_token", "anon", "client_secret")
_AZURE_PARTS = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}
"""The parts of a connection string that obstore has as options, and its names for them."""
_AZURE_DEFAULTS = {"DefaultEndpointsProtocol": "https", "EndpointSuffix": "core.windows.net"}
_GOOGLE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


class FetchedRange(NamedTuple):
    """Bytes of a file, and its version as the store told it with them; "" if it told none.

    The version is the file's ETag, or else its Last-Modified.
    """

    data: bytes | memoryview
    version: str


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

    def read(self, name: str, begin: int, end: int) -> FetchedRange:
        """Return bytes `begin` to `end` of a file, fewer if it ends before.

        Raises:
            NoRangesError: The server does not send parts of files.
            FileNotFoundError, PermissionError, OSError: The part cannot be read.
        """
        with self._translate_errors():
            result = self._get(name, begin, end)
            return FetchedRange(memoryview(result.bytes()), _find_version(result.meta))

    def copy(
        self, name: str, begin: int, end: int, write: Callable[[memoryview, int], object]
    ) -> tuple[int, str]:
        """Pass what `read` returns to `write`, in pieces, each with its place in the file.

        Raises what `read` raises.

        Returns:
            How many bytes came, and the file's version as in FetchedRange.
        """
        count = 0
        with self._translate_errors():
            result = self._get(name, begin, end)
            for piece in result.stream(min_chunk_size=_PIECE):
                write(memoryview(piece), begin + count)
                count += len(piece)
            return count, _find_version(result.meta)

    def _get(self, name: str, begin: int, end: int) -> Any:
        import obstore

        return obstore.get(self._store, name, options={"range": (begin, end)})

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        from obstore import exceptions

        began = time.monotonic()
        try:
            yield
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as e:
            raise PermissionError(_first_line(e)) from e
        except exceptions.NotSupportedError as e:
            raise NoRangesError from e
        except exceptions.BaseError as e:
            text = _first_line(e)
            if "non-partial" in text or "redirect" in text:  # fsspec finds the region of a bucket
                raise NoRangesError from e
            if time.monotonic() - began >= self._timeout:  # the text does not always say so
                text = f"it was not whole after {self._timeout:g} s (data.cache.timeout)"
            raise OSError(text) from e


def _find_version(meta: Mapping[str, Any]) -> str:
    """Return the ETag of a file, else when it changed, else ""."""
    from email.utils import format_datetime

    changed = meta["last_modified"]  # the beginning of 1970 if the store does not tell it
    return meta["e_tag"] or (format_datetime(changed, True) if changed.timestamp() > 0 else "")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def can_read(name: str) -> bool:
    """Return whether obstore asks for a file by the same URL as fsspec."""
    return bool(_NAME.fullmatch(name))


def create_range_reader(url: str, options: Mapping[str, Any], timeout: float) -> RangeReader | None:
    """Return a reader of the files under a URL; None if fsspec is to read them.

    Args:
        url: The URL of a folder: s3://, gs://, az://, abfs://, http:// or https://.
        options: The options of fsspec's file system.
        timeout: Seconds that a request may take.
    """
    try:
        from obstore import exceptions
        from obstore import store as stores
    except ImportError:
        return None
    client = {"timeout": f"{timeout:g}s", "connect_timeout": f"{timeout:g}s", "allow_http": True}
    common: Any = {"client_options": client, "retry_config": {"max_retries": 0}}
    kind: Any
    config: Any
    match url.partition("://")[0]:
        case "s3":
            kind, config = stores.S3Store, _translate_s3(options)
            config = None if config is None else _find_region(url, config) | config
        case "gs" | "gcs":
            kind, config = stores.GCSStore, _translate_gcs(options)
            url = f"gs://{url.partition('://')[2]}"
        case "az" | "abfs" if "@" not in url:
            kind, config = stores.AzureStore, _translate_azure(options)
        case "http" | "https" if not options and not set("?@") & set(url):
            kind, config = stores.HTTPStore, {}  # drops names and passwords
        case _:
            return None
    if config is None:
        return None
    try:
        settings = {"config": config} if config else {}
        return RangeReader(kind.from_url(url, **settings, **common), timeout)
    except (exceptions.BaseError, ValueError):  # fsspec tells of wrong credentials and hosts
        return None


def _translate_s3(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of s3fs as those of obstore; None if one has no counterpart.

    Returns None too if neither options nor environment have credentials: obstore finds no profiles.
    """
    every = {**options, **options.get("client_kwargs", {})}
    every.pop("client_kwargs", None)
    if not (every.get("anon") or "key" in every or os.environ.get("AWS_ACCESS_KEY_ID")):
        return None
    return _rename(every, _S3_OPTIONS)


def _find_region(url: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the region of a bucket as an option of obstore; {} if it is set, or S3 names none.

    Without a region, obstore assumes us-east-1, and it follows no redirect to another one. S3 names
    the region even if it refuses the request.
    """
    variables = os.environ
    if "region" in config or variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION"):
        return {}
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    endpoint = config.get("endpoint") or variables.get("AWS_ENDPOINT_URL")
    bucket = url.partition("://")[2].partition("/")[0]
    try:
        request = f"{(endpoint or 'https://s3.amazonaws.com').rstrip('/')}/{bucket}"
        with urlopen(Request(request, method="HEAD"), timeout=10.0) as answer:
            region = answer.headers["x-amz-bucket-region"]
    except HTTPError as e:
        region = e.headers["x-amz-bucket-region"]
    except (OSError, ValueError, HTTPException):  # fsspec tells of it
        return {}
    return {"region": region} if region else {}


def _translate_gcs(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of gcsfs as those of obstore; None if one has no counterpart.

    Returns None too if neither options nor environment say where the credentials are.
    """
    every = {name: value for name, value in options.items() if name != "project"}
    token = every.pop("token", "google_default" if os.environ.get(_GOOGLE_VARIABLE) else None)
    config = _rename(every, {"endpoint_url": "base_url"})
    if config is None:
        return None
    match token:
        case "anon":
            return config | {"skip_signature": True}
        case "google_default":
            return config
        case str() if token.endswith(".json"):
            return config | {"application_credentials": token}
        case dict():
            return config | {"service_account_key": json.dumps(token)}
        case _:
            return None


def _translate_azure(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of adlfs as those of obstore; None if one has no counterpart.

    Returns None too if the options name no account or have no credentials.
    """
    if options.keys() == {"connection_string"}:
        return _parse_connection_string(str(options["connection_string"]))
    if "account_name" not in options or not any(map(options.get, _AZURE_CREDENTIALS)):
        return None
    return _rename(options, _AZURE_OPTIONS)


def _parse_connection_string(text: str) -> dict[str, Any] | None:
    """Return the options of obstore for a connection string of Azure; None if it lacks some."""
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    config = {name: parts[key] for key, name in _AZURE_PARTS.items() if key in parts}
    is_default = all(parts.get(key, value) == value for key, value in _AZURE_DEFAULTS.items())
    has_credentials = "account_key" in config or "sas_key" in config
    is_complete = has_credentials and "account_name" in config
    return config if is_complete and (is_default or "endpoint" in config) else None


def _rename(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any] | None:
    """Return options under their names in obstore; None if one has none."""
    if not options.keys() <= names.keys():
        return None
    return {names[name]: value for name, value in options.items()}
