"""The passwords and tokens in URLs of stores."""

import base64
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from gpupipe.errors import hide_secrets

_WEB = re.compile(r"(https?://)(?:([^/?]*)@)?([^?]*)(?:\?(.*))?", re.DOTALL)
_OF_ONE_OBJECT = {"x-amz-signature", "x-goog-signature"}
"""Parts of the query of a presigned URL, which opens no other object."""


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
    start, mark, _ = url.partition("?")
    is_wrong = hide_secrets(url) != url or (mark and url.startswith(("http://", "https://")))
    if not is_wrong:
        return
    rule = "only URLs of web servers may have a password, or a query of ?NAME=VALUE: "
    if any(f"{name}=" in url.lower() for name in _OF_ONE_OBJECT):
        rule = "a presigned URL opens one object, and this is of a folder: write s3:// or gs://, "
    raise ValueError(
        f"{hide_secrets(start)}{'?***' if mark else ''}: {rule}set data.storage_options, such as "
        "{key: ..., secret: ...}, {sas_token: ...} of az://, {username: ..., password: ...} of "
        "ftp://"
    )
