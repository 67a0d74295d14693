"""One download worker: a process that fills the cache until its parent ends or all is fetched.

It reads Tasks, a line of JSON each. After a task that only lists, it waits for the next one: to
start a process and to import a store's client takes most of a second. It is not a fork, because the
parent may run DALI's threads. It is not a thread of the parent, because fetching and writing would
take the GIL from training. See worker_main.py, which is what the process runs.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any, Literal, NoReturn

import pydantic

from gpupipe.cache import file_parts, listing, shard_members, zarr_folders
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.early_listing import EarlyListing
from gpupipe.cache.publishing import FillOutcome
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.shared_files import Claim
from gpupipe.cache.store import Store
from gpupipe.cache.store_listing import list_samples
from gpupipe.cache.stored_fill import create_filler
from gpupipe.cache.stored_formats import create_source, find_format
from gpupipe.errors import GpupipeError
from gpupipe.runtime.file_locks import hold_lock

_HEARTBEAT_SECONDS = 0.5
_PAUSES = {"complete": 0.5, "no room": 0.2, "disk full": 2.0, "failed": 2.0}
_MAX_PAUSE = 3.0
_LAST = {"one": ("published",), "fill": ("complete", "no room", "failed")}
"""The outcomes that end a task."""
_SHOWN_FAILURES = 5
_MAX_REASON_LENGTH = 600
_RATE_SECONDS = 10.0
_STATES = {
    "complete": "nothing to fetch: all that may be drawn is there",
    "no room": "waiting: the cache is full, and all that may be evicted is in use or was not "
    "trained on yet",
    "disk full": "paused: the disk is full",
    "failed": "waiting to try again what could not be fetched",
}


class Task(pydantic.BaseModel):
    """The task that a download worker reads from standard input.

    Attributes:
        do: The work. "list" only lists the data set, and another task follows. "one" fetches one
            shard. "fill" fetches until the data set is complete or the cache is full. "serve"
            fetches until the parent ends, because later epochs need other shards.
        dataset: The data set.
        cache: The cache to fill.
    """

    do: Literal["list", "one", "fill", "serve"]
    dataset: DataSet
    cache: CacheOptions


class DownloadWorker:
    """A download worker: runs a Filler, and reports its state in the cache folder."""

    def __init__(self, folder: CacheFolder, task: Task, store: Store | None = None) -> None:
        self._folder, self._task = folder, task
        self._filler = create_filler(folder, task.dataset, store)
        self._state, self._idle_steps = "fetching", 0
        self._printed: set[str] = set()
        self._history: list[tuple[float, int]] = []
        with folder.lock():
            self._claim: Claim = folder.create_claim(
                "workers", f"{socket.gethostname()}-{os.getpid()}", self._report()
            )

    def run(self) -> dict[str, Any]:
        """Fill the cache until nothing remains to do; return the outcome and the last report.

        If the task is "serve", never return: the process ends with its parent.
        """
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        while True:
            outcome = self._filler.publish_shard()
            self._state = _STATES.get(outcome, "fetching")
            self._print_problems(outcome)
            if outcome in _LAST.get(self._task.do, ()):
                break
            time.sleep(self._pause(outcome))
        with self._folder.lock():
            self._claim.release()
        return {"outcome": outcome} | self._report()

    def _pause(self, outcome: FillOutcome) -> float:
        """Return the seconds until the next step; they grow while there is nothing to do."""
        self._idle_steps = 0 if outcome == "published" else self._idle_steps + 1
        return min(_PAUSES.get(outcome, 0.0) * 1.2**self._idle_steps, _MAX_PAUSE)

    def _send_heartbeats(self) -> None:
        while True:
            time.sleep(_HEARTBEAT_SECONDS)
            with contextlib.suppress(OSError):  # the disk is full; the next report follows soon
                self._claim.write(self._report())

    def _print_problems(self, outcome: FillOutcome) -> None:
        """Print problems to standard error, each once."""
        statistics = self._filler.statistics
        problems = [
            f"cannot be fetched, and is tried again later: {why}"
            for why in (*statistics.failed.reasons.values(), *statistics.lost.values())
        ]
        if outcome == "disk full":
            paused = f"{outcome}, and fetching is paused until there is space: {self._folder.dir}"
            problems.insert(0, paused)
        for text in problems:
            if text not in self._printed:
                self._printed.add(text)
                print(f"gpupipe cache: {text}", file=sys.stderr, flush=True)
        if outcome == "published":
            self._printed = {text for text in self._printed if not text.startswith("disk full")}

    def _report(self) -> dict[str, Any]:
        statistics = self._filler.statistics
        failures = list(statistics.failed.reasons.values())[:_SHOWN_FAILURES]
        lost = list(statistics.lost.items())[:_SHOWN_FAILURES]
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "state": self._state,
            "bytes": statistics.bytes,
            "samples": statistics.samples,
            "rate": self._rate(),
            "failed": len(statistics.failed),
            "failures": [why[:_MAX_REASON_LENGTH] for why in failures],
            "lost": {name: why[:_MAX_REASON_LENGTH] for name, why in lost},
            "exhausted": statistics.exhausted,
        }

    def _rate(self) -> float:
        """Return the bytes per second over the last 10 s."""
        now = time.monotonic()
        fetched = self._filler.statistics.bytes
        recent = [entry for entry in self._history if entry[0] > now - _RATE_SECONDS]
        self._history = [*recent, (now, fetched)]
        then, before = self._history[0]
        return (fetched - before) / (now - then) if now > then else 0.0


def list_rows(folder: CacheFolder, task: Task, early: EarlyListing | None = None) -> None:
    """List the data set and save the listing, unless it exists.

    Args:
        folder: The cache.
        task: The task, which holds the settings of the data set and of the cache.
        early: The listing of the same data set, if there is one already.

    Raises:
        DataError: The data set cannot be listed, or its listing does not fit into the cache.
    """
    with hold_lock(folder.dir / "listing.lock"):  # otherwise each rank would ask the store
        if not listing.is_listed(folder):
            dataset, cache = task.dataset, task.cache
            store = early.store if early else Store(dataset, cache.retries, cache.timeout)
            save_listing(folder, dataset, store, early)


def save_listing(
    folder: CacheFolder, dataset: DataSet, store: Store, early: EarlyListing | None = None
) -> None:
    """List a data set, and save the listing, and what its shards are made of.

    The caller must hold the lock for listing. `early` is as for `list_rows`.

    Raises:
        DataError: The data set cannot be listed, or its listing does not fit into the cache.
    """
    members, parts, options = None, None, folder.options
    kind = None if dataset.shards is None else find_format(dataset)
    if kind is not None and kind.is_folder:
        rows, members = zarr_folders.list_folders(dataset, store, folder)
    else:
        connections = options.connections
        rows = early.take_rows() if early else list_samples(dataset, store, connections)
        if kind is not None and kind.is_cut:
            rows, parts = file_parts.list_parts(rows, create_source(dataset), store, options)
    with folder.lock():  # the listing comes last: what is listed is whole
        if members is not None:
            shard_members.save(members, folder)
        folder.parts_path.unlink(missing_ok=True)  # of a lister that was killed here
        if parts is not None:
            file_parts.save(parts, folder)
        listing.save(rows, folder)
    _print_unversioned(rows, dataset)


def _print_unversioned(rows: listing.Listing, dataset: DataSet) -> None:
    """Print once how many files were listed without a version."""
    if count := int((rows.tags == 0).sum()):
        print(
            f"gpupipe cache: {dataset.url}: {count:,} of {len(rows):,} files were listed without a "
            "version (ETag, MD5, time of change): if such a file changes, only another length is "
            "noticed, if its length is known",
            file=sys.stderr,
            flush=True,
        )


def run_tasks(lines: SimpleQueue[bytes], early: EarlyListing | None) -> NoReturn:
    """Run tasks; print the outcome of each as a line of JSON.

    The process ends after a task that is not "list", or that fails.

    Args:
        lines: The tasks, a line of JSON each, all of one data set.
        early: A listing that may be of this data set. It can take gigabytes, so the caller
            must keep no reference to it.
    """
    store: Store | None = None
    is_last, status = False, 0
    while not is_last:
        task = Task.model_validate_json(lines.get())
        folder = CacheFolder(task.cache)
        is_last = task.do != "list"
        if early is not None and early.fits(task.dataset, task.cache):
            store = early.store
        try:
            list_rows(folder, task, early if store else None)
            early = None
            outcome = DownloadWorker(folder, task, store).run() if is_last else {}
        except (GpupipeError, OSError) as e:
            outcome, is_last, status = {"error": str(e)}, True, 1
        print(json.dumps(outcome), flush=True)
    os._exit(status)
