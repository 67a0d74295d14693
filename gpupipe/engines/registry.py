"""Finds engines by name, among the folders beside this file and the plugins that are installed.

`find` takes the name of one engine. `choose` also takes "auto", which depends on the device and the
steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from gpupipe.config import Config
from gpupipe.engines.base import Engine
from gpupipe.errors import EngineError, GpupipeError
from gpupipe.pipeline.step import Step
from gpupipe.runtime.devices import backend_of
from gpupipe.runtime.engine_registration import AUTO, ENGINES, find_registration, list_by_priority


def find(name: str) -> type[Engine]:
    """Import and return the class of an engine.

    Built-in engines come first (`gpupipe/engines/NAME/`), then entry points of the group
    `gpupipe.engines`.

    Args:
        name: The engine's name.

    Raises:
        DeviceError: A package that the engine needs is not installed.
        ServerError: A package that connecting to a server needs is not installed.
        EngineError: There is no such engine, or its package is broken. The message suggests the
            nearest name, or names the package.
    """
    try:
        return ENGINES.find(name)
    except LookupError as e:
        raise EngineError(str(e)) from e


def choose(name: str, device: str = AUTO, steps: Iterable[Step] = ()) -> type[Engine]:
    """Return the class of an engine that may be "auto".

    "auto" is the installed engine with the highest priority on the device that can run all steps.
    If none can run them, it is the one with the highest priority, which then says what it lacks.

    Args:
        name: The engine's name, or "auto".
        device: A value of `loader.device`.
        steps: The steps of the pipeline.

    Raises:
        What find() raises.
    """
    if name != AUTO:
        return find(name)
    wanted = list(steps)
    installed = filter(is_installed, list_by_priority(backend_of(device)))
    first = find(next(installed))
    others = map(find, installed)  # imported only if the first cannot run a step
    able = (engine for engine in chain([first], others) if all(map(engine.can_run, wanted)))
    return next(able, first)


def find_for(config: Config) -> type[Engine]:
    """Return the class of a config's engine. Raises what find() raises."""
    return choose(config.loader.engine, config.loader.device, _steps(config))


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


def preferred(device: str = AUTO) -> str:
    """Return the engine that `auto` would take on a device if everything was installed."""
    return list_by_priority(backend_of(device))[0]


def passed_over(config: Config) -> list[str]:
    """Return the titles of the engines that `auto` would have taken, had they been installed."""
    if config.loader.engine != AUTO:
        return []
    order = list_by_priority(backend_of(config.loader.device))
    taken = find_for(config).name
    return [title(name) for name in order[: order.index(taken)] if not is_installed(name)]


def list_automatic() -> list[str]:
    """Return the names of the engines that `auto` may take on some device."""
    return list(dict.fromkeys([*list_by_priority("cpu"), *list_by_priority("gpu")]))


def reference() -> type[Engine]:
    """Return the engine that runs the reference of each step, Step.torch."""
    return next(
        engine
        for engine in map(find, filter(is_installed, reversed(list_automatic())))
        if engine.reference_settings is not None
    )


def _steps(config: Config) -> Iterator[Step]:
    return (entry.step for entry in config.pipeline.entries)
