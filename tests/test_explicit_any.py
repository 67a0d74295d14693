"""Engines say `Any` no more often than pyproject.toml allows beside the names of their modules.

mypy refuses it in all other modules of engines (`disallow_any_explicit`).
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def read_maxima() -> dict[str, int]:
    """The number beside each module, or folder NAME.*, that may say `Any`."""
    text = (ROOT / "pyproject.toml").read_text()
    allowed = text.partition("# Modules and folders of engines that still say Any")[2]
    rows = re.findall(r'"(gpupipe\.[\w.*]+)", +# (\d+)', allowed.partition("\n]\n")[0])
    return {module: int(count) for module, count in rows}


def count_any(module: str) -> int:
    path = ROOT / module.removesuffix(".*").replace(".", "/")
    files = path.rglob("*.py") if module.endswith(".*") else [path.with_suffix(".py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)


def test_no_any_is_added() -> None:
    maxima = read_maxima()
    counts = {module: count_any(module) for module in maxima}
    assert len(counts) >= 5 and all(counts.values()), "a module without Any leaves the list"
    assert {m: n for m, n in counts.items() if n > maxima[m]} == {}, maxima
