"""The contract of a store of arrays, and `read_contents`, which finds the samples in one."""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import counted, did_you_mean, short
from gpupipe.formats.chunk_grid import ChunkGrid
from gpupipe.formats.npy import DTYPES
from gpupipe.formats.stored_arrays import (
    ChunkPlaces,
    RowsBuilder,
    StoreContents,
    StoredRows,
    StoredSpans,
    StoreRequest,
)

ITSELF = "."
"""The path of a sample that is an array itself, and no group."""
_ATTRIBUTE = "@"
_MAX_NUMBERS = 4096
_PARTS = {"complex64": "f4", "complex128": "f8"}
Node = Any
"""An array or a group of the library that reads the store."""


class ArrayStore(ABC):
    """An open HDF5 file or Zarr store. A path in it is "/GROUP/ARRAY"."""

    @property
    @abstractmethod
    def files(self) -> list[str]:
        """The files that hold the bytes."""

    @property
    @abstractmethod
    def max_rows(self) -> int:
        """The most rows that the files can be expected to hold. More are taken for damage."""

    @abstractmethod
    def get(self, path: str) -> Node | None:
        """Return the array or group at a path; None if there is none."""

    @abstractmethod
    def is_array(self, node: Node) -> bool:
        """Return whether a node is an array; else it is a group."""

    @abstractmethod
    def list_arrays(self) -> list[str]:
        """Return the paths of the first arrays in the store, at most about a thousand."""

    @abstractmethod
    def list_members(self, group: Node) -> list[str]:
        """Return the names of the arrays and groups in a group, in their order."""

    @abstractmethod
    def locate(self, array: Node) -> tuple[ChunkGrid, ChunkPlaces] | StoredSpans:
        """Return how an array is cut into chunks and where they are; for ragged rows, their spans.

        Raises:
            ValueError: gpupipe cannot read such an array, or it is damaged.
        """

    @abstractmethod
    def name_dtype(self, array: Node) -> str:
        """Return the name of an array's dtype; "ragged DTYPE" for ragged rows; "text" for texts."""

    @abstractmethod
    def read(self, array: Node) -> NDArray[Any]:
        """Return all of a small array: numbers, or an array of str."""


def read_contents(store: ArrayStore, request: StoreRequest) -> StoreContents:
    """Find the samples that a request asks for.

    Raises:
        ValueError: An array is missing, is damaged, or cannot be read. The message has its path.
    """
    if request.groups is None:
        return _read_rows(store, request)
    return _read_groups(store, request, request.groups)


def _read_rows(store: ArrayStore, request: StoreRequest) -> StoreContents:
    rows: dict[str, StoredRows] = {}
    spans: dict[str, StoredSpans] = {}
    counts: dict[str, int] = {}
    for name, path in request.fields.items():
        array = find_array(store, path)
        if not array.shape:
            raise ValueError(f"'{path}' is a single number, which has no rows: see data.groups")
        located = _locate(store, array, path)
        if isinstance(located, StoredSpans):
            spans[name] = located
        else:
            builder = RowsBuilder()
            builder.add(*located)
            rows[name] = builder.build()
        counts[path] = int(array.shape[0])
    others = {request.label: None} if request.label else {}
    for path in [*others, *request.values.values()]:
        array = find_array(store, path)
        counts[path] = int(array.shape[0]) if array.shape else 1
    (first, count), *_ = counts.items()
    for path, length in counts.items():
        if length != count:
            raise ValueError(
                f"{counted(length, 'row')} in '{path}', but {count:,} in '{first}': there should "
                "be one for each sample"
            )
    labels, texts = np.empty(0, np.int64), list[str]()
    if request.label:
        labels, texts = _as_labels(_read_numbers(store, request.label, count), request.label)
    values = {
        name: _as_value(_read_numbers(store, path, count), path)
        for name, path in request.values.items()
    }
    return StoreContents(count, [], store.files, rows, spans, labels, texts, values)


def _read_groups(store: ArrayStore, request: StoreRequest, path: str) -> StoreContents:
    top = store.get(path)
    if top is None or store.is_array(top):
        what = "an array" if top is not None else "no group"
        raise ValueError(f"'{path}' is {what}: set data.groups to the group that has the samples")
    is_array = ITSELF in request.fields.values()
    base = path.rstrip("/")
    names = [
        f"{base}/{name}"
        for name in store.list_members(top)
        if store.is_array(store.get(f"{base}/{name}")) == is_array
    ]
    kind = "array" if is_array else "group"
    if not names:
        raise ValueError(f"no {kind} in '{path}': set data.groups to the group of the samples")
    rows: dict[str, StoredRows] = {}
    spans: dict[str, StoredSpans] = {}
    for field, inner in request.fields.items():
        builder, ragged = RowsBuilder(), list[StoredSpans]()
        for name in names:
            where = _join(name, inner)
            located = _locate(store, find_array(store, where), where)
            if isinstance(located, StoredSpans):
                ragged.append(located)
            else:
                builder.add(located[0].add_axis(), located[1])
        if ragged:
            spans[field] = _join_spans(ragged, len(names), request.fields[field])
        else:
            rows[field] = builder.build()
    labels, texts = np.empty(0, np.int64), list[str]()
    if request.label is not None:
        every = [_read_one(store, name, request.label) for name in names]
        labels, texts = _as_labels(_stack(every, request.label), request.label)
    values = {
        value: _as_value(_stack([_read_one(store, n, inner) for n in names], inner), inner)
        for value, inner in request.values.items()
    }
    return StoreContents(len(names), names, store.files, rows, spans, labels, texts, values)


def _join(group: str, path: str) -> str:
    return group if path == ITSELF else f"{group}/{path.lstrip('/')}"


def _join_spans(every: list[StoredSpans], count: int, path: str) -> StoredSpans:
    offset = np.concatenate([spans.offset for spans in every])
    if len(offset) != count or len({spans.dtype for spans in every}) > 1:
        raise ValueError(f"'{path}' is one ragged array in some samples, and not in others")
    return StoredSpans(every[0].dtype, offset, np.concatenate([s.length for s in every]))


def find_array(store: ArrayStore, path: str) -> Node:
    """Return the array at a path. Raises ValueError if there is none."""
    array = store.get(path)
    if array is not None and store.is_array(array):
        return array
    what = "no array" if array is None else "a group, and no array,"
    known = store.list_arrays()
    raise ValueError(f"{what} '{short(path)}' in it{did_you_mean(path, known)}")


def _locate(
    store: ArrayStore, array: Node, path: str
) -> tuple[ChunkGrid, ChunkPlaces] | StoredSpans:
    try:
        located = store.locate(array)
        if not isinstance(located, StoredSpans):
            located[0].check(store.max_rows)
    except ValueError as e:
        raise type(e)(f"'{path}': {e}") from e
    return located


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise ValueError unless gpupipe can deliver numbers of a dtype."""
    name = dtype.newbyteorder("=").name
    if name not in (*DTYPES, *_PARTS) or dtype.names or dtype.subdtype:
        raise ValueError(
            f"an array of {dtype}: write it as numbers, of float32 or uint8 for instance"
        )


def _read_numbers(store: ArrayStore, path: str, count: int) -> NDArray[Any]:
    array = store.get(path)
    assert array is not None
    if math.prod(array.shape[1:]) > _MAX_NUMBERS or len(array.shape) > 2:
        raise ValueError(
            f"'{path}' has the shape {tuple(array.shape)}: there should be one number a sample, or "
            f"several: (N,) or (N, n), with n up to {_MAX_NUMBERS:,}"
        )
    if count > store.max_rows:
        raise ValueError(f"'{path}': {count:,} rows, far more than the bytes of the file hold")
    return np.asarray(store.read(array)).reshape(count, *array.shape[1:])


def _read_one(store: ArrayStore, group: str, path: str) -> NDArray[Any]:
    """Return the number, the numbers or the text of one sample, from an array or an attribute."""
    if path.startswith(_ATTRIBUTE):
        node: Node = store.get(group)
        attributes = node.attrs
        name = path.removeprefix(_ATTRIBUTE)
        if name not in attributes:
            raise ValueError(
                f"'{group}' has no attribute '{name}'{did_you_mean(name, list(attributes))}"
            )
        value = attributes[name]
        return np.asarray(value.decode() if isinstance(value, bytes) else value)
    where = _join(group, path)
    array = find_array(store, where)
    if math.prod(array.shape) > _MAX_NUMBERS:
        raise ValueError(f"'{where}' has the shape {tuple(array.shape)}, and no few numbers")
    return np.asarray(store.read(array)).reshape(-1)[() if len(array.shape) else 0]


def _stack(every: list[NDArray[Any]], path: str) -> NDArray[Any]:
    if len({value.shape for value in every}) > 1:
        raise ValueError(f"'{path}' has more numbers in some samples than in others")
    return np.stack(every)


def _as_labels(array: NDArray[Any], path: str) -> tuple[NDArray[np.int64], list[str]]:
    """Return labels as numbers, int64 (N,), or as texts; the other of the two is empty."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 1 and array.dtype.kind in "OSUT":
        texts = [text.decode() if isinstance(text, bytes) else str(text) for text in array.tolist()]
        return np.empty(0, np.int64), texts
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise ValueError(
            f"'{path}' holds {array.dtype} {array.shape}, which are no labels: there should be "
            "one whole number or text a sample (others can be values)"
        )
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(np.iinfo(np.int64).max))
    return array.astype(np.int64), []


def _as_value(array: NDArray[Any], path: str) -> NDArray[Any]:
    if array.dtype.newbyteorder("=").name not in DTYPES:
        raise ValueError(f"'{path}' holds {array.dtype}, which are no numbers")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def describe_arrays(store: ArrayStore) -> list[dict[str, Any]]:
    """Return the path, the shape and the dtype of each array in a store, as plain JSON.

    The dtype is "ragged DTYPE" for ragged rows, and "text" for texts.
    """
    described = []
    for path in store.list_arrays():
        array = store.get(path)
        if array is not None and array.shape is not None:
            shape = list(map(int, array.shape))
            described.append({"path": path, "shape": shape, "dtype": store.name_dtype(array)})
    return described
