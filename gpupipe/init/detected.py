"""Detected: data that a source can read, and what is not certain about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpupipe.init.names import name_some


@dataclass
class Detected:
    """Data that a source can read.

    Attributes:
        source: The name of the source.
        options: Its options in the YAML.
        notes: What is not certain, one sentence each.
        table: The columns of a list that must be written for the source, as `data.file`.
        used: The files that are read, relative to the folder; None if that is not known.
        unused: The files beside them that are not read, or "".
    """

    source: str
    options: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    table: Mapping[str, Sequence[str]] | None = None
    used: Iterable[str] | None = None
    unused: str = ""


def describe_unused(files: Iterable[str], parts: Iterable[Detected]) -> str:
    """Name the files that no part reads; "" if there are none, or if it is not known."""
    used: set[str] = set()
    for part in parts:
        if part.used is None:
            return ""
        used.update(part.used)
    tops = {path.partition("/")[0] for path in used}
    unused: dict[str, int] = {}
    for path in files:
        if path not in used:
            top, slash, _ = path.partition("/")
            name = f"{top}/" if slash and top not in tops else path
            unused[name] = unused.get(name, 0) + 1
    return name_some(
        f"{name} ({count:,} files)" if name.endswith("/") and count > 1 else name
        for name, count in unused.items()
    )
