"""The exceptions and warnings of gpupipe, and helpers that word their messages.

GpupipeError
├── ConfigError          a YAML file, an override or an argument is wrong (also a ValueError)
├── DeviceError          the requested device or engine is not available
├── FetchError           a data set could not be downloaded or unpacked
├── StateError           a state_dict belongs to other data, another pipeline or another seed
├── UsageError           a loader is pickled, copied or indexed (also a TypeError)
├── EngineError          an engine failed, and no single sample is to blame
├── StepError            a step's code failed, or its result does not match its spec
├── ServerError          a server cannot be started or reached, or refuses a request
└── DataError            something is wrong with the samples
    ├── NoSamplesError   there is no sample, and no file is damaged
    ├── SampleError      one sample cannot be read, decoded or transformed
    ├── ShapeError       samples of one batch differ in shape
    └── TooManyBadError  more samples were skipped than loader.max_bad allows

UserWarning
└── StandInWarning       drawn images replace a data set that could not be fetched

A step's code raises StepIncompatibleError, SampleIncompatibleError and NoLoweringError. gpupipe
catches them.
"""

import difflib
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

_LOCATION = re.compile(r"(.+):(\d+):(\d+)")
_WORD = re.compile(r"""[^\s'"]+""")
_URL = re.compile(r"(?<!\bfile)://")
_PASSWORD = re.compile(r"(://[^/:@?\[]*):(?:[^/]*@|(?!\d+/).*@)")
_USER = re.compile(r"(\bhttps?://)[^/:@?]+@")
_MAX_CHARS = 60
_MIN_RATIO = 0.7
_MIN_BEGIN = 4


class GpupipeError(Exception):
    """Base class of all errors that gpupipe raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration.

    Attributes:
        where: Location of the mistake: `file:line:column`, an override in quotes, the name of
            the called function, or empty.
        what: What is wrong, and what to write instead.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class ConfigError(GpupipeError, ValueError):
    """A configuration has one or more mistakes; the message has one line for each.

    Attributes:
        problems: All mistakes without duplicates: first those in files, by line; last those in
            overrides.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = _sort_problems([Problem(p.where, hide_secrets(p.what)) for p in problems])
        super().__init__("\n".join(str(p) for p in self.problems))

    @classmethod
    def at(cls, where: str, what: str) -> "ConfigError":
        """Return a ConfigError with a single `Problem`."""
        return cls([Problem(where, what)])


class DeviceError(GpupipeError):
    """The requested device or engine is not available."""


class FetchError(GpupipeError):
    """A data set could not be downloaded or unpacked."""


class StateError(GpupipeError):
    """A state_dict is malformed, or belongs to other data, another pipeline or another seed."""


class UsageError(GpupipeError, TypeError):
    """A loader was pickled, copied, indexed or passed to a DataLoader, which it does not support.

    It is also a TypeError, because code that probes for these operations catches TypeError.
    """


class EngineError(GpupipeError):
    """An engine failed, and no single sample is to blame."""


class StepError(GpupipeError):
    """The code of a step raised an exception, or its result does not match its spec.

    Attributes:
        traceback: Traceback of the exception in the step's code, as Python prints it, or empty.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        self.traceback = traceback
        super().__init__(message)

    def at_sample(self, location: str) -> "StepError":
        """Return the same error, with the location of the sample in its message."""
        error = StepError(f"{self}; the sample is {location}", self.traceback)
        error.__cause__ = self.__cause__
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_another_process, (str(self), self.traceback)


class _Traceback(Exception):
    """Cause of a StepError that was raised in another process: prints the traceback from there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _from_another_process(message: str, traceback: str) -> StepError:
    error = StepError(message, traceback)
    error.__cause__ = _Traceback(traceback) if traceback else None
    return error


class ServerError(GpupipeError):
    """A data processing server cannot be started or reached, or refuses a request."""


class DataError(GpupipeError):
    """Base class of errors in the samples themselves."""


class NoSamplesError(DataError):
    """There is no sample, and no file is damaged."""


class SampleError(DataError):
    """One sample cannot be read, decoded or transformed.

    Attributes:
        path: Path of the sample.
        reason: Why the sample failed, in one line.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path}: {reason}; set loader.on_error=skip to leave such samples out and go on"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


class ShapeError(DataError):
    """Samples of one batch differ in shape, so that they cannot be stacked into one tensor."""


class TooManyBadError(DataError):
    """More samples were skipped than `loader.max_bad` allows."""


class StepIncompatibleError(Exception):
    """A step cannot process its input; the message says why and what to write instead.

    Args:
        message: Why, and what to write instead.
        where: The YAML location of the step at fault. Needed only if another step raises the error,
            such as the container that holds the step at fault.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class SampleIncompatibleError(RuntimeError):
    """A step cannot process this one sample; the message says why.

    If `torch` or `lower` raises it, the run loses that sample, as if it could not be decoded. Any
    other exception in a step's code counts as a bug of the step and ends the run.
    """


class NoLoweringError(Exception):
    """A step cannot run on this kind of engine, for example because it lacks `lower` or `torch`."""


class StandInWarning(UserWarning):
    """The loader delivers drawn stand-in images, because the data set could not be fetched."""


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning that points at the line of the user's code that called gpupipe."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "gpupipe":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)


def _sort_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    files: list[str] = []

    def sort_key(problem: Problem) -> tuple[int, int, int, int]:
        match = _LOCATION.fullmatch(problem.where)
        if match is None:
            return 2 if problem.where.startswith("'") else 1, 0, 0, 0
        file, line, column = match.groups()
        if file not in files:
            files.append(file)
        return 0, files.index(file), int(line), int(column)

    return tuple(sorted(dict.fromkeys(problems), key=sort_key))


def nearest(name: str, valid_names: Iterable[str]) -> str | None:
    """Return the valid name that a misspelt name probably means.

    Args:
        name: The name as it was written.
        valid_names: The valid names.

    Returns:
        The most similar name (difflib, ratio of at least 0.7). If there is none, a name with the
        same letters, such as "lfw" for "lwf"; or one that begins with `name`, of at least four
        letters, such as "validation" for "valid"; or None.
    """
    names = sorted(valid_names)
    similar = difflib.get_close_matches(name, names, n=1, cutoff=_MIN_RATIO)
    letters = (n for n in names if sorted(n) == sorted(name))
    begins = (n for n in names if len(name) >= _MIN_BEGIN and n.startswith(name))
    return next(iter(similar), None) or next(letters, None) or next(begins, None)


def did_you_mean(name: str, valid_names: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name.

    Args:
        name: The name as it was written.
        valid_names: The valid names.

    Returns:
        `; did you mean 'x'?` if a valid name is similar. Otherwise `; known: x, y`, or "" if there
        are no valid names.
    """
    names = sorted(valid_names)
    near = nearest(name, names)
    if near:
        return f"; did you mean '{near}'?"
    return f"; known: {', '.join(names)}" if names else ""


def counted(n: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 rank`, `2,000 ranks`.

    Args:
        n: The count.
        noun: The noun in the singular.
        plural: The noun in the plural, if it is not the singular with an s.
    """
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def shown(value: Any) -> str:
    """Format a value for an error message: in YAML's words, and at most 60 characters."""
    if isinstance(value, (list, tuple)):
        return short(f"[{', '.join(map(shown, value))}]")
    if isinstance(value, dict):
        return short(f"{{{', '.join(f'{k}: {shown(v)}' for k, v in value.items())}}}")
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        value = hide_secrets(value)
    return short(repr(str(value) if isinstance(value, PurePath) else value))


def describe_error(error: Exception) -> str:
    """Return the reason why a sample cannot be read or decoded, from its exception."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def name_error(error: BaseException) -> str:
    """Return the class and the message of an exception, for code that is not gpupipe's own."""
    return f"{type(error).__name__}: {error}".strip().rstrip(":")


def hide_secrets(text: str) -> str:
    """Return a text with *** in place of the password and the query of each URL in it.

    A file:// URL has neither. The time is proportional to the length, also for hostile texts.
    """
    return _WORD.sub(_hide_in_word, text) if "://" in text else text


def _hide_in_word(match: re.Match[str]) -> str:
    word = match[0]
    url = _URL.search(word)
    if url is None:
        return word
    # A search for @ from each :// would take quadratic time if no @ followed.
    head, at, tail = word.rpartition("@")
    word = _USER.sub(r"\1***@", _PASSWORD.sub(r"\1:***@", head + at)) + tail
    mark = word.find("?", url.start())
    if mark < 0 or "=" not in word[mark:]:
        return word
    return f"{word[: mark + 1]}***{word[len(word.rstrip(':;,.)')) :]}"


def short(text: str, longest: int = _MAX_CHARS) -> str:
    """Cut a text to at most `longest` characters; a text that was cut ends in "..."."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
