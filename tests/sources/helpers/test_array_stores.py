"""The buffer of `order: chunks`, and shards of a cache; test_hdf5.py has more."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.dataset.chunk_column import ChunkColumn
from gpupipe.errors import DataError
from gpupipe.sources.hdf5 import Hdf5
from helpers.array_stores import IMAGES, SHAPE, index_stores, write_hdf5

CHUNK_BYTES = 5 * 12 * 10 * 3


def make_order(path: Path, **options: Any) -> int:
    source = Hdf5(files=str(path), fields={"x": "images"}, order="chunks", **options)
    order = source.chunk_order(index_stores([path], {"x": "images"}))
    assert order is not None
    assert order.number_chunks(np.arange(6)).tolist() == [0, 0, 0, 0, 0, 1]
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
    assert isinstance(source.index_file(coded).columns["x"], ChunkColumn)


def test_the_saved_index_takes_the_size_of_the_cache_from_the_options(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", chunks=(5, *SHAPE), compression=1)
    for size in (2_000_000, 3_000_000):
        column = (
            Hdf5(files=str(path), fields={"x": "images"}, chunk_cache=size).index().columns["x"]
        )
        assert isinstance(column, ChunkColumn)
        assert column.max_bytes == size
