"""Runs a function for each sample of a batch, and collects which samples fail, and why."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from gpupipe.errors import EngineError, StepError, describe_error
from gpupipe.runtime.failures import machine_failure

_T = TypeVar("_T")


class StepFailedError(Exception):
    """The code of a step failed at the sample in `row`."""

    def __init__(self, error: StepError, row: int) -> None:
        super().__init__(str(error))
        self.error, self.row = error, row


def for_each(
    rows: Iterable[int], make: Callable[[int], _T], failed: dict[int, str]
) -> dict[int, _T]:
    """Return `make(row)` for each row that does not fail; add to `failed` why the others did.

    Raises:
        EngineError: No sample is to blame.
        StepFailedError: The code of a step failed.
    """
    results = {}
    for row in rows:
        try:
            results[row] = make(row)
        except StepError as e:
            raise StepFailedError(e, row) from e
        except EngineError:
            raise
        except (OSError, RuntimeError, ValueError, MemoryError) as e:
            if failure := machine_failure(e):
                raise EngineError(failure) from e
            failed[row] = describe_error(e)
    return results
