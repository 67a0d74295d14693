"""The table of a stored shard: written and read again, and damage to it."""

from pathlib import Path

import numpy as np
import pytest

import gpupipe
from gpupipe.cache import stored_table
from gpupipe.cache.settings import DataSet
from gpupipe.cache.stored_formats import create_source
from helpers.stored_shards import write_tar

DATA = DataSet(url="file:///x", shards="*.tar")


def index_shard(path: Path) -> stored_table.ShardTable:
    index = create_source(DATA, path).index_file(path)
    return stored_table.create_table(index, DATA, path)


SAMPLES = [{"jpg": bytes([n]) * (100 + n), "cls": b"%d" % n} for n in range(5)]


def test_a_table_is_read_as_it_was_written_and_is_the_same_bytes_again(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", SAMPLES)
    table = index_shard(tmp_path / "a.tar")
    for name in ("one", "two"):
        stored_table.save_table(table, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    found = stored_table.load_table(tmp_path / "one")
    assert found.labels.tolist() == list(range(5))
    assert [found.names[n] for n in range(5)] == [f"s/{n:06}" for n in range(5)]
    data = (tmp_path / "a.tar").read_bytes()
    field = found.fields["image"]
    spans = zip(field.offset.tolist(), field.length.tolist(), strict=True)
    assert [data[begin : begin + size] for begin, size in spans] == [s["jpg"] for s in SAMPLES]


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_damaged_table_is_named(tmp_path: Path, at: int) -> None:
    write_tar(tmp_path / "a.tar", SAMPLES)
    path = tmp_path / "table"
    stored_table.save_table(index_shard(tmp_path / "a.tar"), path)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(gpupipe.DataError, match=r"table: damaged: .*gpupipe cache verify CONFIG"):
        stored_table.load_table(path)


def test_a_hash_tells_every_change(tmp_path: Path) -> None:
    content = bytearray(np.random.default_rng(0).bytes(5_000_000))
    path = tmp_path / "x"
    path.write_bytes(content)
    hashes = [stored_table.hash_files(path)]
    for at in (0, 4_194_304, 4_999_999):
        content[at] ^= 8
        path.write_bytes(content)
        hashes.append(stored_table.hash_files(path))
    path.write_bytes(content[:-1])
    hashes += [stored_table.hash_files(path), stored_table.hash_files(path, path)]
    assert len(set(hashes)) == 6
    assert all(len(text) == 32 for text in hashes)
