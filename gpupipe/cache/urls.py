"""URLs of stores: their passwords and tokens, and their IPv6 addresses."""

import base64
import re
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Any
from urllib.parse import parse_qsl, unquote

from gpupipe.errors import hide_secrets

_WEB = re.compile(r"(https?://)(?:([^/?]*)@)?([^?]*)(?:\?(.*))?", re.DOTALL)
_OF_ONE_OBJECT = {"x-amz-signature", "x-goog-signature"}
"""Parts of the query of a presigned URL, which opens no other object."""
_ADDRESS = re.compile(r"\[([0-9a-fA-F:.]+)\]")


def move_credentials(url: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Move the password and the query of a web server's URL to the options of its file system.

    So they are sent with each request, and are in no message and no file. Other URLs, and presigned
    ones, are returned as they are: see `refuse_credentials`.
    """
    match = _WEB.fullmatch(url)
    pairs = parse_qsl((match and match[4]) or "", keep_blank_values=True)
    names = {name.lower() for name, value in pairs if value}
    if match is None or len(names) < len(pairs) or names & _OF_ONE_OBJECT:
        return url, dict(options)
    scheme, user, rest, _ = match.groups()
    moved = dict(options)
    if user is not None:
        login = unquote(user if ":" in user else f"{user}:").encode()
        basic = {"Authorization": f"Basic {base64.b64encode(login).decode()}"}
        moved["headers"] = basic | moved.get("headers", {})
    if pairs:
        moved["params"] = dict(pairs) | moved.get("params", {})
    return f"{scheme}{rest}", moved


def refuse_credentials(url: str) -> None:
    """Raise ValueError if a URL has a password, or a query."""
    is_web = url.startswith(("http://", "https://"))
    if url.startswith("file://") or (hide_secrets(url) == url and not (is_web and "?" in url)):
        return
    hidden = hide_secrets(url.partition("?")[0]) + ("?***" if "?" in url else "")
    if any(f"{name}=" in url.lower() for name in _OF_ONE_OBJECT):
        raise ValueError(
            f"{hidden}: a presigned URL opens one object, and this is the URL of a folder: write "
            "s3://bucket/folder or gs://bucket/folder, and the key in data.storage_options"
        )
    raise ValueError(
        f"{hidden}: only URLs of web servers may have a password (https://NAME:WORD@HOST/...) or a "
        "query (?NAME=VALUE, each name once): set data.storage_options, such as {key: ..., "
        "secret: ...} for s3://, {sas_token: ...} for az://, {username: ..., password: ...} for "
        "ftp://"
    )


def is_same_server(url: str, other: str) -> bool:
    """Return whether two URLs have the same protocol and, on the web, the same host and port."""
    a, b = _WEB.fullmatch(url), _WEB.fullmatch(other)
    if a is None or b is None:
        return url.partition("://")[0] == other.partition("://")[0]
    return (a[1], a[3].partition("/")[0]) == (b[1], b[3].partition("/")[0])


def expand_addresses(url: str) -> str:
    """Write the IPv6 addresses of a URL without '::', which joins URLs for fsspec.

    Raises:
        ValueError: An address is wrong.
    """
    return _ADDRESS.sub(lambda match: f"[{IPv6Address(match[1]).exploded}]", url)
