"""Checks the document of a config, and builds the Config from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import BeforeValidator

from gpupipe.annotations.checks import find_immovable
from gpupipe.batch_stage.stage import BatchStage, build_batch_stage, check_later_fields
from gpupipe.config.batch_formats import explain_wrong_collate, explain_wrong_format
from gpupipe.config.loader_config import LoaderConfig
from gpupipe.dataset.source import RESERVED_NAMES, SOURCES, Source
from gpupipe.decoded_cache.decoded_cache import explain_refusal
from gpupipe.errors import ConfigError, Problem, did_you_mean, nearest, shown
from gpupipe.pipeline.build import build_pipeline, find_pipeline, has_views
from gpupipe.pipeline.pipeline import IMAGE, Pipeline
from gpupipe.pipeline.schedules import refuse_schedules
from gpupipe.pipeline.step import Spec
from gpupipe.schema.document import UNRESOLVED, Document, Node
from gpupipe.schema.field_types import is_number, should_be
from gpupipe.schema.validation_errors import build_model


def _check_name_or_steps(value: Any) -> Any:
    if not isinstance(value, (str, list)) and not has_views(value):
        raise should_be("the name of a pipeline, or a list of steps")
    return value


def _check_batch_steps(value: Any) -> Any:
    if not isinstance(value, list):
        hint = "; the number of samples is loader.batch_size" if is_number(value) else ""
        raise should_be(f"a list of steps, such as [mixup: {{alpha: 0.2}}]{hint}")
    return value


class TopLevel(pydantic.BaseModel):
    """The top level of a config. The source checks the rest of `data`; steps check their settings.

    Error messages quote this docstring (validation_errors.describe_field).

    Attributes:
        data: Where the samples are: {source: folder, root: PATH}.
        pipeline: The name of a pipeline, or a list of steps. For several views of an image, it is
            {steps: [...], views: {...}}.
        batch: A list of steps on whole batches, such as mixup.
        loader: How samples become batches.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    data: dict[str, Any]
    pipeline: Annotated[str | list[Any] | dict[str, Any], BeforeValidator(_check_name_or_steps)]
    batch: Annotated[list[Any], BeforeValidator(_check_batch_steps)] = []
    loader: LoaderConfig = LoaderConfig()


@dataclass(frozen=True)
class Config:
    """A validated configuration.

    Attributes:
        name: File name without its suffix; "config" for a dict.
        source_name: The name under `data.source`.
        source: The source that `data` describes.
        pipeline: The steps, checked against the fields of the source.
        loader: The `loader` part.
        batch: The steps on whole batches, which run after the engine; by default none.
        document: The document that the config was built from, for the locations of settings in
            messages; None for a config without one.
    """

    name: str
    source_name: str
    source: Source
    pipeline: Pipeline
    loader: LoaderConfig
    batch: BatchStage = field(default_factory=BatchStage)
    document: Document | None = field(default=None, compare=False, repr=False)

    def at_epoch(self, epoch: int) -> "Config":
        """Return the config with the numbers of an epoch in place of the schedules."""
        return replace(
            self, pipeline=self.pipeline.at_epoch(epoch), batch=self.batch.at_epoch(epoch)
        )

    def without_decoded_cache(self) -> "Config":
        """Return the config without `data.cache_decoded`."""
        return replace(self, source=self.source.model_copy(update={"cache_decoded": None}))


def list_batch_fields(pipeline: Pipeline, loader: LoaderConfig) -> dict[str, Spec]:
    """Return a dict from the name of each field that the loader delivers to the field's spec."""
    fields = {}
    for name in pipeline.outputs:
        spec = pipeline.output_spec_of(name)
        if name in pipeline.main_outputs and loader.dtype is not None:
            spec = replace(spec, dtype=loader.dtype)
        fields[name] = spec
    return fields


def validate(document: Document, config_dir: Path | None, problems: list[Problem]) -> Config:
    """Build the Config from a resolved document.

    Args:
        document: The document, with all overrides applied and ${...} resolved.
        config_dir: The folder of the config file, in which a named pipeline may lie; None for a
            config without a file.
        problems: The mistakes found so far, in the overrides and interpolations.

    Raises:
        ConfigError: If anything is wrong; it holds `problems` and all mistakes in the document.
    """
    root = Node(document, (), problems)
    data, steps = root.inside("data"), root.inside("pipeline")
    source = None
    if isinstance(data.value, dict) and (source_model := _find_source(data)):
        settings = {key: value for key, value in data.value.items() if key != "source"}
        context = {"folder": config_dir}
        source = build_model(data, source_model, settings, "data", context)
    refuse_schedules(document, ("loader",), problems)
    shape = build_model(root, TopLevel, document.data, context={"folder": config_dir})
    pipeline = fields = None
    if isinstance(steps.value, (str, list)) or has_views(steps.value):
        annotations = source.annotation_specs() if source else {}
        checked = _check_fields(data, source)
        pipeline = _build_pipeline(steps, config_dir, checked, annotations)
    if pipeline and shape and source:
        fields = list_batch_fields(pipeline, shape.loader)
        if wrong := explain_wrong_format(pipeline, shape.loader):
            root.inside("loader", "format").report(f"loader.format: {wrong}", of_key=True)
    batch = _build_batch_stage(root, fields, pipeline.main_outputs if pipeline else ())
    if shape and batch.entries and shape.loader.shapes != "equal":
        root.inside("loader", "shapes").report(
            f"loader.shapes is {shape.loader.shapes}, and {batch.entries[0].name} takes images of "
            "one size: leave loader.shapes or batch out",
            of_key=True,
        )
    if shape and (wrong := explain_wrong_collate([e.name for e in batch.entries], shape.loader)):
        root.inside("loader", "collate").report(f"loader.collate: {wrong}", of_key=True)
    for phase in pipeline.phases if pipeline else ():
        problem = find_immovable(phase) if phase.annotations else None
        if problem and problem not in problems:
            problems.append(problem)
    if pipeline and source and source.cache_decoded and (reason := explain_refusal(pipeline)):
        data.inside("cache_decoded").report(f"data.cache_decoded: {reason}", of_key=True)
    if pipeline and shape and fields:
        for epoch, later in pipeline.later.items():
            later_fields = list_batch_fields(later, shape.loader)
            problems += check_later_fields(batch, later_fields, epoch)
    if problems or shape is None or source is None or pipeline is None:
        raise ConfigError(problems)
    name, source_name = Path(document.name).stem, str(shape.data["source"])
    return Config(name, source_name, source, pipeline, shape.loader, batch, document)


def _find_source(data: Node) -> type[Source] | None:
    node, names = data.inside("source"), list(data.value)
    if isinstance(node.value, str):
        try:
            return SOURCES.find(node.value)
        except LookupError as e:
            node.report(e.args[0])
            return None
    if node.value is UNRESOLVED:
        return None
    expected = f"the name of what reads the data: {', '.join(SOURCES.names())}"
    if "source" in names:
        node.report(f"data.source is {shown(node.value)}, but should be {expected}")
    elif misspelt := nearest("source", names):
        hint = f"data.{misspelt}: unknown key; did you mean 'source'?"
        data.inside(misspelt).report(hint, of_key=True)
    else:
        data.report(f"data.source: missing; write 'source: ...' ({expected})", of_key=True)
    return None


def _check_fields(data: Node, source: Source | None) -> Mapping[str, Spec]:
    """Return the spec of each field of a sample, by the field's name.

    Reports fields with reserved names, and names in `data.masks` that no field has. If the
    source is invalid, assumes that the only field is an image.
    """
    if source is None:
        return IMAGE
    fields = source.field_specs()
    for name in fields:
        if name in RESERVED_NAMES and not (name == "label" and source.delivers_labels):
            rule = f"a field must not be called '{name}': that name is taken in a batch"
            data.report(rule, of_key=True)
    for name in source.masks:
        if name not in fields:
            hint = did_you_mean(name, fields)
            data.inside("masks").report(f"data.masks: there is no field '{name}'{hint}")
    return fields


def _build_pipeline(
    steps: Node,
    config_dir: Path | None,
    fields: Mapping[str, Spec],
    annotations: Mapping[str, Spec],
) -> Pipeline | None:
    try:
        if not isinstance(steps.value, str):
            return build_pipeline("inline", steps.document, steps.loc, fields, annotations)
        document = find_pipeline(steps.value, config_dir)
        return build_pipeline(Path(steps.value).stem, document, (), fields, annotations)
    except ConfigError as e:
        steps.problems.extend(
            [p if p.where else Problem(steps.where(), p.what) for p in e.problems]
        )
        return None


def _build_batch_stage(
    root: Node, fields: Mapping[str, Spec] | None, main_outputs: Sequence[str]
) -> BatchStage:
    """Return the batch stage; an empty one if `batch` is missing or wrong."""
    steps = root.inside("batch")
    if not isinstance(steps.value, list):
        return BatchStage()  # there is none, or the problems hold that it is no list
    try:
        return build_batch_stage(root.document, steps.loc, fields, main_outputs)
    except ConfigError as e:
        root.problems.extend(e.problems)
        return BatchStage()
