"""What fsspec's file systems answer, and what is said of it."""

import pytest

from gpupipe.cache.file_system import describe_error


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_a_long_answer_of_a_store_is_cut(kind: type[Exception]) -> None:
    name = "" if kind is OSError else "ValueError: "
    assert describe_error(kind("page " * 200)) == name + ("page " * 60)
    assert describe_error(kind("gone  away")) == name + "gone away"
