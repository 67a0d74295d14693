"""What a data processing server tells its clients of what it serves: plain data, and what it is
made into on the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gpupipe.config import Config, LoaderConfig
from gpupipe.dataset.index import Column, FileColumn, Index, StringArray
from gpupipe.dataset.source import Progress, Source, quiet
from gpupipe.errors import ConfigError, ServerError
from gpupipe.pipeline import pipeline as pipelines
from gpupipe.pipeline.pipeline import Entry, Pipeline
from gpupipe.pipeline.step import Spec
from gpupipe.schema.document import Document

SHIPPED_ON = ("to_dtype", "normalize")
"""Steps that need no draws and work on a whole batch at once: they can be done by the client."""
SETTLED = ("batch_size", "shuffle", "seed", "last_batch", "dtype", "memory_format")
"""Settings of the loader that are the server's to say."""
_OF_AN_INDEX = ("root", "classes", "fingerprint", "note", "warning")
"""What clients are told of it as it is."""


class Served(Source):
    """The source of a config that came from a server."""

    root: str = ""

    def index(self, progress: Progress = quiet) -> Index:
        raise ServerError("the samples are on the server, and have no index here")


class _Rows(StringArray):
    """What samples on the server are called here."""

    def __getitem__(self, i: int) -> str:
        return f"row {i}"


@dataclass(frozen=True)
class Understood:
    """What a server said. tail: the steps that are left to the client; dtype: what the first field
    becomes behind them, where something is said.
    """

    config: Config
    index: Index
    tail: tuple[Entry, ...]
    dtype: str | None


def split(config: Config) -> tuple[Config, int]:
    """The config without the steps behind its last uint8 image, and how many steps are left.

    Raises ServerError where there is no such place.
    """
    entries = config.pipeline.entries
    head = len(entries)
    while head and entries[head - 1].name in SHIPPED_ON:
        head -= 1
    shorter = replace(config.pipeline, entries=entries[:head])
    if shorter.made.dtype != "uint8" or shorter.made.encoded or head == len(entries):
        raise ServerError(
            f"ship: uint8 needs a pipeline that ends in {' and '.join(SHIPPED_ON)} behind "
            f"uint8 images; pipeline '{config.pipeline.name}' has "
            f"{shorter.made} before them: serve with --ship batch"
        )
    return replace(
        config, pipeline=shorter, loader=config.loader.model_copy(update={"dtype": None})
    ), head


def describe(config: Config, index: Index, head: int | None) -> dict[str, Any]:
    """Of a whole config. head: how many steps the server does; None: all."""
    pipeline = config.pipeline
    return {
        "name": config.name,
        "source": config.source_name,
        "data": {
            **{key: getattr(index, key) for key in _OF_AN_INDEX},
            "count": len(index),
        },
        "pipeline": {
            "name": pipeline.name,
            "steps": _steps(pipeline),
            "fields": {name: asdict(spec) for name, spec in pipeline.fields.items()},
            "masks": list(config.source.masks),
            "fingerprint": pipeline.fingerprint,
            "head": len(pipeline.entries) if head is None else head,
        },
        "loader": config.loader.model_dump(mode="json", include=set(SETTLED)),
    }


def _steps(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The list that the pipeline was built from."""
    found: dict[str, dict[str, Any]] = {}
    for entry in pipeline.entries:
        step = found.setdefault(
            entry.key, {entry.name: entry.step.model_dump(mode="json") | {"on": []}}
        )
        step[entry.name]["on"].append(entry.field)
    return list(found.values())


def understand(about: Mapping[str, Any], loader: LoaderConfig, address: str) -> Understood:
    """Make sense of it. loader: the settings of this side.

    Raises ServerError where the server's pipeline cannot be built here.
    """
    try:
        return _understood(about, loader)
    except (KeyError, TypeError, ValueError) as e:
        if isinstance(e, ConfigError):
            raise ServerError(
                f"{address} serves a pipeline that this machine cannot build ({e}): install "
                "here what is installed there"
            ) from None
        raise ServerError(
            f"{address} says what it serves in a way that is not understood: {e!r}"
        ) from None


def _understood(about: Mapping[str, Any], loader: LoaderConfig) -> Understood:
    said = about["pipeline"]
    fields = {
        name: Spec(**spec | {key: tuple(spec[key]) for key in ("at_least", "others")})
        for name, spec in said["fields"].items()
    }
    pipeline = pipelines.build(
        said["name"],
        Document("the server's pipeline", {"pipeline": said["steps"]}),
        ("pipeline",),
        fields,
        said["masks"],
    )
    if pipeline.fingerprint != said["fingerprint"]:
        raise ServerError(
            f"the server's pipeline '{pipeline.name}' is another one when it is built here: "
            "use the same version of gpupipe on both sides"
        )
    settled = LoaderConfig.model_validate(loader.model_dump() | about["loader"])
    shipped = said["head"] < len(pipeline.entries)
    config = Config(
        about["name"],
        about["source"],
        Served(root=about["data"]["root"], masks=tuple(said["masks"])),
        pipeline,
        settled,
    )
    return Understood(
        config,
        _index(about["data"], pipeline.main),
        pipeline.entries[said["head"] :],
        settled.dtype if shipped else None,
    )


def _index(data: Mapping[str, Any], main: str) -> Index:
    rows = _Rows.of([])
    labels = np.broadcast_to(np.int64(-1), (data["count"],))
    columns: dict[str, Column] = {main: FileColumn(data["root"], rows)}
    told = {key: data[key] for key in _OF_AN_INDEX}
    return Index(
        names=rows, labels=labels, columns=columns, **told | {"classes": list(told["classes"])}
    )
