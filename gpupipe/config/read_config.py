"""Reads a config: finds the YAML, applies overrides, resolves ${...}, and validates the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpupipe.config.overrides import Change, apply_overrides, to_plain_types
from gpupipe.config.validation import Config, validate
from gpupipe.errors import ConfigError, Problem, shown
from gpupipe.schema import builtin_configs, interpolation, yaml_parser
from gpupipe.schema.document import Document


def read(
    config: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), **changes: Any
) -> Config:
    """Read and validate a config.

    If an override or a change names another source, all other keys of `data` in the config are
    dropped, because they belong to the old source.

    Args:
        config: Path of a YAML file, a shipped name such as "lfw", or a dict of the same shape.
        overrides: Texts "key=value", with dots between nested keys: "data.root=/images". Keys of
            `loader` need no prefix: "batch_size=64".
        **changes: The same as keyword arguments, applied after the overrides. A dict changes only
            the keys that it has; a list replaces the whole list.

    Returns:
        The config with all overrides and changes.

    Raises:
        ConfigError: If anything is wrong; it holds all mistakes.

    Example:
        >>> read("lfw", ["batch_size=64"], data={"root": "/images"})
    """
    return read_in_layers(config, [*overrides, *changes.items()])


def read_in_layers(config: str | Path | Mapping[str, Any], *layers: Sequence[Change]) -> Config:
    """Read and validate a config with several sets of changes; later sets win.

    Args:
        config: Path of a YAML file, a shipped name, or a dict of the same shape.
        *layers: Sets of changes. A change is a text "key=value", or a tuple (key, value).

    Returns:
        The config with all changes.

    Raises:
        ConfigError: If anything is wrong; it holds all mistakes.
    """
    document, config_dir = _open(config)
    if not isinstance(document.data, dict):
        actual = (
            "this is a list"
            if isinstance(document.data, list)
            else f"this is {shown(document.data)}"
        )
        raise ConfigError(
            [
                Problem(
                    document.where(()),
                    f"{actual}, but a config holds 'data:', 'pipeline:' and 'loader:', with "
                    "values after or below them",
                )
            ]
        )
    problems: list[Problem] = []
    for layer in layers:
        apply_overrides(document, layer, problems)
    document, unresolved = interpolation.resolve(document)
    return validate(document, config_dir, problems + unresolved)


def _open(config: str | Path | Mapping[str, Any]) -> tuple[Document, Path | None]:
    if isinstance(config, Mapping):
        return Document("config", to_plain_types(config)), None
    path = builtin_configs.locate("configs", str(config))
    document = yaml_parser.read(path)
    return replace(document, data=to_plain_types(document.data)), path.parent
