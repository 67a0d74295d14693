"""Reads the contents of HDF5 files and Zarr stores in child processes, which may crash."""

import json
import os
import signal
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import LifoQueue
from typing import Any

from gpupipe.dataset.reading import read_each
from gpupipe.dataset.table_file import open_table
from gpupipe.errors import DataError
from gpupipe.formats.stored_arrays import StoreContents, StoreRequest
from gpupipe.runtime.process import ChildProcess
from gpupipe.runtime.progress import Progress
from gpupipe.runtime.ranks import cores
from gpupipe.runtime.systems import require_posix

_SECONDS = 300
"""Seconds of CPU for one file: a table of ten million chunks takes a tenth of it."""
_CHILD = "gpupipe.sources.helpers.store_child"
_PACKAGES = str(Path(__file__).parents[3])
_ADVICE = "write it again, or leave it out"


class StoreReader:
    """Child processes that read stores, until its `with` block ends, or nothing refers to it.

    Args:
        kind: "hdf5" or "zarr".
        seconds: Seconds of CPU for one store, after which its process is ended.
    """

    def __init__(self, kind: str, seconds: int = _SECONDS) -> None:
        require_posix(f"source: {kind}")
        self._kind, self._seconds = kind, seconds
        self._idle: LifoQueue[ChildProcess | None] = LifoQueue()
        for _ in range(cores()):
            self._idle.put(None)
        self._end = weakref.finalize(self, _end_children, self._idle)

    def __enter__(self) -> "StoreReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(
        self, paths: Sequence[Path], request: StoreRequest, progress: Progress
    ) -> list[StoreContents]:
        """Return what each store holds of what the request asks for.

        Raises:
            DataError: A store is damaged, lacks an array, or has one that gpupipe cannot read.
        """
        return read_each(paths, lambda path: self._read(path, request), progress, "indexing")

    def list_arrays(self, path: Path) -> list[dict[str, Any]]:
        """Return the path, shape and dtype of each array in a store, as `describe_arrays` does.

        Raises:
            DataError: The store is damaged.
        """
        arrays: list[dict[str, Any]] = self._ask(path, None, "")["arrays"]
        return arrays

    def _read(self, path: Path, request: StoreRequest) -> StoreContents:
        with tempfile.TemporaryDirectory(prefix="gpupipe-stores-") as folder:
            table = Path(folder, "contents")
            self._ask(path, asdict(request), str(table))
            return open_table(table, StoreContents)  # its maps stay valid

    def _ask(self, path: Path, request: dict[str, Any] | None, out: str) -> dict[str, Any]:
        """Return the answer of a child.

        Raises:
            DataError: The answer is an error, or the child has ended.
        """
        message = {
            "kind": self._kind,
            "path": str(path),
            "request": request,
            "out": out,
            "seconds": self._seconds,
        }
        child = self._idle.get()
        try:
            if child is None:
                child = ChildProcess("-m", _CHILD, env=_make_environment())
            child.write(json.dumps(message).encode() + b"\n")
            line = child.read_line()
            if not line:
                status, child = child.end(), None
                raise DataError(f"{path}: {self._explain_end(status)}; {_ADVICE}")
        except BaseException:
            if child is not None:
                child.kill()
                child.end()
                child = None
            raise
        finally:
            self._idle.put(child)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            advice = f"; {_ADVICE}" if answer["is_damaged"] else ""
            raise DataError(f"{path}: {answer['error']}{advice}")
        return answer

    def _explain_end(self, status: int) -> str:
        if -status == signal.SIGXCPU:
            return f"reading where its arrays are takes more than {self._seconds} s of CPU"
        how = f"status {status}"
        with suppress(ValueError):
            how = signal.Signals(-status).name
        library = {"hdf5": "libhdf5", "zarr": "zarr"}[self._kind]
        return f"it is damaged: {library} ended its process ({how}) as it read the file"


def _end_children(idle: LifoQueue[ChildProcess | None]) -> None:
    while not idle.empty():
        child = idle.get()
        if child is not None:
            child.end()


def _make_environment() -> dict[str, str]:
    python_path = [_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(python_path),
        "PYTHONSAFEPATH": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
