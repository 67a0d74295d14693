"""What can be named in a config: configs, pipelines, steps, sources and engines.

The summary of what ships with gpupipe is read from the text of its file, so that listing it imports
neither pydantic nor NumPy. Only classes of other packages are imported.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupipe.errors import GpupipeError
from gpupipe.runtime import plugins
from gpupipe.schema import builtin_configs

OWN_PACKAGE = "gpupipe"
_MODELINE = "# yaml-language-server:"
"""Begins the comment that names a schema to editors."""
_SENTENCE = re.compile(r"(?<=[^.]\.)\s|(?<=:)$")


@dataclass(frozen=True)
class Item:
    """Something that a config can name.

    Attributes:
        kind: "config", "pipeline", "step", "source" or "engine".
        name: Its name in YAML, or on the command line.
        summary: What it is, in one sentence.
        package: The package that it comes from.
    """

    kind: str
    name: str
    summary: str
    package: str = OWN_PACKAGE


def list_items(kind: str) -> list[Item]:
    """Return all items of a kind: those that ship with gpupipe, then those of plugins."""
    return sorted(_LISTS[kind](), key=lambda item: (item.package != OWN_PACKAGE, item.name))


def _list_files(kind: str, folder: builtin_configs.Kind) -> Iterator[Item]:
    for name in builtin_configs.names(folder):
        text = (builtin_configs.folder(folder) / f"{name}.yaml").read_text(encoding="utf-8")
        yield Item(kind, name, first_sentence(_read_comment(text)))


def _list_classes(kind: str, group: str) -> Iterator[Item]:
    """Yield the classes of a package of gpupipe, one per module, and those of plugins."""
    builtin = _module_files(group)
    for name, path in builtin.items():
        yield Item(kind, name, first_sentence(_read_docstring(name, path)))
    for name, package in plugins.find_packages(group).items():
        if name not in builtin:
            yield Item(kind, name, _summarize_plugin(group, name), _without_article(package))


def _module_files(group: str) -> dict[str, Path]:
    """Return the files of the modules in a package; for the folder of an engine `__init__.py`."""
    package = importlib.import_module(group)
    (folder,) = map(Path, package.__path__)
    modules = [m for m in pkgutil.iter_modules([str(folder)]) if not m.name.startswith("_")]
    if group == plugins.ENGINE_GROUP:
        return {m.name: folder / m.name / "__init__.py" for m in modules if m.ispkg}
    return {m.name: folder / f"{m.name}.py" for m in modules if not m.ispkg}


def _read_docstring(name: str, path: Path) -> str:
    """Return the docstring of the class that a module is named after, or of the module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    class_name = name.replace("_", "")
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    own = next((node for node in classes if node.name.lower() == class_name), None)
    of_module = (ast.get_docstring(tree) or "").removeprefix(f"{name}: ")
    return (own and ast.get_docstring(own)) or of_module


def _summarize_plugin(group: str, name: str) -> str:
    try:
        found = plugins.find(group, name, object)
    except LookupError as e:
        return str(e.args[0])
    return first_sentence(inspect.getdoc(found) or "")


def _without_article(package: str) -> str:
    return package.removeprefix("the package ")


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


def load_class(kind: str, name: str) -> type[Any]:
    """Import and return the class of a step or source.

    Raises:
        GpupipeError: If its package is broken.
    """
    try:
        if kind == "step":
            from gpupipe.pipeline.step_registry import STEPS

            return STEPS.find(name)
        from gpupipe.dataset.source import SOURCES

        return SOURCES.find(name)
    except LookupError as e:
        raise GpupipeError(str(e.args[0])) from e


_LISTS: dict[str, Callable[[], Iterator[Item]]] = {
    "config": lambda: _list_files("config", "configs"),
    "pipeline": lambda: _list_files("pipeline", "pipelines"),
    "step": lambda: _list_classes("step", plugins.STEP_GROUP),
    "source": lambda: _list_classes("source", plugins.SOURCE_GROUP),
    "engine": lambda: _list_classes("engine", plugins.ENGINE_GROUP),
}
KINDS = tuple(_LISTS)
"""The kinds of items, in the order in which they are listed."""
