"""The process that opens HDF5 files and Zarr stores.

Usage: `python -m gpupipe.sources.helpers.store_child`.

libhdf5 can crash on a damaged file, and then ends only this process. Requests and answers are lines
of JSON; the contents of a store go into a file (see `table_file`). Read `store_reader.py` first.
"""

import json
import os
import resource
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gpupipe.dataset.table_file import write_table
from gpupipe.formats import DamagedError
from gpupipe.formats.array_store import describe_arrays, read_contents
from gpupipe.formats.stored_arrays import StoreRequest

_MAX_MEMORY = 8 << 30


def serve() -> None:
    """Answer requests until the standard input ends."""
    warnings.simplefilter("ignore")  # zarr's and h5py's tell their own callers what to do
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        request = json.loads(line)
        _limit_cpu(request["seconds"])
        try:
            answer = _answer(request)
        except (ValueError, OSError, MemoryError, RecursionError) as e:
            reason = str(e) or type(e).__name__
            answer = {"error": reason, "is_damaged": isinstance(e, DamagedError | MemoryError)}
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:  # the parent has ended
            os._exit(1)


def _limit_cpu(seconds: int) -> None:
    """Let the kernel end this process after further seconds of CPU: damage can lead into a loop."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    with _open(request["kind"], request["path"]) as store:
        if request["request"] is None:
            return {"arrays": describe_arrays(store)}
        contents = read_contents(store, StoreRequest(**request["request"]))
    write_table(Path(request["out"]), contents)
    return {}


def _open(kind: str, path: str) -> Any:
    if kind == "hdf5":
        from gpupipe.formats.hdf5_store import Hdf5Store

        return Hdf5Store.open(path)
    from gpupipe.formats.zarr_store import ZarrStore

    return nullcontext(ZarrStore(path))


if __name__ == "__main__":
    serve()
