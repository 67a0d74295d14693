"""Options of commands from signatures; CONFIG and KEY=VALUE, and how a shell completes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from gpupipe.cli.output_files import OutputFile
from gpupipe.schema import builtin_configs

_Command = TypeVar("_Command", bound=Callable[..., Any])
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
    from gpupipe.decoders import chain as decoders
    from gpupipe.runtime.registry import AUTO, ENGINES

    name = key.removeprefix("loader.")
    if key == _PIPELINE:
        yield from sorted({*builtin_configs.names("pipelines"), *_own_names("pipelines")})
    elif key == _SOURCE:
        yield from SOURCES.names()
    elif name == "engine":
        yield from (AUTO, *ENGINES.names())
    elif name == "decoder":
        yield from decoders.list_names()
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


ConfigName = Annotated[str, click.argument("config", shell_complete=complete_config)]
Overrides = Annotated[
    tuple[str, ...],
    click.argument(
        "overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=complete_override
    ),
]
JsonFile = Annotated[Path | None, "--json", OutputFile(), "Write everything measured to this file."]
AsJson = Annotated[bool, "--json", "Print it as JSON."]
AllAsJson = Annotated[bool, "--json", "Print all of it as JSON."]


def options(command: _Command) -> _Command:
    """Give a command the options that its own signature describes, as `options_of` reads it."""
    return options_of(command)(command)


def options_of(model: Callable[..., Any]) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command the options that a signature describes.

    Modules of commands do without `from __future__ import annotations`: texts of annotations would
    be compiled at every start, 4 ms in all.

    Args:
        model: A function or a dataclass. Each of its parameters has an annotation
            `Annotated[type, ...]` with these parts:

            - a help text, the last one;
            - names, such as "-q" or "--json"; without one that begins with "--", the parameter
              `max_diff` is the option --max-diff;
            - a type of click's or a `range`, if that is more than the parameter's type tells;
            - or a decorator of click's in place of all these.

    Example:
        >>> @click.command()
        ... @options
        ... def tune(config: ConfigName, rounds: Annotated[int, IntRange(1), "Rounds."] = 3): ...
    """
    hints = inspect.get_annotations(model, eval_str=True)
    decorators = [
        _decorator(name, hints[name], parameter.default)
        for name, parameter in inspect.signature(model).parameters.items()
        if hasattr(hints[name], "__metadata__")
    ]

    def decorate(command: _Command) -> _Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def _decorator(name: str, annotation: Any, default: Any) -> Callable[[_Command], _Command]:
    """Return click's decorator for a parameter."""
    kind, *metadata = get_args(annotation)
    if callable(metadata[0]) and not isinstance(metadata[0], click.ParamType):
        return metadata[0]  # type: ignore[no-any-return]
    *names, text = [part for part in metadata if isinstance(part, str)]
    if not any(part.startswith("--") for part in names):
        names.append(f"--{name.replace('_', '-')}")
    if kind is bool:
        return click.option(*names, name, is_flag=True, help=text)
    required = default is inspect.Parameter.empty
    return click.option(
        *names,
        name,
        type=_find_type(kind, metadata),
        help=text,
        show_default=True,
        **{"required": True} if required else {"default": default},
    )


def _find_type(kind: Any, metadata: list[Any]) -> Any:
    """Return click's type for a parameter, from the metadata or from the parameter's own type."""
    for part in metadata:
        if isinstance(part, click.ParamType):
            return part
        if isinstance(part, range):
            return click.IntRange(part.start, part.stop - 1)
    kinds = (kind, *get_args(kind))
    for part in kinds:
        if get_origin(part) is Literal:
            return click.Choice(get_args(part))
    if Path in kinds:
        return click.Path(path_type=Path)
    return kind if isinstance(kind, type) else str
