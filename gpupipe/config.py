"""A config: which data, which pipeline, how it is loaded. Read from YAML, a name or a dict, plus overrides; frozen and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import omegaconf
import pydantic
import yaml
from omegaconf import OmegaConf
from pydantic import AfterValidator, Field

from gpupipe import pipeline as pipelines
from gpupipe import shipped, source, yamlfile
from gpupipe.complaints import complaints
from gpupipe.errors import ConfigError, Problem
from gpupipe.pipeline import Pipeline
from gpupipe.source import Source
from gpupipe.yamlfile import Document

_TOP_LEVEL = ("data", "pipeline", "loader")
_DEVICE = re.compile(r"auto|cpu|(gpu|cuda)(:\d+)?")


def _device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise ValueError(f"'{value}' is no device: write auto, cpu, gpu or gpu:N")
    return value.replace("cuda", "gpu")


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Shard(_Frozen):
    """Which part of every global batch this process takes."""

    rank: Annotated[int, Field(ge=0)] = 0
    world_size: Annotated[int, Field(ge=1)] = 1

    @pydantic.model_validator(mode="after")
    def _rank_is_below(self) -> Shard:
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} must be below world_size {self.world_size}: ranks count from 0")
        return self


class LoaderConfig(_Frozen):
    """How samples become batches.

    batch_size: samples a batch and rank.
    shuffle: a new permutation of the whole set every epoch; false: the order of the index.
    seed: of the order and of every random step.
    last_batch: partial (a smaller last batch), drop, or pad (filled with samples from the epoch's start).
    engine: auto or dali.
    device: auto (the GPU where there is one), cpu, gpu or gpu:N.
    threads: CPU threads of the engine; auto: all the cores that this process may use.
    prefetch: batches prepared ahead.
    on_error: raise, or skip samples that cannot be read or decoded; max_bad: the share of the set that may be skipped, 0 to 1.
    quarantine: the file that lists what was skipped (JSON lines); by default one in the cache folder.
    dtype: of the batch, where it is not to be what the pipeline makes.
    memory_format: contiguous (B, C, H, W), or the same shape stored channels_last.
    format: dict ({"image": ..., "label": ...}) or tuple (image, label).
    ids: also deliver "id", int64 (B,), the samples' rows in the index (format dict).
    hw_decoder_load: the share of JPEGs that goes to the GPU's hardware decoder, 0 to 1.
    """

    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    shuffle: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    last_batch: Literal["partial", "drop", "pad"] = "partial"
    engine: Literal["auto", "dali"] = "auto"
    device: Annotated[str, AfterValidator(_device)] = "auto"
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = "auto"
    prefetch: Annotated[int, Field(ge=1, le=64)] = 2
    shard: Shard = Shard()
    on_error: Literal["raise", "skip"] = "raise"
    max_bad: Annotated[float, Field(ge=0, le=1)] = 0.01
    quarantine: Path | None = None
    dtype: Literal["uint8", "float16", "bfloat16", "float32"] | None = None
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    format: Literal["dict", "tuple"] = "dict"
    ids: bool = False
    hw_decoder_load: Annotated[float, Field(ge=0, le=1)] = 0.9


class _Shape(_Frozen):
    """The top of a config; `data` and `pipeline` are checked by whom they name."""

    data: dict[str, Any]
    pipeline: str | list[Any]
    loader: LoaderConfig = LoaderConfig()


@dataclass(frozen=True)
class Config:
    """A checked configuration."""

    name: str
    source_name: str
    source: Source
    pipeline: Pipeline
    loader: LoaderConfig


def read(config: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), **changes: Any) -> Config:
    """The Config in a file (a path, or a shipped name) or a dict.

    overrides: "key=value" with dots between the keys; a key of `loader` may stand alone. changes: the same as keyword arguments,
    where a dict changes only what it names. Raises ConfigError with everything that is wrong.
    """
    document, beside = _open(config)
    if not isinstance(document.data, dict):
        raise ConfigError([Problem(document.where(()), f"a config holds {', '.join(_TOP_LEVEL)}, each followed by a colon")])
    document = _resolve(_override(document, [*map(_split, overrides), *changes.items()]))
    return _check(document, beside)


def _open(config: str | Path | Mapping[str, Any]) -> tuple[Document, Path | None]:
    if isinstance(config, Mapping):
        return yamlfile.parse(yaml.safe_dump(_plain(config), sort_keys=False), "config"), None
    path = shipped.locate("configs", str(config))
    return yamlfile.read(path), path.parent


def _plain(value: Any) -> Any:
    """Mappings, sequences and paths as what YAML can say."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _split(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError([Problem(f"'{override}'", "an override is key=value, for instance batch_size=64 or data.root=/images")])
    return key, yamlfile.parse(text, f"'{override}'").data


def _override(document: Document, changes: Sequence[tuple[str, Any]]) -> Document:
    """The document with the changes in it; what they bring points at themselves."""
    config = OmegaConf.create(document.data)
    keys, values = dict(document.keys), dict(document.values)
    for key, value in changes:
        full = f"loader.{key}" if key in LoaderConfig.model_fields else key
        loc = tuple(int(k) if k.isdigit() else k for k in full.split("."))
        try:
            OmegaConf.update(config, "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in loc).lstrip("."), _plain(value), merge=True)
        except (omegaconf.errors.OmegaConfBaseException, AttributeError, IndexError, TypeError, ValueError) as e:
            raise ConfigError([Problem(f"'{key}={value}'", f"cannot be set: {str(e).splitlines()[0]}")]) from None
        for end in range(1, len(loc) + 1):
            keys.setdefault(loc[:end], f"'{key}={value}'")
        for old in [k for k in values if k[: len(loc)] == loc]:
            del values[old]
        values[loc] = f"'{key}={value}'"
    return Document(document.name, config, keys, values)


def _resolve(document: Document) -> Document:
    """The document with every ${...} replaced."""
    try:
        data = OmegaConf.to_container(document.data, resolve=True)
    except omegaconf.errors.OmegaConfBaseException as e:
        loc = tuple(int(k) if k.isdigit() else k for k in re.split(r"[.\[\]]+", getattr(e, "full_key", None) or "") if k)
        raise ConfigError([Problem(document.where(loc), str(e).splitlines()[0])]) from None
    return Document(document.name, data, document.keys, document.values)


def _check(document: Document, beside: Path | None) -> Config:
    problems: list[Problem] = []
    shape = None
    try:
        shape = _Shape.model_validate(document.data)
    except pydantic.ValidationError as e:
        problems += complaints(e, _Shape, document)
    data = document.data.get("data")
    found = _source(document, data, problems) if isinstance(data, dict) else None
    steps = document.data.get("pipeline")
    pipeline = _pipeline(document, steps, beside, problems) if isinstance(steps, (str, list)) else None
    if problems or shape is None or found is None or pipeline is None:
        raise ConfigError(problems)
    return Config(Path(document.name).stem, str(data["source"]) if data else "", found, pipeline, shape.loader)


def _source(document: Document, data: dict[str, Any], problems: list[Problem]) -> Source | None:
    name = data.get("source")
    if not isinstance(name, str):
        problems.append(Problem(document.where(("data",), of_key=True), f"data.source: missing; it names what reads the data: {', '.join(source.names())}"))
        return None
    try:
        model = source.find(name)
    except KeyError as e:
        problems.append(Problem(document.where(("data", "source")), e.args[0]))
        return None
    try:
        return model.model_validate({k: v for k, v in data.items() if k != "source"})
    except pydantic.ValidationError as e:
        problems += complaints(e, model, document, ("data",), prefix="data")
        return None


def _pipeline(document: Document, steps: str | list[Any], beside: Path | None, problems: list[Problem]) -> Pipeline | None:
    try:
        if isinstance(steps, list):
            return pipelines.build("inline", document, ("pipeline",))
        return pipelines.build(Path(steps).stem, pipelines.find(steps, beside))
    except ConfigError as e:
        problems += [p if p.where else Problem(document.where(("pipeline",)), p.what) for p in e.problems]
        return None
