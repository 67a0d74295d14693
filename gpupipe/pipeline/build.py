"""Builds a pipeline from the list of steps in a YAML document, or reports all its mistakes.

In YAML a pipeline with views is a mapping::

    pipeline:
      steps:
        - decode
      views:
        global: {count: 2, steps: [{random_resized_crop: {size: 224}}]}
        local: {count: 8, steps: [{random_resized_crop: {size: 96}}]}

Each sample is read and decoded once, and each view makes fields of the batch from it. The steps
under `steps` run once. Then the steps of each view run on the result. A view with `count: 2` makes
two fields, `global_0` and `global_1`, each with its own random draws. Views are not stacked into
one tensor: that saves a copy, views may differ in size, and training loops iterate over views.

A step that makes N images from one, such as `five_crop`, must be the first step of a view with
`count: N`. Each field of the view gets one of the N images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import pydantic
from pydantic import Field

from gpupipe.dataset.source import RESERVED_NAMES
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError, Problem
from gpupipe.pipeline.entry import chain_steps
from gpupipe.pipeline.parsing import STEP_SHAPE, parse_nested_step, parse_step
from gpupipe.pipeline.pipeline import IMAGE, Pipeline
from gpupipe.pipeline.schedules import build_with_schedules
from gpupipe.schema import yaml_files
from gpupipe.schema.document import Document, Loc, Node
from gpupipe.schema.field_types import WHOLE
from gpupipe.schema.validation_errors import build_model


def find_pipeline(name: str, beside: Path | None) -> Document:
    """Read the pipeline file called `name`.

    Args:
        name: A path, or NAME for the file `pipelines/NAME.yaml`. The file is looked for in the
            working directory, in `beside`, in the parent of `beside`, and among the shipped files.
        beside: The config file's folder; None for a config without a file.
    """
    return yaml_files.read(yaml_files.locate("pipelines", name, beside))


def build_pipeline(
    name: str,
    document: Document,
    loc: Loc = (),
    fields: Mapping[str, Spec] = IMAGE,
    annotations: Mapping[str, Spec] = MappingProxyType({}),
) -> Pipeline:
    """Build the pipeline that a document has at `loc`: a list of steps, or steps and views.

    If steps have schedules, build one pipeline for each span of epochs with the same numbers, and
    return the first, which holds the others in `later`.

    Args:
        name: The pipeline's name.
        document: The YAML document.
        loc: The path of keys to the list, or to the mapping with steps and views.
        fields: The spec of each field before the first step, the main field first.
        annotations: The spec of each field of annotations.

    Raises:
        ConfigError: If the pipeline has mistakes. The error lists them.
    """
    return build_with_schedules(
        document,
        loc,
        list_step_lists(document, loc),
        lambda plain: _build_phase(name, plain, loc, fields, annotations),
        _describe_change,
    )


def _describe_change(first: Pipeline, later: Pipeline, when: str) -> str:
    """Return a message if a field's dtype or layout differs between two pipelines; else "".

    Args:
        first: The pipeline of epoch 0.
        later: The pipeline of a later epoch.
        when: The later epoch in words: "in epoch 60, where resize.size is 320".
    """
    for output in first.outputs:
        before, after = first.output_spec_of(output), later.output_spec_of(output)
        for what in ("dtype", "layout"):
            old, new = getattr(before, what), getattr(after, what)
            if old != new:
                rule = "only sizes may change from epoch to epoch"
                return f"the {what} of '{output}' is {old} in epoch 0, and {new} {when}: {rule}"
    return ""


def _build_phase(
    name: str,
    document: Document,
    loc: Loc,
    fields: Mapping[str, Spec],
    annotations: Mapping[str, Spec],
) -> Pipeline:
    """Build the pipeline from a document in which numbers have replaced all schedules.

    `build_pipeline` documents the arguments.
    """
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
    parsed = [parse_step(item, fields, annotations) for item in node.items()]
    entries = chain_steps(parsed, fields, problems)
    pipeline = Pipeline(name, tuple(entries), dict(fields), annotations=dict(annotations))
    if not problems:
        pipeline = add_views(pipeline, views)
    problems += _list_misfits_of_annotations(pipeline)
    if problems:
        raise ConfigError(problems)
    return pipeline


def _list_misfits_of_annotations(pipeline: Pipeline) -> list[Problem]:
    """Return a problem for each step that needs boxes or points that its image lacks.

    The same for each step that the boxes and points of its image cannot follow.
    """
    problems = []
    kinds: dict[str, set[str]] = {}
    """The kinds of annotations by the key of the step: a step on image and mask needs one's."""
    for entry in pipeline.entries:
        specs = pipeline.annotations_of(entry.field).values()
        kinds.setdefault(entry.key, set()).update(spec.kind for spec in specs)
    for entry in pipeline.entries:
        if missing := sorted(entry.step.needs - kinds[entry.key]):
            problem = (
                f"{entry.name} needs {' and '.join(missing)} on the field "
                f"'{pipeline.source_of(entry.field)}', which has none: read them with a source of "
                "annotations, or leave the step out"
            )
            problems.append(Problem(entry.where, problem))
        elif pipeline.annotations_of(entry.field) and (why := entry.step.explain_refusal()):
            moving = " and ".join(sorted(kinds[entry.key] & {"boxes", "points"}))
            problem = f"{entry.name} cannot stand here, since the images have {moving}: {why}"
            problems.append(Problem(entry.where, problem))
    return problems


_Frozen = pydantic.ConfigDict(frozen=True, extra="forbid")


class ViewConfig(pydantic.BaseModel):
    """One view of a pipeline: an entry under `views:`.

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
        steps: The steps that run before the views.
        views: The views, by name.
    """

    model_config = _Frozen

    steps: list[Any]
    views: dict[str, ViewConfig] = {}


@dataclass(frozen=True)
class ViewField:
    """One field of the batch, made by a view.

    Attributes:
        steps: The view's list of steps in the YAML document.
        number: The index of this field among the fields of its view, from 0.
        count: How many fields the view makes.
    """

    steps: Node
    number: int
    count: int


def has_views(pipeline: Any) -> bool:
    """Return whether a pipeline in YAML is a mapping with views, and not a list of steps."""
    return isinstance(pipeline, dict) and bool({"steps", "views"} & pipeline.keys())


def list_step_lists(document: Document, loc: Loc) -> list[Loc]:
    """Return the path of each list of steps in the pipeline at `loc`, also those of its views."""
    pipeline = document.at(loc)
    if not has_views(pipeline):
        return [loc]
    views = pipeline.get("views")
    names = views if isinstance(views, dict) else {}
    return [(*loc, "steps"), *((*loc, "views", name, "steps") for name in names)]


def read_views(node: Node, fields: Mapping[str, Spec]) -> dict[str, ViewField]:
    """Return each field that the views make, by its name; append mistakes to `node.problems`.

    Args:
        node: The pipeline's mapping, with `steps` and `views`.
        fields: The fields of a sample. A view's field must not have the name of one of these.
    """
    checked = build_model(node, PipelineConfig, node.value, "pipeline")
    if checked is None:
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
    """Return `pipeline` with the steps of the views added; report mistakes in these steps.

    Args:
        pipeline: The pipeline of the steps that run before the views.
        views: The fields of the views by name, from `read_views`.
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
        first_step = parsed[0].step if parsed else None
        # A step that makes another number of images stays: its infer_spec refuses the input.
        if first_step is not None and first_step.num_views == view.count > 1:
            parsed[0] = replace(parsed[0], step=first_step.select_view(view.number))
        chained = chain_steps(parsed, field, mistakes)
        entries += [replace(entry, key=f"{name}/{entry.key}") for entry in chained]
        # Copies of a view have the same mistakes.
        view.steps.problems.extend(p for p in mistakes if p not in view.steps.problems)
    sources = dict.fromkeys(views, pipeline.main)
    return replace(pipeline, entries=tuple(entries), views=sources)
