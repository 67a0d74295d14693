"""Finds classes by name, among the built-in ones and those of installed plugins.

Each base class has one Registry: `STEPS`, `BATCH_STEPS`, `SOURCES`, `DECODERS` and `ENGINES`. A
Registry finds a built-in class by its file, and the class of another package by an entry point. An
engine needs packages that may be absent, so the `__init__.py` of its folder `gpupipe/engines/NAME/`
imports none of them. That file describes the engine in a Registration, which loads the class later:

    def _load() -> type[Engine]:
        from gpupipe.engines.NAME.engine import MyEngine

        return MyEngine

    REGISTRATION = Registration("my engine", _load)

The engine of another package needs no Registration. ENGINES is in this file, which the config can
import, because the config needs the engines' names and required settings.
"""

import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import EntryPoint, distributions
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar

from gpupipe.errors import did_you_mean, short

T = TypeVar("T")
STEP_GROUP, SOURCE_GROUP, ENGINE_GROUP = "gpupipe.steps", "gpupipe.sources", "gpupipe.engines"
"""Entry point groups of other packages' steps, sources and engines.

Each group has the name of the package that holds gpupipe's own classes of that kind.
"""
BATCH_STEP_GROUP = "gpupipe.batch_steps"
"""Entry point group of other packages' steps of the batch stage."""


class Registry(Generic[T]):
    """Finds the classes that derive from one base class by their names in YAML.

    A built-in class is defined in its module (see `list_modules`), or the module has a
    `REGISTRATION` whose `load` imports the class. Another package offers a class as an entry point
    of the group; the name of the entry point is the name in YAML.

    Args:
        kind: The word for such a class in messages, such as "step".
        package: The package with the built-in classes.
        base: The base class, or its dotted name if the file that creates the Registry must not
            import it.
        group: The entry point group; by default the name of the package.
        advise: Called with an unknown name. Returns the message about the name, or "" for the usual
            message.
        are_folders: Whether each built-in class has a folder in the package, instead of a file.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        base: type[T] | str,
        group: str = "",
        advise: Callable[[str], str] = lambda name: "",
        are_folders: bool = False,
    ) -> None:
        self.kind, self.package, self.group = kind, package, group or package
        self._base, self._advise, self._are_folders = base, advise, are_folders

    @cached_property
    def modules(self) -> dict[str, str]:
        """Maps the YAML name of each built-in class to the name of its module in the package."""
        return list_modules(self.package, self._are_folders)

    @property
    def builtin_names(self) -> frozenset[str]:
        """The names of the built-in classes."""
        return frozenset(self.modules)

    def names(self) -> list[str]:
        """Return the sorted names of built-in classes and of plugins, without importing any."""
        return sorted(self.builtin_names | find_packages(self.group).keys())

    def import_builtin(self, name: str) -> Any:
        """Import and return the module of a built-in class."""
        return importlib.import_module(f"{self.package}.{self.modules[name]}")

    def find(self, name: str) -> type[T]:
        """Import and return the class called `name`: a built-in class, or else a plugin's class.

        Raises:
            LookupError: No class has this name (the message suggests the nearest name), or the
                plugin's class cannot be used (the message names its package).
        """
        if name in self.builtin_names:
            return self._find_builtin(name)
        if plugin := find_plugin(self.group, name, self.base):
            return plugin
        usual = f"unknown {self.kind} '{name}'{did_you_mean(name, self.names())}"
        raise LookupError(self._advise(name) or usual)

    @property
    def base(self) -> type[T]:
        """The base class of all classes in the registry."""
        if isinstance(self._base, str):
            module, _, name = self._base.rpartition(".")
            return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
        return self._base

    def _find_builtin(self, name: str) -> type[T]:
        module = self.import_builtin(name)
        if registration := getattr(module, "REGISTRATION", None):
            return registration.load()  # type: ignore[no-any-return]
        classes = [value for value in vars(module).values() if self._is_defined(value, module)]
        of_name = [c for c in classes if c.__name__.lower() == name.replace("_", "")]
        (cls,) = of_name or classes
        return cls  # type: ignore[no-any-return]

    def _is_defined(self, value: Any, module: ModuleType) -> bool:
        """Return whether a value is a subclass of `base` that `module`, or its folder, defines."""
        is_class = isinstance(value, type) and issubclass(value, self.base)
        return is_class and f"{value.__module__}.".startswith(f"{module.__name__}.")


def list_modules(package: str, are_folders: bool) -> dict[str, str]:
    """Return a dict that maps the YAML name of each built-in class to the name of its module.

    A module has the name of its class. If several classes are in one module, `SHARED_FILES` in the
    package's `__init__.py` lists their names. Imports the package, but none of its modules.

    Args:
        package: The dotted name of the package.
        are_folders: Whether each class has a folder in the package, instead of a file.
    """
    imported = importlib.import_module(package)
    files = {
        module.name: (module.name,)
        for module in pkgutil.iter_modules(imported.__path__)
        if not module.name.startswith("_") and module.ispkg == are_folders
    } | getattr(imported, "SHARED_FILES", {})
    return {name: module for module, names in files.items() for name in names}


Backend = Literal["cpu", "gpu"]
"""The kind of device that a loader works on."""

AUTO = "auto"
"""The value of `loader.engine` that selects an installed engine. No engine has this name."""


@dataclass(frozen=True)
class Registration:
    """Describes a built-in engine without importing it.

    Attributes:
        title: The engine's name in tables and messages, such as "DALI".
        load: Imports and returns the engine's class. Raises GpupipeError with an instruction if a
            package that the engine needs is not installed.
        auto_priority: Maps a kind of device, "cpu" or "gpu", to a number. `engine: auto` takes the
            installed engine with the highest number for the device. An engine without a number for
            the device is never taken.
        required_settings: Maps each setting of `loader:` that the engine cannot run without to the
            message for a config that lacks the setting.
        try_operator: Runs one of the engine's own operators on small images, for the step `dali`,
            which can run any of them: see `gpupipe/steps/dali_operators/operators.py`.
    """

    title: str
    load: Callable[[], type[Any]]
    auto_priority: Mapping[Backend, int] = field(default_factory=dict)
    required_settings: Mapping[str, str] = field(default_factory=dict)
    try_operator: Callable[..., Any] | None = None


ENGINES: Registry[Any] = Registry(
    "engine", ENGINE_GROUP, "gpupipe.engines.base.Engine", are_folders=True
)


def find_registration(name: str) -> Registration | None:
    """Return the registration of a built-in engine; None for `auto` and engines of plugins."""
    if name not in ENGINES.builtin_names:
        return None
    return ENGINES.import_builtin(name).REGISTRATION  # type: ignore[no-any-return]


def list_by_priority(backend: Backend) -> list[str]:
    """Return the engines that `auto` may take on a kind of device, highest priority first."""
    priorities = {
        name: registration.auto_priority[backend]
        for name in sorted(ENGINES.builtin_names)
        if (registration := find_registration(name)) and backend in registration.auto_priority
    }
    return sorted(priorities, key=lambda name: -priorities[name])


def find_plugin(group: str, name: str, base: type[T]) -> type[T] | None:
    """Load the class of an entry point.

    Args:
        group: Entry point group, such as `STEP_GROUP`.
        name: Name of the entry point, which is the name of the step, source or engine in YAML.
        base: Class that the loaded class must derive from.

    Returns:
        The class, or None if no entry point has this name.

    Raises:
        LookupError: The class cannot be imported, does not derive from `base`, or is abstract. The
            message names the package.
    """
    for entry in list_entries(group):
        if entry.name == name:
            return _load_class(entry, base)
    return None


def find_packages(group: str) -> dict[str, str]:
    """Return the package of each entry point of a group, by the name of the entry point.

    The packages are texts such as "the package acme 1.2". None of them is imported.
    """
    return {entry.name: _distribution(entry) for entry in list_entries(group)}


def list_entries(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, of all packages that are installed now."""
    packages: dict[str, list[EntryPoint]] = {}
    # Of two packages of one name that have such entries, the first is the one that is imported.
    for folder in sys.path:
        for name, entries in _read_entries(folder, _modified(folder)).items():
            packages.setdefault(name, entries)
    return tuple(entry for own in packages.values() for entry in own if entry.group == group)


@lru_cache(maxsize=256)
def _read_entries(folder: str, _: int) -> dict[str, list[EntryPoint]]:
    """Return gpupipe's entry points of the packages in a folder of sys.path, by package.

    Reading opens a metadata file of each package: 10 ms for 250 packages. The modification time of
    the folder is only a cache key.
    """
    packages: dict[str, list[EntryPoint]] = {}
    for package in distributions(path=[folder]):
        entries = [e for e in package.entry_points if e.group.startswith("gpupipe.")]
        if entries:
            packages.setdefault(package.name, entries)
    return packages


def _modified(path: str) -> int:
    """Return the modification time of a folder or archive in ns; 0 if it does not exist."""
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0


def _load_class(entry: EntryPoint, base: type[T]) -> type[T]:
    kind = base.__name__
    label = f"the {kind.lower()} '{entry.name}' of {_distribution(entry)}"
    try:
        cls = entry.load()
    except Exception as e:  # whatever the package's own code raises
        reason = short(f"{type(e).__name__}: {e}".splitlines()[0], 200)
        raise LookupError(
            f"{label} cannot be imported from {entry.value} ({reason}): repair or uninstall that "
            "package"
        ) from e
    label = f"{label}, {entry.value},"
    rule = f"it must derive from {base.__module__}.{kind}"
    if not isinstance(cls, type):
        raise LookupError(f"{label} is a {type(cls).__name__}: {rule}")
    if not issubclass(cls, base):
        raise LookupError(f"{label} is a class that is no {kind}: {rule}")
    if inspect.isabstract(cls):
        lacks = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise LookupError(f"{label} does not define {lacks}, which each {kind} must")
    return cls


def _distribution(entry: EntryPoint) -> str:
    dist = entry.dist
    return f"the package {dist.name} {dist.version}" if dist else "an unknown package"
