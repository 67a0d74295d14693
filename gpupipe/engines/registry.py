"""Finds engines by name, among the folders beside this file and the plugins that are installed.

`find` takes the name of one engine. `choose` also takes "auto", which depends on the device and the
steps.
"""

from itertools import chain

from gpupipe.config import Config
from gpupipe.engines.base import BatchStream, Engine
from gpupipe.errors import EngineError, GpupipeError
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime.devices import backend_of
from gpupipe.runtime.garbage_collection import pause_collection
from gpupipe.runtime.registry import AUTO, ENGINES, find_registration, list_by_priority


def find(name: str) -> type[BatchStream]:
    """Import and return the class of an engine.

    Built-in engines come first (`gpupipe/engines/NAME/`), then entry points of the group
    `gpupipe.engines`. A class that is no subclass of Engine connects to servers, which read the
    data.

    Args:
        name: The engine's name.

    Raises:
        DeviceError: A package that the engine needs is not installed.
        ServerError: A package that connecting to a server needs is not installed.
        EngineError: There is no such engine, or its package is broken. The message suggests the
            nearest name, or names the package.
    """
    try:
        registration = find_registration(name)
        with pause_collection():
            return registration.load() if registration else ENGINES.find(name)
    except LookupError as e:
        raise EngineError(str(e)) from e


def choose(name: str, device: str = AUTO, pipeline: Pipeline | None = None) -> type[BatchStream]:
    """Return the class of the engine `name`; for "auto", the class of the best installed engine.

    The best engine is the one with the highest priority on the device, among those that can run all
    steps. If no engine can run all steps, the engine with the highest priority is returned, and its
    constructor raises the error.

    Args:
        name: The engine's name, or "auto".
        device: A value of `loader.device`.
        pipeline: The steps; None: any engine can run them.

    Raises:
        GpupipeError: The engine does not exist, or cannot be imported: see find().
    """
    if name != AUTO:
        return find(name)
    installed = filter(is_installed, list_by_priority(backend_of(device)))
    first = _check_reads(find(next(installed)))
    others = (_check_reads(find(n)) for n in installed)  # imported only if the first cannot run all
    phases = () if pipeline is None else pipeline.phases
    steps = [entry for phase in phases for entry in phase.entries]
    engines = chain([first], others)
    return next((e for e in engines if all(e.can_run(step, device) for step in steps)), first)


def find_reader(name: str, device: str = AUTO, pipeline: Pipeline | None = None) -> type[Engine]:
    """Return the class that choose() returns, if that engine reads the data itself.

    Raises:
        EngineError: The engine connects to servers.
        GpupipeError: The engine does not exist, or cannot be imported: see find().
    """
    return _check_reads(choose(name, device, pipeline))


def _check_reads(engine: type[BatchStream]) -> type[Engine]:
    if not issubclass(engine, Engine):
        raise EngineError(
            f"engine {engine.name} reads no data here, but connects to servers: take another engine"
        )
    return engine


def is_installed(name: str) -> bool:
    """Return whether all packages that an engine needs can be imported."""
    try:
        find(name)
    except GpupipeError:
        return False
    return True


def get_title(name: str) -> str:
    """Return an engine's name for tables and messages."""
    registration = find_registration(name)
    return registration.title if registration else name


def find_preferred() -> str:
    """Return the name of the engine that `auto` would take if all engines were installed."""
    return list_by_priority(backend_of(AUTO))[0]


def list_passed_over(config: Config, taken: str) -> list[str]:
    """Return the titles of the engines that `auto` would have taken, had they been installed.

    Args:
        config: The config.
        taken: The name of the engine that was taken.
    """
    order = list_by_priority(backend_of(config.loader.device))
    if config.loader.engine != AUTO or taken not in order:
        return []
    return [get_title(name) for name in order[: order.index(taken)] if not is_installed(name)]


def list_automatic() -> list[str]:
    """Return the names of the engines that `auto` may take on some device."""
    return list(dict.fromkeys([*list_by_priority("cpu"), *list_by_priority("gpu")]))


def find_reference() -> type[Engine]:
    """Return the engine that runs Step.torch of each step, which is the step's reference."""
    return next(
        engine
        for engine in map(find_reader, filter(is_installed, reversed(list_automatic())))
        if engine.traits.reference_settings is not None
    )
