"""Links from pages to files outside docs/, such as ../examples/resnet.py.

The site has a copy of each such file: scripts and YAML as a page, a folder as a list of its files,
and JSON as it is. A comment `<!-- include: PATH -->` stands for a file of the repository that the
page also links to: the site shows it as a block of code, or with PATH#NAME one class or function.
"""

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_FOLDER = "repository"
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_INCLUDE = re.compile(r"^<!-- include: ([^\s#]+)(?:#(\w+))? -->$", re.M)
_NOT_IN_SEARCH = "---\nsearch: {exclude: true}\n---\n\n"
OWN_PAGES = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
"""Files of the root that are pages of the site, and their addresses."""
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".cfg": "ini", ".toml": "toml"}


def copy_linked(files: Any, also: Iterable[str]) -> Iterator[tuple[str, str | bytes]]:
    """Yield the address in the site, and the content, of each file that a page links to.

    Args:
        files: The files of the site.
        also: Paths of more files.
    """
    waiting = [*also] + [path for file in files.documentation_pages() for path in _find_links(file)]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or path in OWN_PAGES or not (ROOT / path).exists():
            continue  # mkdocs reports a link that leads nowhere
        seen.add(path)
        content = _read(path)
        yield _address(path), content
        if path.endswith(".md"):
            waiting += _list_links(path)
        elif (ROOT / path).is_dir():
            waiting += [f"{path}/{child.name}" for child in _list_folder(path)]


def copy_as_page(path: str) -> str:
    """Return a Markdown file of the repository's root as a page of the site's root."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return _LINK.sub(lambda match: f"{match[1]}{_from_root(match[2])}{match[3]}", text)


def _from_root(link: str) -> str:
    if "://" in link:
        return link
    return link.removeprefix("docs/") if link.startswith("docs/") else _address(link)


def lead_links(markdown: str, page: str) -> str:
    """Return the text of a page with links out of docs/ that lead to the copies."""
    folder = posixpath.dirname(page)

    def replace(match: re.Match[str]) -> str:
        path = _leave(match[2], folder)
        if path is None:
            return match[0]
        return match[1] + posixpath.relpath(_address(path), folder or ".") + match[3]

    return _LINK.sub(replace, markdown)


def include_files(markdown: str, folder: str) -> str:
    """Return a text with a block of code in place of each comment `include`.

    Args:
        markdown: The text.
        folder: Its folder in the repository; paths are relative to it.
    """

    def replace(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        return _show(path, match[2])

    return _INCLUDE.sub(replace, markdown)


def _show(path: str, name: str | None = None) -> str:
    """Return a file of the repository, or a class or function of it, as a block of code."""
    language, text = _LANGUAGES.get(Path(path).suffix, ""), (ROOT / path).read_text("utf-8")
    if name is not None:
        (node,) = (n for n in ast.parse(text).body if getattr(n, "name", "") == name)
        first = min(n.lineno for n in (node, *node.decorator_list))  # type: ignore[attr-defined]
        text = "\n".join([*text.splitlines()[first - 1 : node.end_lineno], ""])
    return f"````{language}\n{text}````"


def _find_links(file: Any) -> list[str]:
    return _outside(file.content_string, file.src_uri)


def _outside(text: str, page: str) -> list[str]:
    """Return the paths in the repository, outside docs/, that a page links to."""
    folder = posixpath.dirname(page)
    found = (_leave(match[2], folder) for match in _LINK.finditer(text))
    return [path for path in found if path is not None]


def _list_links(path: str) -> list[str]:
    """Return the paths outside docs/ that a page outside docs/ links to."""
    text, folder = (ROOT / path).read_text(encoding="utf-8"), posixpath.dirname(path)
    links = (match[2] for match in _LINK.finditer(text) if "://" not in match[2])
    paths = [posixpath.normpath(posixpath.join(folder, link)) for link in links]
    return [p for p in paths if not p.startswith(("docs/", ".."))]


def _leave(link: str, folder: str) -> str | None:
    """Return the path in the repository of a link that leaves docs/, or None."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join("docs", folder, link))
    return None if path.startswith(("docs/", "..")) else path


def _address(path: str) -> str:
    if path in OWN_PAGES:
        return OWN_PAGES[path]
    if (ROOT / path).is_dir():
        return f"{_FOLDER}/{path}/index.md"
    if Path(path).suffix in _LANGUAGES or Path(path).name == "Makefile":
        return f"{_FOLDER}/{path}.md"
    return f"{_FOLDER}/{path}"


def _read(path: str) -> str | bytes:
    file = ROOT / path
    if file.is_dir():
        lines = [f"- [{child.name}]({child.name})" for child in _list_folder(path)]
        return lead_from_root(f"{_NOT_IN_SEARCH}# {path}\n\n" + "\n".join(lines), path)
    if path.endswith(".md"):
        folder = posixpath.dirname(path)
        text = file.read_text(encoding="utf-8")
        return include_files(lead_from_root(text, folder), folder)
    if _address(path).endswith(".md"):
        return f"{_NOT_IN_SEARCH}# {path}\n\n{_show(path)}\n"
    return file.read_bytes()


def lead_from_root(text: str, folder: str) -> str:
    """Return the text of a file outside docs/ with links as they are in its copy."""
    here = f"{_FOLDER}/{folder}" if folder else _FOLDER

    def replace(match: re.Match[str]) -> str:
        if "://" in match[2]:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, match[2]))
        inside = path.startswith("docs/")
        address = path.removeprefix("docs/") if inside else _address(path)
        return match[1] + posixpath.relpath(address, here) + match[3]

    return _LINK.sub(replace, text)


def _list_folder(path: str) -> list[Path]:
    return sorted(child for child in (ROOT / path).iterdir() if child.is_file())
