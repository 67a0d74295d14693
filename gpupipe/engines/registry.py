"""Finds engines by name, among the folders beside this file and the plugins that are installed."""

from __future__ import annotations

from gpupipe.engines.base import Engine
from gpupipe.errors import EngineError, GpupipeError, did_you_mean
from gpupipe.runtime import plugins
from gpupipe.runtime.engine_registration import AUTO, find_registration, list_by_priority, names


def find(name: str) -> type[Engine]:
    """Import and return the class of an engine.

    Built-in engines come first (`gpupipe/engines/NAME/`), then entry points of the group
    `gpupipe.engines`.

    Args:
        name: The engine's name, or "auto" for the installed engine with the highest priority.

    Raises:
        DeviceError: A package that the engine needs is not installed.
        ServerError: A package that connecting to a server needs is not installed.
        EngineError: There is no such engine, or its package is broken. The message suggests the
            nearest name, or names the package.
    """
    if name == AUTO:
        return find(next(filter(is_installed, list_by_priority())))
    if registration := find_registration(name):
        return registration.load()
    try:
        plugin = plugins.find(plugins.ENGINES, name, Engine)  # type: ignore[type-abstract]
    except LookupError as e:
        raise EngineError(str(e)) from e
    if plugin is None:
        raise EngineError(f"unknown engine '{name}'{did_you_mean(name, names())}")
    return plugin


def is_installed(name: str) -> bool:
    """Whether all packages that the engine needs can be imported."""
    try:
        find(name)
    except GpupipeError:
        return False
    return True


def title(name: str) -> str:
    """Return an engine's name for tables and messages."""
    registration = find_registration(name)
    return registration.title if registration else name


def preferred() -> str:
    """Return the name of the engine that `auto` would take if everything was installed."""
    return list_by_priority()[0]


def passed_over(name: str) -> list[str]:
    """Return the titles of the engines that `auto` would have taken before `name`."""
    order = list_by_priority()
    return [title(other) for other in order[: order.index(name)]] if name in order else []


def reference() -> type[Engine]:
    """Return the engine that runs the reference of each step, Step.torch."""
    return next(
        engine
        for engine in map(find, filter(is_installed, reversed(list_by_priority())))
        if engine.reference_settings is not None
    )
