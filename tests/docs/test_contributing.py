"""Each path, name, command and piece of code that CONTRIBUTING.md shows is there."""

import ast
import builtins
import re
import subprocess
from functools import cache
from pathlib import Path

from gpupipe.cli.app import main
from gpupipe.errors import GpupipeError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
CODE = ("gpupipe", "tests", "benchmarks", "docs/site", ".ci")
PROGRAMS = {"apt-get", "lint-imports", "make", "pip", "pytest", "python", ".venv/bin/python"}
PLACEHOLDERS = {
    **dict.fromkeys(("gpupipe/a/b.py", "tests/a/test_b.py"), "any module"),
    **dict.fromkeys(
        ("OUT", "photos/", "summary.txt", "build/site"), "what a command writes or reads"
    ),
    **dict.fromkeys(("p[name]", "size: 96", "${...}"), "an example of a value"),
    **dict.fromkeys(("<!-- before: ... -->", "<!-- not run: why -->"), "a comment of a page"),
    **dict.fromkeys(("nav:", "../examples/resnet.py"), "of a page of the site"),
    **dict.fromkeys(("train.py", "chromium", "google-chrome"), "a file or program of others"),
    **dict.fromkeys(("orientation/*.jpg", "photos/CLASS/*.jpg"), "the reader's files"),
    'name = "NAME"': "code of a reader",
    ".npy": "the suffix of NumPy's files",
}
"""What resolves nowhere, and why."""


@cache
def list_files() -> frozenset[str]:
    """The files and folders of the repository, tracked or new."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [Path(line) for line in done.stdout.splitlines()]
    return frozenset(str(path) for file in files for path in (file, *file.parents))


@cache
def find_names() -> tuple[frozenset[str], str]:
    """The names that the code defines or imports, and the text of all code."""
    names = set(dir(builtins))
    texts = [(ROOT / name).read_text() for name in ("Makefile", "setup.cfg", "pyproject.toml")]
    paths = (path for folder in CODE for path in (ROOT / folder).rglob("*"))
    for path in (path for path in paths if path != Path(__file__)):
        if path.suffix in (".sh", ".cpp", ".h", "") and path.is_file():
            texts.append(path.read_text(errors="ignore"))
        elif path.suffix == ".py":
            texts.append(path.read_text())
            names |= {path.stem, path.parent.name, *_iter_names(ast.parse(texts[-1]))}
    texts += [path.read_text() for path in (ROOT / "native").iterdir() if path.is_file()]
    return frozenset(names), "\n".join(texts)


def _iter_names(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names |= {*(node.asname or node.name).split(".")}
    return names


def list_quoted() -> list[str]:
    """What stands in backticks outside of blocks of code."""
    text = re.sub(r"^```.*?^```$", "", PAGE.read_text(), flags=re.M | re.S)
    return sorted(set(re.findall(r"`([^`\n]+)`", text)) - PLACEHOLDERS.keys())


def resolves(quoted: str) -> bool:
    """Whether something in backticks is a path, a command, a name, an option or a shape."""
    words = quoted.split()
    if words[0] in PROGRAMS or (words[0] == "gpupipe" and len(words) > 1):
        return is_command(words)
    if re.fullmatch(r"\(.*\)", quoted):
        return True  # a shape
    if quoted.startswith("--"):
        return all(w in find_names()[1] for w in words if w.startswith("--"))
    return is_path(words[0]) or is_name(quoted) or is_text(quoted)


def is_path(word: str) -> bool:
    """Whether a path lies in the repository or in gpupipe/; NAME stands for any name."""
    path = word.rstrip("/")
    known = list_files()
    if "NAME" in path:
        folder = path.partition("NAME")[0].rpartition("/")[0]
        return any(f"{start}{folder}" in known for start in ("", "gpupipe/"))
    return path in known or any(known_path.endswith(f"/{path}") for known_path in known)


def is_command(words: list[str]) -> bool:
    if words[0] == "gpupipe":
        return words[1] in main.commands or words[1] == "--help"
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        given = [w for w in words[1:] if re.fullmatch(r"[a-z][\w-]*", w)]
        return bool(given) and {*given} <= {*targets}
    return all(is_path(w) for w in words[1:] if w.endswith(".py"))


def is_name(quoted: str) -> bool:
    """Whether all parts of a dotted name, with or without a call, are defined somewhere."""
    name = re.sub(r"\(.*\)$|:$", "", quoted)
    parts = name.split(".")
    return all(re.fullmatch(r"\w+", part) and part in find_names()[0] for part in parts)


def is_text(quoted: str) -> bool:
    """Whether the code has this text as a word, such as a variable of the environment."""
    name = quoted.partition("=")[0]
    is_word = bool(re.fullmatch(r"[\w.-]{3,}", name))
    return is_word and bool(re.search(rf"(?<![\w.]){re.escape(name)}\b", find_names()[1]))


def test_what_stands_in_backticks_is_there() -> None:
    gone = [quoted for quoted in list_quoted() if not resolves(quoted)]
    assert gone == [], "rename them in CONTRIBUTING.md too"


def test_what_is_said_to_be_in_a_module_is_defined_there() -> None:
    said = re.findall(r"`([\w.]+)(?:\(\))?` in\s+`([\w/]+\.py)`", PAGE.read_text())
    assert len(said) > 10
    gone = []
    for name, path in said:
        (file,) = (ROOT / p for p in list_files() if p in (path, f"gpupipe/{path}"))
        if not {*name.split(".")} <= _iter_names(ast.parse(file.read_text())):
            gone.append((name, path))
    assert gone == [], "name the module that defines them now"


def test_what_is_not_there_does_not_resolve() -> None:
    for gone in ("gpupipe/engines/gone.py", "Engine.sides_of()", "make gone", "gpupipe gone"):
        assert not resolves(gone), gone
    assert not resolves("gpupipe/gone/NAME.py")
    assert not resolves("python tests/gone.py")
    assert GpupipeError.__name__ in find_names()[0]
    assert PLACEHOLDERS.keys() <= {*re.findall(r"`([^`\n]+)`", PAGE.read_text())}, "no longer there"


def test_code_is_included_from_files() -> None:
    text = PAGE.read_text()
    assert "```python" not in text, "write it in a file that is tested, and include it"
    included = re.findall(r"^<!-- include: ([^\s#]+)(?:#(\w+))? -->$", text, re.M)
    assert len(included) == text.count("<!-- include:") >= 3
    for path, name in included:
        assert f"]({path})" in text, "a reader of the repository follows the link"
        body = ast.parse((ROOT / path).read_text()).body
        assert not name or name in {getattr(node, "name", "") for node in body}


def test_links_lead_to_files_and_headings() -> None:
    text = PAGE.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    anchors = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
    for path, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
        assert "://" in path or (ROOT / path).exists(), path
        assert path or anchor in anchors, anchor
