"""The items that a config can name, their summaries, and the completion of words in a shell.

    list_items    returns the configs, pipelines, steps, sources or engines
    completion    is the command that prints the script for a shell
    complete_*    return the words that the shell offers; click calls them

Summaries of gpupipe's own items are read from the text of their files, so that `gpupipe list`
imports neither pydantic nor NumPy. Only classes of plugins are imported.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args, get_origin

import click
from click.shell_completion import CompletionItem, get_completion_class

from gpupipe.runtime.registry import (
    ENGINE_GROUP,
    SOURCE_GROUP,
    STEP_GROUP,
    find_packages,
    find_plugin,
    list_modules,
)
from gpupipe.schema import yaml_files

OWN_PACKAGE = "gpupipe"
FOLDERS: dict[str, yaml_files.Kind] = {"config": "configs", "pipeline": "pipelines"}
"""The kinds of items that are files, and the folder of each."""
_GROUPS = {"step": STEP_GROUP, "source": SOURCE_GROUP, "engine": ENGINE_GROUP}
KINDS = (*FOLDERS, *_GROUPS)
"""The kinds of items, in the order in which they are listed."""
_MODELINE = "# yaml-language-server:"
"""The beginning of the comment that tells an editor the schema of a file."""
_SENTENCE = re.compile(r"(?<=[^.]\.)\s|(?<=:)$")


@dataclass(frozen=True)
class Item:
    """A config, pipeline, step, source or engine.

    Attributes:
        kind: "config", "pipeline", "step", "source" or "engine".
        name: Its name in YAML, or on the command line.
        summary: Its description, in one sentence.
        package: The package that it comes from.
    """

    kind: str
    name: str
    summary: str
    package: str = OWN_PACKAGE


def list_items(kind: str) -> list[Item]:
    """Return all items of a kind: those that ship with gpupipe, then those of plugins."""
    items = _list_files(kind) if kind in FOLDERS else _list_classes(kind)
    return sorted(items, key=lambda item: (item.package != OWN_PACKAGE, item.name))


def _list_files(kind: str) -> Iterator[Item]:
    for name in yaml_files.names(FOLDERS[kind]):
        text = find_file(kind, name).read_text(encoding="utf-8")
        yield Item(kind, name, first_sentence(_read_comment(text)))


def find_file(kind: str, name: str) -> Path:
    """Return the file of a built-in config or pipeline."""
    return yaml_files.folder(FOLDERS[kind]) / f"{name}.yaml"


def _list_classes(kind: str) -> Iterator[Item]:
    """Yield gpupipe's own steps, sources or engines, then those of plugins."""
    group, are_folders = _GROUPS[kind], kind == "engine"
    (folder,) = map(Path, importlib.import_module(group).__path__)
    builtin = list_modules(group, are_folders)
    for name, module in builtin.items():
        path = folder / (f"{module}/__init__.py" if are_folders else f"{module}.py")
        yield Item(kind, name, first_sentence(_read_docstring(name, path)))
    for name, package in find_packages(group).items():
        if name not in builtin:
            summary = _summarize_plugin(group, name)
            yield Item(kind, name, summary, package.removeprefix("the package "))


def _read_docstring(name: str, path: Path) -> str:
    """Return the docstring of the class that defines the item `name`, else that of its module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    class_name = name.replace("_", "")
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    own = next((node for node in classes if node.name.lower() == class_name), None)
    of_module = (ast.get_docstring(tree) or "").removeprefix(f"{name}: ")
    return (own and ast.get_docstring(own)) or of_module


def _summarize_plugin(group: str, name: str) -> str:
    try:
        plugin = find_plugin(group, name, object)
    except LookupError as e:
        return str(e.args[0])
    return first_sentence(inspect.getdoc(plugin) or "")


def _read_comment(text: str) -> str:
    """Return the comment at the beginning of a YAML file."""
    lines = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.strip("# ") for line in lines if not line.startswith(_MODELINE))


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring or comment, on one line."""
    paragraph = text.strip().partition("\n\n")[0]
    return _SENTENCE.split(" ".join(paragraph.split()), maxsplit=1)[0]


# --- the command completion

_SOURCE, _PIPELINE = "data.source", "pipeline"
_IMAGE_SIZE = "image_size"
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
    """Complete the name of a config of gpupipe or of the folder `configs`, or a file's path."""
    names = {*yaml_files.names("configs"), *_own_names("configs")}
    return [
        CompletionItem(name)
        for name in _matching([*sorted(names), *_files(incomplete)], incomplete)
    ]


def complete_override(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Complete KEY=VALUE: the name of a setting, or its value after the equals sign."""
    from gpupipe.config.loader_config import LoaderConfig

    key, equals, value = incomplete.partition("=")
    if not equals:
        keys = [_SOURCE, _PIPELINE, _IMAGE_SIZE, *LoaderConfig.model_fields]
        # No space follows the equals sign: the value comes next.
        return [CompletionItem(f"{name}=") for name in _matching(keys, key)]
    return [CompletionItem(f"{key}={v}") for v in _matching(_list_values(key), value)]


def complete_target(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a pipeline or step."""
    items = [item.name for kind in ("pipeline", "step") for item in list_items(kind)]
    return [CompletionItem(name) for name in _matching(items, incomplete)]


def complete_name(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a config, pipeline, step, source or engine."""
    items = [item for kind in KINDS for item in list_items(kind)]
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
