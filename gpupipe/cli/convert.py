"""The command `gpupipe convert`: writes a data set to tar or Parquet shards."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from gpupipe.cli.arguments import (
    ByteCount,
    ConfigName,
    JsonFile,
    OutputFolder,
    Overrides,
    options,
    write_json,
)
from gpupipe.cli.console import Screen, format_size
from gpupipe.cli.printing import announce, say
from gpupipe.errors import ConfigError, counted

if TYPE_CHECKING:
    from gpupipe.config import Config
    from gpupipe.conversion.convert import ConversionResult

_MANY = 5


@click.command()
@options
def convert(
    config: ConfigName,
    out: Annotated[Path, click.argument("out", type=OutputFolder())],
    overrides: Overrides,
    format: Annotated[
        Literal["tar", "parquet"], "tar: as WebDataset has them; parquet: as Hugging Face has them."
    ] = "tar",
    max_side: Annotated[
        int | None,
        click.IntRange(1, 65_500),
        "Make images with a longer side smaller, to so many pixels, as JPEGs.  [default: all stay]",
    ] = None,
    quality: Annotated[
        int | None, click.IntRange(1, 100), "The quality of these JPEGs.  [default: 90]"
    ] = None,
    raw: Annotated[
        bool, "Decode images, and store their pixels as .npy arrays; the config has no decode."
    ] = False,
    shard_size: Annotated[
        int | None, "SIZE", ByteCount(), "About how much a shard takes.  [default: 256MB]"
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Write all samples of CONFIG to shards in the folder OUT, and a config that reads them.

    The shards are plain tar or Parquet, which other programs read. Order, ids, labels, boxes and
    numbers stay, and so do the bytes of the files, unless an option changes them. Every shard is
    read back and compared before it gets its name. A conversion that was interrupted or killed goes
    on where it ended when the command is given again.
    """
    announce(f"reading {config}")
    from gpupipe import config as configs
    from gpupipe.conversion.convert import convert as run
    from gpupipe.conversion.plan import Options
    from gpupipe.runtime.installation import require_extra

    if format == "parquet":
        require_extra("parquet", ("pyarrow",), "writing Parquet")
    if raw and max_side is not None:
        raise click.UsageError("--raw keeps the pixels as they are decoded: leave out --max-side")
    if quality is not None and max_side is None:
        raise click.UsageError(
            "--quality is that of images that are made smaller: write --max-side, too"
        )
    checked = configs.read(config, overrides)
    _refuse_servers(checked)
    chosen = Options(
        format,
        max_side,
        quality or Options.quality,
        raw,
        shard_size or Options.shard_bytes,
    )
    with Screen(False) as screen:
        result = run(checked, out, chosen, screen.progress)
    for line in _describe(result):
        say(line)
    write_json(json_path, _as_json(result))


def _refuse_servers(config: "Config") -> None:
    if config.loader.server:
        why = "a server makes the batches, and this command reads files: leave loader.server out"
        raise ConfigError.at("loader.server", why)


def _describe(result: "ConversionResult") -> Iterator[str]:
    """Yield the lines that `convert` prints of a result."""
    plan, shards = result.plan, [shard for shard in result.shards if shard.samples]
    rate = result.source_bytes / max(result.seconds, 1e-3)
    yield (
        f"{counted(result.samples, 'sample')} in {counted(len(shards), 'shard')} of "
        f"{plan.options.format}, every one read back and compared: {result.config.parent}"
    )
    if result.made < len(result.shards):
        yield f"  {result.made} of the shards made now, the others by an earlier run"
    else:
        yield f"  in {result.seconds:.1f} s: {format_size(rate)}/s of the source"
    share = result.bytes / max(1, result.source_bytes) - 1
    yield (
        f"  size: {format_size(result.source_bytes)} before, {format_size(result.bytes)} now "
        f"({share:+.1%})"
    )
    yield from (f"  changed: {change}" for change in _list_changes(result))
    yield from (f"    {reason}" for reason in result.skipped[:_MANY])
    if (more := len(result.skipped) - _MANY) > 0:
        yield f"    and {more:,} more: see manifest.jsonl"
    yield f"  kept: {', '.join(_list_kept(result))}"
    yield f"Train on it: gpupipe run {result.config}"


def _list_changes(result: "ConversionResult") -> Iterator[str]:
    options, changes = result.plan.options, result.changes
    if number := changes.get("reduced"):
        yield (
            f"{counted(number, 'file')} made smaller, to {options.max_side} pixels, as JPEG of "
            f"quality {options.quality} (masks as PNG); boxes and points fit them"
        )
    if number := changes.get("kept"):
        yield (
            f"{counted(number, 'file')} larger than {options.max_side} pixels not made smaller: "
            "more than 8 bits a channel, which a JPEG cannot hold"
        )
    if number := changes.get("decoded"):
        yield f"{counted(number, 'file')} decoded to arrays, so the config has no decode"
    if result.skipped:
        yield (
            f"{counted(len(result.skipped), 'sample')} left out, as loader.on_error is skip, so "
            "later samples have smaller ids"
        )
    if result.is_renumbered:
        yield "ids count from 0, and those of data.shards do not, so an epoch draws other numbers"


def _list_kept(result: "ConversionResult") -> Iterator[str]:
    plan = result.plan
    if not result.changes:
        yield "all bytes of the files"
    has_ids = not (result.skipped or result.is_renumbered)
    yield "the order and the ids" if has_ids else "the order"
    if plan.has_label:
        yield "labels"
    if plan.classes:
        yield counted(len(plan.classes), "name of a class", "names of classes")
    yield from (f"'{name}'" for name in (*plan.values, *plan.lists))


def _as_json(result: "ConversionResult") -> dict[str, Any]:
    return {
        "schema": "gpupipe-convert-1",
        "config": str(result.config),
        "format": result.plan.options.format,
        "samples": result.samples,
        "shards": [shard.shard for shard in result.shards if shard.samples],
        "made_now": result.made,
        "seconds": round(result.seconds, 3),
        "source_bytes": result.source_bytes,
        "bytes": result.bytes,
        "changes": dict(result.changes),
        "skipped": result.skipped,
    }
