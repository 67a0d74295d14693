import torch

from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.runtime.function_failures import (
    CallFailedError,
    explain_failure,
    record_failure,
    take_failure,
)
from gpupipe.runtime.user_functions import find_function

REFUSE = find_function("helpers.user_functions:refuse_dark", {}, None)


def test_a_failure_is_taken_once() -> None:
    error = ValueError("it failed")
    record_failure(error)
    assert take_failure() is error
    assert take_failure() is None


def test_a_failure_has_line_traceback_and_kinds() -> None:
    try:
        REFUSE(torch.zeros(3, 2, 2), "image", 0)
    except LookupError as e:
        failure = explain_failure(e, REFUSE.find_line)
    assert failure.reason.startswith("raised LookupError: it is dark at ")
    assert "user_functions.py:" in failure.reason
    assert "raise LookupError" in failure.text
    assert failure.is_a(LookupError)
    assert failure.is_a(Exception)
    assert not failure.is_a(SampleIncompatibleError)
    assert failure.machine == ""


def test_subclasses_are_of_the_kind_of_their_base() -> None:
    class TooSmallError(SampleIncompatibleError):
        pass

    failure = explain_failure(TooSmallError("it is small"), REFUSE.find_line)
    assert failure.is_a(SampleIncompatibleError)
    assert failure.message == "it is small"


def test_failures_of_the_machine_are_told_apart() -> None:
    assert "out of memory" in explain_failure(MemoryError("no more"), REFUSE.find_line).machine


def test_a_failure_that_is_explained_stays_as_it_is() -> None:
    failure = CallFailedError("returned nothing")
    assert explain_failure(failure, REFUSE.find_line) is failure
