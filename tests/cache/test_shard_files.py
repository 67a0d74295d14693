"""Shards: their content follows from their samples, others can read them, and what is no shard of
ours is refused.
"""

import io
import json
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from webdataset.tariterators import group_by_keys, tar_file_iterator

from gpupipe.cache import shard_files
from gpupipe.cache.shard_files import ShardSample
from gpupipe.errors import DataError

SAMPLES = [
    (ShardSample(7, "a/ü.JPG", 2, {"class": "a", "age": 3}), b"j" * 1000),
    (ShardSample(3, "b/no ending", 0), b""),
    (ShardSample(123456789012, "c/x.cls", 1), b"k" * 512),
]


def written(path: Path) -> shard_files.ShardWriter:
    writer = shard_files.ShardWriter(path)
    for sample, image in SAMPLES:
        assert writer.size_with(sample.stored_size(len(image))) > writer.bytes
        writer.add(sample, image)
    writer.finish()
    return writer


def test_the_same_samples_make_the_same_bytes_and_their_cost_is_known_before(
    tmp_path: Path,
) -> None:
    one, two = written(tmp_path / "1"), written(tmp_path / "2")
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert one.hash == two.hash == shard_files.hash_file(tmp_path / "1")
    assert (
        one.bytes
        == (tmp_path / "1").stat().st_size
        == sum(s.stored_size(len(i)) for s, i in SAMPLES) + shard_files.END
    )


def test_the_table_says_where_the_bytes_are_and_can_be_made_again(tmp_path: Path) -> None:
    writer = written(tmp_path / "1.tar")
    data = (tmp_path / "1.tar").read_bytes()
    assert [
        (row, data[offset : offset + length], checksum)
        for row, offset, length, checksum in writer.table.T.tolist()
    ] == [(s.row, image, zlib.crc32(image)) for s, image in SAMPLES]
    assert np.array_equal(shard_files.scan_tar(tmp_path / "1.tar", 10**12), writer.table)
    hash = shard_files.save_table(writer.table, tmp_path / "1.npy")
    assert (tmp_path / "1.npy").stat().st_size == shard_files.table_file_size(3)
    assert np.array_equal(shard_files.load_table(tmp_path / "1.npy", hash), writer.table)


def test_webdataset_and_tarfile_read_them(tmp_path: Path) -> None:
    written(tmp_path / "1.tar")
    with (tmp_path / "1.tar").open("rb") as f:
        first, *_ = group_by_keys({"__url__": "1.tar"} | member for member in tar_file_iterator(f))
    assert (first["__key__"], first["jpg"], first["cls"]) == ("000000007", b"j" * 1000, b"2")
    assert json.loads(first["json"]) == {"path": "a/ü.JPG", "label": 2, "class": "a", "age": 3}
    with tarfile.open(tmp_path / "1.tar") as tar:
        assert tar.getnames()[3] == "000000003.bin"
        assert tar.getnames()[6] == "123456789012.bin"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../7.jpg", b"0"),
        ("/7.jpg", b"0"),
        ("7/../../x.jpg", b"0"),
        ("x.jpg", b"0"),
        ("7", b"0"),
        ("7.jpg", b"2"),
        ("7.jpg", b"5"),
        ("99.jpg", b"0"),
        ("../x.cls", b"0"),
    ],
)
def test_members_that_are_none_of_ours_are_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info, io.BytesIO())
    with pytest.raises(DataError, match=r"bad.tar: the member .* is none that gpupipe writes"):
        shard_files.scan_tar(tmp_path / "bad.tar", 50)


def test_a_damaged_or_missing_table_is_named(tmp_path: Path) -> None:
    hash = shard_files.save_table(np.zeros((3, 2), np.int64), tmp_path / "t.npy")
    data = bytearray((tmp_path / "t.npy").read_bytes())
    data[-1] ^= 1
    (tmp_path / "t.npy").write_bytes(data)
    with pytest.raises(
        DataError, match=r"t.npy: damaged: its checksum .*'gpupipe cache verify CONFIG'"
    ):
        shard_files.load_table(tmp_path / "t.npy", hash)
    with pytest.raises(DataError, match=r"none.npy: cannot be read: No such file"):
        shard_files.load_table(tmp_path / "none.npy", hash)


def test_a_pickle_in_place_of_a_table_is_not_loaded(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"an": "object"}], object), allow_pickle=True)
    (tmp_path / "t.npy").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match=r"t.npy: damaged: .*allow_pickle=False"):
        shard_files.load_table(tmp_path / "t.npy", shard_files.hash_file(tmp_path / "t.npy"))


def test_a_tar_that_ends_early_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "1.tar")
    data = (tmp_path / "1.tar").read_bytes()
    (tmp_path / "1.tar").write_bytes(data[:700])
    with pytest.raises(DataError, match="not a whole tar file"):
        shard_files.scan_tar(tmp_path / "1.tar", 10**12)
