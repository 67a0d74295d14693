"""Which samples are drawn, and when failed ones are tried again."""

import time
from typing import Any

import numpy as np
import pytest

from gpupipe.cache import evict
from gpupipe.cache.fetching import FailedRows, RowSelection
from gpupipe.cache.shard_files import load_table
from helpers.cache_contents import began


@pytest.mark.parametrize("seconds", [-86_400, 86_400])
def test_a_clock_that_is_set_changes_nothing(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    failed, wall, monotonic = FailedRows(), time.time, time.monotonic
    failed.add(3, "a test")
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
    assert failed.list_waiting() == [3]
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 31)
    assert failed.list_waiting() == []
    failed.add(3, "again")
    assert failed.list_waiting() == [3]


def test_pauses_double_up_to_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses, failed = 0.0, [], FailedRows()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(10):
        failed.add(3, "a test")
        start = now
        while failed.list_waiting():
            now += 10
        pauses.append(now - start)
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_draws_are_without_replacement(make: Any) -> None:
    made = make()
    selection = RowSelection(made.folder, made.listing, seed=0, is_weighted=False)
    with made.folder.lock():
        rows = selection.draw(1, FailedRows())
    assert np.array_equal(np.sort(rows), np.arange(40))


def test_rows_that_failed_wait_and_those_that_others_fetched_are_forgotten(make: Any) -> None:
    made = make()
    failed = FailedRows()
    failed.add(3, "a/3.jpg: HTTP 500", is_passing=True)
    selection = RowSelection(made.folder, made.listing, seed=0, is_weighted=False)
    with made.folder.lock():
        claim = made.folder.create_claim("claims", "00000001", {"rows": [3, 5]})
        assert set(range(40)) - set(selection.draw(2, failed).tolist()) == {3, 5}
        assert list(failed.reasons) == list(failed.passing) == [3]  # another only tries it
        claim.release()
    made.fill()
    with made.folder.lock():
        assert not len(selection.draw(3, failed))
    assert not failed.reasons
    assert not failed.passing


def test_no_row_comes_again_before_all_others_came(make: Any) -> None:
    made = make(max_bytes="500kB", low_water=0.5)
    seen, again, passes = set[int](), set[int](), 0
    while passes < 3:
        if made.filler.publish_shard() == "no room":
            began(made.folder)
            continue
        made.folder.commit_log.refresh()
        *_, newest = made.folder.commit_log.list_published()
        table = made.folder.table_path(newest.name)
        rows = set(load_table(table, newest.table_hash)[0].tolist())
        again |= rows & seen  # the next pass may begin in the shard in which this one ends
        seen |= rows
        if len(seen) == 40:
            seen, again, passes = again, set(), passes + 1
        else:
            assert not again


def test_what_another_worker_fetches_comes_before_the_next_pass(make: Any) -> None:
    made = make(low_water=0.0)
    made.fill()
    folder, selection = made.folder, RowSelection(made.folder, made.listing, 0, False)
    with folder.lock():
        evict.evict_down_to(folder, 0)
        assert len(selection.draw(1, FailedRows())) == 40
    made.filler.publish_shard()
    with folder.lock():
        cached = np.setdiff1d(np.arange(40), selection.draw(2, FailedRows()))
        evict.evict_down_to(folder, 0)
        rows = selection.draw(3, FailedRows())
        assert set(rows[-len(cached) :]) == set(cached)
        claim = folder.create_claim("claims", "00000099", {"rows": rows[:1].tolist()})
        assert set(selection.draw(4, FailedRows())) == set(rows[1 : -len(cached)])
        failed = FailedRows()
        failed.add(int(rows[0]), "404")  # whatever another worker has with it
        assert len(selection.draw(4, failed)) == 39
        claim.release()


def test_preferred_rows_come_first_if_they_are_available(make: Any) -> None:
    made = make()
    selection = RowSelection(made.folder, made.listing, seed=0, is_weighted=False)
    failed = FailedRows()
    failed.add(9, "gone")
    with made.folder.lock():
        rows = selection.draw(0, failed, preferred=[9, 30, 7, 99]).tolist()
    assert rows[:2] == [30, 7]
    assert sorted(rows) == [row for row in range(40) if row != 9]
