"""YAML files with the place of every key and value, so that an error can point at it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpupipe.errors import ConfigError, Problem

Key = str | int
Loc = tuple[Key, ...]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 but for floats, where 1e-3 is a number as in YAML 1.2, and for dates, which stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.\d+|\d[\d_]*(\.[\d_]*)?)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


@dataclass(frozen=True)
class Document:
    """What a YAML file holds, and where each part of it stands."""

    name: str
    data: Any
    keys: dict[Loc, str] = field(default_factory=dict)
    values: dict[Loc, str] = field(default_factory=dict)

    def where(self, loc: Sequence[Key], of_key: bool = False) -> str:
        """`file:line:column` of the value (or the key) at `loc`, or of the nearest part above it that is in the file."""
        for end in range(len(loc), 0, -1):
            part = tuple(loc[:end])
            table = self.keys if (of_key and end == len(loc)) or part not in self.values else self.values
            if part in table:
                return table[part]
        return f"{self.name}:1:1" if self.values or self.keys else self.name


def read(path: Path) -> Document:
    """The document in a file. Raises ConfigError where it cannot be read, is not YAML, or names a key twice."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError([Problem(str(path), f"cannot be read: {getattr(e, 'strerror', None) or e}")]) from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Document:
    """The document in a text; `name` stands for the file in messages."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        marks = _Marks(name)
        if node is None:
            return Document(name, None)
        marks.visit(node, ())
        if marks.problems:
            raise ConfigError(marks.problems)
        return Document(name, loader.construct_document(node), marks.keys, marks.values)
    except yaml.MarkedYAMLError as e:
        where = f"{name}:{e.problem_mark.line + 1}:{e.problem_mark.column + 1}" if e.problem_mark else name
        raise ConfigError([Problem(where, f"not YAML: {e.problem or e.context}")]) from None
    except yaml.YAMLError as e:
        raise ConfigError([Problem(name, f"not YAML: {e}")]) from None
    finally:
        loader.dispose()


class _Marks:
    def __init__(self, name: str) -> None:
        self.name = name
        self.keys: dict[Loc, str] = {}
        self.values: dict[Loc, str] = {}
        self.problems: list[Problem] = []

    def visit(self, node: yaml.Node, loc: Loc) -> None:
        self.values[loc] = self._place(node)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._key(key, (*loc, key.value if isinstance(key, yaml.ScalarNode) else str(key.value)))
                self.visit(value, (*loc, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self.visit(item, (*loc, i))

    def _key(self, node: yaml.Node, loc: Loc) -> None:
        if loc in self.keys:
            self.problems.append(Problem(self._place(node), f"'{loc[-1]}' stands here twice (first at {self.keys[loc]}): remove one"))
        self.keys[loc] = self._place(node)

    def _place(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
