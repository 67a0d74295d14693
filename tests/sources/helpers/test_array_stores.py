"""The buffer of `order: chunks`, and shards of a cache; test_hdf5.py has more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpupipe.errors import DataError
from gpupipe.sources.hdf5 import Hdf5
from helpers.array_stores import IMAGES, SHAPE, index_stores, write_hdf5

CHUNK_BYTES = 5 * 12 * 10 * 3


def make_order(path: Path, **options: Any) -> int:
    source = Hdf5(files=str(path), fields={"x": "images"}, order="chunks", **options)
    order = source.chunk_order(index_stores([path], {"x": "images"}))
    assert order is not None
    assert order.chunk[:6].tolist() == [0, 0, 0, 0, 0, 1]
    return order.buffer


def test_the_buffer_fits_into_the_cache(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", chunks=(5, *SHAPE), compression="gzip")
    assert make_order(path) == 64
    most = 1_000_000 // CHUNK_BYTES - 8
    assert make_order(path, chunk_cache=1_000_000, buffer=most) == most
    with pytest.raises(DataError, match=f"data.buffer to at most {most}"):
        make_order(path, chunk_cache=1_000_000, buffer=most + 1)
    wide = write_hdf5(
        tmp_path / "b.h5", IMAGES.repeat(40, 1), chunks=(5, 480, 10, 3), compression=1
    )
    assert make_order(wide, chunk_cache=1_000_000) == 1_000_000 // (40 * CHUNK_BYTES) - 8


def test_a_shard_of_a_cache_is_read_where_it_is(tmp_path: Path) -> None:
    plain, coded = (
        write_hdf5(tmp_path / "a.h5", chunks=(5, *SHAPE)),
        write_hdf5(tmp_path / "b.h5", chunks=(5, *SHAPE), compression=1),
    )
    source = Hdf5(files="shards", fields={"x": "images"}, label="labels")
    assert len(source.index_file(plain)) == len(IMAGES)
    assert source.specs()["x"].shape == SHAPE
    with pytest.raises(DataError, match=r"b\.h5: 'images' is compressed.*without compression"):
        source.index_file(coded)
    ordered = Hdf5(files="shards", fields={"x": "images"}, order="chunks")
    with pytest.raises(DataError, match=r"a\.h5: order: chunks is for compressed chunks"):
        ordered.index_file(plain)
