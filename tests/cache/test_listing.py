"""The rows of a remote data set in the cache folder."""

import hashlib
from typing import Any

import numpy as np
import pytest

from gpupipe.cache import listing
from gpupipe.cache.listing import (
    describe_change,
    file_version,
    find_etag_md5,
    has_version,
    hash_file_version,
)
from gpupipe.dataset.index import compute_fingerprint
from gpupipe.errors import DataError


def test_a_listing_is_loaded_as_it_was_saved(make: Any) -> None:
    made = make()
    assert listing.is_listed(made.folder)
    loaded = listing.load(made.folder)
    assert [loaded.names[n] for n in range(3)] == [made.listing.names[n] for n in range(3)]
    assert len(loaded) == 40
    assert loaded.classes == [f"class{n}" for n in range(4)]
    assert np.array_equal(loaded.sizes, made.listing.sizes)
    assert loaded.fingerprint == compute_fingerprint(
        loaded.names, loaded.labels, loaded.classes, {}, {}
    )
    sample = loaded.get_sample(0)
    assert sample.metadata == {"class": "class0"}


def test_a_listing_that_does_not_fit_into_the_cache_is_refused(make: Any) -> None:
    with pytest.raises(DataError, match=r"the list of 40 samples takes [0-9,]+ bytes"):
        make(max_bytes="20kB", shard_size="5kB")


def test_damage_is_noticed(make: Any) -> None:
    made = make()
    file = made.folder.listing_path
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match="listing"):
        listing.load(made.folder)
    file.unlink()
    with pytest.raises(DataError, match="listing"):
        listing.load(made.folder)


def test_versions_as_numbers() -> None:
    assert listing.hash_version("") == 0
    assert listing.hash_version('"4f2a"') == listing.hash_version("4f2a") != 0
    assert len({listing.hash_version(str(n)) for n in range(1000)}) == 1000


MD5 = hashlib.md5(b"content").hexdigest()


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


def test_an_etag_may_be_an_md5() -> None:
    assert find_etag_md5({"ETag": f'"{MD5}"'}) == MD5
    assert find_etag_md5({"ETag": f'"{MD5}-2"'}) is None
    assert find_etag_md5({}) is None
