"""One download worker: a process that fills the cache until its parent ends or all is fetched.

Usage: `python -m gpupipe.cache.downloader`. (YAML calls the workers `samplers`.)

It reads a Task, one line of JSON, from standard input, and ends when standard input is closed. So
it never outlives its parent. It is no fork, because the parent may run DALI's threads. It is no
thread of the parent, because fetching and writing would take the GIL from training.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from typing import Any, Literal, NoReturn

import pydantic

from gpupipe.cache import listing, store_listing
from gpupipe.cache.claims import Claim
from gpupipe.cache.fill import Filler, Outcome
from gpupipe.cache.folder import CacheFolder
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.store import Store
from gpupipe.errors import GpupipeError
from gpupipe.runtime.file_lock import hold_lock

_BEAT_SECONDS = 0.5
_PAUSES = {"complete": 0.5, "no room": 0.2, "disk full": 2.0, "failed": 2.0}
_LONGEST_PAUSE = 3.0
_SHOWN_FAILURES = 5
_LONGEST_REASON = 300
_RATE_SECONDS = 10.0
_STATES = {
    "complete": "nothing to fetch: all that may be drawn is there",
    "no room": "waiting: the cache is full, and all that may be evicted is in use or was not "
    "trained on yet",
    "disk full": "paused: the disk is full",
    "failed": "waiting to try again what could not be fetched",
}


class Task(pydantic.BaseModel):
    """What a download worker does.

    Attributes:
        do: list: only list the data set. fill: fetch until the data set is complete or the cache is
            full. serve: continue after that, because epochs evict shards and ask for more.
        dataset: Which samples there are.
        cache: The cache to fill.
    """

    do: Literal["list", "fill", "serve"]
    dataset: DataSet
    cache: CacheOptions


class _Sampler:
    """A download worker: runs a Filler, and reports its state in the cache folder."""

    def __init__(self, folder: CacheFolder, task: Task) -> None:
        self._folder, self._task = folder, task
        store = Store(task.dataset, task.cache.retries, task.cache.timeout)
        self._filler = Filler(
            folder,
            listing.opened(folder),
            store,
            task.dataset.seed,
            task.dataset.weight is not None,
        )
        self._state, self._idle = "fetching", 0
        self._printed: set[str] = set()
        self._history: list[tuple[float, int]] = []
        with folder.lock():
            self._claim: Claim = folder.claim(
                "samplers", f"{socket.gethostname()}-{os.getpid()}", self._report()
            )

    def run(self) -> dict[str, Any]:
        """Fill the cache until nothing remains to do; return the outcome and the last report."""
        threading.Thread(target=self._beat, daemon=True).start()
        while True:
            outcome = self._filler.step()
            self._print_news(outcome)
            if self._task.do == "fill" and outcome in ("complete", "no room", "failed"):
                break
            time.sleep(self._pause(outcome))
        with self._folder.lock():
            self._claim.release()
        return {"outcome": outcome} | self._report()

    def _pause(self, outcome: Outcome) -> float:
        """Return the seconds until the next step; they grow while there is nothing to do."""
        self._idle = 0 if outcome == "published" else self._idle + 1
        return min(_PAUSES.get(outcome, 0.0) * 1.2**self._idle, _LONGEST_PAUSE)

    def _beat(self) -> None:
        parent = os.getppid()
        while True:
            time.sleep(_BEAT_SECONDS)
            if os.getppid() != parent:
                os._exit(0)
            self._write_report()

    def _write_report(self) -> None:
        with contextlib.suppress(OSError):  # the disk is full; the next report follows soon
            self._claim.write(self._report())

    def _print_news(self, outcome: Outcome) -> None:
        """Print new problems to standard error, each once."""
        self._state = _STATES.get(outcome, "fetching")
        tally = self._filler.tally
        news = [f"{outcome}, and fetching is paused until there is space: {self._folder.dir}"] * (
            outcome == "disk full"
        )
        news += [
            f"cannot be fetched, and is tried again later: {why}"
            for why in (*tally.failed.values(), *tally.lost.values())
        ]
        for text in news:
            if text not in self._printed:
                self._printed.add(text)
                print(f"gpupipe cache: {text}", file=sys.stderr, flush=True)
        if outcome == "published":
            self._printed = {text for text in self._printed if not text.startswith("disk full")}

    def _report(self) -> dict[str, Any]:
        tally = self._filler.tally
        some = dict(list(tally.failed.items())[:_SHOWN_FAILURES])
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "state": self._state,
            "bytes": tally.bytes,
            "samples": tally.samples,
            "rate": self._rate(),
            "failed": len(tally.failed),
            "failures": [why[:_LONGEST_REASON] for why in some.values()],
            "lost": {
                name: why[:_LONGEST_REASON]
                for name, why in list(tally.lost.items())[:_SHOWN_FAILURES]
            },
        }

    def _rate(self) -> float:
        """Return the bytes per second over the last seconds."""
        now = time.monotonic()
        self._history = [
            *(h for h in self._history if h[0] > now - _RATE_SECONDS),
            (now, self._filler.tally.bytes),
        ]
        then, before = self._history[0]
        return (self._filler.tally.bytes - before) / (now - then) if now > then else 0.0


def list_rows(folder: CacheFolder, task: Task) -> None:
    """List the data set and save the listing, unless it exists.

    Args:
        folder: The cache.
        task: Names the data set and how to reach it.

    Raises:
        DataError: The data set cannot be listed, or its listing does not fit into the cache.
    """
    with hold_lock(folder.dir / "listing.lock"):  # otherwise each rank would ask the store
        if not listing.is_there(folder):
            rows = store_listing.listed(
                task.dataset, Store(task.dataset, task.cache.retries, task.cache.timeout)
            )
            with folder.lock():
                listing.save(rows, folder)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> NoReturn:
    """Run the task from standard input; the last line of output is the outcome as JSON."""
    task = Task.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = CacheFolder(task.cache)
    status = 0
    try:
        list_rows(folder, task)
        ended = {} if task.do == "list" else _Sampler(folder, task).run()
    except (GpupipeError, OSError) as e:
        ended, status = {"error": str(e)}, 1
    print(json.dumps(ended), flush=True)
    os._exit(status)


if __name__ == "__main__":
    main()
