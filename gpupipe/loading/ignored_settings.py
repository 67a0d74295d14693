"""Settings that a config has and that have no effect: which, why, and the log line for each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache

from gpupipe.config import Config, LoaderConfig
from gpupipe.engines import registry
from gpupipe.engines.base import Engine
from gpupipe.errors import shown

LOADER_SETTINGS = frozenset({"engine", "device", "shard", "format", "ids"})
"""Settings of `loader` that the loader itself uses, with every engine."""


def list_ignored_settings(config: Config) -> list[str]:
    """Return a line for each setting that differs from its default but has no effect."""
    loader = config.loader
    engine = registry.find_for(config)
    unused, defaults = engine.unused(loader), type(loader)()
    lines = []
    for name in type(loader).model_fields:
        value = getattr(loader, name)
        if name not in loader.model_fields_set or value == getattr(defaults, name):
            continue
        if name not in engine.settings | LOADER_SETTINGS:
            unused[name] = f"engine {engine.name} does not use it"
        if name in unused:
            lines.append(f"loader.{name}={shown(value)} has no effect: {unused[name]}")
    if config.source.cache_decoded is not None and not engine.reads_data:
        lines.append("data.cache_decoded has no effect: the server's config says what is kept")
    return lines


def log_ignored_settings(config: Config, used: LoaderConfig, engine: Engine) -> None:
    """Log each setting of a config that has no effect, once in a process.

    Args:
        config: The config as the user wrote it.
        used: The settings of the loader that was opened, some of which a server may have decided.
        engine: The engine of that loader.
    """
    for line in [*list_ignored_settings(config), *_iter_overruled(config.loader, used, engine)]:
        _log_once(line)


def _iter_overruled(own: LoaderConfig, used: LoaderConfig, engine: Engine) -> Iterator[str]:
    for name in sorted(own.model_fields_set & engine.overruled_settings):
        mine, theirs = getattr(own, name), getattr(used, name)
        if mine != theirs:
            yield f"loader.{name}={shown(mine)} has no effect: the server's is {shown(theirs)}"


@cache
def _log_once(line: str) -> None:
    logging.getLogger("gpupipe").warning(line)
