"""Scripts that run seldom still import what exists: the benchmarks, and tests/gpu."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = sorted({path.parent for path in (ROOT / "benchmarks").rglob("*.py")})
FOLDERS += [ROOT / "tests/gpu"]


def resolve(module: str, name: str) -> object:
    """What `from module import name` imports. Raises ImportError or AttributeError."""
    try:
        return importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_uses_of_gpupipe_exists(folder: Path) -> None:
    for script in folder.glob("*.py"):
        check_uses(script)


def check_uses(script: Path) -> None:
    tree = ast.parse(script.read_text())
    imported: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpupipe"):
            for alias in node.names:
                try:
                    imported[alias.asname or alias.name] = resolve(str(node.module), alias.name)
                except (ImportError, AttributeError) as e:
                    raise AssertionError(f"{script}:{node.lineno}: {e}") from e
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            imported.pop(node.id, None)  # elsewhere a variable has that name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = imported.get(node.value.id)
            if isinstance(owner, ModuleType):
                assert hasattr(owner, node.attr), f"{script}:{node.lineno}: {ast.unparse(node)}"
