"""gpupipe cache: fill, inspect, shrink and verify the local cache of a remote data set; list and
empty the caches of decoded images.
"""

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import click

from gpupipe.cli.arguments import AllAsJson, ConfigName, Overrides, options
from gpupipe.cli.console import Screen, format_size
from gpupipe.cli.decoded_caches import empty_decoded, list_decoded
from gpupipe.errors import ConfigError, DataError, Problem, counted

if TYPE_CHECKING:
    from gpupipe.cache.cache_folder import CacheFolder
    from gpupipe.cache.maintenance import Status
    from gpupipe.sources.remote import Remote

_POLL_SECONDS = 0.1


@click.group()
def cache() -> None:
    """The local cache of a remote data set (data.source: remote), and decoded images.

    list and empty are for decoded images (data.cache_decoded), the others for remote data.
    """


@cache.command()
@options
def fill(
    config: ConfigName,
    overrides: Overrides,
    serve: Annotated[
        bool,
        "Go on when all is there or the cache is full: replace what epochs evict, until Ctrl-C.",
    ] = False,
) -> None:
    """Fetch samples until the data set of CONFIG is in the cache, or the cache is full.

    It runs data.cache.workers processes at a time, on this machine or, over a shared file system,
    on another than training.
    """
    from gpupipe.cache.filling.worker_pool import WorkerPool

    source = _read_source(config, overrides)
    folder, rows = _open_cache(source)
    workers = WorkerPool(
        source.dataset, source.cache, max(1, source.cache.workers), "serve" if serve else "fill"
    )
    began, before = time.monotonic(), sum(s.samples for s in folder.commit_log.published.values())
    with Screen(False) as screen:
        while (outcomes := workers.read_outcomes()) is None:
            folder.commit_log.refresh()
            screen.progress(
                "filling", sum(s.samples for s in folder.commit_log.live_shards().values()), rows
            )
            time.sleep(_POLL_SECONDS)
    workers.stop()
    with folder.lock():
        folder.remove_leftovers()
    _print_result(folder, outcomes, time.monotonic() - began, before, rows)


@cache.command()
@options
def status(config: ConfigName, overrides: Overrides, as_json: AllAsJson = False) -> None:
    """Show what the cache of CONFIG holds, and who fills it."""
    from gpupipe.cache import maintenance as states

    state = states.read_status(_open_cache(_read_source(config, overrides), needs_listing=False)[0])
    if as_json:
        click.echo(json.dumps(asdict(state), indent=2))
        return
    for name, value in _status_lines(state):
        click.echo(f" {name:<12} {value}")


@cache.command()
@options
def evict(
    config: ConfigName,
    overrides: Overrides,
    size: Annotated[
        str | None,
        "--to",
        "How much the cache may then take: 100GB; 0 for all that can go.  [default: "
        "low_water of max_bytes]",
    ] = None,
) -> None:
    """Evict shards of the cache of CONFIG that no epoch is using, until it is small enough."""
    from gpupipe.cache import evict as evictions

    folder = _open_cache(_read_source(config, overrides), needs_listing=False)[0]
    goal = (
        _parse_bytes(size)
        if size is not None
        else int(folder.options.low_water * folder.options.max_bytes)
    )
    with folder.lock():
        names = evictions.evict_down_to(folder, goal)
        used = folder.count_bytes()
    click.echo(f"{counted(len(names), 'shard')} evicted; the cache takes {format_size(used)}")
    if used > goal and size != "0":
        raise DataError(
            f"it should take {format_size(goal)} at most, but epochs that are running use the "
            "rest, or it is not made of shards"
        )


@cache.command()
@options
def verify(config: ConfigName, overrides: Overrides) -> None:
    """Read every shard of the cache of CONFIG, and fetch those again that changed since they were
    published.

    Exits with 1 if one could not be fetched again.
    """
    from gpupipe.cache import maintenance as verification

    folder, rows = _open_cache(_read_source(config, overrides))
    with Screen(False) as screen:
        damaged = verification.remove_damaged_shards(
            folder, rows, lambda done, total: screen.progress("verifying", done, total)
        )
    for name, why in damaged.items():
        click.echo(f"{folder.shard_path(name)}: {why}")
    gone = verification.fetch_missing_shards(folder, _create_filler(config, overrides, folder))
    click.echo(
        f"{counted(len(folder.commit_log.live_shards()), 'shard')} in the cache; {len(damaged)} "
        f"damaged, {len(damaged.keys() - gone.keys())} of them fetched again"
    )
    for name, why in gone.items():
        click.echo(
            f"gpupipe: {folder.shard_path(name)}: cannot be fetched again: {why}; its samples "
            "will be drawn again",
            err=True,
        )
    if gone:
        raise SystemExit(1)


cache.add_command(list_decoded)
cache.add_command(empty_decoded)


def _read_source(config: ConfigName, overrides: Overrides) -> "Remote":
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


def _open_cache(source: "Remote", needs_listing: bool = True) -> "tuple[CacheFolder, int]":
    """Return the cache's folder, and the number of samples in the data set.

    Without `needs_listing`, the data set is not listed, and the number is 0.
    """
    from gpupipe.cache.cache_folder import prepare_folder

    if not needs_listing:
        return prepare_folder(source.cache, source.dataset), 0
    with Screen(False) as screen:
        rows = len(source.index(screen.progress))
    folder = prepare_folder(source.cache, source.dataset)
    return folder, rows


def _create_filler(config: ConfigName, overrides: Overrides, folder: "CacheFolder") -> Any:
    from gpupipe.cache import listing
    from gpupipe.cache.filling.fill import Filler
    from gpupipe.cache.store import Store

    source = _read_source(config, overrides)
    store = Store(source.dataset, source.cache.retries, source.cache.timeout)
    return Filler(folder, listing.load(folder), store, source.seed, source.weight is not None)


def _print_result(
    folder: "CacheFolder", outcomes: list[dict[str, Any]], seconds: float, before: int, rows: int
) -> None:
    folder.commit_log.refresh()
    live = folder.commit_log.live_shards().values()
    fetched, size = (
        sum(s.samples for s in folder.commit_log.published.values()) - before,
        sum(o["bytes"] for o in outcomes),
    )
    click.echo(
        f"{counted(fetched, 'sample')} fetched, {format_size(size)} in {seconds:.1f} s "
        f"({format_size(size / seconds)}/s)"
    )
    share = (
        "the whole data set"
        if sum(s.samples for s in live) == rows
        else f"{sum(s.samples for s in live):,} of {rows:,} samples"
    )
    click.echo(
        f"{share} in {counted(len(live), 'shard')}, generation "
        f"{folder.commit_log.generation}: {folder.dir}"
    )
    failures = list(
        dict.fromkeys(why for o in outcomes for why in (*o["failures"], *o["lost"].values()))
    )
    if failures:
        raise DataError(
            "\n".join(
                [
                    f"{counted(sum(o['failed'] for o in outcomes), 'sample')} could not be "
                    "fetched, among them:",
                    *failures,
                ]
            )
        )


def _status_lines(state: "Status") -> list[tuple[str, str]]:
    of_rows = "" if state.rows is None else f" of {state.rows:,}"
    hits = (
        "no epoch yet"
        if state.hit_rate is None
        else f"{state.hit_rate:.1%} of {state.requested:,} samples in "
        f"{counted(state.epochs, 'epoch')}"
    )
    lines = [
        ("folder", state.dir),
        (
            "size",
            f"{format_size(state.bytes)} of {format_size(state.max_bytes)} "
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
            f"{format_size(state.fetch_rate)}/s over {counted(len(state.workers), 'worker')}",
        ),
    ]
    for worker in state.workers:
        lines.append(
            (
                "worker",
                f"{worker.get('host')} {worker.get('pid')}: {worker.get('state')}, "
                f"{format_size(worker.get('bytes', 0))} fetched",
            )
        )
        lines += [
            ("", f"failed: {why}")
            for why in (*worker.get("failures", []), *worker.get("lost", {}).values())
        ]
    return lines


def _parse_bytes(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise click.BadParameter(f"{text!r} is no size, such as 100GB", param_hint="--to") from None
