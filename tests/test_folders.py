"""Each folder of the package says what lives there, what may import it, and where to begin."""

import ast
import configparser
import re
from pathlib import Path

import pytest

import gpupipe

PACKAGE = Path(gpupipe.__file__).parent
FOLDERS = sorted(path.parent for path in PACKAGE.glob("**/__init__.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_folder_introduces_itself(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    words = " ".join(docstring.split())
    (begin,) = re.findall(r"Start reading in (\w+\.py)", words)
    assert (folder / begin).is_file()
    assert folder == PACKAGE or re.search(r"\bimports?\b", words), "who imports what"
    named = re.findall(r"`(\w+)`", docstring)
    assert len(docstring.splitlines()) <= 40
    missing = [name for name in named if name.islower() and not exists(folder, name)]
    assert missing == [], "modules that the docstring names"


def test_the_wheel_holds_each_folder() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(PACKAGE.parent / "setup.cfg")
    folders = {".".join(folder.relative_to(PACKAGE.parent).parts) for folder in FOLDERS}
    assert folders <= set(metadata["options"]["packages"].split())


def exists(folder: Path, name: str) -> bool:
    """Whether a name in backticks is a module or a name of this folder's modules."""
    texts = (path.read_text() for path in folder.glob("*.py"))
    return (
        (folder / name).is_dir()
        or (folder / f"{name}.py").is_file()
        or any(re.search(rf"\b(def|class) {name}\b|\b{name}:|['\"]{name}['\"]", t) for t in texts)
    )
