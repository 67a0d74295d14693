"""Builds a pipeline from the list of steps in a YAML document, or reports all its mistakes.

In YAML a pipeline with views is a mapping::

    pipeline:
      steps:
        - decode
      views:
        global: {count: 2, steps: [{random_resized_crop: {size: 224}}]}
        local: {count: 8, steps: [{random_resized_crop: {size: 96}}]}

Views are several fields of a batch out of one read and one decode, each with steps of its own. The
steps under `steps` run once. Then the steps of each view run on their result. A view with a count
is so many fields, `global_0` and `global_1`: fields of their own need no copy that stacks them, may
differ in size, and are what training loops iterate over. Each has draws of its own.

A step that makes several images of one, such as `five_crop`, stands first in a view with that
count. Each field of the view gets one of its images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from gpupipe.dataset.source import RESERVED_NAMES
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError, Problem
from gpupipe.pipeline.entry import chain_steps
from gpupipe.pipeline.parsing import STEP_SHAPE, ParsedStep, parse_nested_step, parse_step
from gpupipe.pipeline.pipeline import IMAGE, Pipeline
from gpupipe.pipeline.schedules import build_with_schedules
from gpupipe.pipeline.step import Step
from gpupipe.schema import yaml_files
from gpupipe.schema.document import Document, Loc, Node
from gpupipe.schema.field_types import WHOLE
from gpupipe.schema.validation_errors import to_problems


def find_pipeline(name: str, beside: Path | None) -> Document:
    """Read the pipeline file called `name`.

    Args:
        name: A path, or NAME for `pipelines/NAME.yaml` in the working directory, then in `beside`
            or its parent folder, then among the shipped ones.
        beside: The config file's folder; None for a config without a file.
    """
    return yaml_files.read(yaml_files.locate("pipelines", name, beside))


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
    return build_with_schedules(
        document,
        loc,
        list_step_lists(document, loc),
        lambda plain: _build_phase(name, plain, loc, fields),
        _describe_change,
    )


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
    """Build the pipeline from a document without schedules; see `build_pipeline`."""
    problems: list[Problem] = []
    node = Node(document, loc, problems)
    views: dict[str, ViewField] = {}
    if has_views(node.value):
        views, node = read_views(node, fields), node.inside("steps")
    steps, needed = node.value, any(spec.encoded for spec in fields.values())
    if not isinstance(steps, list) or (needed and not steps):
        what = "this is no list" if steps else "there is no step"
        if isinstance(steps, dict) and "pipeline" in steps:
            what = "this is a config, and no pipeline"
        node.report(f"{what}: a pipeline is a list of steps, {STEP_SHAPE}")
        raise ConfigError(problems)
    parsed = [parse_step(item, fields) for item in node.items()]
    entries = chain_steps(parsed, fields, problems)
    pipeline = Pipeline(name, tuple(entries), dict(fields))
    if not problems:
        pipeline = add_views(pipeline, views)
    if problems:
        raise ConfigError(problems)
    return pipeline


_Frozen = pydantic.ConfigDict(frozen=True, extra="forbid")


class ViewConfig(pydantic.BaseModel):
    """One entry of `views:`.

    Attributes:
        count: How many fields the view makes, 1 to 64. The default is 1.
        steps: The steps of the view.
    """

    model_config = _Frozen

    count: Annotated[int, Field(ge=1, le=64), WHOLE] = 1
    steps: list[Any]


class PipelineConfig(pydantic.BaseModel):
    """A pipeline with views.

    Attributes:
        steps: The steps before all views.
        views: The views, by name.
    """

    model_config = _Frozen

    steps: list[Any]
    views: dict[str, ViewConfig] = {}


@dataclass(frozen=True)
class ViewField:
    """A field that a view makes.

    Attributes:
        steps: The view's list of steps in the YAML document.
        number: The number of the field among those of the view, from 0.
        count: How many fields the view makes.
    """

    steps: Node
    number: int
    count: int


def has_views(pipeline: Any) -> bool:
    """Return whether a pipeline in YAML is a mapping with views, and not a list of steps."""
    return isinstance(pipeline, dict) and bool({"steps", "views"} & pipeline.keys())


def list_step_lists(document: Document, loc: Loc) -> list[Loc]:
    """Return the paths of the lists of steps in a pipeline: its own, and those of its views."""
    pipeline = document.at(loc)
    if not has_views(pipeline):
        return [loc]
    views = pipeline.get("views")
    names = views if isinstance(views, dict) else {}
    return [(*loc, "steps"), *((*loc, "views", name, "steps") for name in names)]


def read_views(node: Node, fields: Mapping[str, Spec]) -> dict[str, ViewField]:
    """Return the fields that views make, by name.

    Args:
        node: The pipeline.
        fields: The fields of a sample.
    """
    try:
        checked = PipelineConfig.model_validate(node.value)
    except pydantic.ValidationError as e:
        node.problems.extend(
            to_problems(e, PipelineConfig, node.document, node.loc, prefix="pipeline")
        )
        return {}
    views: dict[str, ViewField] = {}
    taken = {*fields, *RESERVED_NAMES}
    for name, view in checked.views.items():
        inner = node.inside("views", name)
        if not name.isidentifier():
            inner.report(f"views: '{name}' is no name: letters, digits and _", of_key=True)
        names = [name] if view.count == 1 else [f"{name}_{n}" for n in range(view.count)]
        for number, field in enumerate(names):
            if field in taken:
                why = "a batch has a field of that name"
                inner.report(f"views: a view must not be called '{field}': {why}", of_key=True)
            taken.add(field)
            views[field] = ViewField(inner.inside("steps"), number, view.count)
    return views


def add_views(pipeline: Pipeline, views: Mapping[str, ViewField]) -> Pipeline:
    """Return a pipeline with views; mistakes in their steps are reported.

    Args:
        pipeline: The steps before all views.
        views: What `read_views` returned.
    """
    entries, before = list(pipeline.entries), pipeline.output_spec
    if views and before.encoded:
        first = next(iter(views.values())).steps
        first.report("views begin with an image: write 'decode' under 'steps'")
        return pipeline
    for name, view in views.items():
        mistakes: list[Problem] = []
        field, steps = {name: before}, replace(view.steps, problems=mistakes)
        parsed = [p for item in steps.items() if (p := parse_nested_step(item, field))]
        if parsed:
            parsed[0] = _select_view(parsed[0], view)
        chained = chain_steps(parsed, field, mistakes)
        entries += [replace(entry, key=f"{name}/{entry.key}") for entry in chained]
        # Copies of a view have the same mistakes.
        view.steps.problems.extend(p for p in mistakes if p not in view.steps.problems)
    sources = dict.fromkeys(views, pipeline.main)
    return replace(pipeline, entries=tuple(entries), views=sources)


def _select_view(first: ParsedStep[Step], view: ViewField) -> ParsedStep[Step]:
    """Return the first step of a view as it makes one of the view's fields.

    A step that makes several images refuses to stand in a view of another count.
    """
    if first.step is None or first.step.num_views == 1 or first.step.num_views != view.count:
        return first
    return replace(first, step=first.step.select_view(view.number))
