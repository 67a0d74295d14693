"""Failures of the machine, which no sample and no step causes."""

import errno
import os

import pytest

from gpupipe.errors import EngineError
from gpupipe.runtime.failures import gpu_failure, machine_errors, machine_failure

FAILURES = [
    (RuntimeError("CUDA allocation failed\nmore"), "the GPU is out of memory (CUDA allocation"),
    (RuntimeError("Can't allocate 17 bytes on device 0."), "the GPU is out of memory"),
    (RuntimeError("nvImageCodec failure: '#5'"), "the GPU is out of memory"),
    (RuntimeError("Can't allocate 17 bytes on host."), "out of memory (Can't allocate"),
    (MemoryError(), "out of memory (MemoryError)"),
    (RuntimeError("CUDA error: an illegal memory access"), "the GPU, or its driver, failed"),
    (RuntimeError("CUDNN_STATUS_NOT_INITIALIZED"), "the GPU, or its driver, failed"),
    (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "this process cannot open more files"),
    (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "out of memory"),
]


@pytest.mark.parametrize(("error", "said"), FAILURES, ids=lambda value: str(value)[:30])
def test_failures_are_recognised_and_come_with_advice(error: Exception, said: str) -> None:
    line = machine_failure(error)
    assert line.startswith(said)
    assert "\n" not in line
    with pytest.raises(EngineError) as raised, machine_errors():
        raise error
    assert str(raised.value) == line
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("nvImageCodec failure: '#4'"),
        ValueError("CUDA out of memories"),
        FileNotFoundError(errno.ENOENT, "Cannot allocate memory"),
    ],
    ids=str,
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert machine_failure(error) == ""
    with pytest.raises(type(error)), machine_errors():
        raise error


def test_a_cpu_is_no_gpu_that_failed() -> None:
    assert gpu_failure(None) == ""
