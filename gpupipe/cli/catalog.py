"""The items that a config can name: configs, pipelines, steps, sources and engines.

Summaries of gpupipe's own items are read from the text of their files, so that `gpupipe list`
imports neither pydantic nor NumPy. Only classes of plugins are imported.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpupipe.runtime.registry import (
    ENGINE_GROUP,
    SOURCE_GROUP,
    STEP_GROUP,
    find_packages,
    find_plugin,
    list_modules,
)
from gpupipe.schema import yaml_files

OWN_PACKAGE = "gpupipe"
FOLDERS: dict[str, yaml_files.Kind] = {"config": "configs", "pipeline": "pipelines"}
"""The kinds of items that are files, and the folder of each."""
_GROUPS = {"step": STEP_GROUP, "source": SOURCE_GROUP, "engine": ENGINE_GROUP}
KINDS = (*FOLDERS, *_GROUPS)
"""The kinds of items, in the order in which they are listed."""
_MODELINE = "# yaml-language-server:"
"""The beginning of the comment that tells an editor the schema of a file."""
_SENTENCE = re.compile(r"(?<=[^.]\.)\s|(?<=:)$")


@dataclass(frozen=True)
class Item:
    """A config, pipeline, step, source or engine.

    Attributes:
        kind: "config", "pipeline", "step", "source" or "engine".
        name: Its name in YAML, or on the command line.
        summary: Its description, in one sentence.
        package: The package that it comes from.
    """

    kind: str
    name: str
    summary: str
    package: str = OWN_PACKAGE


def list_items(kind: str) -> list[Item]:
    """Return all items of a kind: those that ship with gpupipe, then those of plugins."""
    items = _list_files(kind) if kind in FOLDERS else _list_classes(kind)
    return sorted(items, key=lambda item: (item.package != OWN_PACKAGE, item.name))


def _list_files(kind: str) -> Iterator[Item]:
    for name in yaml_files.names(FOLDERS[kind]):
        text = find_file(kind, name).read_text(encoding="utf-8")
        yield Item(kind, name, first_sentence(_read_comment(text)))


def find_file(kind: str, name: str) -> Path:
    """Return the file of a built-in config or pipeline."""
    return yaml_files.folder(FOLDERS[kind]) / f"{name}.yaml"


def _list_classes(kind: str) -> Iterator[Item]:
    """Yield gpupipe's own steps, sources or engines, then those of plugins."""
    group = _GROUPS[kind]
    builtin = _module_files(group)
    for name, path in builtin.items():
        yield Item(kind, name, first_sentence(_read_docstring(name, path)))
    for name, package in find_packages(group).items():
        if name not in builtin:
            summary = _summarize_plugin(group, name)
            yield Item(kind, name, summary, package.removeprefix("the package "))


def _module_files(group: str) -> dict[str, Path]:
    """Return the file of each class in a package; for an engine, its folder's `__init__.py`."""
    (folder,) = map(Path, importlib.import_module(group).__path__)
    are_folders = group == ENGINE_GROUP
    modules = list_modules(group, are_folders)
    return {
        name: folder / (f"{module}/__init__.py" if are_folders else f"{module}.py")
        for name, module in modules.items()
    }


def _read_docstring(name: str, path: Path) -> str:
    """Return the docstring of the class with the module's name, or else of the module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    class_name = name.replace("_", "")
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    own = next((node for node in classes if node.name.lower() == class_name), None)
    of_module = (ast.get_docstring(tree) or "").removeprefix(f"{name}: ")
    return (own and ast.get_docstring(own)) or of_module


def _summarize_plugin(group: str, name: str) -> str:
    try:
        plugin = find_plugin(group, name, object)
    except LookupError as e:
        return str(e.args[0])
    return first_sentence(inspect.getdoc(plugin) or "")


def _read_comment(text: str) -> str:
    """Return the comment at the beginning of a YAML file."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#") or line.startswith(_MODELINE):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring or comment, on one line."""
    paragraph = text.strip().partition("\n\n")[0]
    return _SENTENCE.split(" ".join(paragraph.split()), maxsplit=1)[0]
