"""Finds the tests of a module: gpupipe/a/b.py is tested by tests/a/test_b.py.

`python tests/helpers/mirror.py` prints the modules that have no such file. tests/test_mirror.py
compares them with its list:

    python tests/helpers/mirror.py > tests/helpers/modules_without_tests.txt
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("modules_without_tests.txt")
_NOT_MIRRORED = ("gpu", "fuzz")
"""Folders of tests/ that test a whole, and no module."""


def list_modules(root: Path = ROOT) -> list[Path]:
    """Return the modules of gpupipe/ that should have tests, relative to the root."""
    paths = (root / "gpupipe").rglob("*.py")
    return sorted(p.relative_to(root) for p in paths if not p.name.startswith("__"))


def mirrored_test(module: Path) -> Path:
    """Return where the tests of a module belong, relative to the root as the module is.

    A leading underscore of its name is left out.
    """
    folder = Path("tests", *module.parts[1:-1])
    return folder / f"test_{module.stem.lstrip('_')}.py"


def list_modules_without_tests(root: Path = ROOT) -> list[Path]:
    """Return the modules whose mirrored test file does not exist."""
    return [module for module in list_modules(root) if not (root / mirrored_test(module)).is_file()]


def find_tests(module: Path, root: Path = ROOT) -> list[Path]:
    """Return the test files of a module, relative to the root.

    They are the first of these that are not empty:

    - its mirrored test file;
    - the files that name it, of the nearest folder that has any: tests/a/b, tests/a, then tests;
    - all files of the nearest folder below tests/, or without one those that name its package.
    """
    mirrored = mirrored_test(module)
    if (root / mirrored).is_file():
        return [mirrored]
    folders = [folder for folder in mirrored.parents[:-1] if (root / folder).is_dir()]
    for folder in folders:
        if naming := [path for path in _test_files(root, folder) if _names(root / path, module)]:
            return naming
    if folders[0] != Path("tests"):
        return _test_files(root, folders[0])
    package = ".".join(module.parts[:-1]) + "."
    return [p for p in _test_files(root, folders[0]) if package in (root / p).read_text()]


def _test_files(root: Path, folder: Path) -> list[Path]:
    paths = (path.relative_to(root) for path in (root / folder).rglob("test_*.py"))
    return sorted(path for path in paths if path.parts[1] not in _NOT_MIRRORED)


def _names(test: Path, module: Path) -> bool:
    """Whether a file imports a module, or names it with its packages."""
    package, name = ".".join(module.parts[:-1]), module.stem
    dotted = re.escape(f"{package}.{name}")
    imported = rf"from {re.escape(package)} import (\([^)]*|[^\n(]*)\b{name}\b"
    return re.search(rf"\b{dotted}\b|{imported}", test.read_text()) is not None


if __name__ == "__main__":
    print("\n".join(map(str, list_modules_without_tests())))
