"""Describes a served data set to clients.

`describe` runs on the server, `parse_description` on the client.

The description is plain data in the protocol's SessionOpened message. The client builds a config, a
pipeline and an index from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pydantic

from gpupipe.batch_stage.stage import BatchStage, build_batch_stage
from gpupipe.config import Config, LoaderConfig, list_batch_fields
from gpupipe.dataset.columns import Column, StringArray
from gpupipe.dataset.file_columns import FileColumn
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import Progress, Source, ignore_progress
from gpupipe.engines.base import NO_LABEL_IN_TUPLE, Job
from gpupipe.engines.last_steps import find_larger_output, find_tail, leave_steps
from gpupipe.errors import ConfigError, ServerError
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Spec
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.pipeline.user_calls import explain_nameless
from gpupipe.sampling.sampler import Sampler
from gpupipe.sampling.selection import Selection
from gpupipe.schema.document import Document

SERVER_SETTINGS = (*sorted(Sampler.settings), "dtype", "memory_format", "shapes")
"""Settings of `loader` that the server decides."""
DELIVERY_SETTINGS = ("format", "ids", "pad_to", "targets")
"""Settings of `loader` that the server suggests: a client that does not choose follows them."""
_Phases = TypeVar("_Phases", Pipeline, BatchStage)
_FIELDS = pydantic.TypeAdapter(dict[str, Spec], config=pydantic.ConfigDict(extra="forbid"))
_INDEX_ATTRIBUTES = ("root", "classes", "fingerprint", "note", "warning")
"""Attributes of the index that the description holds unchanged."""
_EXTRA = ("category_ids", "keypoint_names", "skeleton")
"""What the description holds of the attribute `extra` of the index, if it is there."""


class RemoteSource(Source):
    """Stands in for the source in a config from a server: only the server can read the samples."""

    root: str = ""

    def index(self, progress: Progress = ignore_progress) -> Index:
        raise ServerError("the samples are on the server, and have no index here")


class _Rows(StringArray):
    """Stands in for the names of samples, which only the server knows: item 7 is "row 7"."""

    def __getitem__(self, i: int) -> str:
        return f"row {i}"


@dataclass(frozen=True)
class RemoteDataset:
    """A served data set: the objects that the client builds from the server's description.

    Attributes:
        config: The config of the server. Of the settings in `loader`, SERVER_SETTINGS are the
            server's, and so are DELIVERY_SETTINGS that the client follows; the rest are the
            client's.
        index: An index with as many rows as the server's index, without paths and labels.
        count: How many samples the server uses: all, or those of loader.subset.
        selection: How often each sample comes. It lacks the rows and weights, which only the server
            has.
        tail: The job with the last steps of the pipeline, which the server leaves to the client.
    """

    config: Config
    index: Index
    count: int
    selection: Selection
    tail: Job


def split_pipeline(config: Config) -> tuple[Config, tuple[int, ...]]:
    """Split off the last steps of a pipeline, so that the server sends uint8 (`ship: uint8`).

    Each field of a batch, such as a view, has last steps of its own.

    Args:
        config: The whole config.

    Returns:
        The config without the last steps that can run on batches, and the positions of these steps
        in the `entries` of the whole pipeline. The config has no dtype setting, because the client
        converts the dtype after its steps.

    Raises:
        ServerError: If the pipeline does not end in such steps, or they do not follow uint8 images.
    """
    pipeline = config.pipeline
    if config.loader.shapes != "equal":
        raise ServerError(
            f"ship: uint8 runs the last steps on whole batches, and loader.shapes is "
            f"{config.loader.shapes}: serve with --ship batch"
        )
    tail = find_tail(pipeline)
    shorter = pipeline.without_entries(tail)
    wrong = find_larger_output(shorter)
    if wrong or not tail:
        names = [n for n in sorted(STEPS.builtin_names) if STEPS.find(n).can_run_on_batches]
        raise ServerError(
            f"ship: uint8 needs a pipeline that ends in {' and '.join(names)} after "
            f"uint8 images; pipeline '{pipeline.name}' has {wrong or shorter.output_spec} before "
            "them: serve with --ship batch"
        )
    loader = config.loader.model_copy(update={"dtype": None})
    return replace(config, pipeline=shorter, loader=loader), tail


def describe(config: Config, index: Index, tail: Sequence[int], sampler: Sampler) -> dict[str, Any]:
    """Return the description that a server sends to its clients, as plain data.

    Args:
        config: The whole config.
        index: The samples.
        tail: Positions of the pipeline entries that the server leaves to its clients.
        sampler: The order of the samples.
    """
    pipeline = config.pipeline
    if mistake := explain_nameless(pipeline):
        raise ServerError(mistake)
    return {
        "name": config.name,
        "source": config.source_name,
        "data": {
            **{key: getattr(index, key) for key in _INDEX_ATTRIBUTES},
            "count": len(index),
            "has_labels": index.has_labels or "label" in pipeline.fields,
            "extra": {key: index.extra[key] for key in _EXTRA if key in index.extra},
        },
        "selection": {
            "count": sampler.count,
            "settings": dict(sampler.selection.settings),
            "epoch_size": sampler.epoch_size if sampler.selection.mixture else None,
        },
        "pipeline": {
            "name": pipeline.name,
            **_describe_steps(pipeline),
            "later": [[epoch, _describe_steps(later)] for epoch, later in pipeline.later.items()],
            "fields": {name: asdict(spec) for name, spec in pipeline.fields.items()},
            "annotations": {name: asdict(spec) for name, spec in pipeline.annotations.items()},
            "fingerprint": pipeline.fingerprint,
            "tail": list(tail),
        },
        "batch": {
            "steps": config.batch.as_steps(),
            "later": [[epoch, later.as_steps()] for epoch, later in config.batch.later.items()],
            "main": list(config.batch.main),
            "fingerprint": config.batch.fingerprint,
        },
        "loader": config.loader.model_dump(mode="json", include=set(SERVER_SETTINGS)),
        "delivery": config.loader.model_dump(mode="json", include=set(DELIVERY_SETTINGS)),
    }


def _describe_steps(pipeline: Pipeline) -> dict[str, Any]:
    """Return the steps and views of one phase of a pipeline, in the structure of the YAML."""
    steps: dict[str, dict[str, Any]] = {}
    for entry in pipeline.entries:
        if entry.field not in pipeline.views:
            step = steps.setdefault(entry.key, {entry.name: _dump(entry) | {"on": []}})
            step[entry.name]["on"].append(entry.field)
    views = {
        view: {"steps": [{entry.name: _dump(entry)} for entry in pipeline.entries_on(view)]}
        for view in pipeline.views
    }
    return {"steps": list(steps.values()), "views": views}


def _dump(entry: Entry) -> dict[str, Any]:
    return entry.step.model_dump(mode="json")


def parse_description(
    description: Mapping[str, Any], loader: LoaderConfig, address: str, follow: bool = False
) -> RemoteDataset:
    """Build the client's objects from the description of a server.

    Args:
        description: The description from `describe`.
        loader: Settings of this side; the server overrules those of SERVER_SETTINGS.
        address: Address of the server, for error messages.
        follow: Whether the server's DELIVERY_SETTINGS apply where `loader` does not set them.

    Raises:
        ServerError: If the description is malformed, or the pipeline cannot be built here.
    """
    try:
        suggested = description["delivery"] if follow else {}
        unset = suggested.keys() - loader.model_fields_set
        decided = description["loader"] | {name: suggested[name] for name in unset}
        return _build(description, LoaderConfig.model_validate(loader.model_dump() | decided))
    except ConfigError as e:
        raise ServerError(
            f"{address} serves steps that this machine cannot build ({e}): install here what is "
            "installed there"
        ) from None
    except (LookupError, TypeError, ValueError) as e:
        raise ServerError(
            f"{address} says what it serves in a way that is not understood: {e!r}"
        ) from None


def _build(description: Mapping[str, Any], settled: LoaderConfig) -> RemoteDataset:
    described = description["pipeline"]
    fields = _FIELDS.validate_python(described["fields"])
    annotations = _FIELDS.validate_python(described["annotations"])

    def build(steps: Mapping[str, Any]) -> Pipeline:
        plain = {key: steps[key] for key in ("steps", "views")}
        document = Document("the server's pipeline", {"pipeline": plain})
        return build_pipeline(described["name"], document, ("pipeline",), fields, annotations)

    pipeline = _build_phases(f"pipeline '{described['name']}'", described, described, build)
    config = Config(
        description["name"],
        description["source"],
        RemoteSource(root=description["data"]["root"]),
        pipeline,
        settled,
        _build_batch_stage(description["batch"], pipeline, settled),
    )
    if settled.format == "tuple" and not description["data"]["has_labels"]:
        raise ServerError(f"loader.format: {NO_LABEL_IN_TUPLE}")
    selection = description["selection"]
    index = _index(description["data"], pipeline.main)
    return RemoteDataset(
        config,
        index,
        int(selection["count"]),
        Selection(
            settled.repeats,
            selection["epoch_size"] or settled.epoch_size,
            settings=dict(selection["settings"]),
        ),
        leave_steps(Job(index, pipeline, settled, 1), [int(n) for n in described["tail"]]),
    )


def _build_batch_stage(
    described: Mapping[str, Any], pipeline: Pipeline, loader: LoaderConfig
) -> BatchStage:
    """Build the server's batch stage, whose steps this client runs."""
    fields = list_batch_fields(pipeline, loader)

    def build(steps: Sequence[Any]) -> BatchStage:
        document = Document("the server's batch stage", {"batch": steps})
        return build_batch_stage(document, ("batch",), fields, described["main"])

    return _build_phases("batch stage", described, described["steps"], build)


def _build_phases(
    name: str, described: Mapping[str, Any], first: Any, build: Callable[[Any], _Phases]
) -> _Phases:
    """Build a pipeline or a batch stage, with the steps of epoch 0 and of each later phase.

    Args:
        name: The object's name for messages, such as "batch stage".
        described: The part of the description with the object's later phases and fingerprint.
        first: The steps of epoch 0.
        build: Builds the object from the steps of one phase.

    Raises:
        ServerError: The built object has another fingerprint than the server's.
    """
    later = {int(epoch): build(steps) for epoch, steps in described["later"]}
    phases = replace(build(first), later=later)
    if phases.fingerprint != described["fingerprint"]:
        raise ServerError(
            f"the server's {name} is another one when it is built here: use the same version of "
            "gpupipe on both sides"
        )
    return phases


def _index(data: Mapping[str, Any], main: str) -> Index:
    rows = _Rows.from_strings([])
    labels = np.broadcast_to(np.int64(-1), (data["count"],))
    columns: dict[str, Column] = {main: FileColumn(data["root"], rows)}
    same = {key: data[key] for key in _INDEX_ATTRIBUTES}
    same |= {"classes": list(same["classes"]), "extra": dict(data["extra"])}
    return Index(names=rows, labels=labels, columns=columns, **same)
