"""Paths as a manifest lists them, made relative to the folder that they must lie in."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpupipe.errors import DataError, shown
from gpupipe.formats import manifest
from gpupipe.formats.manifest import ManifestRows
from gpupipe.schema.field_types import expanded

_ODD = re.compile(r"\0|(?:^|/)\.{0,2}(?:/|$)")
"""A path that is not plainly NAME/NAME/...: with NUL, or with a part that is '', '.' or '..'."""
_LONGEST_PATH = 4095


def listing(path: Path) -> Path:
    """The path of a manifest, ~ expanded. Raises ValueError where it can be none."""
    if manifest.suffix(path) not in manifest.SUFFIXES:
        *others, last = manifest.SUFFIXES
        raise ValueError(
            f"{path} should end in {', '.join(others)} or {last}: the ending says what the "
            "file's format is"
        )
    if "\0" in str(path):
        raise ValueError("a NUL byte, which no path holds")
    return expanded(path)


def folder(root: Path) -> Path:
    """The folder, its links resolved. Raises DataError where there is none."""
    if not root.is_dir():
        raise DataError(
            f"{root}: no such folder: set data.root to the folder that the paths are relative to"
        )
    return root.resolve()


def inside(rows: ManifestRows, paths: list[str], roots: list[str]) -> list[str]:
    """The paths relative to the root.

    roots: the folder as it was named, and with its links resolved, both absolute.
    """
    starts = (*(os.path.join(root, "") for root in roots), "./")
    inside = []
    for row, path in enumerate(paths):
        rest = (
            next(path[len(s) :] for s in starts if path.startswith(s))
            if path.startswith(starts)
            else path
        )
        if len(rest) > _LONGEST_PATH or _ODD.search(rest):
            try:
                rest = _normal(path, roots)
            except ValueError as e:
                raise DataError(f"{rows.where(row)}: {e}") from None
        inside.append(rest)
    return inside


def _normal(path: str, roots: list[str]) -> str:
    """`path` relative to the root and without '.' and '..'.

    Raises ValueError where it leaves the root or can be no file's.
    """
    if "\0" in path:
        raise ValueError("a NUL byte, which no path holds: save the list as UTF-8")
    if len(path) > _LONGEST_PATH:
        raise ValueError(
            f"a path of {len(path):,} characters, more than a file's can have ({_LONGEST_PATH:,})"
        )
    if not path or path.endswith("/"):
        raise ValueError(f"{shown(path)} is no file's path" if path else "the path is empty")
    whole = os.path.normpath(os.path.join(roots[-1], path))
    for root in roots:
        start = os.path.join(root, "")
        if whole.startswith(start):
            return whole[len(start) :]
    raise ValueError(
        f"{shown(path)} does not lie in {roots[-1]}: move the file there, or set data.root "
        "to a folder that holds all files"
    )
