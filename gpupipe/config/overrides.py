"""Applies overrides, such as "batch_size=64" or batch_size=64, to the document of a config."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupipe.config.loader_config import LoaderConfig, Shard
from gpupipe.errors import ConfigError, Problem, nearest, short
from gpupipe.schema import yaml_parser
from gpupipe.schema.document import Document

Change = str | tuple[str, Any]
"""An override: a text "key=value", or a tuple (key, value)."""
_TOP_LEVEL = ("data", "pipeline", "batch", "loader")


def to_plain_types(value: Any, location: str = "config", depth: int = 0) -> Any:
    """Convert a value to plain YAML types: dict, list, str, int, float, bool, None.

    Mappings, sequences, paths, dtypes of NumPy and torch, and NumPy scalars are converted; other
    values are returned as they are. Containers are copied, so that no two keys share one (as YAML
    aliases do).

    Args:
        value: The value.
        location: What the value is called in messages.
        depth: How many containers the value stands in.

    Raises:
        ConfigError: Containers are nested too deeply, or hold themselves.
    """
    if depth > yaml_parser.MAX_DEPTH:
        raise ConfigError([Problem(location, yaml_parser.TOO_DEEP)])
    if isinstance(value, Mapping):
        return {str(k): to_plain_types(v, location, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain_types(v, location, depth + 1) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":  # torch may not be imported
        return str(value).removeprefix("torch.")
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@dataclass(frozen=True)
class _ParsedChange:
    """One change: the key as it was written, the value, and the change's name in messages."""

    key: str
    value: Any
    location: str


def apply_overrides(
    document: Document, overrides: Sequence[Change], problems: list[Problem]
) -> None:
    """Apply overrides to the document in order, and append what is wrong to `problems`."""
    changes: list[_ParsedChange] = []
    for change in overrides:
        try:
            changes.append(
                _parse_text(change) if isinstance(change, str) else _parse_keyword(*change)
            )
        except ConfigError as e:
            problems += e.problems
    _replace_source(document, changes)
    for parsed in changes:
        try:
            _apply_change(document, parsed)
        except ConfigError as e:
            problems += e.problems


def _parse_keyword(key: str, value: Any) -> _ParsedChange:
    plain = to_plain_types(value, key)
    return _ParsedChange(key, plain, f"'{short(f'{key}={value!r}')}'")


def _replace_source(document: Document, changes: Sequence[_ParsedChange]) -> None:
    """Empty `data` if a change names another source, because its keys belong to the old source.

    This happens before any change is applied, so that data.source=... may come before or after the
    keys of the new source. If several changes name a source, the last one counts.
    """
    named = [(value, change.location) for change in changes for value in _named_sources(change)]
    data = document.data.get("data")
    if named and isinstance(data, dict) and "source" in data and data["source"] != named[-1][0]:
        document.replace(("data",), {"source": named[-1][0]}, named[-1][1])


def _named_sources(change: _ParsedChange) -> list[Any]:
    if change.key == "data.source":
        return [change.value]
    if change.key == "data" and isinstance(change.value, dict) and "source" in change.value:
        return [change.value["source"]]
    return []


def _apply_change(document: Document, change: _ParsedChange) -> None:
    """Apply one change. Raises ConfigError, which names the change."""
    loc = tuple(change.key.split("."))
    if loc[0] in LoaderConfig.model_fields:
        loc = ("loader", *loc)
    elif loc[0] not in _TOP_LEVEL:
        wrong = f"{loc[0]}: unknown key{_suggest_key(change.key, document)}"
        raise ConfigError([Problem(change.location, wrong)])
    if loc[0] in ("pipeline", "batch"):
        _check_step(document, loc, change.location)
    document.put(loc, change.value, change.location)


def _suggest_key(key: str, document: Document) -> str:
    """Return the end of the message about an unknown key: a similar key, or a nested one."""
    first, dot, rest = key.partition(".")
    near = nearest(first, (*LoaderConfig.model_fields, *_TOP_LEVEL))
    further = {str(k[-1]): ".".join(map(str, k)) for k in document.keys} | {
        k: f"shard.{k}" for k in Shard.model_fields
    }
    leaf = nearest(key, further)
    if near or leaf:
        return f"; did you mean '{near + dot + rest if near else further[str(leaf)]}'?"
    return f"; known: {', '.join(_TOP_LEVEL)}, and what stands in them, such as data.root"


def _check_step(document: Document, loc: tuple[str, ...], location: str) -> None:
    """Raise ConfigError if a change of a step names a step that is not at that position."""
    part = loc[0]
    steps = document.at((part,))
    if isinstance(steps, str) and len(loc) > 1:
        raise ConfigError(
            [
                Problem(
                    location,
                    f"{part} is a name, '{steps}': to change a step of it, write the list "
                    "of its steps in the config instead",
                )
            ]
        )
    step = document.at((part, int(loc[1]))) if len(loc) > 2 and loc[1].isdecimal() else None
    if isinstance(step, dict) and loc[2] not in step:
        raise ConfigError(
            [Problem(location, f"{part}.{loc[1]} is not '{loc[2]}' but '{next(iter(step), '')}'")]
        )


def _parse_text(override: str) -> _ParsedChange:
    """Parse "key=value". Raises ConfigError."""
    key, equals, text = override.partition("=")
    location = f"'{override}'"
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(
            [
                Problem(
                    location,
                    "an override is key=value, for instance batch_size=64 or data.root=/images",
                )
            ]
        )
    try:
        return _ParsedChange(key.strip(), yaml_parser.parse(text, "").data, location)
    except ConfigError as e:
        raise ConfigError(
            [Problem(location, f"the value is {p.what}") for p in e.problems]
        ) from None
