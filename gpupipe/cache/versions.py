"""The version of a file in a store, as the store reports it: its ETag, MD5, time of change..."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from gpupipe.cache.listing import hash_version

_LABELS = {
    "ETag": "ETag",
    "etag": "ETag",
    "md5Hash": "MD5",
    "generation": "generation",
    "mtime": "mtime",
    "Last-Modified": "Last-Modified",
    "LastModified": "Last-Modified",
    "last_modified": "Last-Modified",
    "created": "created",
    "Content-MD5": "MD5",
}
"""What fsspec's file systems report that changes with a file, best first."""
_MD5 = re.compile(r"[0-9a-f]{32}")


def _list_versions(info: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the label and the text of all versions that a store reports of a file."""
    return [
        (label, str(info[key]).removeprefix("W/").strip('"'))
        for key, label in _LABELS.items()
        if info.get(key)
    ]


def file_version(info: dict[str, Any]) -> str:
    """Return what identifies the version of a file, with its kind, such as "ETag 4f2a".

    Args:
        info: What the store reports about the file.

    Returns:
        The version, or "" if the store reports none.
    """
    return next((f"{label} {text}" for label, text in _list_versions(info)), "")


def hash_file_version(info: dict[str, Any]) -> int:
    """Return the hash of a file's version without its kind, or 0 if the store reports none."""
    return next((hash_version(text) for _, text in _list_versions(info)), 0)


def has_version(info: dict[str, Any], version_hash: int) -> bool:
    """Return whether a file still has the version of this hash."""
    return any(hash_version(text) == version_hash for _, text in _list_versions(info))


def describe_change(listed: str, info: dict[str, Any]) -> str:
    """Return a change in words, such as "ETag a, now b".

    Args:
        listed: The `file_version` that was listed; "" if it is unknown.
        info: What the store reports about the file now.
    """
    now = file_version(info) or "not known"
    if not listed:
        return f"its version is now {now}"
    return f"{listed}, now {now.removeprefix(listed.partition(' ')[0]).lstrip()}"


def find_md5(info: dict[str, Any]) -> str | None:
    """Return the MD5 of a file's content in hexadecimal, if the store reports it as such."""
    settings = info.get("content_settings") or {}  # of Azure
    value = info.get("md5Hash") or info.get("Content-MD5") or settings.get("content_md5")
    try:
        digest = base64.b64decode(value, validate=True) if isinstance(value, str) else value
    except binascii.Error:
        return None
    return bytes(digest).hex() if digest and len(digest) == 16 else None


def find_etag_md5(info: dict[str, Any]) -> str | None:
    """Return the ETag of an object in S3 if it looks like an MD5.

    That of an object of several parts has a dash. That of an encrypted object is no MD5 although it
    looks like one.
    """
    etag = str(info.get("ETag") or "").strip('"')
    return etag if _MD5.fullmatch(etag) else None
