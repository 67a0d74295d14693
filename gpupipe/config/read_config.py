"""Reads a config: finds the YAML, applies overrides, resolves ${...}, and validates the result.

An override changes one key: the text "data.root=/images", or the pair ("data.root", "/images").
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.config.image_size import IMAGE_SIZE, scale_sizes
from gpupipe.config.loader_config import LoaderConfig, Shard
from gpupipe.config.validation import Config, validate
from gpupipe.dataset.given_dataset import GivenDataset, MapDataset, is_dataset
from gpupipe.errors import ConfigError, Problem, hide_secrets, nearest, short, shown
from gpupipe.pipeline.build import find_pipeline
from gpupipe.schema import interpolation, yaml_files
from gpupipe.schema.document import Document, join_keys

Override = str | tuple[str, Any]
"""A text "key=value", or a tuple (key, value)."""
_TOP_LEVEL = ("data", "pipeline", "batch", "loader")


def read(
    config: str | Path | Mapping[str, Any] | MapDataset,
    overrides: Sequence[str] = (),
    **changes: Any,
) -> Config:
    """Read and validate a config.

    If an override names another source, the remaining keys of `data` in the config are dropped:
    they belong to the old source.

    Args:
        config: Path of a YAML file, a shipped name such as "lfw", a dict of the same shape, or
            a data set, which then is the source.
        overrides: Texts "key=value", with dots between nested keys: "data.root=/images". Keys of
            `loader` need no prefix: "batch_size=64". "pipeline.1.resize.size=64" changes a step,
            also of a named pipeline. "image_size=64" scales all sizes of the pipeline.
        **changes: Overrides as keyword arguments, applied last. A dict sets only the keys that it
            has; a list replaces the whole list.

    Returns:
        The config with all overrides.

    Raises:
        ConfigError: If anything is wrong; it holds all mistakes.

    Examples:
        >>> read("lfw", ["batch_size=64"], data={"root": "/images"})
    """
    return read_with(config, [*overrides, *changes.items()])


def read_with(
    config: str | Path | Mapping[str, Any] | MapDataset, *overrides: Sequence[Override]
) -> Config:
    """Read and validate a config with several lists of overrides; later lists win.

    Args:
        config: Path of a YAML file, a shipped name, a dict of the same shape, or a data set, which
            then is the source.
        *overrides: Lists of overrides.

    Returns:
        The config with all overrides.

    Raises:
        ConfigError: If anything is wrong; it holds all mistakes.
    """
    if isinstance(config, Mapping):
        document, folder = Document("config", to_plain_types(config)), None
    elif isinstance(config, str | os.PathLike):
        path = yaml_files.locate("configs", str(config))
        document, folder = yaml_files.read(path), path.parent
        document = replace(document, data=to_plain_types(document.data))
    elif is_dataset(config):
        data = {"source": "python", "call": GivenDataset(config)}
        document, folder = Document("config", {"data": data}), None
    else:
        raise ConfigError.at(
            "config",
            f"it is a {type(config).__name__}, but should be the path of a YAML file, a name, a "
            "dict or a data set",
        )
    if not isinstance(document.data, dict):
        is_list = isinstance(document.data, list)
        raise ConfigError.at(
            document.where(()),
            f"this is {'a list' if is_list else shown(document.data)}, but a config holds 'data:', "
            "'pipeline:' and 'loader:', with values after or below them",
        )
    problems: list[Problem] = []
    for several in overrides:
        apply_overrides(document, several, problems, folder)
    document, unresolved = interpolation.resolve(document)
    return validate(document, folder, problems + unresolved)


def to_plain_types(value: Any, location: str = "config", depth: int = 0) -> Any:
    """Convert a value to plain YAML types: dict, list, str, int, float, bool, None.

    It converts mappings, lists, tuples, paths, dtypes of NumPy and torch, and NumPy scalars. A
    function or module in a list becomes a step `python`. It returns any other value as it is. It
    copies containers, because a YAML alias makes two keys share one.

    Args:
        value: The value.
        location: The name of the value in messages.
        depth: The number of containers around the value.

    Raises:
        ConfigError: Containers are nested too deeply, or hold themselves.
    """
    if depth > yaml_files.MAX_DEPTH:
        raise ConfigError.at(location, yaml_files.TOO_DEEP)
    if isinstance(value, Mapping):
        return {str(k): to_plain_types(v, location, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        items = (to_plain_types(v, location, depth + 1) for v in value)
        return [{"python": {"call": item}} if callable(item) else item for item in items]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":  # torch may not be imported
        return str(value).removeprefix("torch.")
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@dataclass(frozen=True)
class _KeyValue:
    """A parsed override: the key as written, the value, and the override's name in messages."""

    key: str
    value: Any
    location: str


def apply_overrides(
    document: Document,
    overrides: Sequence[Override],
    problems: list[Problem],
    config_dir: Path | None = None,
) -> None:
    """Apply overrides to the document in order.

    Args:
        document: The config.
        overrides: The overrides.
        problems: The list to which their mistakes are appended.
        config_dir: The folder of the config file, in which a named pipeline may lie.
    """
    parsed: list[_KeyValue] = []
    for override in overrides:
        try:
            parsed.append(_parse(override))
        except ConfigError as e:
            problems += e.problems
    _replace_source(document, parsed)
    for each in parsed:
        try:
            _apply(document, each, config_dir)
        except ConfigError as e:
            problems += e.problems


def _parse(override: Override) -> _KeyValue:
    """Parse an override. Raises ConfigError if it is not KEY=VALUE, or the value is malformed."""
    if not isinstance(override, str):
        key, value = override
        location = f"'{short(hide_secrets(f'{key}={value!r}'))}'"
        return _KeyValue(key, to_plain_types(value, key), location)
    key, equals, text = override.partition("=")
    location = hide_secrets(f"'{override}'")
    if not equals or not all(key.strip().split(".")):
        example = "for instance batch_size=64 or data.root=/images"
        raise ConfigError.at(location, f"an override is key=value, {example}")
    try:
        return _KeyValue(key.strip(), yaml_files.parse(text, "").data, location)
    except ConfigError as e:
        problems = [Problem(location, f"the value is {p.what}") for p in e.problems]
        raise ConfigError(problems) from None


def _replace_source(document: Document, overrides: Sequence[_KeyValue]) -> None:
    """Empty `data` if an override names another source: the old keys belong to the old source.

    The caller must do this before it applies any override. Then data.source=... may come before or
    after the keys of the new source. If several overrides name a source, the last one counts.
    """
    data = document.data.get("data")
    for override in reversed(overrides):
        key, source = override.key, override.value
        if key == "data" and isinstance(source, dict) and "source" in source:
            key, source = "data.source", source["source"]
        if key == "data.source":
            if isinstance(data, dict) and "source" in data and data["source"] != source:
                document.replace(("data",), {"source": source}, override.location)
            return


def _apply(document: Document, override: _KeyValue, config_dir: Path | None) -> None:
    """Apply one override. Raises ConfigError if its key, or the step that it names, is unknown."""
    loc = tuple(override.key.split("."))
    needs_steps = loc == (IMAGE_SIZE,) or (loc[0] == "pipeline" and len(loc) > 1)
    if needs_steps and not _inline_pipeline(document, config_dir, override.location):
        return
    if loc == (IMAGE_SIZE,):
        scale_sizes(document, override.value, override.location)
        return
    if loc[0] in LoaderConfig.model_fields:
        loc = ("loader", *loc)
    elif loc[0] not in _TOP_LEVEL:
        hint = _suggest_key(override.key, document)
        raise ConfigError.at(override.location, f"{loc[0]}: unknown key{hint}")
    if loc[0] in ("pipeline", "batch"):
        _check_step(document, loc, override.location)
    document.put(loc, override.value, override.location)


def _inline_pipeline(document: Document, config_dir: Path | None, location: str) -> bool:
    """Replace the name of a pipeline by its steps, which keep their locations in their file.

    Returns:
        False if there is no such pipeline: the validation of the config reports that.
    """
    name = document.data.get("pipeline")
    if not isinstance(name, str):
        return True
    try:
        file = find_pipeline(name, config_dir)
    except ConfigError:
        return False
    document.replace(("pipeline",), to_plain_types(file.data), location)
    document.keys.update({("pipeline", *loc): where for loc, where in file.keys.items()})
    document.values.update({("pipeline", *loc): where for loc, where in file.values.items()})
    return True


def _suggest_key(key: str, document: Document) -> str:
    """Return the end of the message about an unknown key: a similar key, perhaps a nested one."""
    first, dot, rest = key.partition(".")
    if advice := LoaderConfig.advice_for.get(first):
        return f"; {advice}"
    near = nearest(first, (*LoaderConfig.model_fields, *_TOP_LEVEL, IMAGE_SIZE))
    further = {str(loc[-1]): join_keys(loc) for loc in document.keys}
    further |= {name: f"shard.{name}" for name in Shard.model_fields}
    leaf = nearest(key, further)
    if near or leaf:
        return f"; did you mean '{near + dot + rest if near else further[str(leaf)]}'?"
    return f"; known: {', '.join(_TOP_LEVEL)}, and what stands in them, such as data.root"


def _check_step(document: Document, loc: tuple[str, ...], location: str) -> None:
    """Raise ConfigError if an override changes a step that is not at the stated position.

    Args:
        document: The config.
        loc: The path of the override, such as ("pipeline", "1", "resize", "size").
        location: The override's name in messages.
    """
    part = loc[0]
    step = document.at((part, int(loc[1]))) if len(loc) > 2 and loc[1].isdecimal() else None
    if isinstance(step, dict) and loc[2] not in step:
        actual = next(iter(step), "")
        raise ConfigError.at(location, f"{part}.{loc[1]} is not '{loc[2]}' but '{actual}'")
