"""Which rows a shard gets."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.cache.filling.fetching import FailedRows
from gpupipe.cache.row_selection import RowSelection


def test_draws_are_without_replacement(make: Any) -> None:
    made = make()
    selection = RowSelection(made.folder, made.listing, seed=0, is_weighted=False)
    with made.folder.lock():
        rows = selection.draw(1, FailedRows())
    assert np.array_equal(np.sort(rows), np.arange(40))


def test_rows_that_failed_wait_and_those_that_others_fetched_are_forgotten(make: Any) -> None:
    made = make()
    failed = FailedRows()
    failed.add(3, "a/3.jpg: HTTP 500")
    selection = RowSelection(made.folder, made.listing, seed=0, is_weighted=False)
    with made.folder.lock():
        claim = made.folder.create_claim("claims", "00000001", {"rows": [5]})
        assert set(range(40)) - set(selection.draw(2, failed).tolist()) == {3, 5}
        claim.write({"rows": [3]})
        selection.draw(2, failed)
    assert not len(failed)
    claim.release()
