"""Ranges of files, of which the first may be on its way; stores fail in test_stored_fetching."""

from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache.file_ranges import FileRanges
from gpupipe.cache.listing import StoredFile, hash_version
from gpupipe.cache.range_reader import create_range_reader

NAME = "a/000.tar"


@pytest.fixture(params=["fsspec", "obstore"])
def ranges(request: pytest.FixtureRequest, web_tars: tuple[str, Any], tars: Path) -> FileRanges:
    url, _ = web_tars
    reader = None
    if request.param == "obstore":
        pytest.importorskip("obstore")
        reader = create_range_reader(url, {}, 5.0)

    def read(name: str, begin: int, end: int) -> bytes:
        return (tars / name).read_bytes()[begin:end]

    return FileRanges(url, reader, read, {})


def test_what_is_on_its_way_is_the_next_range_from_the_beginning(
    ranges: FileRanges, tars: Path
) -> None:
    content = (tars / NAME).read_bytes()
    ranges.prefetch([NAME, "a/002.tar"])
    part = ranges.parts[NAME].result()
    assert bytes(ranges.read(NAME, 100, 200).data) == content[100:200]
    assert ranges.read(NAME, 0, len(content)) is part
    assert list(ranges.parts) == ["a/002.tar"]
    again = ranges.read(NAME, 0, len(content))
    assert again is not part
    assert bytes(again.data) == bytes(part.data) == content


@pytest.mark.parametrize(
    ("url", "options", "tells"),
    [
        ("https://host/train", {}, True),
        ("gs://train", {"token": "anon"}, False),
        ("s3://train", {"anon": True}, False),
    ],
)
def test_only_a_web_server_tells_the_version_that_is_listed(
    url: str, options: dict[str, Any], tells: bool
) -> None:
    pytest.importorskip("obstore")
    reader = create_range_reader(url, options, 5.0)
    assert reader is not None
    ranges = FileRanges(url, reader, lambda name, begin, end: b"", {})
    assert ranges.tells_version("a.tar") == tells
    assert not ranges.tells_version("a b.tar")


@pytest.mark.parametrize("is_early", [False, True])
def test_a_range_that_is_not_whole_is_an_error(
    ranges: FileRanges, tars: Path, is_early: bool
) -> None:
    size = (tars / NAME).stat().st_size
    if is_early:
        ranges.prefetch([NAME])
    with pytest.raises(OSError, match=rf"^{size:,} bytes came in place of {size + 1:,}$"):
        ranges.copy(NAME, 0, size + 1, lambda data, place: None)


def test_a_part_of_another_version_is_forgotten_where_it_comes_with_one(
    ranges: FileRanges,
) -> None:
    names = [NAME, "a/002.tar", "a/004.tar"]
    ranges.prefetch(names)
    for name, version in zip(names, ("same", "other", ""), strict=True):
        ranges.drop_changed_part(StoredFile(name, tag=hash_version(version)))
    changed = [names[1]] if ranges.tells_version(NAME) else []
    assert [name for name in names if name not in ranges.parts] == changed
