"""The digests by which stores say what is in a file: MD5, CRC-32C if the store has no MD5, or
SHA-256 on the hub of Hugging Face.

Google Cloud Storage has no MD5 of composed objects, and S3 none of those that came in parts or are
encrypted. Both may have their CRC-32C. It is compared if the package crc32c or google_crc32c is
installed.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

Kind = Literal["MD5", "CRC32C", "SHA256"]


class Digest(NamedTuple):
    """What the bytes of a file should have. `value` is in hexadecimal."""

    kind: Kind
    value: str


def find_digest(info: Mapping[str, Any]) -> Digest | None:
    """Return the digest of a file's content in fsspec's description of it; None without any."""
    settings = info.get("content_settings") or {}  # of Azure
    md5 = info.get("md5Hash") or info.get("Content-MD5") or settings.get("content_md5")
    if sha256 := (info.get("lfs") or {}).get("sha256"):
        return Digest("SHA256", sha256)
    return _decode("MD5", md5, 16) or find_crc32c(info.get("crc32c"))


def find_crc32c(text: object) -> Digest | None:
    """Return the CRC-32C that a store writes in base64; None if it has none, or none of a whole
    file, or if no package computes it.
    """
    return _decode("CRC32C", text, 4) if can_compute_crc32c() else None


def can_compute_crc32c() -> bool:
    """Return whether a package that computes CRC-32C is installed."""
    return _find_crc32c() is not None


def _decode(kind: Kind, value: object, size: int) -> Digest | None:
    try:
        digest = base64.b64decode(value, validate=True) if isinstance(value, str) else value
    except binascii.Error:
        return None
    if not isinstance(digest, (bytes, bytearray)) or len(digest) != size:
        return None
    return Digest(kind, bytes(digest).hex())


def compute_digest(kind: Kind, blocks: Iterable[bytes]) -> str:
    """Return the digest of the blocks of a file, in hexadecimal."""
    if kind != "CRC32C":
        digest = hashlib.new(kind, usedforsecurity=False)
        for block in blocks:
            digest.update(block)
        return digest.hexdigest()
    extend = _find_crc32c()
    assert extend is not None
    crc = 0
    for block in blocks:
        crc = extend(crc, block)
    return f"{crc:08x}"


@cache
def _find_crc32c() -> Callable[[int, bytes], int] | None:
    """Return the function that continues a CRC-32C; None without a package for it."""
    try:
        from crc32c import crc32c
    except ImportError:
        try:
            from google_crc32c import extend
        except ImportError:
            return None
        return extend  # type: ignore[no-any-return]
    return lambda crc, block: crc32c(block, crc)
