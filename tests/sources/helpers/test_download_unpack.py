"""Unpacking: members that lie outside the folder, and files that are no archives."""

import tarfile
from pathlib import Path

import pytest

from gpupipe.errors import FetchError
from gpupipe.sources.helpers.download import fetch, unpack
from helpers.served_archives import FILES, WANTED, Server, damaged, tar_of, tree


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


BAD_MEMBERS = {
    "../evil": member("../evil", tarfile.REGTYPE),
    "flowers/../../evil": member("flowers/../../evil", tarfile.REGTYPE),
    "/tmp/gpupipe-evil": member("/tmp/gpupipe-evil", tarfile.REGTYPE),
    "flowers/link": member("flowers/link", tarfile.SYMTYPE, "/etc/passwd"),
    "flowers/hard": member("flowers/hard", tarfile.LNKTYPE, "flowers/rose/1.jpg"),
    "flowers/device": member("flowers/device", tarfile.CHRTYPE),
    "flowers/block": member("flowers/block", tarfile.BLKTYPE),
    "flowers/pipe": member("flowers/pipe", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("name", BAD_MEMBERS)
def test_a_member_that_is_no_file_inside_is_refused_by_name(
    server: Server, tmp_path: Path, name: str
) -> None:
    dataset = server.offer(tar_of(FILES, "w:gz", BAD_MEMBERS[name]))
    with pytest.raises(FetchError, match=f"refused: its member '{name}'"):
        fetch(dataset, tmp_path / "inner" / "flowers")
    assert tree(tmp_path) == {}
    assert list((tmp_path / "inner").iterdir()) == []
    assert not Path("/tmp/gpupipe-evil").exists()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(tar_of(FILES)[:-2000], id="cut off"),
        pytest.param(tar_of(FILES, "w:xz")[:-200], id="xz cut off"),
        pytest.param(tar_of(FILES, "w")[:-20000], id="plain cut off"),
        pytest.param(tar_of(FILES)[:60], id="cut off at once"),
        pytest.param(damaged(tar_of(FILES)), id="damaged"),
        pytest.param(damaged(tar_of(FILES, "w:xz")), id="xz damaged"),
        pytest.param(b"", id="empty file"),
        pytest.param(b"<html></html>", id="a page"),
        pytest.param(tar_of({}), id="no member"),
        pytest.param(tar_of({"a/1.jpg": b"", "b/1.jpg": b""}), id="two folders"),
        pytest.param(tar_of({"1.jpg": b"x"}), id="one file"),
    ],
)
def test_no_archive_with_one_folder_in_it(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "some.tar").write_bytes(data)
    with pytest.raises(FetchError, match=r"some\.tar: not an archive with one folder in it"):
        unpack(tmp_path / "some.tar", tmp_path / "root")
    assert [p.name for p in tmp_path.iterdir()] == ["some.tar"]


def test_an_archive_that_is_refused_does_not_stay_the_one_that_is_used(
    server: Server, tmp_path: Path
) -> None:
    with pytest.raises(FetchError):
        fetch(server.offer(tar_of({"1.jpg": b"x"})), tmp_path / "flowers")
    fetch(server.offer(tar_of(FILES)), tmp_path / "flowers")
    assert tree(tmp_path / "flowers") == WANTED
