import numpy as np
import pytest

from gpupipe.formats import DamagedError
from gpupipe.formats.chunk_grid import ChunkGrid


def test_numbers_and_places_of_chunks() -> None:
    grid = ChunkGrid("<f4", (10, 7, 6), (4, 3, 6))
    assert (grid.counts, grid.num_chunks, grid.chunks_per_row) == ((3, 3, 1), 9, 3)
    assert (grid.chunk_bytes, grid.row_bytes) == (4 * 3 * 6 * 4, 7 * 6 * 4)
    assert (grid.holds_whole_rows, grid.is_plain, grid.shares_chunks) == (False, False, True)
    assert ChunkGrid.from_json(grid.to_json()) == grid
    assert ChunkGrid("<f4", (10, 7), (4, 7)).is_plain
    assert not ChunkGrid(">f4", (10, 7), (4, 7)).is_plain
    assert not ChunkGrid("<f4", (10, 7), (4, 7), axes=(1, 0)).is_plain


def test_a_row_is_cut_out_of_its_chunks() -> None:
    array = np.arange(5 * 7 * 6, dtype="<i4").reshape(5, 7, 6)
    grid = ChunkGrid("<i4", array.shape, (2, 3, 4))
    padded = np.pad(array, ((0, 1), (0, 2), (0, 2)))
    for row in range(5):
        base = row // 2 * 2
        chunks = [padded[base : base + 2, y : y + 3, x : x + 4] for y in (0, 3, 6) for x in (0, 4)]
        assert np.array_equal(grid.cut_row(row, chunks), array[row])


def test_turned_axes_and_byte_order() -> None:
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    grid = ChunkGrid(">i2", (2, 3, 4), (2, 3, 4), axes=(2, 0, 1))
    stored = array.transpose(2, 0, 1).astype(">i2").tobytes()
    decoded = grid.decode(np.frombuffer(stored, np.uint8), 0)
    assert np.array_equal(decoded, array)
    assert decoded.dtype.isnative
    assert decoded.flags.c_contiguous
    assert grid.add_axis() == ChunkGrid(">i2", (1, 2, 3, 4), (1, 2, 3, 4), axes=(0, 3, 1, 2))


def test_a_chunk_of_the_fill_value() -> None:
    filled = ChunkGrid(">i2", (9, 2), (4, 2), fill="0102").make_filled()
    assert filled.tolist() == [[258, 258]] * 4


def test_arrays_that_no_file_can_hold_are_refused() -> None:
    with pytest.raises(DamagedError, match="1,000 rows, far more"):
        ChunkGrid("<f4", (1000, 2), (10, 2)).check(999)
    with pytest.raises(DamagedError, match="no array has it"):
        ChunkGrid("<f4", (10, 2), (0, 2)).check(999)
    with pytest.raises(ValueError, match="write it in smaller chunks"):
        ChunkGrid(">f4", (10, 1 << 30), (1, 1 << 30)).check(999)
    with pytest.raises(DamagedError, match="chunks, far more"):
        ChunkGrid("|u1", (10, 1 << 29), (1, 1), ({"id": "deflate"},)).check(999)
