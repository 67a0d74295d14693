"""What samples of shards are called."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpupipe.errors import DataError
from gpupipe.init.shards import read_tar_options
from helpers.init_runs import jpeg


def write_tar(folder: Path, **members: bytes) -> Path:
    """A shard with a sample, of which each member has the extension of its keyword."""
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for extension, content in members.items():
            header = tarfile.TarInfo(f"sample.{extension}")
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return folder / "shard.tar"


@pytest.mark.parametrize(
    ("members", "options"),
    [
        ({"jpg": jpeg(), "cls": b"1"}, {}),
        ({"jpg": jpeg(), "txt": b"cat"}, {"label": "txt"}),
        ({"jpg": jpeg(), "json": b'{"label": 3}'}, {"label": "json:label"}),
        ({"image": jpeg(), "cls": b"1"}, {"fields": {"image": "image"}}),
        ({"jpg": jpeg(), "json": b'{"label": "cat"}'}, {"label": None}),
        ({"jpg": jpeg(), "json": b"{"}, {"label": None}),
    ],
)
def test_members_of_a_tar(
    tmp_path: Path, members: dict[str, bytes], options: dict[str, Any]
) -> None:
    found, notes = read_tar_options(write_tar(tmp_path, **members))
    assert found == options
    assert notes == (
        ["no member looks like a label, so there are no labels."]
        if "label" in found and found["label"] is None
        else []
    )


def test_members_that_are_not_read_are_named(tmp_path: Path) -> None:
    found, notes = read_tar_options(write_tar(tmp_path, jpg=jpeg(), cls=b"1", pose=b"..", box=b"."))
    assert found == {}
    assert notes == ["other members are not read: pose, box (data.fields, data.values)."]


def test_no_more_than_nine_members_are_looked_at(tmp_path: Path) -> None:
    members = {"jpg": jpeg(), "cls": b"1"} | {f"part{n}": b"." for n in range(9)}
    _, notes = read_tar_options(write_tar(tmp_path, **members))
    names = ", ".join(f"part{n}" for n in range(7))
    assert notes == [f"other members are not read: {names} (data.fields, data.values)."]


def test_a_tar_without_an_image_is_a_doubt(tmp_path: Path) -> None:
    _, notes = read_tar_options(write_tar(tmp_path, bin=b"abc", cls=b"1"))
    assert "no member is an image; there are bin, cls." in notes


def test_a_shard_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(DataError, match=r"bad\.tar"):
        read_tar_options(tmp_path / "bad.tar")
