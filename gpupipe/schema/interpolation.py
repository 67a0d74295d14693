"""Resolves interpolations such as ${oc.env:HOME} in a Document, with OmegaConf."""

import functools
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import omegaconf
from omegaconf import OmegaConf

from gpupipe.errors import ConfigError, Problem, did_you_mean, nearest, shown
from gpupipe.schema.document import UNRESOLVED, Document, Loc, join_keys

_SHELL_VARIABLE = re.compile(r"(?:^|/)\$([A-Za-z_]\w*)(?=/|$)")
"""Matches $HOME as a part of a path."""
_MAX_NESTED = 20
"""The maximum depth of nested ${...}, and the maximum length of a chain of references.

OmegaConf recurses into each of them.
"""
_MAX_RESOLVED = 5_000
"""The maximum number of references to resolve in a document. OmegaConf resolves a ${...} again for
each reference to it, so that ten lines may take hours.
"""
_REFERENCE = re.compile(r"\$\{(\.*)([^${}:]+)\}")


def resolve(document: Document) -> tuple[Document, list[Problem]]:
    """Resolve every ${...}, which is OmegaConf's interpolation.

    Returns:
        The resolved document, and a problem for each value with a ${...} that cannot be resolved.
        UNRESOLVED replaces each such value.

    Raises:
        ConfigError: Too many ${...} refer to each other.
    """
    problems: list[Problem] = []
    _ReferenceCounter(document).check()
    config = OmegaConf.create(
        _map(document.data, (), lambda loc, text: text if _is_grammatical(text) else "???"),
        flags={"allow_objects": True},
    )

    def resolve_text(loc: Loc, text: str) -> Any:
        if variable := _SHELL_VARIABLE.search(text):
            rule = f"environment variables are ${{oc.env:{variable[1]}}}, and no shell reads this"
            problem = f" is {shown(text)}: {rule}"
        else:
            try:
                value = functools.reduce(operator.getitem, loc, config)
                is_config = OmegaConf.is_config(value)
                return OmegaConf.to_container(value, resolve=True) if is_config else value
            except (omegaconf.errors.OmegaConfBaseException, RecursionError) as e:
                failure = _describe_depth(text, e) or _describe_failure(text, e, document)
                problem = f": {failure}"
        problems.append(Problem(document.where(loc), join_keys(loc) + problem))
        return UNRESOLVED

    return replace(document, data=_map(document.data, (), resolve_text)), problems


class _ReferenceCounter:
    """Counts the plain references (${key.key}) that resolving a document follows."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._counts: dict[Loc, tuple[int, int]] = {}

    def check(self) -> None:
        """Raise ConfigError if there are too many references, or if a chain of them is too long."""
        total = 0
        for loc, text in _iterate_texts(self._document.data, ()):
            try:
                count, length = self._count(loc, 0)
            except RecursionError:
                count, length = 0, _MAX_NESTED + 1
            total += count
            if length > _MAX_NESTED or total > _MAX_RESOLVED:
                raise ConfigError.at(
                    self._document.where(loc),
                    f"{join_keys(loc)}: {shown(text)} refers to others that refer to others: at "
                    f"most {_MAX_NESTED} in a row, and {_MAX_RESOLVED:,} in all",
                )

    def _count(self, loc: Loc, depth: int) -> tuple[int, int]:
        """Return how many references the value at `loc` leads to, and their longest chain's length.

        Raises RecursionError if `depth`, the length of the chain up to `loc`, is too large.
        """
        if depth > _MAX_NESTED:
            raise RecursionError
        if loc not in self._counts:
            self._counts[loc] = 0, 0  # of one that leads back to itself, which OmegaConf reports
            texts = _iterate_texts(self._document.at(loc), loc)
            targets = [target for at, text in texts for target in _find_targets(at, text)]
            counts = [self._count(target, depth + 1) for target in targets]
            self._counts[loc] = (
                len(counts) + sum(count for count, _ in counts),
                1 + max((length for _, length in counts), default=-1),
            )
        return self._counts[loc]


def _iterate_texts(value: Any, loc: Loc) -> Iterator[tuple[Loc, str]]:
    """Yield (path, text) of each text with ${...} in `value`. `loc` is the path of `value`."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _iterate_texts(part, (*loc, key))
    elif isinstance(value, str) and "${" in value:
        yield loc, value


def _find_targets(loc: Loc, text: str) -> Iterator[Loc]:
    """Yield the full path of the target of each reference in `text`, which is at `loc`."""
    for dots, path in _REFERENCE.findall(text):
        keys = [key for key in re.split(r"[.\[\]]", path) if key]
        above = loc[: max(0, len(loc) - len(dots))] if dots else ()
        yield (*above, *(int(key) if key.isdecimal() else key for key in keys))


def _map(value: Any, loc: Loc, change: Callable[[Loc, str], Any]) -> Any:
    """Return `value`, with `change` applied to each text that OmegaConf or a shell interprets."""
    if isinstance(value, dict):
        return {k: _map(v, (*loc, k), change) for k, v in value.items()}
    if isinstance(value, list):
        return [_map(v, (*loc, i), change) for i, v in enumerate(value)]
    is_interpreted = isinstance(value, str) and (
        "${" in value or value == "???" or _SHELL_VARIABLE.search(value)
    )
    return change(loc, value) if is_interpreted else value


def _is_grammatical(text: str) -> bool:
    if _count_nested(text) > _MAX_NESTED:
        return False
    try:
        OmegaConf.create([text])
    except (omegaconf.errors.GrammarParseError, RecursionError):
        return False
    return True


def _count_nested(text: str) -> int:
    """Return the depth to which ${...} are nested in a text."""
    depth = deepest = 0
    for bracket in re.findall(r"\$\{|\}", text):
        depth = depth + 1 if bracket == "${" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _describe_depth(text: str, error: Exception) -> str:
    """Return a message if a text is nested too deeply for OmegaConf, else ""."""
    if _count_nested(text) <= _MAX_NESTED and "recursion depth" not in str(error):
        return ""
    return f"{shown(text)}: nested too deeply: at most {_MAX_NESTED} ${{...}} in each other"


def _describe_failure(text: str, error: Exception, document: Document) -> str:
    """Return a message: why OmegaConf could not resolve a text, and what to write instead."""
    message = str(error).splitlines()[0]
    quoted = next(iter(re.findall(r"'([^']*)'", message)), "")
    if text == "???":
        return "??? stands for a value that must be given: write it here, or give it as an override"
    if isinstance(error, omegaconf.errors.MissingMandatoryValue):
        return (
            f"{shown(text)} cannot be read: write ${{key}} or ${{oc.env:NAME,default}}, and for "
            f"a plain '${{' write '\\${{'"
        )
    if message.startswith("KeyError") and "Environment variable" in message:
        return (
            f"the environment variable {quoted} is not set: set it, or write a default: "
            f"${{oc.env:{quoted},default}}"
        )
    if isinstance(error, omegaconf.errors.InterpolationKeyError):
        near = nearest(quoted, map(join_keys, document.keys))
        hint = f"; did you mean '{near}'?" if near else ""
        return f"{shown(text)}: there is no key '{quoted}'{hint}"
    if isinstance(error, omegaconf.errors.UnsupportedInterpolationType):
        hint = did_you_mean(message.split()[-1], ("oc.env", "oc.decode", "oc.select"))
        return f"{shown(text)}: unknown resolver{hint}"
    return f"{shown(text)} cannot be resolved: {message}"
