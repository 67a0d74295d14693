"""Finds settings that have no effect, and steps whose result is hardly meant; logs a line each."""

import logging
from functools import cache
from typing import Protocol, runtime_checkable

from gpupipe.config import Config, LoaderConfig
from gpupipe.engines.base import BatchStream, Engine
from gpupipe.errors import shown

LOADER_SETTINGS = frozenset(
    {"engine", "device", "shard", "format", "collate", "targets", "pad_to", "ids"}
)
"""Settings of `loader` that the loader itself uses, with every engine."""


@runtime_checkable
class ExplainsUnused(Protocol):
    """An engine whose settings can make other settings ineffective."""

    def unused(self, loader: LoaderConfig) -> dict[str, str]:
        """Return the settings that have no effect because of other settings. A class method.

        Returns:
            A dict from each of these settings to the reason, such as
            {"pin_memory": "device is cpu"}.
        """


def list_ignored_settings(config: Config, engine: type[BatchStream]) -> list[str]:
    """Return a line for each setting that differs from its default but has no effect.

    Args:
        config: The config.
        engine: The class of the config's engine.
    """
    loader = config.loader
    unused = engine.unused(loader) if isinstance(engine, ExplainsUnused) else {}
    defaults = type(loader)()
    lines = []
    for name in type(loader).model_fields:
        value = getattr(loader, name)
        if name not in loader.model_fields_set or value == getattr(defaults, name):
            continue
        if name not in engine.settings | LOADER_SETTINGS:
            unused[name] = f"engine {engine.name} does not use it"
        if name in unused:
            lines.append(f"loader.{name}={shown(value)} has no effect: {unused[name]}")
    if config.source.cache_decoded is not None and not issubclass(engine, Engine):
        lines.append("data.cache_decoded has no effect: the server's config says what is kept")
    parts = config.source.list_parts()
    if config.source.max_bytes is not None and not any(part.inflates for part in parts):
        lines.append("data.max_bytes has no effect: the source inflates nothing")
    return lines


def list_doubts(config: Config) -> list[str]:
    """Return a line, with the location in the YAML, for each step whose result is hardly meant."""
    doubts = (
        f"{entry.where}: {entry.key}: {doubt}"
        for entry in config.pipeline.entries
        if (doubt := entry.step.explain_doubt(entry.input_spec))
    )
    return list(dict.fromkeys(doubts))


def log_ignored_settings(config: Config, used: LoaderConfig, engine: BatchStream) -> None:
    """Log each setting of a config that has no effect, and each doubt, once in a process.

    Args:
        config: The config as the user wrote it.
        used: The settings of the loader that was opened, some of which a server may have decided.
        engine: The engine of that loader.
    """
    lines = [*list_ignored_settings(config, type(engine)), *list_doubts(config)]
    for name in sorted(config.loader.model_fields_set & engine.traits.overruled_settings):
        mine, theirs = getattr(config.loader, name), getattr(used, name)
        if mine != theirs:
            lines.append(
                f"loader.{name}={shown(mine)} has no effect: the server's is {shown(theirs)}"
            )
    for line in lines:
        _log_once(line)


@cache
def _log_once(line: str) -> None:
    logging.getLogger("gpupipe").warning(line)
