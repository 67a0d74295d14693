"""Reads the items of a data set of the user's, and keeps their other parts until they are read.

    items of rows ──> parts ──> bytes ──> the column that is read
                                    └──> wait for the reads of the other columns

An engine reads the columns of a sample one after another. The first read of a row gets its item,
and the other parts wait for the reads that follow. A lock keeps two threads from calling the data
set at once: most are not thread-safe, such as one that seeks in an open file.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import ArrayLayout, Column, Rows, StringArray
from gpupipe.dataset.given_dataset import count_items
from gpupipe.errors import DataError, EngineError
from gpupipe.runtime.function_draws import find_draws
from gpupipe.runtime.systems import call_after_fork
from gpupipe.sources.helpers.dataset_origin import DatasetOrigin, explain_call
from gpupipe.sources.helpers.item_parts import PartChoice, encode_all

_MAX_WAITING = 256 * 1024**2
"""How many bytes of parts wait for their reads; beyond, an item is read again."""
_FIRST = 0


class OtherProcesses(Protocol):
    """Processes that read the items of a data set, some of which may hang or crash there."""

    def read(self, rows: Sequence[int]) -> list[list[NDArray[np.uint8]]]:
        """Return the bytes of each part of some rows."""

    def find_path(self, row: int) -> str:
        """Return the path of a row's image; "" if there is none."""


class ItemReader:
    """Reads the parts of the items of a data set.

    Args:
        origin: Where the data set comes from.
        choice: Which parts are delivered.
        dataset: The data set, if it is open already.
        others: The processes that read the items; None: this one reads them.

    Attributes:
        dataset: The data set.
        name: Its name in messages.
        count: The number of items.
        parts: The parts of each item.
        has_paths: Whether the first item has the path of its image.

    Raises:
        DataError: The data set cannot be opened, or its first item cannot be delivered.
    """

    def __init__(
        self,
        origin: DatasetOrigin,
        choice: PartChoice,
        dataset: Any = None,
        others: OtherProcesses | None = None,
    ) -> None:
        self.origin, self.choice, self.key = origin, choice, uuid4().hex
        self.dataset = origin.open() if dataset is None else dataset
        self.name = origin.name
        self.count = count_items(self.dataset, self.name)
        first = self._get_first()
        self.parts = choice.learn(first, self.name)
        self.has_paths = isinstance(self.parts[0].encode(self.parts[0].select(first)), str)
        self._waiting: OrderedDict[int, dict[str, NDArray[np.uint8]]] = OrderedDict()
        self._waiting_bytes = 0
        self._others = others
        self._lock = Lock()
        _READERS[self.key] = self

    def __reduce__(self) -> Any:
        """Pickle the origin: another process opens the data set itself, or has it by its fork."""
        is_named = isinstance(self.origin.call, str)
        named = (self.origin, self.choice) if is_named else None
        return find_reader, (self.key, self.name, named)

    def reset(self) -> None:
        """Forget what waits, and other processes. A forked process calls it.

        The lock may be held by a thread that was not forked.
        """
        self._others = None
        self._lock = Lock()
        self._waiting.clear()
        self._waiting_bytes = 0

    def _get_first(self) -> Any:
        """Return the first item. Raises DataError if there is none, or if getting it draws."""
        items: list[Any] = []
        try:
            drawn = find_draws(lambda: items.append(self.dataset[_FIRST]))
        except Exception as e:  # whatever the code of the user raises
            reason = explain_call(e, self.dataset)
            raise DataError(f"{self.name}[0]: its first item {reason}") from e
        if drawn:
            raise DataError(
                f"{self.name}[0] draws from {' and '.join(drawn)}, so that items would depend on "
                "which of them is asked for first: leave random transforms out of the data set, "
                "and put them into the pipeline, which seeds their draws for each sample"
            )
        return items[0]

    def read(self, part: str, rows: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return the bytes of a part of some rows.

        Raises:
            OSError, ValueError: An item cannot be read, or is not as the first one.
        """
        if len(self.parts) == 1:
            return [values[0] for values in self.read_parts(rows)]
        with self._lock:
            taken = {row: data for row in rows if (data := self._take(row, part)) is not None}
        missing = [row for row in dict.fromkeys(rows) if row not in taken]
        if missing:
            names = [p.name for p in self.parts]
            of_rows = [dict(zip(names, values, strict=True)) for values in self.read_parts(missing)]
            with self._lock:
                for row, of_row in zip(missing, of_rows, strict=True):
                    taken[row] = of_row.pop(part)
                    self._wait(row, of_row)
        return [taken[row] for row in rows]

    def read_parts(self, rows: Sequence[int]) -> list[list[NDArray[np.uint8]]]:
        """Return the bytes of each part of some rows. Raises what `read` raises."""
        if not rows:
            return []
        if self._others is not None:
            return self._others.read(rows)
        with self._lock:
            items = self._get(rows)
        return encode_all(self.parts, items)

    def _take(self, row: int, part: str) -> NDArray[np.uint8] | None:
        data = self._waiting.get(row, {}).pop(part, None)
        if data is not None:
            self._waiting_bytes -= len(data)
            if not self._waiting[row]:
                del self._waiting[row]
        return data

    def _wait(self, row: int, values: dict[str, NDArray[np.uint8]]) -> None:
        before = self._waiting.pop(row, {})
        self._waiting[row] = values
        self._waiting_bytes += _count_bytes(values) - _count_bytes(before)
        while self._waiting_bytes > _MAX_WAITING and len(self._waiting) > 1:
            self._waiting_bytes -= _count_bytes(self._waiting.popitem(last=False)[1])

    def _get(self, rows: Sequence[int]) -> Sequence[Any]:
        """Return the items of rows. Raises OSError or ValueError if the data set raises."""
        get_items: Callable[[list[int]], Any] | None = getattr(self.dataset, "__getitems__", None)
        try:
            if get_items is None:
                return [self.dataset[row] for row in rows]
            items = get_items(list(rows))
        except (OSError, MemoryError):
            raise
        except Exception as e:  # whatever the code of the user raises
            short = f"; its len() is {self.count}" if isinstance(e, IndexError) else ""
            raise ValueError(f"the data set {explain_call(e, self.dataset)}{short}") from e
        if len(items) != len(rows):
            raise ValueError(f"__getitems__ returned {len(items)} items for {len(rows)} rows")
        return items  # type: ignore[no-any-return]

    def find_path(self, row: int) -> str:
        """Return the path of a row's image, if the data set has paths; else ""."""
        if not self.has_paths:
            return ""
        if self._others is not None:
            return self._others.find_path(row)
        main = self.parts[0]
        with suppress(Exception), self._lock:
            encoded = main.encode(main.select(self.dataset[row]))
            return encoded if isinstance(encoded, str) else ""
        return ""


@dataclass(frozen=True)
class ItemColumn(Column):
    """A part of the items of a data set.

    Attributes:
        reader: Reads the items.
        part: The name of the part.
        fingerprint: The text that identifies the data set.
        array: Dtype and shape of arrays and numbers; None for images.
        rows: The item of each row, int64 (N,); None: all items in order.
    """

    reader: "ItemReader | AbsentReader"
    part: str
    fingerprint: str
    array: ArrayLayout | None = None
    rows: Rows | None = None

    def __len__(self) -> int:
        return self.reader.count if self.rows is None else len(self.rows)

    def _items(self, rows: Rows) -> list[int]:
        items: list[int] = (rows if self.rows is None else self.rows[rows]).tolist()
        return items

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        return self.reader.read(self.part, self._items(rows))

    def location(self, row: int, name: str) -> str:
        (item,) = self._items(np.array([row]))
        return self.reader.find_path(item) or f"{self.reader.name}[{item}]"

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        text = np.frombuffer(self.fingerprint.encode(), np.uint8)
        return [text] if self.rows is None else [text, self.rows]

    def take(self, rows: Rows) -> "ItemColumn":
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


_READERS: weakref.WeakValueDictionary[str, ItemReader] = weakref.WeakValueDictionary()
"""The readers of this process, by key. A forked process finds those of its parent."""
_OPENED: dict[str, ItemReader] = {}
"""The readers that this process opened when it unpickled columns, by key."""
_MAX_OPENED = 8


def _reset_all() -> None:
    for reader in list(_READERS.values()):
        reader.reset()


call_after_fork(_reset_all)


def explain_object(name: str) -> str:
    """Return why another process has no data set that is an object, and what to write."""
    return (
        f"{name} is an object of one process, and the batches are made in others: write "
        "data={'source': 'python', 'call': 'module:function'}, which each of them can import"
    )


@dataclass(frozen=True)
class AbsentReader:
    """Stands for the reader of a data set that is an object of another process.

    Attributes:
        name: The name of the data set.
    """

    name: str
    count = 0

    def read(self, part: str, rows: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Raise EngineError: no worker can read the data set."""
        raise EngineError(explain_object(self.name))

    def find_path(self, row: int) -> str:
        """Return "": nothing is known of the items."""
        return ""


def find_reader(
    key: str, name: str, named: tuple[DatasetOrigin, PartChoice] | None
) -> ItemReader | AbsentReader:
    """Return the reader of a column that was pickled; open the data set if it is new here."""
    reader = _READERS.get(key)
    if reader is not None:
        return reader
    if named is None:
        return AbsentReader(name)
    while len(_OPENED) >= _MAX_OPENED:
        _OPENED.pop(next(iter(_OPENED)))
    reader = _OPENED[key] = ItemReader(*named)
    reader.key = key
    _READERS[key] = reader
    return reader


def _count_bytes(values: dict[str, NDArray[np.uint8]]) -> int:
    return sum(map(len, values.values()))


def number_names(count: int) -> StringArray:
    """Return the names of the samples of a data set: their numbers from 0 on."""
    data = np.frombuffer("".join(map(str, range(count))).encode(), np.uint8)
    digits = np.searchsorted(10 ** np.arange(1, 19), np.arange(count), side="right") + 1
    return StringArray.from_ends(data, np.cumsum(digits, dtype=np.int64))
