"""Finds steps by name: the built-in ones, one per file, and those of installed plugins."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil

from gpupipe.errors import did_you_mean
from gpupipe.pipeline import torchvision_names
from gpupipe.pipeline.step import Step
from gpupipe.runtime import plugins


def builtin_names() -> set[str]:
    """Return the names of the built-in steps."""
    package = importlib.import_module("gpupipe.steps")
    return {m.name for m in pkgutil.iter_modules(package.__path__)}


def names() -> list[str]:
    """Return the sorted names of all steps: the built-in ones and those of installed plugins."""
    return sorted(builtin_names() | plugins.names(plugins.STEPS))


def find(name: str) -> type[Step]:
    """Return the class of the step called `name`.

    Built-in steps come first (`gpupipe/steps/NAME.py`), then entry points of the group
    `gpupipe.steps`.

    Raises:
        LookupError: If there is no such step, or a plugin package is broken. The message suggests
            the nearest name, or names the package.
    """
    if _has_module("gpupipe.steps", name):
        module = importlib.import_module(f"gpupipe.steps.{name}")
        # Every built-in module holds one class, named like the module in CamelCase.
        return getattr(module, _camel(name))  # type: ignore[no-any-return]
    if plugin := plugins.find(plugins.STEPS, name, Step):
        return plugin
    if _has_module("gpupipe.batch_stage.steps", name):
        raise LookupError(f"'{name}' works on whole batches: write it under 'batch:'")
    known = names()
    if advice := torchvision_names.advise(name, known):
        raise LookupError(f"there is no step '{name}': {advice}")
    raise LookupError(f"unknown step '{name}'{did_you_mean(name, known)}")


def _has_module(package: str, name: str) -> bool:
    """Return whether a package has a public module of this name."""
    is_public = name.isidentifier() and not name.startswith("_")
    return is_public and importlib.util.find_spec(f"{package}.{name}") is not None


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
