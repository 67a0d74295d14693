"""Read .txt manifests: a path in each line, and perhaps a label."""

from __future__ import annotations

from typing import TextIO

from gpupipe.errors import DataError, shown
from gpupipe.formats.manifest_rows import ManifestColumns, ManifestRows, Tick, count_row


def read_text(name: str, f: TextIO, wanted: ManifestColumns, tick: Tick) -> ManifestRows:
    """Read a .txt manifest: a path in each line, and a label if `wanted.label` is set."""
    rows = ManifestRows(name, {field: [] for field in wanted.paths})
    paths = next(iter(rows.paths.values()))
    for number, line in enumerate(f, 1):
        bare = line.strip(" \t\r\n")
        if not bare or bare[0] == "#":
            continue
        path, label = (bare, None) if wanted.label is None else _split(bare, f"{name}:{number}")
        if paths and (label is None) == bool(rows.labels):
            state = "no label" if label is None else "a label"
            raise DataError(
                f"{name}:{number}: {state}, other than in line {rows.lines[0]}: label every "
                "line, or none"
            )
        paths.append(path)
        rows.labels += [] if label is None else [label]
        count_row(rows, number, tick)
    return rows


def _split(line: str, where: str) -> tuple[str, str | None]:
    """Split a line into path and label.

    A TAB separates them for certain. After a space, the text could also be the rest of a path: it
    is an error if it looks like one.
    """
    path, tab, label = line.rpartition("\t")
    if tab:
        return path.rstrip(" \t"), label.strip(" ")
    path, space, label = line.rpartition(" ")
    if space and ("/" in label or "." in label):
        raise DataError(
            f"{where}: {shown(label)} cannot be a label: write a TAB before the label, or "
            "set data.label=null where lines are paths alone"
        )
    return (path.rstrip(" "), label) if space else (line, None)
