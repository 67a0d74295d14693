"""Checks the document of a config, and builds the Config from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import BeforeValidator

from gpupipe.batch_stage.stage import BatchStage, build_batch_stage, check_later_fields
from gpupipe.config.loader_config import LoaderConfig
from gpupipe.dataset import source
from gpupipe.dataset.source import RESERVED_NAMES, Source
from gpupipe.decoded_cache.decoded_cache import explain_refusal
from gpupipe.errors import ConfigError, Problem, did_you_mean, nearest, shown
from gpupipe.pipeline.build import build_pipeline, find_pipeline, has_views
from gpupipe.pipeline.pipeline import IMAGE, Pipeline
from gpupipe.pipeline.schedules import refuse_schedules
from gpupipe.pipeline.step import Spec
from gpupipe.schema.document import UNRESOLVED, Document
from gpupipe.schema.field_types import is_number, should_be
from gpupipe.schema.validation_errors import to_problems


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
    """The top level of a config. The source checks the rest of `data`, the steps their parameters.

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
        batch: The steps on whole batches, after the engine; by default none.
    """

    name: str
    source_name: str
    source: Source
    pipeline: Pipeline
    loader: LoaderConfig
    batch: BatchStage = field(default_factory=BatchStage)

    def at_epoch(self, epoch: int) -> Config:
        """Return the config with the numbers that schedules have in an epoch."""
        return replace(
            self, pipeline=self.pipeline.at_epoch(epoch), batch=self.batch.at_epoch(epoch)
        )

    def without_decoded_cache(self) -> Config:
        """Return the config without `data.cache_decoded`."""
        return replace(self, source=self.source.model_copy(update={"cache_decoded": None}))


def validate(document: Document, config_dir: Path | None, problems: list[Problem]) -> Config:
    """Build the Config from a resolved document.

    Args:
        document: The document, with all overrides and without ${...}.
        config_dir: The folder of the config file, where a named pipeline is searched first.
        problems: What was wrong with the overrides and the interpolations.

    Raises:
        ConfigError: If anything is wrong; it holds `problems` and all mistakes in the document.
    """
    data, steps = document.data.get("data"), document.data.get("pipeline")
    checked_source = _build_source(document, data, problems) if isinstance(data, dict) else None
    shape = None
    refuse_schedules(document, ("loader",), problems)
    try:
        shape = TopLevel.model_validate(document.data)
    except pydantic.ValidationError as e:
        problems += to_problems(e, TopLevel, document)
    pipeline = (
        _build_pipeline(document, steps, config_dir, problems, checked_source)
        if isinstance(steps, (str, list)) or has_views(steps)
        else None
    )
    fields = (
        list_batch_fields(pipeline, shape.loader) if pipeline and shape and checked_source else None
    )
    batch = _build_batch_stage(document, fields, pipeline, problems)
    if pipeline and checked_source and checked_source.cache_decoded:
        problems += _check_decoded_cache(document, pipeline)
    if pipeline and shape and checked_source:
        for epoch, later in pipeline.later.items():
            later_fields = list_batch_fields(later, shape.loader)
            problems += check_later_fields(batch, later_fields, epoch)
    if problems or shape is None or checked_source is None or pipeline is None:
        raise ConfigError(problems)
    return Config(
        Path(document.name).stem,
        str(data["source"]) if data else "",
        checked_source,
        pipeline,
        shape.loader,
        batch,
    )


def _build_source(
    document: Document, data: dict[str, Any], problems: list[Problem]
) -> Source | None:
    model = _find_source(document, data, problems)
    if model is None:
        return None
    try:
        return model.model_validate({k: v for k, v in data.items() if k != "source"})
    except pydantic.ValidationError as e:
        problems += to_problems(e, model, document, ("data",), prefix="data")
        return None


def _check_fields(
    document: Document, source: Source, problems: list[Problem]
) -> Mapping[str, Spec]:
    """Return the fields of a sample; report reserved names, and masks that are no field."""
    fields = source.field_specs()
    reserved = [n for n in fields if n in RESERVED_NAMES]
    problems += [
        Problem(
            document.where(("data",), of_key=True),
            f"a field must not be called '{n}': that name is taken in a batch",
        )
        for n in reserved
    ]
    unknown = [n for n in source.masks if n not in fields]
    problems += [
        Problem(
            document.where(("data", "masks")),
            f"data.masks: there is no field '{n}'{did_you_mean(n, fields)}",
        )
        for n in unknown
    ]
    return fields


def _check_decoded_cache(document: Document, pipeline: Pipeline) -> list[Problem]:
    """Return the problem that the decoded cache can keep nothing, if so."""
    reason = explain_refusal(pipeline)
    where = document.where(("data", "cache_decoded"), of_key=True)
    return [Problem(where, f"data.cache_decoded: {reason}")] if reason else []


def _find_source(
    document: Document, data: dict[str, Any], problems: list[Problem]
) -> type[Source] | None:
    name = data.get("source")
    if isinstance(name, str):
        try:
            return source.SOURCES.find(name)
        except LookupError as e:
            problems.append(Problem(document.where(("data", "source")), e.args[0]))
            return None
    if name is UNRESOLVED:
        return None
    misspelt = nearest("source", data)
    expected = f"the name of what reads the data: {', '.join(source.SOURCES.names())}"
    if "source" in data:
        problems.append(
            Problem(
                document.where(("data", "source")),
                f"data.source is {shown(name)}, but should be {expected}",
            )
        )
    elif misspelt:
        problems.append(
            Problem(
                document.where(("data", misspelt), of_key=True),
                f"data.{misspelt}: unknown key; did you mean 'source'?",
            )
        )
    else:
        problems.append(
            Problem(
                document.where(("data",), of_key=True),
                f"data.source: missing; write 'source: ...' ({expected})",
            )
        )
    return None


def _build_pipeline(
    document: Document,
    steps: str | list[Any] | dict[str, Any],
    config_dir: Path | None,
    problems: list[Problem],
    source: Source | None,
) -> Pipeline | None:
    """Build the pipeline; if the source is invalid, check it as if the only field were an image."""
    fields = IMAGE if source is None else _check_fields(document, source, problems)
    try:
        if not isinstance(steps, str):
            return build_pipeline("inline", document, ("pipeline",), fields)
        return build_pipeline(Path(steps).stem, find_pipeline(steps, config_dir), (), fields)
    except ConfigError as e:
        problems += [
            p if p.where else Problem(document.where(("pipeline",)), p.what) for p in e.problems
        ]
        return None


def list_batch_fields(pipeline: Pipeline, loader: LoaderConfig) -> dict[str, Spec]:
    """Return the fields of a batch as the loader delivers them, by name."""
    fields = {}
    for name in pipeline.outputs:
        spec = pipeline.output_spec_of(name)
        if name in pipeline.main_outputs and loader.dtype is not None:
            spec = replace(spec, dtype=loader.dtype)
        fields[name] = spec
    return fields


def _build_batch_stage(
    document: Document,
    fields: Mapping[str, Spec] | None,
    pipeline: Pipeline | None,
    problems: list[Problem],
) -> BatchStage:
    """Build the batch stage; append its mistakes to `problems`."""
    if not isinstance(document.data.get("batch"), list):
        return BatchStage()  # there is none, or `problems` holds that it is no list
    main = () if pipeline is None else pipeline.main_outputs
    try:
        return build_batch_stage(document, ("batch",), fields, main)
    except ConfigError as e:
        problems += e.problems
        return BatchStage()
