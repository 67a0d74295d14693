from __future__ import annotations

from pathlib import Path

from gpupipe.formats.store_files import list_store


def test_files_at_every_depth_are_sorted_with_their_sizes(tmp_path: Path) -> None:
    for name, size in {"x/c/10": 3, "x/c/9": 4, "zarr.json": 5, "x/zarr.json": 6}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    files, sizes = list_store(str(tmp_path))
    assert files == ["x/c/10", "x/c/9", "x/zarr.json", "zarr.json"]
    assert sizes == [3, 4, 6, 5]
