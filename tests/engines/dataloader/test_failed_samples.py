"""for_each() says which samples fail, and stops where no sample is to blame."""

import errno
from collections.abc import Callable

import pytest

from gpupipe.engines.dataloader.failed_samples import StepFailedError, for_each
from gpupipe.errors import EngineError, StepError


def raising(row: int, error: Exception) -> Callable[[int], int]:
    def make(n: int) -> int:
        if n == row:
            raise error
        return 10 * n

    return make


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("cut"), RuntimeError("mad")])
def test_the_other_samples_are_made(error: Exception) -> None:
    failed: dict[int, str] = {7: "earlier"}
    assert for_each([2, 3, 5], raising(3, error), failed) == {2: 20, 5: 50}
    assert failed.keys() == {3, 7}
    assert str(error) in failed[3]


def test_the_code_of_a_step_and_the_machine_end_the_batch() -> None:
    failed: dict[int, str] = {}
    with pytest.raises(StepFailedError, match=r"pipeline\[1\]") as stopped:
        for_each([0, 1], raising(1, StepError("pipeline[1]: mad")), failed)
    assert stopped.value.row == 1
    with pytest.raises(EngineError, match="a column"):
        for_each([0], raising(0, EngineError("a column")), failed)
    with pytest.raises(EngineError, match="open files"):
        for_each([0], raising(0, OSError(errno.EMFILE, "Too many open files")), failed)
    assert failed == {}
