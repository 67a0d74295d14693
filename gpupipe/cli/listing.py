"""The commands list and show: what can be named in a config, and what its parameters are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpupipe.cli import catalog
from gpupipe.cli.arguments import AsJson, complete_name, options
from gpupipe.cli.catalog import KINDS, OWN_PACKAGE, Item
from gpupipe.cli.console import console
from gpupipe.errors import did_you_mean, nearest

if TYPE_CHECKING:
    import pydantic

_LOADER = "loader"
_FOLDERS = {"config": "configs", "pipeline": "pipelines"}


def _parse_kind(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the singular of a kind of items."""
    if value is None:
        return None
    singular = value.removesuffix("s")
    if singular not in KINDS:
        raise click.BadParameter(f"'{value}'{did_you_mean(value, [f'{kind}s' for kind in KINDS])}")
    return singular


@click.command("list")
@click.argument("kind", callback=_parse_kind, required=False, metavar="[KIND]")
@options
def list_(kind: str | None, as_json: AsJson = False) -> None:
    """List what a config can name, with one line each: configs, pipelines, steps, sources and
    engines, those of installed plugins too. KIND is one of these words.
    """
    items = {k: catalog.list_items(k) for k in ([kind] if kind else KINDS)}
    if as_json:
        click.echo(
            json.dumps({f"{k}s": [_as_json(item) for item in items[k]] for k in items}, indent=2)
        )
        return
    out = console()
    for k, found in items.items():
        out.print(items_table(f"{k}s", found))


def _as_json(item: Item) -> dict[str, str]:
    return {"name": item.name, "summary": item.summary, "package": item.package}


def items_table(title: str, items: Iterable[Item]) -> Any:
    """Return a table with one line per item; a summary that does not fit ends in an ellipsis."""
    from gpupipe.bench.tables import new_table

    items = list(items)
    is_mixed = any(item.package != OWN_PACKAGE for item in items)
    table = new_table(title, "name", "is", *(["package"] if is_mixed else []))
    # In a table that expands, rich leaves to a column with a ratio what the others do not need.
    table.expand, table.columns[1].ratio = True, 1
    table.columns[1].no_wrap, table.columns[1].overflow = True, "ellipsis"
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
    found = [item for k in kinds for item in catalog.list_items(k) if item.name == name]
    if not found:
        raise click.BadParameter(_explain_unknown(name, kinds), param_hint="NAME")
    for item in found:
        _show_item(item, is_single=len(found) == 1)


def _explain_unknown(name: str, kinds: Sequence[str]) -> str:
    """Return the message for an unknown name, with the nearest one of these kinds."""
    near = nearest(name, {item.name for kind in kinds for item in catalog.list_items(kind)})
    if near is None and len(kinds) > 1:
        setting = nearest(name, _loader_model().model_fields)
        near = setting and f"{_LOADER}.{setting}"
    hint = f"did you mean '{near}'?" if near else "'gpupipe list' shows all names"
    return f"there is no '{name}': {hint}"


def _show_item(item: Item, is_single: bool) -> None:
    if item.kind in _FOLDERS:
        _show_file(item, is_single)
        return
    out = console()
    origin = "" if item.package == OWN_PACKAGE else f" of {item.package}"
    out.print(f"[bold]{item.kind} {item.name}[/]{origin}", highlight=False)
    if item.kind == "engine":
        out.print(item.summary, highlight=False, soft_wrap=True)
        return
    from gpupipe.cli.parameters import summarize

    model = catalog.load_class(item.kind, item.name)
    out.print(summarize(model), highlight=False, markup=False, soft_wrap=True)
    _print_parameters(model)


def _show_file(item: Item, is_single: bool) -> None:
    from gpupipe.schema import builtin_configs

    folder = builtin_configs.folder(_FOLDERS[item.kind])  # type: ignore[arg-type]
    path = folder / f"{item.name}.yaml"
    if not is_single:
        click.echo(f"# {item.kind} {item.name}: {path}")
    click.echo(path.read_text(encoding="utf-8"), nl=False)
    if not is_single:
        click.echo()


def _print_parameters(model: type[pydantic.BaseModel]) -> None:
    from gpupipe.bench.tables import new_table
    from gpupipe.cli.parameters import describe_parameters

    parameters = describe_parameters(model)
    if not parameters:
        return
    table = new_table("", "parameter", "type", "default", "meaning")
    for p in parameters:
        default = "must be written" if p.is_required else p.default
        table.add_row(*map(_escape, (p.name, p.type_words, default, p.meaning)))
    console().print(table)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _loader_model() -> type[pydantic.BaseModel]:
    from gpupipe.config.loader_config import LoaderConfig

    return LoaderConfig


def _show_setting(name: str) -> None:
    """Print a setting of `loader:`, or all settings, with those below it."""
    from gpupipe.cli.parameters import describe_parameters, summarize

    out, model = console(), _loader_model()
    path = name.split(".")[1:]
    for n, part in enumerate(path):
        known = {p.name: p for p in describe_parameters(model)}
        if part not in known:
            raise click.BadParameter(
                f"{'.'.join([_LOADER, *path[:n]])} has no setting "
                f"'{part}'{did_you_mean(part, known)}",
                param_hint="NAME",
            )
        found = known[part]
        if n == len(path) - 1:
            default = "must be written" if found.is_required else found.default
            out.print(f"[bold]setting {name}[/]", highlight=False)
            for line in (f"type: {found.type_words}", f"default: {default}", found.meaning):
                out.print(line, highlight=False, markup=False, soft_wrap=True)
        if found.model is None:
            if n < len(path) - 1:
                raise click.BadParameter(f"{part} has no settings of its own", param_hint="NAME")
            return
        model = found.model
    out.print(summarize(model), highlight=False, markup=False, soft_wrap=True)
    _print_parameters(model)
