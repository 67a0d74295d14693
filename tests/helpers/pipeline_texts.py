"""Pipelines written as text, and the mistakes in them."""

import pytest

from gpupipe.errors import ConfigError
from gpupipe.pipeline import step_registry
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.schema import yaml_files

STEPS = ", ".join(step_registry.STEPS.names())
SHAPE = "each '- name: {parameter: value}' or '- name'"


def build(*steps: str) -> Pipeline:
    """The pipeline in a file "p" with one of these a line, behind a dash."""
    return build_pipeline("p", yaml_files.parse("".join(f"- {s}\n" for s in steps), "p"))


def mistakes(*steps: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        build(*steps)
    return [str(p).removeprefix("p:") for p in error.value.problems]


FLOAT, NORM = "to_dtype: {dtype: float32, scale: true}", "normalize: {mean: 0.5, std: 0.2}"
DEGREES = "a number a of at least 0 for [-a, a], or [min, max]"
SIDES = "one number, [left and right, top and bottom], or [left, top, right, bottom]"
PER_CHANNEL = "one number, or a list with one for each channel"
