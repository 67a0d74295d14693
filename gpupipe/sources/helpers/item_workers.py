"""Reads the items of a data set in processes of their own.

    rows ──> process: items ──> parts ──> bytes, one after another ──> shared memory ──> parts

The processes are those of the step python: new interpreters, whose hangs and crashes stay theirs.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.given_dataset import GivenDataset
from gpupipe.errors import DataError, EngineError
from gpupipe.runtime.function_failures import CallFailedError
from gpupipe.runtime.function_pool import FunctionPool
from gpupipe.runtime.user_functions import FunctionMissingError
from gpupipe.sources.helpers.dataset_origin import DatasetOrigin
from gpupipe.sources.helpers.item_parts import PartChoice
from gpupipe.sources.helpers.item_reader import ItemReader

if TYPE_CHECKING:
    from torch import Tensor

Parts = list[NDArray[np.uint8]]
"""The bytes of each part of an item."""
_HEAD_BYTES = 8


class ItemWorkers:
    """Up to `count` processes that open a data set and read its items.

    Args:
        origin: Where the data set comes from.
        choice: Which parts are delivered.
        count: The number of processes, at least 1.
        timeout: Seconds after which a call for some items is ended, and its process.

    Raises:
        DataError: The data set cannot be opened in a process.
    """

    def __init__(
        self, origin: DatasetOrigin, choice: PartChoice, count: int, timeout: float
    ) -> None:
        self._count = count
        arguments = {"origin": origin, "choice": choice}
        self._pool = FunctionPool(_ReadItems, arguments, None, count, timeout)
        self._threads = ThreadPoolExecutor(count, "gpupipe-items")
        given = origin.call.dataset if isinstance(origin.call, GivenDataset) else None
        if type(given).__module__ == "__main__":
            raise DataError(
                f"data.workers: {origin.name} is defined in the script that was started, which "
                "other processes cannot import: define it in a module, or set workers: 0"
            )
        try:
            self._read_some([0])
        except (FunctionMissingError, ValueError) as e:
            raise DataError(f"data.workers: {origin.name}: {e}") from e

    def read(self, rows: Sequence[int]) -> list[Parts]:
        """Return the parts of some rows, shared out among the processes.

        Raises:
            ValueError: An item cannot be read, or its process has ended.
        """
        count = min(self._count, len(rows))
        if count == 1:
            return self._read_some(rows)
        shares = [list(map(int, share)) for share in np.array_split(rows, count)]
        return [parts for some in self._threads.map(self._read_some, shares) for parts in some]

    def find_path(self, row: int) -> str:
        """Return the path of a row's image; "" if there is none, or the item cannot be read."""
        try:
            ((path,),) = self._read_some([-1 - row])
        except (EngineError, ValueError):
            return ""
        return os.fsdecode(path.tobytes())

    def close(self) -> None:
        """End the processes. A later read starts them again."""
        self._pool.close()

    def _read_some(self, rows: Sequence[int]) -> list[Parts]:
        import torch

        try:
            packed = self._pool.call(torch.tensor(rows), "rows", 0)
        except CallFailedError as e:
            if e.machine:
                raise EngineError(e.machine) from e
            raise ValueError(e.message or f"the data set {e}") from e
        return unpack(packed.numpy())


class _ReadItems:
    """What the processes call: reads items, and packs them into one tensor.

    Args:
        origin: Where the data set comes from.
        choice: Which parts are delivered.
    """

    def __init__(self, origin: DatasetOrigin, choice: PartChoice) -> None:
        self._reader = ItemReader(origin, choice)

    def __call__(self, image: "Tensor") -> "Tensor":
        """Return the packed items of rows, int64 (n,): see `pack`; of -1 - row, its path."""
        import torch

        rows = image.tolist()
        if rows[0] < 0:
            path = os.fsencode(self._reader.find_path(-1 - rows[0]))
            return torch.from_numpy(pack([[np.frombuffer(path, np.uint8)]]))
        return torch.from_numpy(pack(self._reader.read_parts(rows)))


def pack(items: Sequence[Parts]) -> NDArray[np.uint8]:
    """Return the parts of items in one array, after the length of each."""
    lengths = json.dumps([[len(part) for part in parts] for parts in items]).encode()
    head = np.frombuffer(len(lengths).to_bytes(_HEAD_BYTES, "little") + lengths, np.uint8)
    return np.concatenate([head, *(part for parts in items for part in parts)])


def unpack(packed: NDArray[np.uint8]) -> list[Parts]:
    """Return the parts of items, views of the array that `pack` made."""
    end = _HEAD_BYTES + int.from_bytes(packed[:_HEAD_BYTES].tobytes(), "little")
    items: list[Parts] = []
    for lengths in json.loads(packed[_HEAD_BYTES:end].tobytes()):
        parts: Parts = []
        for length in lengths:
            parts.append(packed[end : end + length])
            end += length
        items.append(parts)
    return items
