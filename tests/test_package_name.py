"""No page, message or example installs a package by a name that is not ours.

`gpupipe` on the package index is another project, and nobody has registered gpupipe-loader yet. So
a command installs a folder, a wheel or a repository.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (".ci", "benchmarks", "configs", "docs", "examples", "gpupipe", "native", "pipelines")
TEXTS = {"", ".cfg", ".html", ".ipynb", ".j2", ".js", ".md", ".py", ".sh", ".toml", ".yaml"}

INSTALLS = (
    r"(?:pip3? (?:install|download|wheel)|uv (?:add|tool|run)\b|uvx(?! --from \S+\.whl )"
    r"|pipx (?:install|run))"
)
NAME = r"gpupipe(?:-loader)?(?!(?:\[[\w,]+\])? @ )(?![\w/.:-])"
WRONG = (
    # on one line, among options and other packages; or after a line break in prose
    re.compile(rf"{INSTALLS}(?:[^\n;&|`#]*[\s'\"])?{NAME}"),
    re.compile(rf"{INSTALLS}\s+(?:-\S+\s+)*['\"]?{NAME}"),
    re.compile(r"(?<![\w/])gpupipe\["),
    re.compile(r"install_requires *=(?:[^\n]*\n[ \t]+)*?\s*gpupipe(?![\w.-])"),
    re.compile(r"dependencies *= *\[[^]]*['\"]gpupipe\b"),
)


def find_wrong_commands(text: str) -> list[str]:
    text = re.sub(r"\"\s*\n\s*f?\"", "", text)  # a message that goes on in the next line
    return [text[m.start() : m.end() + 20] for wrong in WRONG for m in wrong.finditer(text)]


def list_files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.name != "CHANGELOG.md")
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.is_file())


def test_no_command_installs_the_package_of_a_stranger() -> None:
    files = [path for path in list_files() if path.suffix in TEXTS]
    assert {"README.md", "ray.md", "lfw.ipynb", "server.py", "Makefile"} <= {f.name for f in files}
    commands = {str(file): find_wrong_commands(file.read_text(errors="replace")) for file in files}
    wrong = {file: found for file, found in commands.items() if found}
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "pip install gpupipe",
        "pip install 'gpupipe[cpu]'",
        '(`pip install\n  "gpupipe[lightning]"`)',
        "pip install s3fs gpupipe",
        "pip install gpupipe==0.1.0",
        "pip install --force-reinstall --no-deps gpupipe",
        '"then pip install "\n        "--force-reinstall --no-deps gpupipe"',
        '"run pip "\n    f"install gpupipe"',
        "pip install gpupipe-loader",
        "%pip install -q gpupipe",
        "uv pip install gpupipe",
        "uv add gpupipe",
        "uvx gpupipe run lfw",
        "uvx --from gpupipe gpupipe run",
        "pipx install gpupipe",
        "needs `gpupipe[remote]`",
        "install_requires = gpupipe\n",
        "install_requires =\n    torch >= 2\n    gpupipe >= 0.1\n",
        'dependencies = ["torch", "gpupipe"]',
    ],
)
def test_commands_that_are_wrong(text: str) -> None:
    assert find_wrong_commands(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install '.[cpu]'\n    gpupipe run lfw",
        "pip install '.[cpu]'        # in a clone of gpupipe",
        "pip install -e '/home/me/gpupipe[cpu]'",
        "pip install 'gpupipe-loader[cpu] @ git+https://example.org/gpupipe.git'",
        "run `pip install '.[cpu]'`, and gpupipe has it",
        "uvx --from dist/gpupipe_loader-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl gpupipe try",
        "install_requires = gpupipe-loader\n",
        "install_requires = torch\npackages =\n    gpupipe\n",
    ],
)
def test_commands_that_are_right(text: str) -> None:
    assert not find_wrong_commands(text)
