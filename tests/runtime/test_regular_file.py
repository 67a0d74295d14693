from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from gpupipe.runtime.regular_file import is_irregular, open_regular


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def device(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("make", [fifo, device])
def test_reading_what_may_never_end_is_refused(tmp_path: Path, make: object) -> None:
    path = make(tmp_path / "x")  # type: ignore[operator]
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="not a regular file, but a pipe") as error:
        open_regular(path)
    assert error.value.filename == str(path)
    assert is_irregular(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(OSError) as error:
            open_regular(tmp_path / "s")
        assert error.value.errno == errno.ENXIO
        assert is_irregular(tmp_path / "s")


def test_files_and_links_to_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"123")
    (tmp_path / "link").symlink_to("f")
    for name in ("f", "link"):
        with open_regular(tmp_path / name, buffering=0) as file:
            assert file.read() == b"123"
        assert not is_irregular(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
    assert not is_irregular(tmp_path / "none")
