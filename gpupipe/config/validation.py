"""Checks the document of a config, and builds the Config from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import BeforeValidator

from gpupipe.batch_stage.stage import BatchStage, build_batch_stage, check_later_fields
from gpupipe.config.loader_config import LoaderConfig
from gpupipe.dataset.source import RESERVED_NAMES, SOURCES, Source
from gpupipe.decoded_cache.decoded_cache import explain_refusal
from gpupipe.errors import ConfigError, Problem, did_you_mean, nearest, shown
from gpupipe.pipeline.build import build_pipeline, find_pipeline, has_views
from gpupipe.pipeline.pipeline import IMAGE, Pipeline
from gpupipe.pipeline.schedules import refuse_schedules
from gpupipe.pipeline.step import Spec
from gpupipe.schema.document import UNRESOLVED, Document, Loc
from gpupipe.schema.field_types import is_number, should_be
from gpupipe.schema.validation_errors import to_problems

_Model = TypeVar("_Model", bound=pydantic.BaseModel)


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


def list_batch_fields(pipeline: Pipeline, loader: LoaderConfig) -> dict[str, Spec]:
    """Return the fields of a batch as the loader delivers them, by name."""
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
        document: The document, with all overrides and without ${...}.
        config_dir: The folder of the config file, where a named pipeline is searched first.
        problems: What was wrong with the overrides and the interpolations.

    Raises:
        ConfigError: If anything is wrong; it holds `problems` and all mistakes in the document.
    """
    parts = _Parts(document, problems)
    data, steps = document.data.get("data"), document.data.get("pipeline")
    checked_source = parts.build_source(data) if isinstance(data, dict) else None
    refuse_schedules(document, ("loader",), problems)
    shape = parts.build_model(TopLevel, document.data)
    pipeline = fields = None
    if isinstance(steps, (str, list)) or has_views(steps):
        pipeline = parts.build_pipeline(steps, config_dir, checked_source)
    if pipeline and shape and checked_source:
        fields = list_batch_fields(pipeline, shape.loader)
    batch = parts.build_batch_stage(fields, pipeline.main_outputs if pipeline else ())
    if pipeline and checked_source and checked_source.cache_decoded:
        parts.check_decoded_cache(pipeline)
    if pipeline and shape and fields:
        for epoch, later in pipeline.later.items():
            later_fields = list_batch_fields(later, shape.loader)
            problems += check_later_fields(batch, later_fields, epoch)
    if problems or shape is None or checked_source is None or pipeline is None:
        raise ConfigError(problems)
    source_name = str(data["source"]) if data else ""
    return Config(
        Path(document.name).stem, source_name, checked_source, pipeline, shape.loader, batch
    )


class _Parts:
    """Builds the parts of a config, and notes what is wrong with each.

    Args:
        document: The resolved document.
        problems: Gets the mistakes.
    """

    def __init__(self, document: Document, problems: list[Problem]) -> None:
        self._document, self._problems = document, problems

    def build_model(
        self, model: type[_Model], values: Any, loc: Loc = (), prefix: str = ""
    ) -> _Model | None:
        """Return the model of some values, which are at `loc`; None if they are wrong."""
        try:
            return model.model_validate(values)
        except pydantic.ValidationError as e:
            self._problems += to_problems(e, model, self._document, loc, prefix)
            return None

    def build_source(self, data: dict[str, Any]) -> Source | None:
        """Return the source that `data` describes."""
        model = self._find_source(data)
        settings = {key: value for key, value in data.items() if key != "source"}
        return None if model is None else self.build_model(model, settings, ("data",), "data")

    def build_pipeline(
        self, steps: Any, config_dir: Path | None, source: Source | None
    ) -> Pipeline | None:
        """Return the pipeline; without a source, check it as if the only field were an image."""
        fields = IMAGE if source is None else self._check_fields(source)
        try:
            if not isinstance(steps, str):
                return build_pipeline("inline", self._document, ("pipeline",), fields)
            return build_pipeline(Path(steps).stem, find_pipeline(steps, config_dir), (), fields)
        except ConfigError as e:
            where = self._document.where(("pipeline",))
            self._problems += [p if p.where else Problem(where, p.what) for p in e.problems]
            return None

    def build_batch_stage(
        self, fields: Mapping[str, Spec] | None, main_outputs: Sequence[str]
    ) -> BatchStage:
        """Return the batch stage; an empty one if there is none, or it is wrong."""
        if not isinstance(self._document.data.get("batch"), list):
            return BatchStage()  # there is none, or the problems hold that it is no list
        try:
            return build_batch_stage(self._document, ("batch",), fields, main_outputs)
        except ConfigError as e:
            self._problems += e.problems
            return BatchStage()

    def check_decoded_cache(self, pipeline: Pipeline) -> None:
        """Note if the decoded cache can keep nothing of a pipeline."""
        if reason := explain_refusal(pipeline):
            self._note(("data", "cache_decoded"), f"data.cache_decoded: {reason}", of_key=True)

    def _check_fields(self, source: Source) -> Mapping[str, Spec]:
        """Return the fields of a sample; note reserved names, and masks that are no field."""
        fields = source.field_specs()
        for name in fields:
            if name in RESERVED_NAMES:
                rule = f"a field must not be called '{name}': that name is taken in a batch"
                self._note(("data",), rule, of_key=True)
        for name in source.masks:
            if name not in fields:
                hint = did_you_mean(name, fields)
                self._note(("data", "masks"), f"data.masks: there is no field '{name}'{hint}")
        return fields

    def _find_source(self, data: dict[str, Any]) -> type[Source] | None:
        name = data.get("source")
        if isinstance(name, str):
            try:
                return SOURCES.find(name)
            except LookupError as e:
                self._note(("data", "source"), e.args[0])
                return None
        if name is UNRESOLVED:
            return None
        expected = f"the name of what reads the data: {', '.join(SOURCES.names())}"
        if "source" in data:
            rule = f"data.source is {shown(name)}, but should be {expected}"
            self._note(("data", "source"), rule)
        elif misspelt := nearest("source", data):
            rule = f"data.{misspelt}: unknown key; did you mean 'source'?"
            self._note(("data", misspelt), rule, of_key=True)
        else:
            rule = f"data.source: missing; write 'source: ...' ({expected})"
            self._note(("data",), rule, of_key=True)
        return None

    def _note(self, loc: Loc, problem: str, of_key: bool = False) -> None:
        self._problems.append(Problem(self._document.where(loc, of_key), problem))
