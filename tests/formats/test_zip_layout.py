"""ZIP files whose members are written in any order: what Python and gpupipe read of them."""

import os
import resource
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from gpupipe.formats import zip_directory
from gpupipe.formats.zip_layout import ZipLayout

MEMBERS = {"zarr.json": b"{}", "a/c/0/0": bytes(range(256)) * 5, "ä/.zattrs": b""}


def test_others_read_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    layout = ZipLayout(list(MEMBERS), list(map(len, MEMBERS.values())))
    with path.open("wb") as f:
        layout.write(f.fileno(), list(map(zlib.crc32, MEMBERS.values())))
        for content, begin in zip(MEMBERS.values(), layout.begins, strict=True):
            os.pwrite(f.fileno(), content, begin)
    assert path.stat().st_size == layout.size
    with zipfile.ZipFile(path) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == MEMBERS
    data = np.fromfile(path, np.uint8)
    for member in zip_directory.iter_members(data):
        begin = zip_directory.locate(data, member)
        zip_directory.verify(data, member, begin)
        assert data[begin : begin + member.size].tobytes() == MEMBERS[member.name]


def test_sizes_beyond_four_gigabytes_are_kept(tmp_path: Path) -> None:
    path, size = tmp_path / "x.zip", 5 << 30  # of which the file system keeps nothing
    layout = ZipLayout(["large", "after"], [size, 5])
    with path.open("wb") as f:
        layout.write(f.fileno(), [0, 0])
    with zipfile.ZipFile(path) as archive:
        assert [info.file_size for info in archive.infolist()] == [size, 5]
        assert archive.infolist()[1].header_offset > size
    members = zip_directory.iter_members(np.memmap(path, np.uint8, "r").view(np.ndarray))
    assert [member.size for member in members] == [size, 5]


def test_what_is_not_written_whole_is_an_error(tmp_path: Path) -> None:
    layout = ZipLayout(list(MEMBERS), list(map(len, MEMBERS.values())))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (tmp_path / "x.zip").open("wb") as f:
        resource.setrlimit(resource.RLIMIT_FSIZE, (layout.size - 10, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                layout.write(f.fileno(), [0, 0, 0])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
