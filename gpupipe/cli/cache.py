"""gpupipe cache: fill, inspect, shrink and verify the local cache of a remote data set."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from gpupipe.cli.console import Screen
from gpupipe.errors import ConfigError, DataError, Problem, counted

if TYPE_CHECKING:
    from gpupipe.cache.folder import CacheFolder
    from gpupipe.cache.status import Status
    from gpupipe.sources.remote import Remote

_POLL_SECONDS = 0.1


@click.group()
def cache() -> None:
    """The local cache of a remote data set (data.source: remote)."""


@cache.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--serve",
    is_flag=True,
    help="Go on when all is there or the cache is full: replace what epochs evict, until Ctrl-C.",
)
def fill(config: str, overrides: tuple[str, ...], serve: bool) -> None:
    """Fetch samples until the data set of CONFIG is in the cache, or the cache is full.

    It runs data.cache.samplers processes at a time, on this machine or, over a shared file system,
    on another than training.
    """
    from gpupipe.cache.worker_pool import Crew, cleaned

    source = _source(config, overrides)
    folder, rows = _opened(source)
    crew = Crew(
        source.dataset, source.cache, max(1, source.cache.samplers), "serve" if serve else "fill"
    )
    began, before = time.monotonic(), sum(s.samples for s in folder.manifest.known.values())
    with Screen(False) as screen:
        while (ended := crew.ended()) is None:
            folder.manifest.refresh()
            screen.progress(
                "filling", sum(s.samples for s in folder.manifest.alive().values()), rows
            )
            time.sleep(_POLL_SECONDS)
    crew.stop()
    cleaned(folder)
    _say_filled(folder, ended, time.monotonic() - began, before, rows)


@cache.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def status(config: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what the cache of CONFIG holds, and who fills it."""
    from gpupipe.cache import status as states

    state = states.of(_opened(_source(config, overrides), listed=False)[0])
    if as_json:
        click.echo(json.dumps(asdict(state), indent=2))
        return
    for name, value in _lines(state):
        click.echo(f" {name:<12} {value}")


@cache.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--to",
    "size",
    help="How much the cache may then take: 100GB; 0 for all that can go.  [default: "
    "low_water of max_bytes]",
)
def evict(config: str, overrides: tuple[str, ...], size: str | None) -> None:
    """Evict shards of the cache of CONFIG that no epoch is using, until it is small enough."""
    from gpupipe.cache import evict as evictions

    folder = _opened(_source(config, overrides), listed=False)[0]
    goal = (
        _bytes(size)
        if size is not None
        else int(folder.options.low_water * folder.options.max_bytes)
    )
    with folder.lock():
        names = evictions.down_to(folder, goal)
        used = folder.usage()
    click.echo(f"{counted(len(names), 'shard')} evicted; the cache takes {_size(used)}")
    if used > goal and size != "0":
        raise DataError(
            f"it should take {_size(goal)} at most, but epochs that are running use the "
            "rest, or it is not made of shards"
        )


@cache.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def verify(config: str, overrides: tuple[str, ...]) -> None:
    """Read every shard of the cache of CONFIG, and fetch those again that changed since they were
    published.

    Exits with 1 if one could not be fetched again.
    """
    from gpupipe.cache import verify as verification

    folder, rows = _opened(_source(config, overrides))
    with Screen(False) as screen:
        damaged = verification.damaged(
            folder, rows, lambda done, total: screen.progress("verifying", done, total)
        )
    for name, why in damaged.items():
        click.echo(f"{folder.shard(name)}: {why}")
    gone = verification.mend(folder, _filler(config, overrides, folder))
    click.echo(
        f"{counted(len(folder.manifest.alive()), 'shard')} in the cache; {len(damaged)} "
        f"damaged, {len(damaged.keys() - gone.keys())} of them fetched again"
    )
    for name, why in gone.items():
        click.echo(
            f"gpupipe: {folder.shard(name)}: cannot be fetched again: {why}; its samples "
            "will be drawn again",
            err=True,
        )
    if gone:
        raise SystemExit(1)


def _source(config: str, overrides: tuple[str, ...]) -> Remote:
    from gpupipe import config as configs
    from gpupipe.sources.remote import Remote

    checked = configs.read(config, overrides)
    if not isinstance(checked.source, Remote):
        raise ConfigError(
            [
                Problem(
                    config, f"data.source is '{checked.source_name}', but only 'remote' has a cache"
                )
            ]
        )
    return checked.source


def _opened(source: Remote, listed: bool = True) -> tuple[CacheFolder, int]:
    """Return the cache's folder, and the number of samples in the data set.

    Without `listed`, the data set is not listed, and the number is 0.
    """
    from gpupipe.cache.folder import prepared

    if not listed:
        return prepared(source.cache, source.dataset), 0
    with Screen(False) as screen:
        rows = len(source.index(screen.progress))
    folder = prepared(source.cache, source.dataset)
    return folder, rows


def _filler(config: str, overrides: tuple[str, ...], folder: CacheFolder) -> Any:
    from gpupipe.cache import listing
    from gpupipe.cache.fill import Filler
    from gpupipe.cache.store import Store

    source = _source(config, overrides)
    store = Store(source.dataset, source.cache.retries, source.cache.timeout)
    return Filler(folder, listing.opened(folder), store, source.seed, source.weight is not None)


def _say_filled(
    folder: CacheFolder, ended: list[dict[str, Any]], seconds: float, before: int, rows: int
) -> None:
    folder.manifest.refresh()
    alive = folder.manifest.alive().values()
    fetched, size = (
        sum(s.samples for s in folder.manifest.known.values()) - before,
        sum(e["bytes"] for e in ended),
    )
    click.echo(
        f"{counted(fetched, 'sample')} fetched, {_size(size)} in {seconds:.1f} s "
        f"({_size(size / seconds)}/s)"
    )
    share = (
        "the whole data set"
        if sum(s.samples for s in alive) == rows
        else f"{sum(s.samples for s in alive):,} of {rows:,} samples"
    )
    click.echo(
        f"{share} in {counted(len(alive), 'shard')}, generation "
        f"{folder.manifest.generation}: {folder.dir}"
    )
    failures = list(
        dict.fromkeys(why for e in ended for why in (*e["failures"], *e["lost"].values()))
    )
    if failures:
        raise DataError(
            "\n".join(
                [
                    f"{counted(sum(e['failed'] for e in ended), 'sample')} could not be "
                    "fetched, among them:",
                    *failures,
                ]
            )
        )


def _lines(state: Status) -> list[tuple[str, str]]:
    of_rows = "" if state.rows is None else f" of {state.rows:,}"
    hits = (
        "no epoch yet"
        if state.hit_rate is None
        else f"{state.hit_rate:.1%} of {state.asked:,} samples in {counted(state.epochs, 'epoch')}"
    )
    lines = [
        ("folder", state.dir),
        (
            "size",
            f"{_size(state.bytes)} of {_size(state.max_bytes)} "
            f"({state.bytes / state.max_bytes:.0%})",
        ),
        (
            "generation",
            f"{state.generation}: {state.samples:,}{of_rows} samples in "
            f"{counted(state.shards, 'shard')}; {state.evicted:,} evicted so far",
        ),
        ("in use", ", ".join(f"generation {g}" for g in state.pinned) or "by no epoch"),
        ("hit rate", hits),
        (
            "fetch rate",
            f"{_size(state.fetch_rate)}/s over {counted(len(state.samplers), 'sampler')}",
        ),
    ]
    for sampler in state.samplers:
        lines.append(
            (
                "sampler",
                f"{sampler.get('host')} {sampler.get('pid')}: {sampler.get('state')}, "
                f"{_size(sampler.get('bytes', 0))} fetched",
            )
        )
        lines += [
            ("", f"failed: {why}")
            for why in (*sampler.get("failures", []), *sampler.get("lost", {}).values())
        ]
    return lines


def _bytes(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise click.BadParameter(f"{text!r} is no size, such as 100GB", param_hint="--to") from None


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
