"""Loads steps, sources and engines of other packages, and names the package if one fails."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from gpupipe.errors import EngineError, GpupipeError, StepError, short
from gpupipe.runtime.machine_failures import machine_failure

_Base = TypeVar("_Base")
STEP_GROUP, SOURCE_GROUP, ENGINE_GROUP = "gpupipe.steps", "gpupipe.sources", "gpupipe.engines"
"""Entry point groups of other packages' steps, sources and engines.

Each is also the name of the package that holds the built-in ones.
"""
BATCH_STEP_GROUP = "gpupipe.batch_steps"
"""Entry point group of other packages' steps of the batch stage."""
_OWN_PACKAGE = __name__.partition(".")[0]


def find(group: str, name: str, base: type[_Base]) -> type[_Base] | None:
    """Load the class of an entry point.

    Args:
        group: Entry point group, such as `STEP_GROUP`.
        name: Name of the entry point, which is the name of the step, source or engine in YAML.
        base: Class that the loaded class must derive from.

    Returns:
        The class, or None if no entry point has this name.

    Raises:
        LookupError: The class cannot be imported, does not derive from `base`, or is abstract. The
            message names the package.
    """
    for entry in _list_entries(group):
        if entry.name == name:
            return _load_class(entry, base)
    return None


def find_packages(group: str) -> dict[str, str]:
    """Return the package of each entry point in `group`, such as "the package acme 1.2", by name.

    Imports none of them.
    """
    return {entry.name: _distribution(entry) for entry in _list_entries(group)}


def _list_entries(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group: those of the packages that are installed now."""
    return _read_entries(group, tuple((path, _modified(path)) for path in sys.path))


@lru_cache(maxsize=16)
def _read_entries(group: str, _: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Read a file of every installed package, which takes 10 ms where there are 250.

    Installing or removing a package changes the folder that it is in, or sys.path.
    """
    return tuple(entry_points(group=group))


def _modified(path: str) -> int:
    """Return when a folder or archive of sys.path was changed; 0 if it does not exist."""
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0


def _load_class(entry: EntryPoint, base: type[_Base]) -> type[_Base]:
    kind = base.__name__
    label = f"the {kind.lower()} '{entry.name}' of {_distribution(entry)}"
    try:
        cls = entry.load()
    except Exception as e:  # whatever the package's own code raises
        reason = short(f"{type(e).__name__}: {e}".splitlines()[0], 200)
        raise LookupError(
            f"{label} cannot be imported from {entry.value} ({reason}): repair or uninstall that "
            "package"
        ) from e
    label = f"{label}, {entry.value},"
    rule = f"it must derive from {base.__module__}.{kind}"
    if not isinstance(cls, type):
        raise LookupError(f"{label} is a {type(cls).__name__}: {rule}")
    if not issubclass(cls, base):
        raise LookupError(f"{label} is a class that is no {kind}: {rule}")
    if inspect.isabstract(cls):
        lacks = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise LookupError(f"{label} does not define {lacks}, which each {kind} must")
    return cls


def _distribution(entry: EntryPoint) -> str:
    dist = entry.dist
    return f"the package {dist.name} {dist.version}" if dist else "an unknown package"


def is_foreign(cls: type) -> bool:
    """Return whether another package defines the class."""
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
    """Return name and version of the distribution with a step in this top-level module, or ""."""
    for entry in (*_list_entries(STEP_GROUP), *_list_entries(BATCH_STEP_GROUP)):
        if entry.module.partition(".")[0] == module and entry.dist:
            return f"{entry.dist.name} {entry.dist.version}"
    return ""


@contextmanager
def step_errors(
    step: str, cls: type, where: str, call: str, *passed: type[Exception]
) -> Iterator[None]:
    """Run a step's own code, and raise StepError in place of its exceptions.

    Exceptions of gpupipe pass through unchanged.

    Args:
        step: Name of the step in the pipeline.
        cls: Class of the step.
        where: Place of the step in the YAML, "FILE:LINE:COLUMN", or "".
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
        where: Place of the step in the YAML, "FILE:LINE:COLUMN", or "".
        call: The method that raised, such as "torch()".
        error: The exception.
    """
    reason = f"{type(error).__name__}: {error}".strip().rstrip(":")
    text = "".join(traceback.format_exception(error))
    return StepError(f"{_describe_step(step, cls, where)}: its {call} raised {reason}", text)


def step_wrong(step: str, cls: type, where: str, fault: str) -> StepError:
    """Return the StepError to raise if a step's result is wrong.

    Args:
        step: Name of the step in the pipeline.
        cls: Class of the step.
        where: Place of the step in the YAML, "FILE:LINE:COLUMN", or "".
        fault: Such as "its torch() made ..., but ...".
    """
    return StepError(f"{_describe_step(step, cls, where)}: {fault}")


def _describe_step(step: str, cls: type, where: str) -> str:
    return f"{f'{where}: ' if where else ''}step '{step}' ({origin(cls)})"
