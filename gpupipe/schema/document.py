"""Read YAML files, and keep the location of every key and value for error messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import omegaconf
import yaml
from omegaconf import OmegaConf

from gpupipe.errors import ConfigError, Problem, did_you_mean, nearest, shown

Key = str | int
Loc = tuple[Key, ...]

_TAG = "tag:yaml.org,2002:"
_DEEPEST, _LARGEST = 50, 100_000

UNRESOLVED: Any = type("Unresolved", (), {"__repr__": lambda self: "..."})()
"""Replaces a value that `resolve` has reported, so that validation does not report it again."""


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.1, except that dates stay text and numbers follow YAML 1.2.

    So 1e-3 is a number, 010 is ten, and 1:30 is text.
    """


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if not tag.endswith((":int", ":float", ":timestamp", ":value"))
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAG}int", re.compile(r"^[-+]?(0|[1-9][\d_]*)$|^0x[\da-fA-F]+$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(
        r"^[-+]?(\.\d+|\d[\d_]*(\.[\d_]*)?)([eE][-+]?\d+)?$"
        r"|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)

_UNCLOSED = "found unexpected end of stream"
_PLAINER = {
    "found character '\\t' that cannot start any token": "a tab: indent with spaces",
    "mapping values are not allowed here": (
        "a second colon: put a value that holds one in quotes, and a new key on its own line"
    ),
    _UNCLOSED: "the quotes are not closed",
    "could not find expected ':'": "a colon is missing, with a blank after it",
    "but found another document": "a second document (---): a file holds one",
}


@dataclass(frozen=True)
class Document:
    """The data of a YAML file, with the location of each key and value.

    Attributes:
        name: The file's name in messages. Data that comes from no file has only this.
        data: Nested dicts, lists and scalars.
        keys: The location of each key, "file:line:column", by its path in `data`.
        values: The location of each value, likewise.
    """

    name: str
    data: Any
    keys: dict[Loc, str] = field(default_factory=dict)
    values: dict[Loc, str] = field(default_factory=dict)

    def where(self, loc: Sequence[Key], of_key: bool = False) -> str:
        """Return the location of a value or key, as "file:line:column".

        If it has none, this is the location of the nearest parent that has one. The path follows
        if an item of a list lies between the two: "config: pipeline.1".

        Args:
            loc: The path of the value in `data`.
            of_key: Whether to return the location of its key instead.
        """
        for end in range(len(loc), -1, -1):
            part = tuple(loc[:end])
            first, second = (
                (self.keys, self.values) if of_key and end == len(loc) else (self.values, self.keys)
            )
            if part in first or part in second:
                return first.get(part, second.get(part, "")) + _item(loc, end)
        return self.name + _item(loc, 0)

    def at(self, loc: Sequence[Key]) -> Any:
        """Return the value at `loc`; None if there is none."""
        value = self.data
        for key in loc:
            if not _has(value, key):
                return None
            value = value[key]
        return value

    def holds(self, loc: Sequence[Key]) -> bool:
        """Whether there is a value at `loc`, even an empty one."""
        return _has(self.at(loc[:-1]), loc[-1])

    def put(self, loc: Loc, value: Any, place: str) -> None:
        """Set the value at `loc`. A mapping is merged into the mapping that is there.

        Missing parents are created. A step without parameters ("- decode") becomes a mapping.

        Args:
            loc: The path of the value in `data`.
            value: The new value.
            place: The location of the new value, such as the override that sets it.

        Raises:
            ConfigError: A parent is neither a mapping nor a list, or has no such item.
        """
        holder, loc = self._holder(loc, place)
        key: Any = loc[-1]
        if (
            isinstance(value, dict)
            and isinstance(holder, dict)
            and isinstance(holder.get(key), dict)
        ):
            for inner, part in value.items():
                self.put((*loc, inner), part, place)
        else:
            self._set(holder, loc, value, place)

    def replace(self, loc: Loc, value: Any, place: str) -> None:
        """Set the value at `loc` like `put`, but replace a mapping instead of merging into it."""
        holder, loc = self._holder(loc, place)
        self._set(holder, loc, value, place)

    def _set(self, holder: Any, loc: Loc, value: Any, place: str) -> None:
        holder[loc[-1]] = value
        for table in (self.keys, self.values):
            for old in [k for k in table if k[: len(loc)] == loc]:
                del table[old]
        self.values[loc] = place

    def _holder(self, loc: Loc, place: str) -> tuple[Any, Loc]:
        """Return the parent of `loc`, and `loc` with int indices for items of lists."""
        holders: list[Any] = [self.data]
        real: list[Key] = []
        for i, key in enumerate(loc):
            real.append(_index(holders[-1], key, real, place))
            if i < len(loc) - 1:
                holders.append(self._inside(holders[-1], real, loc[i + 1], place))
        return holders[-1], tuple(real)

    def _inside(self, holder: Any, loc: list[Key], following: Key, place: str) -> Any:
        """Return the value at `loc` in its parent `holder`, as a parent for the key `following`."""
        key: Any = loc[-1]
        old = holder.get(key) if isinstance(holder, dict) else holder[key]
        if old is None or (isinstance(holder, list) and old == following):
            holder[key] = {} if old is None else {old: {}}
            self.keys[tuple(loc)] = place
        return holder[key]


def _has(holder: Any, key: Key) -> bool:
    return (
        key in holder
        if isinstance(holder, dict)
        else isinstance(holder, list) and isinstance(key, int) and key < len(holder)
    )


def _index(holder: Any, key: Key, above: list[Key], place: str) -> Key:
    """Convert `key` to the type of key that `holder` takes. Raises ConfigError if it cannot."""
    if isinstance(holder, dict):
        return key
    name = ".".join(map(str, above))
    if not isinstance(holder, list):
        raise ConfigError(
            [Problem(place, f"{name} is {shown(holder)}: there is no '{key}' in it to change")]
        )
    if not str(key).isdecimal() or int(key) >= len(holder):
        raise ConfigError(
            [
                Problem(
                    place,
                    f"there is no {name}.{key}: {name} is a list of {len(holder)}, which "
                    "count from 0",
                )
            ]
        )
    return int(key)


def _item(loc: Sequence[Key], end: int) -> str:
    number = next((i for i in range(end, len(loc)) if isinstance(loc[i], int)), None)
    return "" if number is None else f": {'.'.join(map(str, loc[: number + 1]))}"


def read(path: Path) -> Document:
    """Read a YAML file.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(
            [Problem(str(path), f"cannot be read: {getattr(e, 'strerror', None) or e}")]
        ) from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Document:
    """Parse a YAML text.

    Keys stay text, even if YAML would read them as numbers or booleans.

    Args:
        text: The text.
        name: The file's name in messages.

    Raises:
        ConfigError: The text is not YAML, or has a key twice.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        marks = _Marks(name)
        if node is None:
            return Document(name, None, {}, {(): f"{name}:1:1"})
        marks.visit(node, ())
        if marks.problems:
            raise ConfigError(marks.problems)
        return Document(name, _construct(loader, node, marks.values[()]), marks.keys, marks.values)
    except yaml.MarkedYAMLError as e:
        mark = e.context_mark if e.problem == _UNCLOSED else e.problem_mark or e.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        around = text.split("\n")[mark.line] if mark else ""
        raise ConfigError([Problem(where, f"not YAML: {_plainer(e, around)}")]) from None
    except yaml.reader.ReaderError as e:
        line, column = (
            text.count("\n", 0, e.position) + 1,
            e.position - text.rfind("\n", 0, e.position),
        )
        raise ConfigError(
            [
                Problem(
                    f"{name}:{line}:{column}",
                    f"not YAML: the character {chr(e.character)!r} must not stand in it",
                )
            ]
        ) from None
    except RecursionError:
        raise ConfigError(
            [Problem(name, "not YAML that can be read: it is nested too deeply")]
        ) from None


def _construct(loader: _Loader, node: yaml.Node, where: str) -> Any:
    try:
        return loader.construct_document(node)
    # PyYAML lets these escape for "!!bool perhaps", "!!int ''" and the like.
    except (ValueError, LookupError, AttributeError, TypeError) as e:
        raise ConfigError(
            [
                Problem(
                    where,
                    f"not YAML: a tag (!!...) stands before a value that does not fit it ({e})",
                )
            ]
        ) from None


def _plainer(error: yaml.MarkedYAMLError, line: str) -> str:
    problem = error.problem or error.context or ""
    if problem.startswith("could not determine a constructor"):
        return "tags such as !!python/... are not read: remove it"
    if problem.startswith("expected <block end>"):
        return "the indentation does not fit the lines above"
    bracket, start = (
        {"while parsing a flow sequence": "[", "while parsing a flow mapping": "{"}.get(
            error.context or ""
        ),
        error.context_mark,
    )
    if bracket and start and problem.startswith("expected"):
        quotes = "; a value with ${...} needs quotes here" if "${" in line else ""
        return f"{problem}, after the {bracket} at {start.line + 1}:{start.column + 1}{quotes}"
    return _PLAINER.get(problem, problem)


class _Marks:
    """Collects the location of every key and value of a YAML node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys: dict[Loc, str] = {}
        self.values: dict[Loc, str] = {}
        self.problems: list[Problem] = []

    def visit(self, node: yaml.Node, loc: Loc) -> None:
        if len(loc) > _DEEPEST or len(self.values) > _LARGEST:
            raise ConfigError(
                [
                    Problem(
                        self._place(node),
                        "nested too deeply, or too large; an alias (*name) must not stand "
                        "inside its own anchor (&name)",
                    )
                ]
            )
        self.values[loc] = self._place(node)
        if isinstance(node, yaml.MappingNode):
            own = self._own_keys(node, loc)
            for key, value in node.value:
                if key.tag == f"{_TAG}merge":
                    self._merge(value, loc, own)
                elif isinstance(key, yaml.ScalarNode):
                    self.visit(value, (*loc, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self.visit(item, (*loc, i))

    def _own_keys(self, node: yaml.MappingNode, loc: Loc) -> set[str]:
        """Return the mapping's keys, after tagging each as text. Reports duplicate keys."""
        own: dict[str, str] = {}
        for key, _ in node.value:
            place = self._place(key)
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(
                    Problem(place, "a key must be a name, not a list or a mapping")
                )
                continue
            if key.value in own:
                self.problems.append(
                    Problem(
                        place,
                        f"'{key.value}' stands here twice (first at {own[key.value]}): remove one",
                    )
                )
            own[key.value] = place
            if key.tag != f"{_TAG}merge":
                key.tag = f"{_TAG}str"
                self.keys[(*loc, key.value)] = place
        return set(own)

    def _merge(self, node: yaml.Node, loc: Loc, own: set[str]) -> None:
        """Add the locations of keys that `<<` brings in. The mapping's own keys win."""
        for mapping in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            inner = _Marks(self.name)
            inner.visit(mapping, loc)
            for mine, theirs in ((self.keys, inner.keys), (self.values, inner.values)):
                mine.update(
                    {
                        k: v
                        for k, v in theirs.items()
                        if len(k) > len(loc) and k[len(loc)] not in own and k not in mine
                    }
                )

    def _place(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def resolve(document: Document) -> tuple[Document, list[Problem]]:
    """Resolve every ${...}, which is OmegaConf's interpolation.

    Returns:
        The resolved document, and a problem for each ${...} that cannot be resolved. Its value
        is UNRESOLVED.
    """
    problems: list[Problem] = []
    config = OmegaConf.create(
        _map(document.data, (), lambda loc, text: text if _grammatical(text) else "???"),
        flags={"allow_objects": True},
    )

    def replaced(loc: Loc, text: str) -> Any:
        try:
            value = config
            for key in loc:
                value = value[key]
            return (
                OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            )
        except omegaconf.errors.OmegaConfBaseException as e:
            problems.append(
                Problem(
                    document.where(loc),
                    f"{'.'.join(map(str, loc))}: {_unresolved(text, e, document)}",
                )
            )
            return UNRESOLVED

    return Document(
        document.name, _map(document.data, (), replaced), document.keys, document.values
    ), problems


def _map(value: Any, loc: Loc, change: Callable[[Loc, str], Any]) -> Any:
    """Apply `change` to every text in `value` that OmegaConf would interpret."""
    if isinstance(value, dict):
        return {k: _map(v, (*loc, k), change) for k, v in value.items()}
    if isinstance(value, list):
        return [_map(v, (*loc, i), change) for i, v in enumerate(value)]
    return (
        change(loc, value)
        if isinstance(value, str) and ("${" in value or value == "???")
        else value
    )


def _grammatical(text: str) -> bool:
    try:
        OmegaConf.create([text])
    except omegaconf.errors.GrammarParseError:
        return False
    return True


def _unresolved(text: str, error: Exception, document: Document) -> str:
    """Say why OmegaConf could not resolve a text, and what to write instead."""
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
        near = nearest(quoted, {".".join(map(str, k)) for k in document.keys})
        return f"{shown(text)}: there is no key '{quoted}'" + (
            f"; did you mean '{near}'?" if near else ""
        )
    if isinstance(error, omegaconf.errors.UnsupportedInterpolationType):
        return (
            f"{shown(text)}: unknown "
            f"resolver{did_you_mean(message.split()[-1], ('oc.env', 'oc.decode', 'oc.select'))}"
        )
    return f"{shown(text)} cannot be resolved: {message}"
