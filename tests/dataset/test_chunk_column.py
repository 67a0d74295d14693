import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from gpupipe.dataset import chunk_cache
from gpupipe.dataset.chunk_column import ChunkColumn
from gpupipe.dataset.index_cache import open_saved, save
from helpers.array_stores import COUNT, IMAGES, SHAPE, index_stores, read_all, write_hdf5

COLUMNS = (ChunkColumn,)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_hdf5(tmp_path / "a.h5", chunks=(5, *SHAPE), compression="gzip")


def test_rows_of_a_chunk_are_read_only_views_of_it(path: Path) -> None:
    column = index_stores([path], {"image": "images"}).columns["image"]
    first, second = column.read(np.array([5, 6]))
    assert not first.flags.writeable
    assert first.base is not None
    assert first.base is second.base


def test_a_taken_part_and_a_pickled_copy_read_the_same(path: Path) -> None:
    index = index_stores([path], {"image": "images"})
    rows = np.array([20, 3, 4, 3])
    part = pickle.loads(pickle.dumps(index.columns["image"].take(rows)))
    contents = part.read(np.arange(4))
    assert all(
        np.array_equal(c.reshape(SHAPE), IMAGES[r]) for c, r in zip(contents, rows, strict=True)
    )
    assert index.subset(rows).fingerprint != index.fingerprint


def test_the_saved_index_reads_the_same(path: Path, tmp_path: Path) -> None:
    index = index_stores([path], {"image": "images"}, "labels")
    save(index, tmp_path / "saved.idx", COLUMNS)
    saved = open_saved(tmp_path / "saved.idx", COLUMNS)
    assert saved is not None
    assert saved.fingerprint == index.fingerprint
    assert np.array_equal(read_all(saved), IMAGES)


def test_the_fingerprint_knows_the_data_and_not_the_folder(path: Path, tmp_path: Path) -> None:
    index = index_stores([path], {"image": "images"})
    (tmp_path / "moved").mkdir()
    moved = path.rename(tmp_path / "moved/a.h5")
    assert index_stores([moved], {"image": "images"}).fingerprint == index.fingerprint
    changed = write_hdf5(moved, IMAGES + 1, chunks=(5, *SHAPE), compression="gzip", shuffle=True)
    assert index_stores([changed], {"image": "images"}).fingerprint != index.fingerprint


def test_a_file_that_is_replaced_is_read_again(path: Path) -> None:
    column = index_stores([path], {"image": "images"}).columns["image"]
    assert np.array_equal(column.read(np.array([3]))[0].reshape(SHAPE), IMAGES[3])
    before = path.stat().st_mtime_ns
    while path.stat().st_mtime_ns == before:  # the clock of the file system may be coarse
        write_hdf5(path, IMAGES[::-1], chunks=(5, *SHAPE), compression="gzip")
        time.sleep(0.001)
    column = index_stores([path], {"image": "images"}).columns["image"]
    assert np.array_equal(column.read(np.array([3]))[0].reshape(SHAPE), IMAGES[COUNT - 4])


def test_a_chunk_of_one_row_is_not_kept(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", chunks=(1, *SHAPE), compression="gzip")
    index = index_stores([path], {"image": "images"})
    before = chunk_cache.chunks.weight
    assert np.array_equal(read_all(index), IMAGES)
    assert chunk_cache.chunks.weight == before


def test_chunks_are_numbered_over_files(path: Path, tmp_path: Path) -> None:
    other = write_hdf5(tmp_path / "b.h5", IMAGES[:7], chunks=(3, 12, 5, 3), compression="gzip")
    column = index_stores([path, other], {"image": "images"}).columns["image"]
    assert isinstance(column, ChunkColumn)
    numbers = column.number_chunks()
    assert numbers[:COUNT].tolist() == [n // 5 for n in range(COUNT)]
    # Each row of the second file is in two chunks: the first of them counts.
    assert numbers[COUNT:].tolist() == [5, 5, 5, 7, 7, 7, 9]
    assert column.max_row_of_chunks == 5 * 12 * 10 * 3
    assert column.location(COUNT + 2, "images row 2") == f"{other}:images row 2"
