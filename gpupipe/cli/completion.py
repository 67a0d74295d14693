"""Shell completion of commands, configs and settings.

`gpupipe completion` prints the script for a shell. click calls the functions complete_*, which
return the words that the shell offers.
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
    """Make bash complete KEY=VALUE: it must not split words at "=", nor add a space after it."""
    reply = "COMPREPLY+=($value)"
    no_space = "[[ $value == *= ]] && compopt -o nospace"
    return _WORD_BREAKS + script.replace(reply, f"{reply}\n            {no_space}")


def _adapt_zsh(script: str) -> str:
    """Change the script so that zsh adds no space after KEY=."""
    add = "compadd -U -V unsorted"
    choose = "local space=' '; [[ -n ${completions[(r)*=]} ]] && space=''\n        "
    return script.replace(f"{add} -a", f'{choose}{add} -S "$space" -a')


_ADAPT = {"bash": _adapt_bash, "zsh": _adapt_zsh}
"""Functions that adapt click's script, by shell. fish needs none: it adds no space after "="."""


# --- the words that a shell offers


def complete_config(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Complete a config: a shipped one, one of the folder `configs`, or the path of a file."""
    names = {*yaml_files.names("configs"), *_own_names("configs")}
    return [
        CompletionItem(name)
        for name in _matching([*sorted(names), *_files(incomplete)], incomplete)
    ]


def complete_override(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Complete KEY=VALUE: the name of a setting, or after the equals sign its value."""
    from gpupipe.config.loader_config import LoaderConfig

    key, equals, value = incomplete.partition("=")
    if not equals:
        keys = [_SOURCE, _PIPELINE, *LoaderConfig.model_fields]
        # No space follows the equals sign: the value comes next.
        return [CompletionItem(f"{name}=") for name in _matching(keys, key)]
    return [CompletionItem(f"{key}={v}") for v in _matching(_list_values(key), value)]


def complete_target(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a pipeline or step."""
    from gpupipe.cli import catalog

    items = [item.name for kind in ("pipeline", "step") for item in catalog.list_items(kind)]
    return [CompletionItem(name) for name in _matching(items, incomplete)]


def complete_name(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a config, pipeline, step, source or engine."""
    from gpupipe.cli import catalog

    items = [item for kind in catalog.KINDS for item in catalog.list_items(kind)]
    kinds = {item.name: item.kind for item in reversed(items)}
    names = _matching(sorted(kinds), incomplete)
    return [CompletionItem(name, help=kinds[name]) for name in names]


def _list_values(key: str) -> Iterator[str]:
    """Yield the values of a setting that chooses among names; nothing for numbers and paths."""
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
    """Yield the strings of the Literals in an annotation; for bool, "true" and "false"."""
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
    """Yield the subfolders and the YAML and JSON files in the folder of an incomplete path."""
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
