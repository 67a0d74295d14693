"""List the files of a store that is a folder, or a ZIP file without compression."""

import os
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError, zip_directory

ZIP = ".zip"
_METADATA = ("zarr.json", ".zgroup", ".zarray")


@dataclass(frozen=True)
class StoreFiles:
    """The M files of a store, sorted by name.

    Attributes:
        paths: The files of this machine that hold them: the same ones, or the ZIP file.
        names: The path of each in the store.
        file: The position in `paths` of the file that holds it, int32 (M,).
        begin: Its first byte there, int64 (M,).
        size: Its number of bytes, int64 (M,).
        folder: The folder of the store in the ZIP file; "" if there is none.
    """

    paths: list[str]
    names: list[str]
    file: NDArray[np.int32]
    begin: NDArray[np.int64]
    size: NDArray[np.int64]
    folder: str = ""


def list_store(path: str) -> StoreFiles:
    """Return the files of a store: a folder, whatever its name, or a ZIP file.

    Raises:
        OSError: It cannot be read.
        DamagedError: The ZIP file is damaged, or holds no store.
        ValueError: The ZIP file is compressed.
    """
    return _list_folder(path) if os.path.isdir(path) else _list_zip(path)  # noqa: PTH112


def _list_folder(path: str) -> StoreFiles:
    found: list[tuple[str, int]] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(path, folder)) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.is_dir():
                    folders.append(f"{name}/")
                elif entry.is_file():
                    found.append((name, entry.stat().st_size))
    found.sort()
    names = [name for name, _ in found]
    return StoreFiles(
        [os.path.join(path, name) for name in names],
        names,
        np.arange(len(found), dtype=np.int32),
        np.zeros(len(found), np.int64),
        np.array([size for _, size in found], np.int64),
    )


def _list_zip(path: str) -> StoreFiles:
    data = np.empty(0, np.uint8)
    if os.path.getsize(path):  # noqa: PTH202
        data = np.memmap(path, np.uint8, "r").view(np.ndarray)
    members = sorted(zip_directory.iter_members(data), key=lambda member: member.name)
    tops = [m.name for m in members if PurePosixPath(m.name).name in _METADATA]
    if not tops:
        raise DamagedError(f"no Zarr store: it has no {', '.join(_METADATA)}")
    folder = min(tops, key=lambda name: name.count("/")).rpartition("/")[0]
    prefix = f"{folder}/" if folder else ""
    members = [member for member in members if member.name.startswith(prefix)]
    deflated = next((member.name for member in members if member.is_deflated), None)
    if deflated is not None:
        raise ValueError(
            f"{deflated}: compressed by the ZIP file, so no chunk can be read in place: write it "
            "again with zip -0, or with zarr.storage.ZipStore"
        )
    return StoreFiles(
        [path],
        [member.name.removeprefix(prefix) for member in members],
        np.zeros(len(members), np.int32),
        np.array([zip_directory.locate(data, member) for member in members], np.int64),
        np.array([member.size for member in members], np.int64),
        folder,
    )
