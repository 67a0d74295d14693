"""Patterns of shards, and the errors that name one."""

from pathlib import Path

import pytest

from gpupipe.dataset.shards import array_spec, find_files, name_shard
from gpupipe.errors import DataError
from gpupipe.formats import DamagedError


def test_files_of_a_pattern_are_sorted_and_patterns_keep_their_order(tmp_path: Path) -> None:
    for name in ("b-00", "b-01", "b-02", "a-1", "a-0"):
        (tmp_path / name).touch()
    patterns = (f"{tmp_path}/b-{{00..01}}", f"{tmp_path}/a-*")
    assert [path.name for path in find_files(patterns)] == ["b-00", "b-01", "a-0", "a-1"]
    assert [path.name for path in find_files(f"{tmp_path}/b-0?")] == ["b-00", "b-01", "b-02"]


def test_a_pattern_without_a_file_is_named_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "x-0").touch()
    for pattern in (f"{tmp_path}/y-*", f"{tmp_path}/x-{{0..1}}"):
        with pytest.raises(DataError, match=r"data\.files"):
            find_files(pattern, "data.files")


def test_errors_name_the_shard(tmp_path: Path) -> None:
    for error, said in [
        (OSError(5, "no luck"), "x: cannot be read: no luck"),
        (ValueError("odd"), "x: odd$"),
        (DamagedError("odd"), "x: odd; write the shard again"),
    ]:
        with pytest.raises(DataError, match=said), name_shard(tmp_path / "x"):
            raise error


def test_shapes_that_differ_fix_only_the_number_of_axes() -> None:
    assert array_spec("uint8", (3, 4)).shape == (3, 4)
    assert array_spec("uint8", (3, 4), same=False).shape == (None, None)
