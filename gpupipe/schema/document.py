"""Document: the data of a YAML file, with the location of every key and value."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpupipe.errors import ConfigError, Problem, shown

Key = str | int
Loc = tuple[Key, ...]

UNRESOLVED: Any = type("Unresolved", (), {"__repr__": lambda self: "..."})()
"""Replaces a value whose ${...} could not be resolved: validation does not report it again."""


def join_keys(loc: Sequence[Key]) -> str:
    """Return a path in a document as messages write it: "data.parts.0.root"."""
    return ".".join(map(str, loc))


@dataclass(frozen=True)
class Document:
    """The data of a YAML file, with the location of each key and value.

    Attributes:
        name: The file's name in messages. Data without a file has this as its only location.
        data: Nested dicts, lists and scalars.
        keys: Maps the path of each key in `data` to the key's location, "file:line:column".
        values: Maps the path of each value in `data` to the value's location, in the same form.
        folder: The file's folder; None for data without a file.
    """

    name: str
    data: Any
    keys: dict[Loc, str] = field(default_factory=dict)
    values: dict[Loc, str] = field(default_factory=dict)
    folder: Path | None = None

    def where(self, loc: Sequence[Key], of_key: bool = False) -> str:
        """Return the location of a value or key, as "file:line:column".

        A value without a location gets the location of its nearest parent that has one. If the path
        from that parent goes through a list, the item's path is added: "config: pipeline.1".

        Args:
            loc: The path of the value in `data`.
            of_key: Whether to return the location of the value's key instead.
        """
        for end in range(len(loc), -1, -1):
            part = tuple(loc[:end])
            tables = [self.values, self.keys]
            for table in reversed(tables) if of_key and end == len(loc) else tables:
                if part in table:
                    return table[part] + _item(loc, end)
        return self.name + _item(loc, 0)

    def at(self, loc: Sequence[Key]) -> Any:
        """Return the value at `loc`; None if `loc` does not exist."""
        value = self.data
        for key in loc:
            if not _has(value, key):
                return None
            value = value[key]
        return value

    def holds(self, loc: Sequence[Key]) -> bool:
        """Return whether `loc` exists, even if its value is empty."""
        return _has(self.at(loc[:-1]), loc[-1])

    def put(self, loc: Loc, value: Any, location: str) -> None:
        """Set the value at `loc` to `value`, or merge `value` into it if both are mappings.

        Missing parents are created. A step without parameters ("- decode") becomes a mapping if
        `loc` leads into it.

        Args:
            loc: The path of the value in `data`.
            value: The new value.
            location: The location of the new value, such as the override that sets it.

        Raises:
            ConfigError: A parent is neither a mapping nor a list, or a list lacks the item.
        """
        holder, loc = self._holder(loc, location)
        old = holder.get(loc[-1]) if isinstance(holder, dict) else None
        if isinstance(value, dict) and isinstance(old, dict):
            for inner, part in value.items():
                self.put((*loc, inner), part, location)
        else:
            self.replace(loc, value, location)

    def replace(self, loc: Loc, value: Any, location: str) -> None:
        """Set the value at `loc` like `put`, but replace a mapping instead of merging into it."""
        holder, loc = self._holder(loc, location)
        holder[loc[-1]] = value
        for table in (self.keys, self.values):
            for old in [k for k in table if k[: len(loc)] == loc]:
                del table[old]
        self.values[loc] = location

    def _holder(self, loc: Loc, location: str) -> tuple[Any, Loc]:
        """Return the mapping or list that holds `loc`, and `loc` with ints for items of lists."""
        holders: list[Any] = [self.data]
        real: list[Key] = []
        for i, key in enumerate(loc):
            real.append(_index(holders[-1], key, real, location))
            if i < len(loc) - 1:
                holders.append(self._inside(holders[-1], real, loc[i + 1], location))
        return holders[-1], tuple(real)

    def _inside(self, holder: Any, loc: list[Key], following: Key, location: str) -> Any:
        """Return the item of `holder` at `loc`, changed if it cannot contain the key `following`.

        An empty value becomes {}. An item of a list that equals `following`, such as the step
        "decode" without parameters, becomes a mapping: {"decode": {}}.
        """
        key: Any = loc[-1]
        old = holder.get(key) if isinstance(holder, dict) else holder[key]
        if old is None or (isinstance(holder, list) and old == following):
            holder[key] = {} if old is None else {old: {}}
            self.keys[tuple(loc)] = location
        return holder[key]


@dataclass(frozen=True)
class Node:
    """A value of a document, with the list to which mistakes in the value are added.

    Attributes:
        document: The document.
        loc: The path of the value.
        problems: The list to which `report` appends mistakes.
    """

    document: Document
    loc: Loc
    problems: list[Problem]

    @property
    def value(self) -> Any:
        """The value at `loc`; None if the document has no such path."""
        return self.document.at(self.loc)

    def inside(self, *keys: Key) -> "Node":
        """Return the node at the path `keys` below this one."""
        return replace(self, loc=(*self.loc, *keys))

    def items(self) -> "list[Node]":
        """Return one node for each item of the value. The value must be a list."""
        return [self.inside(number) for number in range(len(self.value))]

    def where(self, of_key: bool = False) -> str:
        """Return the location of the value, or of its key: see `Document.where`."""
        return self.document.where(self.loc, of_key)

    def report(self, mistake: str, of_key: bool = False) -> None:
        """Add a mistake in the value, or in its key, to `problems`."""
        self.problems.append(Problem(self.where(of_key), mistake))


def _has(holder: Any, key: Key) -> bool:
    if isinstance(holder, dict):
        return key in holder
    return isinstance(holder, list) and isinstance(key, int) and key < len(holder)


def _index(holder: Any, key: Key, above: list[Key], location: str) -> Key:
    """Return `key` as an int if `holder` is a list, else unchanged.

    Raises ConfigError if `holder` cannot have the key. `above` is the path of `holder`.
    """
    if isinstance(holder, dict):
        return key
    name = join_keys(above)
    if not isinstance(holder, list):
        wrong = f"{name} is {shown(holder)}: there is no '{key}' in it to change"
        raise ConfigError.at(location, wrong)
    if not str(key).isdecimal() or int(key) >= len(holder):
        wrong = f"there is no {name}.{key}: {name} is a list of {len(holder)}, which count from 0"
        raise ConfigError.at(location, wrong)
    return int(key)


def _item(loc: Sequence[Key], end: int) -> str:
    number = next((i for i in range(end, len(loc)) if isinstance(loc[i], int)), None)
    return "" if number is None else f": {join_keys(loc[: number + 1])}"
