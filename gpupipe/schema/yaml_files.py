"""Finds YAML files by path or by name, and parses them into Documents.

A Document keeps the location of every key and value. A name is searched among the user's own
configs or pipelines, then among those that ship with gpupipe. The repository's configs/ and
pipelines/ are installed as gpupipe/builtin_configs/ and gpupipe/builtin_pipelines/; gpupipe/config/
and gpupipe/pipeline/ are code.
"""

import io
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import yaml

from gpupipe.errors import ConfigError, Problem, did_you_mean, nearest, shown
from gpupipe.runtime.files import expand_user, open_regular
from gpupipe.schema.document import Document, Loc

Kind = Literal["configs", "pipelines"]
SUFFIXES = (".yaml", ".yml", ".json")
"""Suffixes of the user's files. JSON is valid YAML."""
_PACKAGE = Path(__file__).parents[1]


def folder(kind: Kind) -> Path:
    """Return the folder of the YAML files that ship with gpupipe: in its package or a checkout."""
    installed = _PACKAGE / f"builtin_{kind}"
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def names(kind: Kind) -> list[str]:
    """Return the names of the YAML files that ship with gpupipe, without the suffix."""
    return sorted(p.stem for p in folder(kind).glob("*.yaml"))


def locate(kind: Kind, name: str, beside: Path | None = None) -> Path:
    """Find the file of a config or a pipeline by its path or name.

    A path ends in .yaml, .yml or .json; it is relative to the working directory, or else to
    `beside`. A name is searched as `KIND/NAME.yaml` in the working directory, in `beside`, in the
    parent of `beside`, and then among the shipped files.

    Args:
        kind: "configs" or "pipelines".
        name: A path or a name.
        beside: The folder of the file that mentions `name`.

    Raises:
        ConfigError: There is no such file. The message suggests a file or a shipped name of
            nearly that name, or lists all names.
    """
    path = expand_user(name)
    folders = [Path(), beside] if beside else [Path()]
    paths = [base / path for base in folders] if path.suffix in SUFFIXES else []
    folders += [beside.absolute().parent] if beside else []
    paths += [base / kind / f"{name}.yaml" for base in folders] + [folder(kind) / f"{name}.yaml"]
    match = next((p for p in paths if _exists(p, Path.is_file)), None)
    if match is None:
        raise ConfigError.at("", _explain_absence(kind, name, path))
    return match


def _explain_absence(kind: Kind, name: str, path: Path) -> str:
    if name and _exists(path, Path.is_dir):
        rule = f"{shown(name)} is a folder, but a {kind[:-1]} is a YAML file"
        written = f"'gpupipe init {name}' writes one for its images, or " * (kind == "configs")
        return f"{rule}: {written}take one and write data.root={name} after it"
    if name and path.suffix not in SUFFIXES and _exists(path, Path.is_file):
        endings = "its name must end in .yaml, .yml or .json"
        return f"{shown(name)} is no {kind[:-1]}: {endings}"
    suggestion = did_you_mean(path.stem, names(kind))
    if path.suffix in SUFFIXES:
        with suppress(OSError):  # a folder that is not there, or that cannot be read
            files = [file.name for file in path.parent.iterdir() if file.suffix in SUFFIXES]
            if near := nearest(path.name, files):
                suggestion = f"; did you mean '{path.with_name(near)}'?"
    elif name and _exists(Path(f"{path}.yaml"), Path.is_file):
        suggestion = f"; did you mean '{path}.yaml'?"
    return f"no {kind[:-1]} {shown(name)}: it is neither a file nor a name{suggestion}"


def _exists(path: Path, test: Callable[[Path], bool]) -> bool:
    try:
        return test(path)
    except OSError:  # No file can have this name: it may be the text of a whole config.
        return False


_TAG = "tag:yaml.org,2002:"
MAX_DEPTH = 50
"""The maximum depth of nested lists and mappings."""
_MAX_VALUES = 100_000
TOO_DEEP = f"nested too deeply: more than {MAX_DEPTH} lists and mappings stand in each other"


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.1, except that dates stay text and numbers follow YAML 1.2.

    For example, 1e-3 is a number, 010 is ten, and 1:30 is text.
    """

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self._name, self._depth = name, 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node and all nodes inside it; raise ConfigError if it is nested too deeply."""
        if self._depth > MAX_DEPTH:
            event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
            raise ConfigError.at(_locate(self._name, event.start_mark), TOO_DEEP)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


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

_BRACKETS = {"while parsing a flow sequence": "[", "while parsing a flow mapping": "{"}
_SECOND_COLON = "mapping values are not allowed here"
_UNCLOSED = "found unexpected end of stream"
_PLAINER = {
    "found character '\\t' that cannot start any token": "a tab: indent with spaces",
    _SECOND_COLON: (
        "a second colon: put a value that holds one in quotes, and a new key on its own line"
    ),
    _UNCLOSED: "the quotes are not closed",
    "could not find expected ':'": "a colon is missing, with a blank after it",
    "but found another document": "a second document (---): a file holds one",
}


def read(path: Path) -> Document:
    """Read a YAML or JSON file. A JSON file (.json) may have tabs between its values.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or has a key twice.
    """
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or e
        raise ConfigError.at(str(path), f"cannot be read: {reason}") from None
    if path.suffix == ".json":  # a tab within a JSON string is written \t
        text = text.replace("\t", " ")
    return replace(parse(text, str(path)), folder=path.parent)


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
        loader = _Loader(text, name)
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
        lines = text.split("\n")
        where, problem = _locate(name, mark), _describe_yaml_error(e, lines, mark)
    except yaml.reader.ReaderError as e:
        before = text[: e.position].split("\n")
        where = f"{name}:{len(before)}:{len(before[-1]) + 1}"
        problem = f"the character {chr(e.character)!r} must not stand in it"
    raise ConfigError.at(where, f"not YAML: {problem}")


def _locate(name: str, mark: Any) -> str:  # a yaml.Mark, or None
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name


def _construct(loader: _Loader, node: yaml.Node, where: str) -> Any:
    try:
        return loader.construct_document(node)
    # PyYAML lets these escape for "!!bool perhaps", "!!int ''" and the like.
    except (ValueError, LookupError, AttributeError, TypeError) as e:
        wrong = f"not YAML: a tag (!!...) stands before a value that does not fit it ({e})"
        raise ConfigError.at(where, wrong) from None


def _describe_yaml_error(error: yaml.MarkedYAMLError, lines: list[str], mark: Any) -> str:
    """Return what is wrong in words of YAML's users.

    Args:
        error: PyYAML's error.
        lines: The lines of the text.
        mark: Where the error is, a yaml.Mark, or None.
    """
    problem = error.problem or error.context or ""
    line = lines[mark.line] if mark else ""
    if problem == _SECOND_COLON and mark and mark.line and ":" not in line[: mark.column]:
        return (
            f"this line is indented more than '{lines[mark.line - 1].strip()}' above it, which has "
            "a value already: indent both alike"
        )
    if problem.startswith("could not determine a constructor"):
        return "tags such as !!python/... are not read: remove it"
    if problem.startswith("expected <block end>"):
        return "the indentation does not fit the lines above"
    bracket, start = _BRACKETS.get(error.context or ""), error.context_mark
    if bracket and start and problem.startswith("expected"):
        quotes = "; a value with ${...} needs quotes here" if "${" in line else ""
        return f"{problem}, after the {bracket} at {start.line + 1}:{start.column + 1}{quotes}"
    return _PLAINER.get(problem, problem)


class _Marks:
    """Collects the location of every key and value of a YAML node.

    Args:
        name: The file's name in messages.
        visited: A counter of visited nodes; None for a new one. A node counts again for each alias
            and each merge (`<<`) of it.
    """

    def __init__(self, name: str, visited: Iterator[int] | None = None) -> None:
        self.name, self._visited = name, visited or itertools.count(1)
        self.keys: dict[Loc, str] = {}
        self.values: dict[Loc, str] = {}
        self.problems: list[Problem] = []

    def visit(self, node: yaml.Node, loc: Loc, depth: int = 0) -> None:
        self._check_size(node, depth)
        self.values[loc] = self._locate(node)
        if isinstance(node, yaml.MappingNode):
            own = self._own_keys(node, loc)
            for key, value in node.value:
                if key.tag == f"{_TAG}merge":
                    self._merge(value, loc, own, depth + 1)
                elif isinstance(key, yaml.ScalarNode):
                    self.visit(value, (*loc, key.value), depth + 1)
        elif isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self.visit(item, (*loc, i), depth + 1)

    def _check_size(self, node: yaml.Node, depth: int) -> None:
        problem = ""
        if depth > MAX_DEPTH:
            problem = f"{TOO_DEEP}; an alias (*name) must not stand inside its own anchor (&name)"
        elif next(self._visited) > _MAX_VALUES:
            problem = (
                f"too large: more than {_MAX_VALUES:,} values, where each alias (*name) counts "
                "as all that its anchor (&name) holds"
            )
        if problem:
            raise ConfigError.at(self._locate(node), problem)

    def _own_keys(self, node: yaml.MappingNode, loc: Loc) -> set[str]:
        """Return the mapping's keys, after tagging each as text. Reports duplicate keys."""
        own: dict[str, str] = {}
        for key, _ in node.value:
            location = self._locate(key)
            if not isinstance(key, yaml.ScalarNode):
                rule = "a key must be a name, not a list or a mapping"
                self.problems.append(Problem(location, rule))
                continue
            if key.value in own:
                twice = f"stands here twice (first at {own[key.value]}): remove one"
                self.problems.append(Problem(location, f"'{key.value}' {twice}"))
            own[key.value] = location
            if key.tag != f"{_TAG}merge":
                key.tag = f"{_TAG}str"
                self.keys[(*loc, key.value)] = location
        return set(own)

    def _merge(self, node: yaml.Node, loc: Loc, own: set[str], depth: int) -> None:
        """Add the locations of keys that `<<` merges in, except for `own`, the keys beside `<<`."""
        for mapping in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            inner = _Marks(self.name, self._visited)
            inner.visit(mapping, loc, depth)
            for mine, theirs in ((self.keys, inner.keys), (self.values, inner.values)):
                for key, location in theirs.items():
                    if len(key) > len(loc) and key[len(loc)] not in own:
                        mine.setdefault(key, location)

    def _locate(self, node: yaml.Node) -> str:
        return _locate(self.name, node.start_mark)
