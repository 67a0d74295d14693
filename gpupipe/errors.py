"""Every exception that gpupipe raises.

GpupipeError
├── ConfigError          a YAML file, an override or an argument is wrong; holds every Problem found
(also ValueError)
├── DeviceError          the device or engine that was asked for is not there
├── FetchError           a data set could not be downloaded or unpacked
├── StateError           a state_dict belongs to other data, another pipeline or another seed
├── UsageError           a loader is pickled, copied, indexed or given to a DataLoader   (also
TypeError)
├── EngineError          an engine failed, and no single sample is to blame
├── StepError            a step's own code failed, or made what its spec does not say; has
`.traceback`
├── ServerError          a data processing server cannot be started or reached, or refuses what it
was asked for
└── DataError            the samples themselves
    ├── SampleError      one sample cannot be read or decoded; has `.path` and `.reason`
    ├── ShapeError       samples of one batch differ in shape
    └── TooManyBadError  more samples were skipped than `loader.max_bad` allows

Warnings
└── StandInWarning       drawn images stand in for data that could not be fetched   (a UserWarning)
"""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_PLACE = re.compile(r"(.+):(\d+):(\d+)")
_LONGEST = 60
_ALIKE = 0.7


class GpupipeError(Exception):
    """The base of all errors of gpupipe: catch this one to catch them all."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration: `where` is `file:line:column` (or the override), `what` says
    what to write instead.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class ConfigError(GpupipeError, ValueError):
    """One or more mistakes in a configuration; `.problems` holds all of them: file by file in the
    order of the lines, then overrides.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = _in_order(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class DeviceError(GpupipeError):
    """The device or engine that was asked for is not there."""


class FetchError(GpupipeError):
    """A data set could not be downloaded or unpacked."""


class StateError(GpupipeError):
    """A state_dict belongs to other data, another pipeline or another seed."""


class UsageError(GpupipeError, TypeError):
    """A loader is pickled, copied, indexed or given to a DataLoader: none of that can be.

    It is also a TypeError, which is what pickle raises, and what those expect who only try.
    """


class EngineError(GpupipeError):
    """An engine failed, and no single sample is to blame."""


class StepError(GpupipeError):
    """A step's own code failed, or what it returned is not what its spec says.

    Attributes:
        traceback: Of the exception in the step's code, as Python prints it, or empty.

    """

    def __init__(self, message: str, traceback: str = "") -> None:
        self.traceback = traceback
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_another_process, (str(self), self.traceback)


class _Traceback(Exception):
    """What stands for an exception that was raised in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _from_another_process(message: str, traceback: str) -> StepError:
    error = StepError(message, traceback)
    error.__cause__ = _Traceback(traceback) if traceback else None
    return error


class ServerError(GpupipeError):
    """A data processing server cannot be started or reached, or refuses what it was asked for."""


class DataError(GpupipeError):
    """Something is wrong with the samples themselves."""


class SampleError(DataError):
    """One sample cannot be read, decoded or put through the pipeline."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path}: {reason}; set loader.on_error=skip to leave such samples out and go on"
        )


class ShapeError(DataError):
    """Samples of one batch differ in shape, so they cannot be stacked into one tensor."""


class TooManyBadError(DataError):
    """More samples were skipped than `loader.max_bad` allows."""


class StandInWarning(UserWarning):
    """Drawn images stand in for a data set that could not be fetched."""


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning that names the line outside of gpupipe from which it was called."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "gpupipe":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)


def _in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    files: list[str] = []

    def place(problem: Problem) -> tuple[int, int, int, int]:
        match = _PLACE.fullmatch(problem.where)
        if match is None:
            return 2 if problem.where.startswith("'") else 1, 0, 0, 0
        file, line, column = match.groups()
        if file not in files:
            files.append(file)
        return 0, files.index(file), int(line), int(column)

    return tuple(sorted(dict.fromkeys(problems), key=place))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be: one much like it, or of the same letters
    ("lwf" for "lfw").
    """
    names = sorted(known)
    like = difflib.get_close_matches(name, names, n=1, cutoff=_ALIKE)
    return next(iter(like), None) or next((n for n in names if sorted(n) == sorted(name)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest of the known names, else a list of them; empty where
    nothing is known.
    """
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return f"; did you mean '{near}'?"
    return f"; known: {', '.join(names)}" if names else ""


def counted(n: int, what: str, plural: str = "") -> str:
    """`1 rank`, `2 ranks`. plural: where it is not the singular with an s."""
    return f"{n:,} {what if n == 1 else plural or f'{what}s'}"


def shown(value: Any) -> str:
    """A value as a message shows it: in YAML's words, and short."""
    if isinstance(value, (list, tuple)):
        return short(f"[{', '.join(map(shown, value))}]")
    if isinstance(value, dict):
        return short(f"{{{', '.join(f'{k}: {shown(v)}' for k, v in value.items())}}}")
    return (
        "empty"
        if value is None
        else str(value).lower()
        if isinstance(value, bool)
        else short(repr(value))
    )


def short(text: str, longest: int = _LONGEST) -> str:
    """The text, or its beginning."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
