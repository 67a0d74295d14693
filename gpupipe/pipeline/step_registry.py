"""STEPS finds steps by name: the built-in ones, one per file, and those of installed plugins."""

from __future__ import annotations

from gpupipe.pipeline import torchvision_names
from gpupipe.pipeline.step import Step
from gpupipe.runtime import plugins
from gpupipe.runtime.registry import Registry

_OF_BATCHES = Registry("batch step", "gpupipe.batch_stage.steps", object, plugins.BATCH_STEP_GROUP)


def _advise(name: str) -> str:
    """Return what to write in place of a name that no step has; "" if nothing is like it."""
    if name in _OF_BATCHES.names():
        return f"'{name}' works on whole batches: write it under 'batch:'"
    advice = torchvision_names.advise(name, STEPS.names())
    return f"there is no step '{name}': {advice}" if advice else ""


STEPS = Registry("step", "gpupipe.steps", Step, advise=_advise)
