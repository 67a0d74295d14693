"""The arguments CONFIG and KEY=VALUE of most commands, and what a shell completes them to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from gpupipe.schema import builtin_configs

_SOURCE, _PIPELINE = "data.source", "pipeline"


def complete_config(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the shipped configs, those in `configs/`, and the files that begin like this."""
    names = {*builtin_configs.names("configs"), *_own_names("configs")}
    return [
        CompletionItem(name)
        for name in _matching([*sorted(names), *_files(incomplete)], incomplete)
    ]


def complete_override(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return settings that begin like this, or values of the setting before the equals sign."""
    from gpupipe.config.loader_config import LoaderConfig

    key, equals, value = incomplete.partition("=")
    if not equals:
        keys = [_SOURCE, _PIPELINE, *LoaderConfig.model_fields]
        # No space follows the equals sign: the value comes next.
        return [CompletionItem(f"{name}=") for name in _matching(keys, key)]
    return [CompletionItem(f"{key}={v}") for v in _matching(_list_values(key), value)]


def complete_target(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the names of pipelines and steps."""
    from gpupipe.cli import catalog

    items = [item.name for kind in ("pipeline", "step") for item in catalog.list_items(kind)]
    return [CompletionItem(name) for name in _matching(items, incomplete)]


def complete_name(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the names of all that a config can name."""
    from gpupipe.cli import catalog

    items = [item for kind in catalog.KINDS for item in catalog.list_items(kind)]
    found = {item.name: item.kind for item in reversed(items)}
    names = _matching(sorted(found), incomplete)
    return [CompletionItem(name, help=found[name]) for name in names]


def _list_values(key: str) -> Iterator[str]:
    """Yield the values that a setting may have, as far as they are names."""
    from gpupipe.config.loader_config import LoaderConfig
    from gpupipe.dataset.source import SOURCES
    from gpupipe.runtime import engine_registration

    name = key.removeprefix("loader.")
    if key == _PIPELINE:
        yield from sorted({*builtin_configs.names("pipelines"), *_own_names("pipelines")})
    elif key == _SOURCE:
        yield from SOURCES.names()
    elif name == "engine":
        yield from (engine_registration.AUTO, *engine_registration.ENGINES.names())
    elif name == "device":
        yield from ("auto", "cpu", "gpu")
    elif name in LoaderConfig.model_fields:
        yield from _literals(LoaderConfig.model_fields[name].annotation)


def _literals(annotation: Any) -> Iterator[str]:
    if annotation is bool:
        yield from ("true", "false")
    for part in get_args(annotation):
        if isinstance(part, str) and str(get_origin(annotation)) == "typing.Literal":
            yield part
        else:
            yield from _literals(part)


def _own_names(kind: str) -> list[str]:
    return sorted(path.stem for path in Path(kind).glob("*.yaml"))


def _files(incomplete: str) -> Iterator[str]:
    """Yield folders, YAML and JSON files whose path begins like this."""
    head = incomplete.rpartition("/")[0]
    folder = Path(head or ("/" if incomplete.startswith("/") else "."))
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for path in entries:
        text = str(path)
        if path.is_dir() and not path.name.startswith("."):
            yield f"{text}/"
        elif path.suffix in builtin_configs.SUFFIXES:
            yield text


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


config_argument = click.argument("config", shell_complete=complete_config)
overrides_argument = click.argument(
    "overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=complete_override
)
