import zipfile
from pathlib import Path

import pytest

from gpupipe.formats import DamagedError
from gpupipe.formats.store_files import list_store


@pytest.mark.parametrize("folder", ["a.zarr", "a.zarr.zip"])
def test_files_at_every_depth_are_sorted_with_their_sizes(tmp_path: Path, folder: str) -> None:
    tmp_path /= folder
    for name, size in {"x/c/10": 3, "x/c/9": 4, "zarr.json": 5, "x/zarr.json": 6}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    files = list_store(str(tmp_path))
    assert files.names == ["x/c/10", "x/c/9", "x/zarr.json", "zarr.json"]
    assert files.size.tolist() == [3, 4, 6, 5]
    assert files.paths == [f"{tmp_path}/{name}" for name in files.names]


def write_zip(path: Path, contents: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("folder", ["", "deep/a.zarr/"])
def test_the_members_of_a_zip_are_byte_ranges_of_it(tmp_path: Path, folder: str) -> None:
    contents = {"x/c/10": b"abc", "zarr.json": b"{}", "x/c/9": b"defg", "x/zarr.json": b"[]"}
    path = write_zip(tmp_path / "a.zip", {folder + name: c for name, c in contents.items()})
    files = list_store(str(path))
    assert files.names == ["x/c/10", "x/c/9", "x/zarr.json", "zarr.json"]
    assert files.folder == folder.rstrip("/")
    assert files.paths == [str(path)]
    data = path.read_bytes()
    for name, begin, size in zip(files.names, files.begin, files.size, strict=True):
        assert data[begin : begin + size] == contents[name]


def test_a_zip_that_cannot_be_read_in_place_is_refused(tmp_path: Path) -> None:
    deflated = {"zarr.json": b"{}" * 99, "c/0": b"0" * 99}
    path = write_zip(tmp_path / "a.zip", deflated, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"compressed by the ZIP file.* zip -0"):
        list_store(str(path))
    with pytest.raises(DamagedError, match=r"no Zarr store: it has no zarr\.json"):
        list_store(str(write_zip(path, {"0.jpg": b"x"})))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="cut off"):
        list_store(str(path))
