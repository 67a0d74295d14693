"""No module imports another that imports it, directly or through others, or by a name in a text.

Imports in functions count too, and those for type checkers: who reads one file has to know the
other.
"""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import gpupipe

PACKAGE = Path(gpupipe.__file__).parent


def list_modules() -> dict[str, Path]:
    """The files by module; a folder is its __init__.py."""
    paths = {
        path.relative_to(PACKAGE.parent).with_suffix(""): path for path in PACKAGE.rglob("*.py")
    }
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in paths.items()}


MODULES = list_modules()


def iter_imports(tree: ast.Module) -> Iterator[str]:
    """The modules of the package that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_import_leads_back() -> None:
    graph = {
        name: {n for n in iter_imports(ast.parse(path.read_text())) if n in MODULES} - {name}
        for name, path in MODULES.items()
    }
    assert sum(map(len, graph.values())) > 1000
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the circle


def test_only_the_registry_names_the_folder_of_engines_below_it() -> None:
    """An import by a dotted name is one that import-linter does not see."""
    above = ("engines", "loading", "bench", "server", "cli", "__init__", "loader", "lightning")
    below = {name: path for name, path in MODULES.items() if f"{name}..".split(".")[1] not in above}
    naming = {
        name
        for name, path in below.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and str(node.value).startswith("gpupipe.engines")
    }
    assert naming == {"gpupipe.runtime.registry"}
