"""Configurations: `read` turns a YAML file, a shipped name or a dict into a validated Config.

A config has three parts: `data` names a source, `pipeline` lists steps, and `loader` is a
LoaderConfig. Overrides are applied before validation. All mistakes are reported at once, each with
its file and line, or with its override.
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
from gpupipe.schema import builtin_configs, interpolation, yaml_parser
from gpupipe.schema.document import UNRESOLVED, Document
from gpupipe.schema.field_types import WHOLE, Bytes, Probability, form
from gpupipe.schema.validation_errors import complaints

Change = str | tuple[str, Any]
_TOP_LEVEL = ("data", "pipeline", "loader")
_DEVICE = re.compile(r"auto|cpu|(gpu|cuda)(:\d+)?")


def _device(value: Any) -> str:
    # By its name, because torch may not be imported.
    is_torch_device = type(value).__name__ == "device"
    text = str(value) if isinstance(value, str) or is_torch_device else ""
    if not _DEVICE.fullmatch(text):
        raise form("auto, cpu, gpu or gpu:N")
    return text.replace("cuda", "gpu")


def _name_or_steps(value: Any) -> Any:
    if not isinstance(value, (str, list)):
        raise form("the name of a pipeline, or a list of steps")
    return value


_ADDRESS = re.compile(r"tcp://\S+:\d+|ipc://\S+")


def _addresses(value: Any) -> Any:
    """Wrap a single address in a list."""
    return [value] if isinstance(value, str) else value


def _address(value: Any) -> str:
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise form("tcp://HOST:PORT or ipc://FILE")
    return value


Address = Annotated[str, BeforeValidator(_address)]


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Shard(_Frozen):
    """The part of every global batch that this process takes.

    Attributes:
        rank: Rank of this process, 0 to world_size - 1.
        world_size: Number of ranks that share the samples, at least 1.
    """

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
    """`shard: auto`: the loader asks torch.distributed, else torchrun's environment, at its start.

    `with_ranks` of gpupipe.loader replaces it by a Shard.
    """


def _shard(value: Any) -> Any:
    return AutoShard() if value == "auto" else value


class LoaderConfig(_Frozen):
    """The `loader` part of a config: how samples become batches.

    Attributes:
        batch_size: Samples per batch on each rank, 1 to 1,000,000.
        shuffle: If true, every epoch is a new permutation of the whole data set; if false, samples
            come in the order of the index.
        seed: Seed of the order and of every random step, 0 to 2**63 - 1.
        last_batch: What to do with the samples that do not fill a step: `partial` delivers smaller
            batches, `drop` leaves the samples out, `pad` fills up with samples from the start of
            the epoch. All ranks have equally many steps in each case.
        engine: `dali`; `dataloader`, torch's DataLoader with torchvision; `remote`, a data
            processing server; or `auto`, which is dali if DALI is installed, else dataloader.
        device: Where batches are delivered: `cpu`, `gpu`, `gpu:N`, or `auto`, which is the GPU if
            there is one. `cuda` is a synonym of `gpu`, and a torch.device is accepted.
        threads: CPU threads of the engine, 1 to 1024. `auto` takes this rank's share of the cores
            that the ranks of this machine may use.
        set_affinity: Bind DALI's CPU threads to the cores near the GPU; or, one thread each, to the
            cores that the environment variable DALI_AFFINITY_MASK lists.
        prefetch: Batches that the engine prepares ahead, 1 to 64; with the dataloader engine, that
            each worker prepares ahead. DALI reads the files of as many batches more.
        workers: Processes of the DataLoader, 0 to 1024; 0 loads in the main process. `auto` starts
            as many as `threads`.
        decoder: Image decoder of the dataloader engine: `torchvision` or `pil`.
        pin_memory: As in torch's DataLoader; batches are pinned only if they go to a GPU.
        multiprocessing_context: As in torch's DataLoader.
        persistent_workers: As in torch's DataLoader.
        shard: The part of every global batch that this process takes: {rank, world_size}, or
            `auto`, which asks torch.distributed, else torchrun's environment.
        on_error: What to do with a sample that cannot be read or decoded: `raise` or `skip`.
        max_bad: Share of the data set that may be skipped, 0 to 1. If more samples fail, the
            loader raises TooManyBadError.
        quarantine: File that lists the skipped samples, as JSON lines. By default, a file in the
            cache folder.
        dtype: Dtype of the first field of a batch; None keeps the dtype that the pipeline makes.
        memory_format: Strides of fields that were image files: `contiguous` or `channels_last`.
            The shape is (B, C, H, W) in both cases.
        format: What a batch is: `dict`, such as {"image": ..., "label": ...}, or `tuple`, the first
            field and the label.
        ids: If true, batches also have "id", int64 (B,): the rows of the samples in the index.
            It has no effect if `format` is `tuple`.
        hw_decoder_load: Share of the JPEGs that the GPU's hardware decoder decodes, 0 to 1. Its
            pixels differ from those of the CUDA decoder by up to one level. With 0 or 1 a sample
            has the same bits in every batch; in between, the batch decides which decoder it gets.
        gpu_memory: Limit for the memory that DALI may need on the GPU, in bytes or such as 2GB.
            load() estimates the need from the headers of 64 samples, and raises EngineError if it
            is above the limit. None: no limit.
        server: Servers of the remote engine: tcp://HOST:PORT or ipc://FILE. A list names servers
            that serve one shard each.
        hwm: High-water mark: batches that a server sends ahead, 1 to 1000.
        transport: How batches come from a server: `shm`, memory shared with a server on this
            machine; `tcp`, a socket; or `auto`, which is shm if possible.
        key: File with the secret key of this client, made by `gpupipe keys new`.
        server_key: File with the public key of the server.
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
    """The top level of a config. The source checks the rest of `data`, the steps their parameters.

    Error messages quote this docstring (validation_errors._meaning).

    Attributes:
        data: Where the samples are: {source: folder, root: PATH}.
        pipeline: The name of a pipeline, or a list of steps.
        loader: How samples become batches.
    """

    data: dict[str, Any]
    pipeline: Annotated[str | list[Any], BeforeValidator(_name_or_steps)]
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
    """

    name: str
    source_name: str
    source: Source
    pipeline: Pipeline
    loader: LoaderConfig


def read(
    config: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), **changes: Any
) -> Config:
    """Read and validate a config.

    If an override or a change names another source, all other keys of `data` in the config are
    dropped, because they belong to the old source.

    Args:
        config: Path of a YAML file, a shipped name such as "lfw", or a dict of the same shape.
        overrides: Texts "key=value", with dots between nested keys: "data.root=/images". Keys of
            `loader` need no prefix: "batch_size=64".
        **changes: The same as keyword arguments, applied after the overrides. A dict changes only
            the keys that it has; a list replaces the whole list.

    Returns:
        The config with all overrides and changes.

    Raises:
        ConfigError: If anything is wrong; it holds all mistakes.

    Example:
        >>> read("lfw", ["batch_size=64"], data={"root": "/images"})
    """
    return read_in_layers(config, [*overrides, *changes.items()])


def read_in_layers(config: str | Path | Mapping[str, Any], *layers: Sequence[Change]) -> Config:
    """Read and validate a config with several sets of changes; later sets win.

    Args:
        config: Path of a YAML file, a shipped name, or a dict of the same shape.
        *layers: Sets of changes. A change is a text "key=value", or a tuple (key, value).

    Returns:
        The config with all changes.

    Raises:
        ConfigError: If anything is wrong; it holds all mistakes.
    """
    document, config_dir = _open(config)
    if not isinstance(document.data, dict):
        actual = (
            "this is a list"
            if isinstance(document.data, list)
            else f"this is {shown(document.data)}"
        )
        raise ConfigError(
            [
                Problem(
                    document.where(()),
                    f"{actual}, but a config holds 'data:', 'pipeline:' and 'loader:', with "
                    "values after or below them",
                )
            ]
        )
    problems: list[Problem] = []
    for layer in layers:
        _apply(document, layer, problems)
    document, unresolved = interpolation.resolve(document)
    return _check(document, config_dir, problems + unresolved)


def _open(config: str | Path | Mapping[str, Any]) -> tuple[Document, Path | None]:
    if isinstance(config, Mapping):
        return Document("config", plain(config)), None
    path = builtin_configs.locate("configs", str(config))
    document = yaml_parser.read(path)
    return replace(document, data=plain(document.data)), path.parent


def plain(value: Any) -> Any:
    """Convert a value to plain YAML types: dict, list, str, int, float, bool, None.

    Mappings, sequences, paths, dtypes of NumPy and torch, and NumPy scalars are converted; other
    values are returned as they are. Containers are copied, so that no two keys share one (as YAML
    aliases do).
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
    """One change: the key as it was written, the value, and the change's name in messages."""

    key: str
    value: Any
    location: str


def _apply(document: Document, layer: Sequence[Change], problems: list[Problem]) -> None:
    """Apply a set of changes to the document, and append what is wrong to `problems`."""
    changes: list[_Change] = []
    for change in layer:
        try:
            changes.append(_split(change) if isinstance(change, str) else _of_keyword(*change))
        except ConfigError as e:
            problems += e.problems
    _replace_source(document, changes)
    for parsed in changes:
        try:
            _put(document, parsed)
        except ConfigError as e:
            problems += e.problems


def _of_keyword(key: str, value: Any) -> _Change:
    return _Change(key, plain(value), f"'{short(f'{key}={value!r}')}'")


def _replace_source(document: Document, changes: Sequence[_Change]) -> None:
    """Empty `data` if a change names another source, because its keys belong to the old source.

    This happens before any change is applied, so that data.source=... may come before or after the
    keys of the new source. If several changes name a source, the last one counts.
    """
    named = [(value, change.location) for change in changes for value in _sources_in(change)]
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
    """Apply one change. Raises ConfigError, which names the change."""
    loc = tuple(change.key.split("."))
    if loc[0] in LoaderConfig.model_fields:
        loc = ("loader", *loc)
    elif loc[0] not in _TOP_LEVEL:
        wrong = f"{loc[0]}: unknown key{_instead(change.key, document)}"
        raise ConfigError([Problem(change.location, wrong)])
    if loc[0] == "pipeline":
        _check_step(document, loc, change.location)
    document.put(loc, change.value, change.location)


def _instead(key: str, document: Document) -> str:
    """Return the end of the message about an unknown key: a similar key, or a nested one."""
    first, dot, rest = key.partition(".")
    near = nearest(first, (*LoaderConfig.model_fields, *_TOP_LEVEL))
    further = {str(k[-1]): ".".join(map(str, k)) for k in document.keys} | {
        k: f"shard.{k}" for k in Shard.model_fields
    }
    leaf = nearest(key, further)
    if near or leaf:
        return f"; did you mean '{near + dot + rest if near else further[str(leaf)]}'?"
    return f"; known: {', '.join(_TOP_LEVEL)}, and what stands in them, such as data.root"


def _check_step(document: Document, loc: tuple[str, ...], location: str) -> None:
    """Raise ConfigError if a change of a step names a step that is not at that position."""
    steps = document.at(("pipeline",))
    if isinstance(steps, str) and len(loc) > 1:
        raise ConfigError(
            [
                Problem(
                    location,
                    f"pipeline is a name, '{steps}': to change a step of it, write the list "
                    "of its steps in the config instead",
                )
            ]
        )
    step = document.at(("pipeline", int(loc[1]))) if len(loc) > 2 and loc[1].isdecimal() else None
    if isinstance(step, dict) and loc[2] not in step:
        raise ConfigError(
            [Problem(location, f"pipeline.{loc[1]} is not '{loc[2]}' but '{next(iter(step), '')}'")]
        )


def _split(override: str) -> _Change:
    """Parse "key=value". Raises ConfigError."""
    key, equals, text = override.partition("=")
    location = f"'{override}'"
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(
            [
                Problem(
                    location,
                    "an override is key=value, for instance batch_size=64 or data.root=/images",
                )
            ]
        )
    try:
        return _Change(key.strip(), yaml_parser.parse(text, "").data, location)
    except ConfigError as e:
        raise ConfigError(
            [Problem(location, f"the value is {p.what}") for p in e.problems]
        ) from None


def _check(document: Document, config_dir: Path | None, problems: list[Problem]) -> Config:
    data, steps = document.data.get("data"), document.data.get("pipeline")
    checked_source = _source(document, data, problems) if isinstance(data, dict) else None
    shape = None
    try:
        shape = _Shape.model_validate(document.data)
    except pydantic.ValidationError as e:
        problems += complaints(e, _Shape, document)
    pipeline = (
        _pipeline(document, steps, config_dir, problems, checked_source)
        if isinstance(steps, (str, list))
        else None
    )
    if problems or shape is None or checked_source is None or pipeline is None:
        raise ConfigError(problems)
    return Config(
        Path(document.name).stem,
        str(data["source"]) if data else "",
        checked_source,
        pipeline,
        shape.loader,
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
    """Return the fields of a sample; report reserved names, and masks that are no field."""
    fields = source.specs()
    reserved = [n for n in fields if n in TAKEN]
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
    expected = f"the name of what reads the data: {', '.join(source.names())}"
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


def _pipeline(
    document: Document,
    steps: str | list[Any],
    config_dir: Path | None,
    problems: list[Problem],
    source: Source | None,
) -> Pipeline | None:
    """Build the pipeline; if the source is invalid, check it as if the only field were an image."""
    fields = (
        (pipelines.IMAGE, ())
        if source is None
        else (_specs(document, source, problems), source.masks)
    )
    try:
        if isinstance(steps, list):
            return pipelines.build("inline", document, ("pipeline",), *fields)
        return pipelines.build(Path(steps).stem, pipelines.find(steps, config_dir), (), *fields)
    except ConfigError as e:
        problems += [
            p if p.where else Problem(document.where(("pipeline",)), p.what) for p in e.problems
        ]
        return None
