"""Damaged HDF5 files and Zarr metadata: 60 of each here, 2,000 of each in `make test-all`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_stores import run

from helpers.full_product import IS_FULL


def test_damage_is_named_and_ends_no_process_but_the_child(tmp_path: Path) -> None:
    count = 2000 if IS_FULL else 60
    counts = run(count, tmp_path)
    assert sum(counts.values()) == 2 * count
    assert min(counts["hdf5", "taken"], counts["zarr", "taken"]) > 1
    assert min(counts["hdf5", "refused"], counts["zarr", "refused"]) > count // 10
