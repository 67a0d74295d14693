"""Files that other processes use too, and the folders of the user."""

import errno
import os
import pwd
import socket
from pathlib import Path

import pytest

from gpupipe.runtime.files import (
    cache_dir,
    create_folder_atomically,
    expand_user,
    is_irregular,
    open_regular,
    write_atomically,
)


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


def test_a_file_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    with write_atomically(file) as temporary:
        temporary.write_text("after")
        assert file.read_text() == "before"
    assert file.read_text() == "after"
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    with pytest.raises(ZeroDivisionError), write_atomically(file) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_two_writers_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with write_atomically(file) as first, write_atomically(file) as second:
        first.write_text("first")
        second.write_text("second")
    assert file.read_text() == "first"


def test_a_folder_appears_with_its_content(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with create_folder_atomically(folder) as temporary:
        (temporary / "a").touch()
        assert not folder.exists()
    assert [p.name for p in folder.iterdir()] == ["a"]
    assert list(folder.parent.iterdir()) == [folder]


def test_the_first_of_two_processes_that_create_a_folder_wins(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with create_folder_atomically(folder) as temporary:
        (temporary / "mine").touch()
        folder.mkdir()
        (folder / "theirs").touch()
    assert [p.name for p in folder.iterdir()] == ["theirs"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_could_not_be_filled_does_not_appear(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), create_folder_atomically(tmp_path / "folder"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


OWN = Path(pwd.getpwuid(os.getuid()).pw_dir)


def test_an_empty_home_is_no_root_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    for name in ("GPUPIPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_dir() == OWN / ".cache" / "gpupipe"
    assert expand_user("~") == OWN
    assert expand_user("~/x") == OWN / "x"


@pytest.mark.parametrize(
    ("path", "expanded"),
    [
        ("~/x", "/home/me/x"),
        ("~", "/home/me"),
        ("x/~", "x/~"),
        ("~no-such-user/x", "~no-such-user/x"),
    ],
)
def test_home(monkeypatch: pytest.MonkeyPatch, path: str, expanded: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expand_user(path) == Path(expanded)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"GPUPIPE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"GPUPIPE_CACHE": "~/a"}, "/home/me/a"),
        ({"GPUPIPE_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/gpupipe"),
        ({"XDG_CACHE_HOME": ""}, "/home/me/.cache/gpupipe"),
        ({}, "/home/me/.cache/gpupipe"),
    ],
    ids=str,
)
def test_the_folder(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("GPUPIPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_dir() == Path(folder)
