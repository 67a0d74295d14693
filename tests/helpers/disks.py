"""Disks that are nearly full."""

from __future__ import annotations

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
