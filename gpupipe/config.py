"""A config: which data, which pipeline, how it is loaded.

Read from YAML, a name or a dict, plus overrides; frozen and checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic import BeforeValidator, Field

from gpupipe.dataset import source
from gpupipe.dataset.source import TAKEN, Source
from gpupipe.errors import ConfigError, Problem, did_you_mean, nearest, short, shown
from gpupipe.pipeline import pipeline as pipelines
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Spec
from gpupipe.schema import builtin_configs
from gpupipe.schema import document as yamlfile
from gpupipe.schema.document import UNRESOLVED, Document
from gpupipe.schema.field_types import WHOLE, Bytes, Probability, form
from gpupipe.schema.validation_errors import complaints

Change = str | tuple[str, Any]
_TOP_LEVEL = ("data", "pipeline", "loader")
_DEVICE = re.compile(r"auto|cpu|(gpu|cuda)(:\d+)?")


def _device(value: Any) -> str:
    text = (
        str(value) if isinstance(value, str) or type(value).__name__ == "device" else ""
    )  # a torch.device is as good
    if not _DEVICE.fullmatch(text):
        raise form("auto, cpu, gpu or gpu:N")
    return text.replace("cuda", "gpu")


def _name_or_steps(value: Any) -> Any:
    if not isinstance(value, (str, list)):
        raise form("the name of a pipeline, or a list of steps")
    return value


_ADDRESS = re.compile(r"tcp://\S+:\d+|ipc://\S+")


def _addresses(value: Any) -> Any:
    """One address is a list of one."""
    return [value] if isinstance(value, str) else value


def _address(value: Any) -> str:
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise form("tcp://HOST:PORT or ipc://FILE")
    return value


Address = Annotated[str, BeforeValidator(_address)]


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Shard(_Frozen):
    """Which part of every global batch this process takes."""

    rank: Annotated[int, Field(ge=0), WHOLE] = 0
    world_size: Annotated[int, Field(ge=1), WHOLE] = 1

    @pydantic.model_validator(mode="after")
    def _rank_is_below(self) -> Shard:
        if self.rank >= self.world_size:
            raise ValueError(
                f"rank {self.rank} must be below world_size {self.world_size}: ranks count from 0"
            )
        return self


class AutoShard(Shard):
    """`shard: auto`: the rank and world size of torch.distributed, else of torchrun's environment,
    found when the loader is made.
    """


def _shard(value: Any) -> Any:
    return AutoShard() if value == "auto" else value


class LoaderConfig(_Frozen):
    """How samples become batches.

    batch_size: samples a batch and rank. shuffle: a new permutation of the whole set every epoch;
    false: the order of the index. seed: of the order and of every random step. last_batch: partial
    (a smaller last batch), drop, or pad (filled with samples from the epoch's start). engine: dali,
    dataloader (torch's DataLoader with torchvision), remote (a data processing server), or auto:
    dali, or dataloader where DALI is not installed. device: auto (the GPU where there is one), cpu,
    gpu or gpu:N. threads: CPU threads of the engine; auto: this rank's share of the cores that the
    ranks of this machine may use. set_affinity: bind DALI's CPU threads to the cores near the GPU,
    or to those of DALI_AFFINITY_MASK, one for each thread. prefetch: batches prepared ahead
    (dataloader: by each worker). dali reads the files of as many more. workers: processes of the
    DataLoader, 0 for none; auto: as many as threads. decoder: of the DataLoader: torchvision or
    pil. pin_memory, multiprocessing_context, persistent_workers: as DataLoader takes them; batches
    are pinned only on their way to a GPU. shard: auto (torch.distributed's rank and world size,
    else torchrun's), or {rank, world_size}: which part of every global batch this process takes.
    on_error: raise, or skip samples that cannot be read or decoded; max_bad: the share of the set
    that may be skipped, 0 to 1. quarantine: the file that lists what was skipped (JSON lines); by
    default one in the cache folder. dtype: of the batch's first field, where it is not to be what
    the pipeline makes. memory_format: contiguous (B, C, H, W), or the same shape stored
    channels_last: of fields that were image files. format: dict ({"image": ..., "label": ...}), or
    a tuple of the first field and the label. ids: also deliver "id", int64 (B,), the samples' rows
    in the index (format dict). gpu_memory: what DALI may need of the GPU's memory, such as 2GB:
    load() is refused where it would need more, by arithmetic over a part of the samples.
    hw_decoder_load: the share of JPEGs that goes to the GPU's hardware decoder, 0 to 1. Its pixels
    differ from CUDA's by a level, and between 0 and 1
      it depends on the batch which of the two decodes a file: with 0 and 1 a sample is the same to
      the bit in every batch.
    server: of the remote engine: tcp://HOST:PORT or ipc://FILE, or a list of servers that have a
    shard each. hwm: batches that a server sends ahead. transport: shm (memory shared with a server
    on this machine), tcp (a socket), or auto: shm where it can be. key, server_key: this side's
    secret key and the server's public one, files of `gpupipe keys new`.
    """

    batch_size: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = 256
    shuffle: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**63), WHOLE] = 0
    last_batch: Literal["partial", "drop", "pad"] = "partial"
    engine: Literal["auto", "dali", "dataloader", "remote"] = "auto"
    device: Annotated[str, BeforeValidator(_device)] = "auto"
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024), WHOLE] = "auto"
    set_affinity: bool = False
    prefetch: Annotated[int, Field(ge=1, le=64), WHOLE] = 2
    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=1024), WHOLE] = "auto"
    decoder: Literal["torchvision", "pil"] = "torchvision"
    pin_memory: bool = True
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] | None = None
    persistent_workers: bool = True
    shard: Annotated[Shard, BeforeValidator(_shard)] = AutoShard()
    on_error: Literal["raise", "skip"] = "raise"
    max_bad: Probability = 0.01
    quarantine: Path | None = None
    dtype: Literal["uint8", "float16", "bfloat16", "float32"] | None = None
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    format: Literal["dict", "tuple"] = "dict"
    ids: bool = False
    hw_decoder_load: Probability = 0.9
    gpu_memory: Bytes | None = None
    server: Annotated[tuple[Address, ...], BeforeValidator(_addresses)] | None = None
    hwm: Annotated[int, Field(ge=1, le=1000), WHOLE] = 10
    transport: Literal["auto", "shm", "tcp"] = "auto"
    key: Path | None = None
    server_key: Path | None = None

    @pydantic.model_validator(mode="after")
    def _has_a_server(self) -> LoaderConfig:
        if self.engine == "remote" and not self.server:
            raise ValueError(
                "engine is remote, and no server is named: write 'server: tcp://HOST:PORT' "
                "beside it"
            )
        if (self.key is None) != (self.server_key is None):
            raise ValueError(
                "key and server_key go together: this side's secret key, and the server's "
                "public one"
            )
        return self


class _Shape(_Frozen):
    """The top of a config; `data` and `pipeline` are checked by whom they name.

    data: where the samples are: {source: folder, root: PATH}.
    pipeline: the name of a pipeline, or a list of steps.
    """

    data: dict[str, Any]
    pipeline: Annotated[str | list[Any], BeforeValidator(_name_or_steps)]
    loader: LoaderConfig = LoaderConfig()


@dataclass(frozen=True)
class Config:
    """A checked configuration."""

    name: str
    source_name: str
    source: Source
    pipeline: Pipeline
    loader: LoaderConfig


def read(
    config: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), **changes: Any
) -> Config:
    """The Config in a file (a path, or a shipped name) or a dict.

    overrides: "key=value" with dots between the keys; a key of `loader` may stand alone. changes:
    the same as keyword arguments, where a dict changes only what it names, and a list replaces the
    whole list. Where one of them names another source, nothing of `data` is kept but what they say
    of it. Raises ConfigError with everything that is wrong.
    """
    return read_in_layers(config, [*overrides, *changes.items()])


def read_in_layers(config: str | Path | Mapping[str, Any], *layers: Sequence[Change]) -> Config:
    """The Config in a file or a dict, with several sets of changes, one after the other.

    A change is "key=value", or the key and the value. Raises ConfigError with all that is wrong.
    """
    document, beside = _open(config)
    if not isinstance(document.data, dict):
        found = (
            "this is a list"
            if isinstance(document.data, list)
            else f"this is {shown(document.data)}"
        )
        raise ConfigError(
            [
                Problem(
                    document.where(()),
                    f"{found}, but a config holds 'data:', 'pipeline:' and 'loader:', with "
                    "values behind or below them",
                )
            ]
        )
    problems: list[Problem] = []
    for layer in layers:
        _apply(document, layer, problems)
    document, unresolved = yamlfile.resolve(document)
    return _check(document, beside, problems + unresolved)


def _open(config: str | Path | Mapping[str, Any]) -> tuple[Document, Path | None]:
    if isinstance(config, Mapping):
        return Document("config", plain(config)), None
    path = builtin_configs.locate("configs", str(config))
    document = yamlfile.read(path)
    return replace(document, data=plain(document.data)), path.parent


def plain(value: Any) -> Any:
    """Mappings, sequences, paths, dtypes and NumPy's numbers as what YAML can say.

    All is copied, so that nothing stands in two places (as an alias does).
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":  # torch may not be imported
        return str(value).removeprefix("torch.")
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@dataclass(frozen=True)
class _Change:
    """A key as it was written, the value that it gets, and what to call the change."""

    key: str
    value: Any
    place: str


def _apply(document: Document, layer: Sequence[Change], problems: list[Problem]) -> None:
    """Carry out a set of changes; `problems`, which point at the change, grows."""
    read: list[_Change] = []
    for change in layer:
        try:
            read.append(_split(change) if isinstance(change, str) else _of_keyword(*change))
        except ConfigError as e:
            problems += e.problems
    _replace_source(document, read)
    for one in read:
        try:
            _put(document, one)
        except ConfigError as e:
            problems += e.problems


def _of_keyword(key: str, value: Any) -> _Change:
    return _Change(key, plain(value), f"'{short(f'{key}={value!r}')}'")


def _replace_source(document: Document, changes: Sequence[_Change]) -> None:
    """Where changes name another source, leave nothing of `data`: its keys are the other source's.

    The last name counts, and it does not matter which of the changes holds it, so that
    data.source=... may stand before or behind the new source's keys.
    """
    named = [(value, change.place) for change in changes for value in _sources_in(change)]
    data = document.data.get("data")
    if named and isinstance(data, dict) and "source" in data and data["source"] != named[-1][0]:
        document.replace(("data",), {"source": named[-1][0]}, named[-1][1])


def _sources_in(change: _Change) -> list[Any]:
    if change.key == "data.source":
        return [change.value]
    if change.key == "data" and isinstance(change.value, dict) and "source" in change.value:
        return [change.value["source"]]
    return []


def _put(document: Document, change: _Change) -> None:
    """Carry out a change. Raises ConfigError, which points at it."""
    loc = tuple(change.key.split("."))
    if loc[0] in LoaderConfig.model_fields:
        loc = ("loader", *loc)
    elif loc[0] not in _TOP_LEVEL:
        wrong = f"{loc[0]}: unknown key{_instead(change.key, document)}"
        raise ConfigError([Problem(change.place, wrong)])
    if loc[0] == "pipeline":
        _check_step(document, loc, change.place)
    document.put(loc, change.value, change.place)


def _instead(key: str, document: Document) -> str:
    """What to write in place of an override's key: the same with another first part, or a key from
    further in.
    """
    first, dot, rest = key.partition(".")
    near = nearest(first, (*LoaderConfig.model_fields, *_TOP_LEVEL))
    further = {str(k[-1]): ".".join(map(str, k)) for k in document.keys} | {
        k: f"shard.{k}" for k in Shard.model_fields
    }
    leaf = nearest(key, further)
    if near or leaf:
        return f"; did you mean '{near + dot + rest if near else further[str(leaf)]}'?"
    return f"; known: {', '.join(_TOP_LEVEL)}, and what stands in them, such as data.root"


def _check_step(document: Document, loc: tuple[str, ...], place: str) -> None:
    """Raises ConfigError where an override changes a parameter of a step that does not stand
    there.
    """
    steps = document.at(("pipeline",))
    if isinstance(steps, str) and len(loc) > 1:
        raise ConfigError(
            [
                Problem(
                    place,
                    f"pipeline is a name, '{steps}': to change a step of it, write the list "
                    "of its steps in the config instead",
                )
            ]
        )
    step = document.at(("pipeline", int(loc[1]))) if len(loc) > 2 and loc[1].isdecimal() else None
    if isinstance(step, dict) and loc[2] not in step:
        raise ConfigError(
            [Problem(place, f"pipeline.{loc[1]} is not '{loc[2]}' but '{next(iter(step), '')}'")]
        )


def _split(override: str) -> _Change:
    """Raises ConfigError where it is no key=value."""
    key, equals, text = override.partition("=")
    place = f"'{override}'"
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(
            [
                Problem(
                    place,
                    "an override is key=value, for instance batch_size=64 or data.root=/images",
                )
            ]
        )
    try:
        return _Change(key.strip(), yamlfile.parse(text, "").data, place)
    except ConfigError as e:
        raise ConfigError([Problem(place, f"the value is {p.what}") for p in e.problems]) from None


def _check(document: Document, beside: Path | None, problems: list[Problem]) -> Config:
    data, steps = document.data.get("data"), document.data.get("pipeline")
    found = _source(document, data, problems) if isinstance(data, dict) else None
    shape = None
    try:
        shape = _Shape.model_validate(document.data)
    except pydantic.ValidationError as e:
        problems += complaints(e, _Shape, document)
    pipeline = (
        _pipeline(document, steps, beside, problems, found)
        if isinstance(steps, (str, list))
        else None
    )
    if problems or shape is None or found is None or pipeline is None:
        raise ConfigError(problems)
    return Config(
        Path(document.name).stem, str(data["source"]) if data else "", found, pipeline, shape.loader
    )


def _source(document: Document, data: dict[str, Any], problems: list[Problem]) -> Source | None:
    model = _source_model(document, data, problems)
    if model is None:
        return None
    try:
        return model.model_validate({k: v for k, v in data.items() if k != "source"})
    except pydantic.ValidationError as e:
        problems += complaints(e, model, document, ("data",), prefix="data")
        return None


def _specs(document: Document, source: Source, problems: list[Problem]) -> Mapping[str, Spec]:
    """The fields of a sample, checked against the masks among them."""
    fields = source.specs()
    taken = [n for n in fields if n in TAKEN]
    problems += [
        Problem(
            document.where(("data",), of_key=True),
            f"a field must not be called '{n}': that name is taken in a batch",
        )
        for n in taken
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


def _source_model(
    document: Document, data: dict[str, Any], problems: list[Problem]
) -> type[Source] | None:
    name = data.get("source")
    if isinstance(name, str):
        try:
            return source.find(name)
        except LookupError as e:
            problems.append(Problem(document.where(("data", "source")), e.args[0]))
            return None
    if name is UNRESOLVED:
        return None
    misspelt = nearest("source", data)
    known = f"the name of what reads the data: {', '.join(source.names())}"
    if "source" in data:
        problems.append(
            Problem(
                document.where(("data", "source")),
                f"data.source is {shown(name)}, but should be {known}",
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
                f"data.source: missing; write 'source: ...' ({known})",
            )
        )
    return None


def _pipeline(
    document: Document,
    steps: str | list[Any],
    beside: Path | None,
    problems: list[Problem],
    source: Source | None,
) -> Pipeline | None:
    """Where the source is wrong, its fields are not known: the pipeline is checked as one over
    images.
    """
    fields = (
        (pipelines.IMAGE, ())
        if source is None
        else (_specs(document, source, problems), source.masks)
    )
    try:
        if isinstance(steps, list):
            return pipelines.build("inline", document, ("pipeline",), *fields)
        return pipelines.build(Path(steps).stem, pipelines.find(steps, beside), (), *fields)
    except ConfigError as e:
        problems += [
            p if p.where else Problem(document.where(("pipeline",)), p.what) for p in e.problems
        ]
        return None
