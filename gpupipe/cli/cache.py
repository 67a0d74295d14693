"""The commands of `gpupipe cache`: fill, inspect, shrink and verify the local cache of a remote
data set; list and empty the caches of decoded images.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from gpupipe.cli.arguments import ByteCount, ConfigName, JsonFile, Overrides, options, write_json
from gpupipe.cli.console import Screen, format_size
from gpupipe.cli.group import SubcommandGroup
from gpupipe.cli.printing import announce, print_error, say
from gpupipe.errors import ConfigError, DataError, counted

if TYPE_CHECKING:
    from gpupipe.cache.cache_folder import CacheFolder
    from gpupipe.cache.maintenance import Status
    from gpupipe.config import Config
    from gpupipe.decoded_cache.location import CacheState
    from gpupipe.sources.remote import Remote

_POLL_SECONDS = 0.1
Where = Annotated[
    Literal["memory", "disk"] | None, "Only those in memory, or on disk.  [default: both]"
]


@click.group(cls=SubcommandGroup)
def cache() -> None:
    """The local cache of a remote data set (data.source: remote), and decoded images.

    The commands list and empty are for decoded images (data.cache_decoded), all others for remote
    data.
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

    It runs data.cache.workers processes on this machine. Training may run on another machine, if
    both share the file system of the cache.
    """
    announce(f"reading {config}")
    from gpupipe.cache.worker_pool import WorkerPool
    from gpupipe.config import locate_errors

    checked, source = _read_source(config, overrides)
    folder, rows = _open_listed_cache(checked, source)
    log = folder.commit_log
    workers = WorkerPool(
        source.dataset, source.cache, max(1, source.cache.workers), "serve" if serve else "fill"
    )
    began, before = time.monotonic(), sum(s.samples for s in log.published.values())
    with Screen(False) as screen, locate_errors(checked, "data"):
        while (outcomes := workers.read_outcomes()) is None:
            log.refresh()
            screen.progress("filling", _count_rows(folder), rows)
            time.sleep(_POLL_SECONDS)
    workers.stop()
    with folder.lock():
        folder.remove_leftovers()
    _print_result(folder, outcomes, time.monotonic() - began, before, rows)


@cache.command()
@options
def status(config: ConfigName, overrides: Overrides, json_path: JsonFile = None) -> None:
    """Show what the cache of CONFIG holds, and who fills it."""
    announce(f"reading {config}")
    from gpupipe.cache import maintenance

    state = maintenance.read_status(_open_cache(_read_source(config, overrides)[1]))
    _print_lines(_describe_status(state))
    write_json(json_path, asdict(state))


@cache.command()
@options
def evict(
    config: ConfigName,
    overrides: Overrides,
    size: Annotated[
        int | None,
        "--to",
        "SIZE",
        ByteCount(),
        "How much the cache may then take: 100GB; 0 for all that can go.  [default: "
        "low_water of max_bytes]",
    ] = None,
) -> None:
    """Evict shards that no epoch uses from the cache of CONFIG, until the cache is small enough."""
    announce(f"reading {config}")
    from gpupipe.cache import evict as evictions

    folder = _open_cache(_read_source(config, overrides)[1])
    low_water = int(folder.options.low_water * folder.options.max_bytes)
    goal = low_water if size is None else size
    with folder.lock():
        names = evictions.evict_down_to(folder, goal)
        used = folder.count_bytes()
    say(f"{counted(len(names), 'shard')} evicted; the cache takes {format_size(used)}")
    if used > goal and size != 0:
        raise DataError(
            f"it should take {format_size(goal)} at most, but epochs that are running use the "
            "rest, or it is not made of shards"
        )


@cache.command()
@options
def verify(config: ConfigName, overrides: Overrides) -> None:
    """Read every shard in the cache of CONFIG, and fetch damaged or missing shards again.

    Exits with 1 if a shard could not be fetched again.
    """
    announce(f"reading {config}")
    from gpupipe.cache import maintenance
    from gpupipe.cache.stored_fill import create_filler
    from gpupipe.config import locate_errors

    checked, source = _read_source(config, overrides)
    folder, rows = _open_listed_cache(checked, source)
    with Screen(False) as screen:
        damaged = maintenance.remove_damaged_shards(
            folder, rows, lambda done, total: screen.progress("verifying", done, total)
        )
    for name, why in damaged.items():
        say(f"{folder.shard_path(name)}: {why}")
    with locate_errors(checked, "data"):
        gone = maintenance.fetch_missing_shards(folder, create_filler(folder, source.dataset))
    say(
        f"{counted(len(folder.commit_log.live_shards()), 'shard')} in the cache; {len(damaged)} "
        f"damaged, {len(damaged.keys() - gone.keys())} of them fetched again"
    )
    for name, why in gone.items():
        print_error(
            f"{folder.shard_path(name)}: cannot be fetched again: {why}; its samples will be drawn "
            "again"
        )
    if gone:
        raise SystemExit(1)


@cache.command(name="list")
@options
def list_decoded(where: Where = None, json_path: JsonFile = None) -> None:
    """Show the caches of decoded images on this machine (data.cache_decoded)."""
    announce("looking for caches")
    from gpupipe.decoded_cache import location

    states = location.list_caches((where,) if where else location.PLACES)
    if not states:
        say("there are no caches of decoded images")
    for state in states:
        click.echo(state.path)
        _print_lines(_describe_decoded(state))
    write_json(json_path, [asdict(state) for state in states])


@cache.command(name="empty")
@options
def empty_decoded(where: Where = None) -> None:
    """Remove the caches of decoded images on this machine (data.cache_decoded).

    A process that uses such a cache continues to do so. The memory is free when the process ends.
    """
    announce("looking for caches")
    from gpupipe.decoded_cache import location

    states = location.empty_caches((where,) if where else location.PLACES)
    size = format_size(sum(state.used_bytes for state in states))
    in_use = sum(state.in_use for state in states)
    later = f"; {in_use} of them in use, and free when their processes end" if in_use else ""
    caches = counted(len(states), "cache of decoded images", "caches of decoded images")
    say(f"{caches} removed, {size}{later}")


def _read_source(config: ConfigName, overrides: Overrides) -> "tuple[Config, Remote]":
    from gpupipe import config as configs
    from gpupipe.sources.remote import Remote

    checked = configs.read(config, overrides)
    if not isinstance(checked.source, Remote):
        why = f"data.source is '{checked.source_name}', but only 'remote' has a cache"
        raise ConfigError.at(config, why)
    return checked, checked.source


def _open_cache(source: "Remote") -> "CacheFolder":
    from gpupipe.cache.cache_folder import prepare_folder

    return prepare_folder(source.cache, source.dataset)


def _open_listed_cache(checked: "Config", source: "Remote") -> "tuple[CacheFolder, int]":
    """Index the data set; return its cache folder and its number of rows: samples, or shards."""
    from gpupipe.cache import listing
    from gpupipe.config import build_index

    with Screen(False) as screen:
        build_index(checked, screen.progress)
    folder = _open_cache(source)
    return folder, len(listing.load(folder))


def _count_rows(folder: "CacheFolder") -> int:
    """Return how many rows of the data set are in the cache: samples, or shards of the store."""
    shards = folder.commit_log.live_shards()
    return len(shards) if folder.has_stored_shards else sum(s.samples for s in shards.values())


def _print_result(
    folder: "CacheFolder", outcomes: list[dict[str, Any]], seconds: float, before: int, rows: int
) -> None:
    log = folder.commit_log
    log.refresh()
    live = log.live_shards().values()
    fetched = sum(s.samples for s in log.published.values()) - before
    size, present = sum(o["bytes"] for o in outcomes), sum(s.samples for s in live)
    if folder.has_stored_shards:
        share = "the whole data set" if len(live) == rows else f"{present:,} samples"
        shards = f"{len(live):,} of {counted(rows, 'shard')}"
    else:
        share = "the whole data set" if present == rows else f"{present:,} of {rows:,} samples"
        shards = counted(len(live), "shard")
    say(
        f"{counted(fetched, 'sample')} fetched, {format_size(size)} in {seconds:.1f} s "
        f"({format_size(size / seconds)}/s)"
    )
    say(f"{share} in {shards}, generation {log.generation}: {folder.dir}")
    failures = dict.fromkeys(why for o in outcomes for why in (*o["failures"], *o["lost"].values()))
    missing = rows - _count_rows(folder)
    if failures and missing:
        noun = "shard" if folder.has_stored_shards else "sample"
        # Each worker has its own count, so what several workers cannot fetch is counted twice.
        failed = counted(min(max(1, sum(o["failed"] for o in outcomes)), missing), noun)
        raise DataError("\n".join([f"{failed} could not be fetched, among them:", *failures]))


def _print_lines(lines: Iterator[tuple[str, str]]) -> None:
    for name, value in lines:
        say(f" {name:<12} {value}")


def _describe_status(state: "Status") -> Iterator[tuple[str, str]]:
    yield "folder", state.dir
    share = f"{state.bytes / state.max_bytes:.0%}"
    yield "size", f"{format_size(state.bytes)} of {format_size(state.max_bytes)} ({share})"
    of_rows = "" if state.rows is None else f" of {state.rows:,}"
    samples = f"{state.samples:,}" + of_rows * (not state.has_stored_shards)
    shards = f"{state.shards:,}{of_rows} shards"
    if not state.has_stored_shards:
        shards = counted(state.shards, "shard")
    shards += f"; {state.evicted:,} evicted so far"
    yield "generation", f"{state.generation}: {samples} samples in {shards}"
    if state.unfetched:
        yield "columns", f"{format_size(state.unfetched)} of their files not needed, not fetched"
    yield "in use", ", ".join(f"generation {g}" for g in state.pinned) or "by no epoch"
    epochs = f"{state.requested:,} samples in {counted(state.epochs, 'epoch')}"
    hits = "no epoch yet" if state.hit_rate is None else f"{state.hit_rate:.1%} of {epochs}"
    yield "hit rate", hits
    workers = counted(len(state.workers), "worker")
    yield "fetch rate", f"{format_size(state.fetch_rate)}/s over {workers}"
    for worker in state.workers:
        fetched = f"{format_size(worker.get('bytes', 0))} fetched"
        process = f"{worker.get('host')} {worker.get('pid')}"
        yield "worker", f"{process}: {worker.get('state')}, {fetched}"
        for why in (*worker.get("failures", []), *worker.get("lost", {}).values()):
            yield "", f"failed: {why}"


def _describe_decoded(state: "CacheState") -> Iterator[tuple[str, str]]:
    size = f"{format_size(state.used_bytes)} of {format_size(state.max_bytes)} in {state.where}"
    if state.damaged:
        yield "size", size
        yield "damaged", f"{state.damaged}: the next loader replaces it"
        return
    share = "" if state.share is None else f", {state.share:.0%} of the data set are to be kept"
    yield "data", state.root
    yield "steps", f"{state.steps} by engine {state.engine}"
    yield "size", size
    yield "images", f"{state.images:,}{share}"
    yield "in use", "by a running process" if state.in_use else "by no process"
