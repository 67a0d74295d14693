"""What Linux, macOS and Windows do not have in common; tests/engines/test_other_systems.py takes
away what Windows lacks.
"""

import os
from pathlib import Path

import pytest

from gpupipe.runtime import systems


def test_flags_that_a_system_lacks_are_left_out(tmp_path: Path) -> None:
    flags = systems.open_flags("O_RDWR", "O_CREAT", "O_EXCL", "O_NO_SUCH_FLAG")
    assert flags == os.O_RDWR | os.O_CREAT | os.O_EXCL
    os.close(os.open(tmp_path / "file", flags))
    with pytest.raises(FileExistsError):
        os.open(tmp_path / "file", flags)


def test_a_pipe_that_is_empty_or_full_does_not_wait() -> None:
    reading, writing = systems.open_nonblocking_pipe()
    try:
        with pytest.raises(BlockingIOError):
            os.read(reading, 1)
        with pytest.raises(BlockingIOError):
            while os.write(writing, bytes(4096)):
                pass
        assert not os.get_inheritable(reading)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_function_of_the_c_library() -> None:
    assert systems.find_c_function("abs")(-3) == 3
    assert systems.find_c_function("no_such_function") is None
