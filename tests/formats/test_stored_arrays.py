import numpy as np

from gpupipe.formats.chunk_grid import ChunkGrid
from gpupipe.formats.stored_arrays import ChunkPlaces, RowsBuilder, join_rows


def test_arrays_of_one_grid_share_it() -> None:
    small, large = ChunkGrid("<f4", (1, 4), (1, 4)), ChunkGrid("<f4", (3, 4), (2, 4))
    builder = RowsBuilder()
    for grid in (small, large, small):
        builder.add(grid, ChunkPlaces.make_missing(grid.num_chunks))
    rows = builder.build()
    assert [ChunkGrid.from_json(entry) for entry in rows.grids] == [small, large]
    assert rows.grid.tolist() == [0, 1, 1, 1, 0]
    assert rows.first.tolist() == [0, 1, 1, 1, 3]
    assert rows.row.tolist() == [0, 0, 1, 2, 0]
    assert np.array_equal(rows.places.offset, np.full(4, -1))


def test_no_array_has_no_rows() -> None:
    rows = RowsBuilder().build()
    assert (rows.grids, len(rows.row), len(rows.places)) == ([], 0, 0)


def test_rows_of_several_stores_share_equal_grids() -> None:
    small, large = ChunkGrid("<f4", (1, 4), (1, 4)), ChunkGrid("<f4", (3, 4), (2, 4))
    every = []
    for grids in ((large,), (small, large)):
        builder = RowsBuilder()
        for grid in grids:
            builder.add(grid, ChunkPlaces.make_missing(grid.num_chunks))
        every.append(builder.build())
    rows = join_rows(every, [2, 1])
    assert [ChunkGrid.from_json(entry) for entry in rows.grids] == [large, small]
    assert rows.grid.tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert rows.first.tolist() == [0, 0, 0, 2, 3, 3, 3]
    assert rows.row.tolist() == [0, 1, 2, 0, 0, 1, 2]
    assert rows.places.file.tolist() == [0, 0, 2, 2, 2]
