"""Finds steps of the batch stage by name: the built-in ones, and those of installed plugins."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from types import ModuleType
from typing import Any

from gpupipe.batch_stage.batch_step import BatchStep
from gpupipe.errors import did_you_mean
from gpupipe.pipeline import step_registry
from gpupipe.runtime import plugins

_PACKAGE = "gpupipe.batch_stage.steps"


def builtin_names() -> set[str]:
    """Return the names of the built-in steps."""
    return {m.name for m in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)}


def names() -> list[str]:
    """Return the sorted names of all steps: the built-in ones and those of installed plugins."""
    return sorted(builtin_names() | plugins.names(plugins.BATCH_STEPS))


def find(name: str) -> type[BatchStep]:
    """Return the class of the step called `name`.

    Built-in steps come first (`gpupipe/batch_stage/steps/NAME.py`), then entry points of the group
    `gpupipe.batch_steps`.

    Raises:
        LookupError: If there is no such step, or a plugin package is broken. The message suggests
            the nearest name, or names the package.
    """
    if name in builtin_names():
        module = importlib.import_module(f"{_PACKAGE}.{name}")
        model: type[BatchStep] = next(
            value for value in vars(module).values() if _is_defined_in(value, module)
        )
        return model
    if plugin := plugins.find(plugins.BATCH_STEPS, name, BatchStep):
        return plugin
    if name in step_registry.names():
        raise LookupError(f"'{name}' works on single samples: write it under 'pipeline:'")
    raise LookupError(f"unknown step '{name}' of the batch stage{did_you_mean(name, names())}")


def _is_defined_in(value: Any, module: ModuleType) -> bool:
    """Whether a value is a step that this module defines; every built-in module defines one."""
    is_step = isinstance(value, type) and issubclass(value, BatchStep)
    return is_step and value.__module__ == module.__name__
