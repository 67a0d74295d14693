"""The list of finished shards."""

from pathlib import Path

import pytest

from gpupipe.conversion.manifest import Manifest, ShardRecord
from gpupipe.errors import GpupipeError

SETTINGS = {"format": "tar", "rows": 10}


def write(folder: Path, name: str) -> ShardRecord:
    (folder / name).write_bytes(b"abc")
    return ShardRecord(name, int(name[0]) * 10, 10, 3, 3, "hash")


def test_finished_shards_are_known_again_and_a_line_that_was_cut_off_is_not(
    tmp_path: Path,
) -> None:
    manifest = Manifest(tmp_path, SETTINGS)
    first, second = write(tmp_path, "0.tar"), write(tmp_path, "1.tar")
    manifest.add(first)
    manifest.add(second)
    path = tmp_path / "manifest.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    again = Manifest(tmp_path, SETTINGS | {"rows": 77})
    assert again.finished == {0: first}
    assert again.rows == 10, "the shards of the first run stay where they are"
    again.add(second)
    assert Manifest(tmp_path, SETTINGS).finished == {0: first, 10: second}


def test_a_shard_whose_file_is_gone_or_of_another_size_is_not_finished(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path, SETTINGS)
    for name in ("0.tar", "1.tar", "2.tar"):
        manifest.add(write(tmp_path, name))
    (tmp_path / "0.tar").unlink()
    (tmp_path / "1.tar").write_bytes(b"ab")
    assert list(Manifest(tmp_path, SETTINGS).finished) == [20]


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    Manifest(tmp_path, SETTINGS)
    with pytest.raises(GpupipeError, match=r"another format \(tar in place of parquet\)"):
        Manifest(tmp_path, SETTINGS | {"format": "parquet"})
