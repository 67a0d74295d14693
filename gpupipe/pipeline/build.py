"""Builds a pipeline from the list of steps in a YAML document, or reports all its mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError, Problem
from gpupipe.pipeline.chain import chain_steps
from gpupipe.pipeline.parsing import STEP_SHAPE, parse_step
from gpupipe.pipeline.pipeline import IMAGE, Pipeline
from gpupipe.pipeline.schedules import build_with_schedules
from gpupipe.pipeline.views import ViewField, add_views, has_views, list_step_lists, read_views
from gpupipe.schema import builtin_configs, yaml_parser
from gpupipe.schema.document import Document, Loc


def find_pipeline(name: str, beside: Path | None) -> Document:
    """Read the pipeline file called `name`.

    Args:
        name: A path, or NAME for `pipelines/NAME.yaml` in the working directory, then in `beside`
            or its parent folder, then among the shipped ones.
        beside: The config file's folder; None for a config without a file.
    """
    return yaml_parser.read(builtin_configs.locate("pipelines", name, beside))


def build_pipeline(
    name: str, document: Document, loc: Loc = (), fields: Mapping[str, Spec] = IMAGE
) -> Pipeline:
    """Build the pipeline from the list of steps, or the steps and views, at `loc` of a document.

    If numbers of steps have schedules, the pipelines of all epochs are built.

    Args:
        name: The pipeline's name.
        document: The YAML document.
        loc: The path of keys to them.
        fields: The spec of each field before the first step, the main field first.

    Raises:
        ConfigError: With all mistakes in the list.
    """
    first, later = build_with_schedules(
        document,
        loc,
        list_step_lists(document, loc),
        lambda plain: _build_phase(name, plain, loc, fields),
        _describe_change,
    )
    return replace(first, later=later)


def _describe_change(first: Pipeline, later: Pipeline, when: str) -> str:
    """Say what a schedule changes of what is delivered, but for sizes; "" for nothing."""
    for output in first.outputs:
        before, after = first.output_spec_of(output), later.output_spec_of(output)
        for what in ("dtype", "layout"):
            old, new = getattr(before, what), getattr(after, what)
            if old != new:
                rule = "only sizes may change from epoch to epoch"
                return f"the {what} of '{output}' is {old} in epoch 0, and {new} {when}: {rule}"
    return ""


def _build_phase(name: str, document: Document, loc: Loc, fields: Mapping[str, Spec]) -> Pipeline:
    """Build the pipeline from a document without schedules; `build_pipeline` says the rest."""
    problems: list[Problem] = []
    views: dict[str, ViewField] = {}
    if has_views(document.at(loc)):
        views, loc = read_views(document, loc, fields, problems), (*loc, "steps")
    steps = document.at(loc)
    needed = any(spec.encoded for spec in fields.values())
    if not isinstance(steps, list) or (needed and not steps):
        what = "this is no list" if steps else "there is no step"
        if isinstance(steps, dict) and "pipeline" in steps:
            what = "this is a config, and no pipeline"
        rule = f"{what}: a pipeline is a list of steps, {STEP_SHAPE}"
        raise ConfigError([*problems, Problem(document.where(loc), rule)])
    parsed = [
        parse_step(item, document, (*loc, i), problems, fields) for i, item in enumerate(steps)
    ]
    entries = chain_steps(parsed, fields, problems)
    pipeline = Pipeline(name, tuple(entries), dict(fields))
    if not problems:
        pipeline = add_views(pipeline, views, document, problems)
    if problems:
        raise ConfigError(problems)
    return pipeline
