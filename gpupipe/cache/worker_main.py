"""What a download worker runs: it lists a data set before it imports what fetches shards.

    python -m gpupipe.cache.worker_main [PROTOCOL...]

The first line of standard input is that of `early_request.read_data`. Each further line is a task.
The worker imports fsspec's clients of the protocols, such as s3, before its first task. It ends
when standard input is closed, or when its parent has ended: a fork of the parent may hold the pipe
open.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from gpupipe.runtime.garbage_collection import pause_collection

if TYPE_CHECKING:
    from gpupipe.cache.early_listing import EarlyListing

_LOOK_SECONDS = 0.5


def main(protocols: Sequence[str]) -> NoReturn:
    """Import what a worker needs, and run the tasks from standard input."""
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with pause_collection():
        early = [_list_early(lines.get())]

        from gpupipe.cache import downloader, file_system

        for protocol in protocols:
            file_system.import_client(protocol)
    downloader.run_tasks(lines, early.pop())


def _list_early(line: bytes) -> "EarlyListing | None":
    """Begin to list and to fetch what the first line says."""
    from gpupipe.cache import early_request

    data = early_request.read_data(line)
    parts = early_request.request_shards(data)

    from gpupipe.cache import early_listing

    return early_listing.list_early(data, parts)


def _read_lines(lines: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)  # the parent has ended, or needs this process no longer


def _end_with_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
