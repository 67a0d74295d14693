"""Files and folders that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.runtime.atomic_write import create_folder_atomically, write_atomically


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
