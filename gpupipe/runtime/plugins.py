"""Steps and sources of other packages: found by entry points, and named where they fail."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from gpupipe.errors import EngineError, GpupipeError, StepError, short
from gpupipe.runtime.machine_failures import machine_failure

_Base = TypeVar("_Base")
STEPS, SOURCES = "gpupipe.steps", "gpupipe.sources"
"""Groups of entry points."""
_OWN = __name__.partition(".")[0]


def find(group: str, name: str, base: type[_Base]) -> type[_Base] | None:
    """The class behind an entry point, or None where there is none of this name.

    Raises LookupError, which names the package, where it cannot be imported or is no `base`.
    """
    for entry in entry_points(group=group, name=name):
        return _loaded(entry, base)
    return None


def names(group: str) -> set[str]:
    """The names of all entry points, imported or not."""
    return {entry.name for entry in entry_points(group=group)}


def _loaded(entry: EntryPoint, base: type[_Base]) -> type[_Base]:
    kind = base.__name__
    what = f"the {kind.lower()} '{entry.name}' of {_distribution(entry)}"
    try:
        found = entry.load()
    except Exception as e:  # whatever the package's own code raises
        why = short(f"{type(e).__name__}: {e}".splitlines()[0], 200)
        reinstall = "repair or uninstall that package"
        raise LookupError(
            f"{what} cannot be imported from {entry.value} ({why}): {reinstall}"
        ) from e
    if not (isinstance(found, type) and issubclass(found, base)):
        is_what = (
            f"a class that is no {kind}" if isinstance(found, type) else f"a {type(found).__name__}"
        )
        raise LookupError(
            f"{what}, {entry.value}, is {is_what}: it must derive from {base.__module__}.{kind}"
        )
    if inspect.isabstract(found):
        lacks = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise LookupError(f"{what}, {entry.value}, does not define {lacks}, which each {kind} must")
    return found


def _distribution(entry: EntryPoint) -> str:
    dist = entry.dist
    return f"the package {dist.name} {dist.version}" if dist else "an unknown package"


def is_foreign(cls: type) -> bool:
    """Whether a class comes from another package."""
    return cls.__module__.partition(".")[0] != _OWN


def origin(cls: type) -> str:
    """The package and the file of a class, as messages name them."""
    if not is_foreign(cls):
        return _OWN
    top = cls.__module__.partition(".")[0]
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    where = [file] if file else []
    return ", ".join([_package(top) or cls.__module__, *where])


def _package(module: str) -> str:
    """The distribution whose entry points lead into a top-level module."""
    for entry in entry_points(group=STEPS):
        if entry.module.partition(".")[0] == module and entry.dist:
            return f"{entry.dist.name} {entry.dist.version}"
    return ""


@contextmanager
def blamed(step: str, cls: type, where: str, call: str, *passed: type[Exception]) -> Iterator[None]:
    """Around a step's own code: raises StepError for every exception that is none of gpupipe's.

    EngineError for what is the machine's failure.

    Args:
        step: What the pipeline calls it.
        cls: Its class.
        where: Its place in the YAML.
        call: The method, "torch()".
        passed: Exceptions that say something else, and are left as they are.

    """
    try:
        yield
    except Exception as e:
        if isinstance(e, (GpupipeError, *passed)):
            raise
        if what := machine_failure(e):
            raise EngineError(what) from e
        raise step_failed(step, cls, where, call, e) from e


def step_failed(step: str, cls: type, where: str, call: str, error: Exception) -> StepError:
    """What to raise, from `error`, where a step's own code raised it. call: "torch()"."""
    said = f"{type(error).__name__}: {error}".strip().rstrip(":")
    text = "".join(traceback.format_exception(error))
    return StepError(f"{_named(step, cls, where)}: its {call} raised {said}", text)


def step_wrong(step: str, cls: type, where: str, what: str) -> StepError:
    """What to raise where a step's result is wrong. what: "its torch() made ..., but ..."."""
    return StepError(f"{_named(step, cls, where)}: {what}")


def _named(step: str, cls: type, where: str) -> str:
    return f"{f'{where}: ' if where else ''}step '{step}' ({origin(cls)})"
