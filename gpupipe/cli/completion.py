"""How a shell completes commands, configs and settings: `gpupipe completion` prints its script, and
click calls the functions that list what a word may become.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import click
from click.shell_completion import CompletionItem, get_completion_class

from gpupipe.schema import yaml_files

_SOURCE, _PIPELINE = "data.source", "pipeline"
PROGRAM, _VARIABLE = "gpupipe", "_GPUPIPE_COMPLETE"
_WORD_BREAKS = "COMP_WORDBREAKS=${COMP_WORDBREAKS//=/}\n"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, configs and KEY=VALUE in SHELL.

    bash: add to ~/.bashrc: eval "$(gpupipe completion bash)"

    zsh: add to ~/.zshrc: eval "$(gpupipe completion zsh)"

    fish: gpupipe completion fish > ~/.config/fish/completions/gpupipe.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None  # click has a class for each of SHELLS
    # Not complete.source(): it runs bash to find out its version.
    program = click.get_current_context().find_root().command
    source = complete(program, {}, PROGRAM, _VARIABLE)
    script = source.source_template % source.source_vars()
    click.echo(_ADAPT[shell](script) if shell in _ADAPT else script)


def _adapt_bash(script: str) -> str:
    """Let bash complete KEY=VALUE: it splits words at "=", and writes a space after each word."""
    reply = "COMPREPLY+=($value)"
    no_space = "[[ $value == *= ]] && compopt -o nospace"
    return _WORD_BREAKS + script.replace(reply, f"{reply}\n            {no_space}")


def _adapt_zsh(script: str) -> str:
    """Let zsh write no space after KEY=."""
    add = "compadd -U -V unsorted"
    choose = "local space=' '; [[ -n ${completions[(r)*=]} ]] && space=''\n        "
    return script.replace(f"{add} -a", f'{choose}{add} -S "$space" -a')


_ADAPT = {"bash": _adapt_bash, "zsh": _adapt_zsh}
"""fish needs no change: it writes no space after "=" by itself."""


# --- what words are completed to


def complete_config(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Return the shipped configs, those in `configs/`, and the files that begin like this."""
    names = {*yaml_files.names("configs"), *_own_names("configs")}
    return [
        CompletionItem(name)
        for name in _matching([*sorted(names), *_files(incomplete)], incomplete)
    ]


def complete_override(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Return settings that begin like this, or values of the setting before the equals sign."""
    from gpupipe.config.loader_config import LoaderConfig

    key, equals, value = incomplete.partition("=")
    if not equals:
        keys = [_SOURCE, _PIPELINE, *LoaderConfig.model_fields]
        # No space follows the equals sign: the value comes next.
        return [CompletionItem(f"{name}=") for name in _matching(keys, key)]
    return [CompletionItem(f"{key}={v}") for v in _matching(_list_values(key), value)]


def complete_target(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Return the names of pipelines and steps."""
    from gpupipe.cli import listing

    items = [item.name for kind in ("pipeline", "step") for item in listing.list_items(kind)]
    return [CompletionItem(name) for name in _matching(items, incomplete)]


def complete_name(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Return the names of all that a config can name."""
    from gpupipe.cli import listing

    items = [item for kind in listing.KINDS for item in listing.list_items(kind)]
    kinds = {item.name: item.kind for item in reversed(items)}
    names = _matching(sorted(kinds), incomplete)
    return [CompletionItem(name, help=kinds[name]) for name in names]


def _list_values(key: str) -> Iterator[str]:
    """Yield the values that a setting may have, as far as they are names."""
    from gpupipe.config.loader_config import LoaderConfig
    from gpupipe.dataset.source import SOURCES
    from gpupipe.decoders import chain as decoders
    from gpupipe.runtime.registry import AUTO, ENGINES

    name = key.removeprefix("loader.")
    if key == _PIPELINE:
        yield from sorted({*yaml_files.names("pipelines"), *_own_names("pipelines")})
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
    """Yield the names that an annotation allows: those of its Literals, or true and false."""
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
        elif path.suffix in yaml_files.SUFFIXES:
            yield text


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
