"""Disks that are nearly full, and disks whose power fails."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str, read_only: bool = False) -> Iterator[Path]:
    """A file system of `size` (tmpfs's word: "512k") at `folder`; the test is skipped, saying so,
    where none can be mounted.
    """
    folder.mkdir(exist_ok=True)
    options = f"size={size}{',ro' if read_only else ''}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Leave no room: not for a byte."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


class PowerDisk:
    """A file system that forgets what nobody has synced when its power fails.

    It is an ext4 in a file, mounted so that a new file has no bytes before they are synced. Where
    none can be mounted, it is a folder, and `has_power_cuts` is False.

    Args:
        folder: Where it is mounted.
        size: Its bytes.
    """

    def __init__(self, folder: Path, size: int = 64 << 20) -> None:
        self.folder, self._image = folder, folder.with_suffix(".img")
        folder.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size)
        made = subprocess.run(["mkfs.ext4", "-q", self._image], capture_output=True, check=False)
        self.has_power_cuts = not made.returncode and self._mount()

    def _mount(self) -> bool:
        options = "loop,data=writeback,noauto_da_alloc,commit=300"
        command = ["mount", "-o", options, self._image, self.folder]
        return not subprocess.run(command, capture_output=True, check=False).returncode

    def cut_power(self) -> None:
        """Go back to what has reached the disk. No process may use the file system any more."""
        if not self.has_power_cuts:
            return
        after = self._image.with_suffix(".after")
        shutil.copyfile(self._image, after)  # before unmounting, which syncs all
        self.close()
        after.replace(self._image)
        assert self._mount()

    def close(self) -> None:
        if self.has_power_cuts:
            subprocess.run(["umount", "-l", self.folder], check=True)
