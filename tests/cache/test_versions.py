"""Versions of files, as stores report them."""

from __future__ import annotations

import base64
import hashlib

import pytest

from gpupipe.cache.versions import (
    describe_change,
    file_version,
    find_etag_md5,
    find_md5,
    has_version,
    hash_file_version,
)

MD5 = hashlib.md5(b"content").digest()


@pytest.mark.parametrize(
    ("info", "version"),
    [
        ({"ETag": '"4f2a"', "LastModified": "today"}, "ETag 4f2a"),
        ({"etag": 'W/"4f2a"'}, "ETag 4f2a"),
        ({"ETag": "", "mtime": 12.5}, "mtime 12.5"),
        ({"LastModified": "today"}, "Last-Modified today"),
        ({"size": 5}, ""),
    ],
)
def test_the_best_version_is_taken(info: dict[str, object], version: str) -> None:
    assert file_version(info) == version
    assert bool(hash_file_version(info)) == bool(version)


def test_a_file_is_the_same_if_any_of_its_versions_is() -> None:
    """One call of a store reports an ETag, and another one of it only the time of change."""
    listed = hash_file_version({"mtime": "noon"})
    assert has_version({"ETag": "x", "mtime": "noon"}, listed)
    assert not has_version({"ETag": "x", "mtime": "later"}, listed)
    assert not has_version({}, listed)


def test_a_change_in_words() -> None:
    assert describe_change("ETag a", {"ETag": "b"}) == "ETag a, now b"
    assert describe_change("ETag a", {"mtime": "noon"}) == "ETag a, now mtime noon"
    assert describe_change("ETag a", {}) == "ETag a, now not known"
    assert describe_change("", {"ETag": "b"}) == "its version is now ETag b"


def test_where_a_store_says_an_md5() -> None:
    text = base64.b64encode(MD5).decode()
    for info in (
        {"md5Hash": text},
        {"Content-MD5": text},
        {"content_settings": {"content_md5": bytearray(MD5)}},
    ):
        assert find_md5(info) == MD5.hex()
    for value in ("", "no base64!", base64.b64encode(b"short").decode()):
        assert find_md5({"md5Hash": value}) is None
    assert find_etag_md5({"ETag": f'"{MD5.hex()}"'}) == MD5.hex()
    assert find_etag_md5({"ETag": f'"{MD5.hex()}-2"'}) is None
    assert find_etag_md5({}) is None
