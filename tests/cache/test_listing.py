"""The rows of a remote data set in the cache folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpupipe.cache import listing
from gpupipe.errors import DataError


def test_a_listing_is_loaded_as_it_was_saved(make: Any) -> None:
    made = make()
    assert listing.is_listed(made.folder)
    loaded = listing.load(made.folder)
    assert [loaded.names[n] for n in range(3)] == [made.listing.names[n] for n in range(3)]
    assert len(loaded) == 40
    assert loaded.classes == [f"class{n}" for n in range(4)]
    assert np.array_equal(loaded.sizes, made.listing.sizes)
    assert loaded.fingerprint == listing.compute_fingerprint(
        loaded.names, loaded.labels, loaded.classes
    )
    sample = loaded.get_sample(0)
    assert sample.metadata == {"class": "class0"}


def test_a_listing_that_does_not_fit_into_the_cache_is_refused(make: Any) -> None:
    with pytest.raises(DataError, match=r"the list of 40 samples takes [0-9,]+ bytes"):
        make(max_bytes="20kB", shard_size="5kB")


@pytest.mark.parametrize("name", ["listing.json", "labels.npy", "names.letters.npy"])
def test_damage_is_noticed(make: Any, name: str) -> None:
    made = make()
    file = made.folder.dir / "listing" / name
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
