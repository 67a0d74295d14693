"""Tells failures of the machine from failures of a step's own code.

The machine fails if memory or open files run out, or if CUDA fails: no sample and no step causes
that. Every C++ exception in DALI reaches Python as a RuntimeError, so only the text tells the two
kinds apart. The patterns match texts of dali/core/cuda_error.h, DALI's NVML wrapper, nvImageCodec
and torch. If no pattern matches, gpupipe.engines.dali decodes an image that is known to be good: if
that fails too, the machine failed.

A StepError names the step, its location in the YAML, and the package that defines the step.
"""

import errno
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from gpupipe.errors import EngineError, GpupipeError, StepError, name_error
from gpupipe.runtime.registry import BATCH_STEP_GROUP, STEP_GROUP, list_entries

_OWN_PACKAGE = __name__.partition(".")[0]
_SMALLER = "make loader.batch_size, loader.prefetch or loader.workers smaller"
_RULES = {
    r"CUDA allocation failed|Can't allocate \d+ bytes on device -?\d+|CUDA out of "
    r"memory\b|cudaErrorMemoryAllocation"
    r"|CUDA_ERROR_OUT_OF_MEMORY|CUDA error: out of memory|nvImageCodec failure: '#5'": (
        "the GPU is out of memory",
        f"{_SMALLER}, or leave it more memory",
    ),
    r"std::bad_alloc|\bbad allocation\b|Can't allocate \d+ bytes on "
    r"host|DefaultCPUAllocator|Cannot allocate memory|MemoryError": ("out of memory", _SMALLER),
    r"CUDA (?:runtime|driver) API error[^\n]*|Unhandled CUDA error[^\n]*|CUDA error: "
    r"[^\n]*|CUDNN_STATUS_\w+|nvml error \([^\n]*": (
        "the GPU, or its driver, failed",
        "start the process again; `gpupipe doctor` looks at the machine",
    ),
    r"Too many open files(?: in system)?": (
        "this process cannot open more files",
        "raise the limit (ulimit -n)",
    ),
}
"""Pattern of an error's text -> (failure, advice). The first match counts."""
_ERRNOS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def machine_failure(error: BaseException) -> str:
    """Describe a failure of the machine in one line, with advice.

    Returns:
        The line; "" if the machine did not cause `error`.
    """
    if isinstance(error, OSError) and error.errno not in _ERRNOS:
        return ""
    text = f"{type(error).__name__}: {error}" if isinstance(error, MemoryError) else str(error)
    for pattern, (failure, advice) in _RULES.items():
        if match := re.search(pattern, text):
            return f"{failure} ({match.group().rstrip(' :.')}): {advice}"
    return ""


def gpu_failure(device_id: int | None) -> str:
    """Describe an error after which no CUDA call of this process succeeds on a GPU, with advice.

    Does not wait for the GPU: it does not know of kernels that have not run yet. Takes
    microseconds.

    Args:
        device_id: The GPU's number, or None for the CPU.

    Returns:
        The line; "" if there is no such error.
    """
    if device_id is None:
        return ""
    import torch

    try:
        torch.cuda.current_stream(device_id).query()
    except RuntimeError as e:
        return machine_failure(e) or str(e)
    return ""


_kept: list[object] = []


def keep_if_gpu_failed(device_id: int | None, *objects: object) -> None:
    """Keep `objects` until the process ends if their GPU has failed; see `gpu_failure`.

    DALI ends the process (SIGABRT) when it frees memory of such a GPU.
    """
    if gpu_failure(device_id):
        _kept.extend(objects)


@contextmanager
def machine_errors() -> Iterator[None]:
    """Raise EngineError in place of exceptions in the `with` block that the machine caused."""
    try:
        yield
    except (RuntimeError, OSError, MemoryError) as e:
        if not (failure := machine_failure(e)):
            raise
        raise EngineError(failure) from e


@cache
def is_foreign(cls: type) -> bool:
    """Return whether a package other than gpupipe defines the class."""
    return cls.__module__.partition(".")[0] != _OWN_PACKAGE


def origin(cls: type) -> str:
    """Return the package and the file of a class, for messages."""
    if not is_foreign(cls):
        return _OWN_PACKAGE
    top = cls.__module__.partition(".")[0]
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    files = [file] if file else []
    return ", ".join([_distribution_of_module(top) or cls.__module__, *files])


def _distribution_of_module(module: str) -> str:
    """Return the name and version of the package whose steps are in the top-level module `module`.

    Return "" if no entry point of a step is in the module.
    """
    for entry in (*list_entries(STEP_GROUP), *list_entries(BATCH_STEP_GROUP)):
        if entry.module.partition(".")[0] == module and entry.dist:
            return f"{entry.dist.name} {entry.dist.version}"
    return ""


@contextmanager
def step_errors(
    step: str, cls: type, where: str, call: str, *passed: type[Exception]
) -> Iterator[None]:
    """Turn exceptions of a step's own code, which runs in the `with` block, into StepError.

    Exceptions of gpupipe pass through unchanged.

    Args:
        step: Name of the step in the pipeline.
        cls: Class of the step.
        where: Location of the step in the YAML, "FILE:LINE:COLUMN", or "".
        call: The method that runs, such as "torch()".
        *passed: Exception types that also pass through unchanged.

    Raises:
        StepError: The step's code raised an exception.
        EngineError: The exception is a failure of the machine.
    """
    try:
        yield
    except Exception as e:
        if isinstance(e, (GpupipeError, *passed)):
            raise
        if failure := machine_failure(e):
            raise EngineError(failure) from e
        raise step_failed(step, cls, where, call, e) from e


def step_failed(step: str, cls: type, where: str, call: str, error: Exception) -> StepError:
    """Return the StepError to raise after a step's own code raised `error`.

    Args:
        step: Name of the step in the pipeline.
        cls: Class of the step.
        where: Location of the step in the YAML, "FILE:LINE:COLUMN", or "".
        call: The method that raised, such as "torch()".
        error: The exception.
    """
    text = "".join(traceback.format_exception(error))
    return StepError(
        f"{_describe_step(step, cls, where)}: its {call} raised {name_error(error)}", text
    )


def step_wrong(step: str, cls: type, where: str, fault: str) -> StepError:
    """Return the StepError to raise if a step's result is wrong.

    Args:
        step: Name of the step in the pipeline.
        cls: Class of the step.
        where: Location of the step in the YAML, "FILE:LINE:COLUMN", or "".
        fault: The fault, such as "its torch() made ..., but ...".
    """
    return StepError(f"{_describe_step(step, cls, where)}: {fault}")


def _describe_step(step: str, cls: type, where: str) -> str:
    return f"{f'{where}: ' if where else ''}step '{step}' ({origin(cls)})"
