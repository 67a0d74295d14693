"""The commands `gpupipe list` and `gpupipe show`, which print what a config can name.

That is configs, pipelines, steps, sources and engines, which catalog.py finds, and their
parameters.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpupipe.cli.arguments import JsonFile, options, write_json
from gpupipe.cli.catalog import (
    FOLDERS,
    KINDS,
    OWN_PACKAGE,
    Item,
    complete_name,
    find_file,
    list_items,
)
from gpupipe.cli.console import console
from gpupipe.cli.printing import announce, say
from gpupipe.errors import GpupipeError, did_you_mean, nearest

if TYPE_CHECKING:
    import pydantic

_LOADER = "loader"


def _load_class(kind: str, name: str) -> type[Any]:
    """Return the class of a step or source. Raises GpupipeError if its package is broken."""
    from gpupipe.dataset.source import SOURCES
    from gpupipe.pipeline.step_registry import STEPS

    try:
        return STEPS.find(name) if kind == "step" else SOURCES.find(name)
    except LookupError as e:
        raise GpupipeError(str(e.args[0])) from e


def _parse_kind(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Convert the argument KIND to the singular: "steps" becomes "step"."""
    if value is None:
        return None
    singular = value.removesuffix("s")
    if singular not in KINDS:
        raise click.BadParameter(f"'{value}'{did_you_mean(value, [f'{kind}s' for kind in KINDS])}")
    return singular


@click.command("list")
@click.argument("kind", callback=_parse_kind, required=False, metavar="[KIND]")
@options
def list_(kind: str | None, json_path: JsonFile = None) -> None:
    """List what a config can name, with one line each: configs, pipelines, steps, sources and
    engines, those of installed plugins too. KIND is one of these words.
    """
    items = {k: list_items(k) for k in ([kind] if kind else KINDS)}
    out = console()
    for k, of_kind in items.items():
        out.print(items_table(f"{k}s", of_kind))
    parts = ("name", "summary", "package")
    listed = {
        f"{k}s": [{part: getattr(item, part) for part in parts} for item in of_kind]
        for k, of_kind in items.items()
    }
    write_json(json_path, listed)


def items_table(title: str, items: Iterable[Item]) -> Any:
    """Return a table with one row per item."""
    from gpupipe.bench.tables import new_table

    items = list(items)
    is_mixed = any(item.package != OWN_PACKAGE for item in items)
    table = new_table(title, "name", "is", *(["package"] if is_mixed else []))
    for item in items:
        table.add_row(item.name, item.summary, *([item.package] if is_mixed else []))
    return table


@click.command()
@click.argument("name", shell_complete=complete_name)
@click.option(
    "--kind",
    callback=_parse_kind,
    metavar="KIND",
    help="Where to look, if several kinds have the name.",
)
def show(name: str, kind: str | None) -> None:
    """Print what NAME is: a config or pipeline file as it is; the parameters of a step or source;
    a setting such as loader.batch_size, or all of loader.
    """
    if kind is None and name.partition(".")[0] == _LOADER:
        _show_setting(name)
        return
    kinds = (kind,) if kind else KINDS
    items = [item for k in kinds for item in list_items(k) if item.name == name]
    if not items:
        announce(f"looking for names such as {name}")
        raise click.BadParameter(_explain_unknown(name, kinds), param_hint="NAME")
    for item in items:
        _show_item(item, is_single=len(items) == 1)


def _explain_unknown(name: str, kinds: Sequence[str]) -> str:
    """Return the message for an unknown name, with the most similar name of these kinds."""
    from gpupipe.config.loader_config import LoaderConfig

    near = nearest(name, {item.name for kind in kinds for item in list_items(kind)})
    if near is None and len(kinds) > 1:
        setting = nearest(name, LoaderConfig.model_fields)
        near = setting and f"{_LOADER}.{setting}"
    hint = f"did you mean '{near}'?" if near else "'gpupipe list' shows all names"
    return f"there is no '{name}': {hint}"


def _show_item(item: Item, is_single: bool) -> None:
    if item.kind in FOLDERS:
        _show_file(item, is_single)
        return
    origin = "" if item.package == OWN_PACKAGE else f" of {item.package}"
    click.echo(click.style(f"{item.kind} {item.name}", bold=True) + origin)
    if item.kind == "engine":
        say(item.summary)
    else:
        _print_model(_load_class(item.kind, item.name))


def _show_file(item: Item, is_single: bool) -> None:
    path = find_file(item.kind, item.name)
    if not is_single:
        click.echo(f"# {item.kind} {item.name}: {path}")
    click.echo(path.read_text(encoding="utf-8"), nl=False)
    if not is_single:
        click.echo()


def _print_model(model: "type[pydantic.BaseModel]") -> None:
    """Print the description and the parameters of a step, a source or a group of settings."""
    from rich.markup import escape

    from gpupipe.bench.tables import new_table
    from gpupipe.cli.parameters import describe_parameters, summarize

    say(summarize(model))
    parameters = describe_parameters(model)
    if not parameters:
        return
    table = new_table("", "parameter", "type", "default", "meaning")
    for p in parameters:
        default = "required" if p.is_required else p.default
        table.add_row(*map(escape, (p.name, p.type_text, default, p.meaning)))
    console().print(table)


def _show_setting(name: str) -> None:
    """Print a setting of `loader:` with its nested settings; for "loader", print all settings."""
    announce("reading the settings of loader")
    from gpupipe.cli.parameters import describe_parameters
    from gpupipe.config.loader_config import LoaderConfig

    model: type[pydantic.BaseModel] = LoaderConfig
    path = name.split(".")[1:]
    for n, part in enumerate(path):
        settings = {p.name: p for p in describe_parameters(model)}
        if part not in settings:
            raise click.BadParameter(
                f"{'.'.join([_LOADER, *path[:n]])} has no setting "
                f"'{part}'{did_you_mean(part, settings)}",
                param_hint="NAME",
            )
        setting = settings[part]
        if n == len(path) - 1:
            default = "required" if setting.is_required else setting.default
            click.secho(f"setting {name}", bold=True)
            say(f"type: {setting.type_text}\ndefault: {default}\n{setting.meaning}")
        if setting.model is None:
            if n < len(path) - 1:
                raise click.BadParameter(f"{part} has no settings of its own", param_hint="NAME")
            return
        model = setting.model
    _print_model(model)
