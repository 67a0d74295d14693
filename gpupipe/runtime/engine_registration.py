"""Registration of engines: what gpupipe knows of an engine before it imports it, and ENGINES.

A built-in engine NAME is a folder `gpupipe/engines/NAME/`. Its `__init__.py` imports none of the
packages that the engine needs, and defines its registration:

    def _load() -> type[Engine]:
        from gpupipe.engines.NAME.engine import MyEngine

        return MyEngine

    REGISTRATION = Registration("my engine", _load)

An engine of another package needs none: its entry point in the group `gpupipe.engines` refers to
the class. The config needs only names and required settings, so this module is below it;
`gpupipe.engines.registry` finds classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gpupipe.runtime import plugins
from gpupipe.runtime.registry import Registry

if TYPE_CHECKING:
    _Class = type[Any]

Backend = Literal["cpu", "gpu"]
"""A kind of device."""

AUTO = "auto"
"""The value of `loader.engine` that takes an installed engine; no engine can have this name."""


@dataclass(frozen=True)
class Registration:
    """What is known of a built-in engine before it is imported.

    Attributes:
        title: The engine's name in tables and messages, such as "DALI".
        load: Imports and returns the engine's class. Raises GpupipeError with an instruction if a
            package that the engine needs is not installed.
        auto_priority: By kind of device, "cpu" or "gpu": `engine: auto` takes the installed engine
            with the highest number. Without a number for a device, `auto` never takes this engine
            there.
        required_settings: Settings of `loader:` without which the engine cannot run. Each has the
            message for the case that it is missing.
    """

    title: str
    load: Callable[[], _Class]
    auto_priority: Mapping[Backend, int] = field(default_factory=dict)
    required_settings: Mapping[str, str] = field(default_factory=dict)


ENGINES: Registry[Any] = Registry(
    "engine", plugins.ENGINE_GROUP, "gpupipe.engines.base.Engine", are_folders=True
)


def find_registration(name: str) -> Registration | None:
    """Return the registration of a built-in engine; None for engines of plugins, and `auto`."""
    if name not in ENGINES.builtin_names:
        return None
    return ENGINES.import_builtin(name).REGISTRATION  # type: ignore[no-any-return]


def list_by_priority(backend: Backend) -> list[str]:
    """Return the engines that `auto` may take on a kind of device, in its order of preference."""
    priorities = {
        name: registration.auto_priority[backend]
        for name in sorted(ENGINES.builtin_names)
        if (registration := find_registration(name)) and backend in registration.auto_priority
    }
    return sorted(priorities, key=lambda name: -priorities[name])
