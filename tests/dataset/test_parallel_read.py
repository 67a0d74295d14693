"""Files and rows that several threads read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.dataset.parallel_read import map_file, read_each, read_rows_in_parallel
from gpupipe.runtime.progress import ignore_progress


@pytest.mark.parametrize("count", [1, 40])
def test_rows_are_in_their_order(count: int) -> None:
    assert read_rows_in_parallel(lambda row: row * 2, range(count)) == [*range(0, 2 * count, 2)]


def test_results_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = [tmp_path / str(n) for n in range(20)]
    assert read_each(files, lambda path: path.name, ignore_progress) == [p.name for p in files]


def test_progress_is_told_after_each_task() -> None:
    told: list[tuple[str, int, int | None]] = []
    read_each(range(10), str, lambda *said: told.append(said), "reading", files_per_task=4)
    assert told == [("reading", 4, 10), ("reading", 8, 10), ("reading", 10, 10)]


def test_files_are_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "x").write_bytes(b"abc")
    assert not len(map_file(tmp_path / "empty"))
    assert map_file(tmp_path / "x").tobytes() == b"abc"
