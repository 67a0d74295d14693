"""What a source is, the index that it builds, and where sources are found.

A source says which samples exist and where their bytes are. It answers with an Index: a table with one row a sample, held in
memory-mapped arrays, so that ten million rows open in a moment and cost no Python objects.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pydantic
from numpy.typing import NDArray

from gpupipe.errors import did_you_mean
from gpupipe.span import Span

GROUP = "gpupipe.sources"
_MAGIC = b"gpupipe-index-1\n"
_LENGTH_BYTES = 8
_ALIGNMENT = 64
_RACY_SECONDS = 2.0
"""What changed this shortly before it was read may change again within the file system's clock tick."""
_DTYPES: dict[str, np.dtype[Any]] = {"names": np.dtype(np.uint8), "ends": np.dtype(np.int64), "labels": np.dtype(np.int64)}
_SPAN_DTYPES: dict[str, np.dtype[Any]] = {"file": np.dtype(np.int32), "offset": np.dtype(np.int64), "length": np.dtype(np.int64)}

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and how much there is (None: not known)."""


def quiet(what: str, done: int, total: int | None) -> None:
    """The Progress that shows nothing."""


@dataclass(frozen=True)
class Spans:
    """Samples that are parts of large files. Row i: `length` bytes from `offset` on in files[file].

    files: paths relative to the index's root. file: int32 (N,); offset, length: int64 (N,).
    """

    files: list[str]
    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]


@dataclass(frozen=True)
class Index:
    """The samples of a data set. Row i: the file at `root`/path, and its label; or a part of a file, where there are `spans`.

    names: uint8 (bytes,), all paths relative to `root` (with spans: the names of samples) behind one another; ends: int64 (N,), where each ends in `names`.
    labels: int64 (N,), numbers of `classes`.
    fingerprint: a hash of the paths and labels: what makes two data sets the same for a resume.
    note: what every output must say of this data ("stand-in data, not LFW"), or empty.
    """

    root: str
    names: NDArray[np.uint8]
    ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    classes: list[str]
    fingerprint: str
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    spans: Spans | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, i: int) -> str:
        """The whole path of row i; with spans that of its file, and behind a colon the sample's name."""
        name = os.fsdecode(self._name(i))
        return os.path.join(self.root, name) if self.spans is None else f"{self.span(i).path}:{name}"

    def span(self, i: int) -> Span:
        """Where the bytes of row i are."""
        if self.spans is None:
            return Span(self.path(i))
        found = self.spans
        return Span(os.path.join(self.root, found.files[found.file[i]]), int(found.offset[i]), int(found.length[i]))

    def subset(self, rows: NDArray[np.int64]) -> Index:
        """The index of some rows."""
        names = [os.fsdecode(self._name(int(i))) for i in rows]
        spans = None if self.spans is None else Spans(self.spans.files, self.spans.file[rows], self.spans.offset[rows], self.spans.length[rows])
        return build(self.root, names, self.labels[rows], self.classes, spans=spans)

    def encoded_paths(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Whole paths as DALI's io.file.read takes them: uint8 (len(ids), longest), filled up with NUL, which ends a path for the system.

        One array, and not one a sample: DALI looks at each array that it is given in Python.
        """
        root = np.frombuffer(os.fsencode(self.root) + b"/", np.uint8)
        starts = np.where(ids > 0, self.ends[ids - 1], 0)
        lengths = self.ends[ids] - starts
        places = np.arange(lengths.max())
        letters = self.names[np.minimum(starts[:, None] + places, len(self.names) - 1)]
        paths = np.zeros((len(ids), len(root) + len(places)), np.uint8)
        paths[:, : len(root)] = root
        paths[:, len(root) :] = np.where(places < lengths[:, None], letters, 0)
        return paths

    def _name(self, i: int) -> bytes:
        return self.names[self.ends[i - 1] if i else 0 : self.ends[i]].tobytes()


def build(
    root: str, paths: Sequence[str], labels: NDArray[np.int64], classes: list[str], extra: dict[str, Any] | None = None, spans: Spans | None = None
) -> Index:  # fmt: skip
    """An index in memory of `paths` relative to `root`; with spans, of samples that are called so."""
    encoded = [os.fsencode(p) for p in paths]
    names = np.frombuffer(b"".join(encoded), np.uint8)
    ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)
    return Index(root, names, ends, labels, classes, _fingerprint(names, ends, labels, classes, spans), extra=extra or {}, spans=spans)


def nothing() -> Index:
    """The index of no samples: what stands for data that is not there yet."""
    return build("", [], np.empty(0, np.int64), [])


def _fingerprint(names: NDArray[np.uint8], ends: NDArray[np.int64], labels: NDArray[np.int64], classes: list[str], spans: Spans | None) -> str:
    digest = hashlib.blake2b(json.dumps(classes).encode(), digest_size=16)
    if spans is not None:
        digest.update(json.dumps(spans.files).encode() + spans.file.tobytes() + spans.length.tobytes())
    for array in (names, ends, labels):
        digest.update(array.tobytes())
    return digest.hexdigest()


def save(index: Index, path: Path) -> None:
    """Write the index as one file, whole or not at all."""
    arrays: dict[str, NDArray[Any]] = {"names": index.names, "ends": index.ends, "labels": index.labels}
    if index.spans is not None:
        arrays |= {name: getattr(index.spans, name) for name in _SPAN_DTYPES}
    header: dict[str, Any] = {"root": index.root, "classes": index.classes, "fingerprint": index.fingerprint, "extra": index.extra}
    header["files"] = None if index.spans is None else index.spans.files
    header["arrays"] = {name: [a.dtype.str, len(a)] for name, a in arrays.items()}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with making.open("wb") as f:
            f.write(_MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + text)
            for array in arrays.values():
                f.write(b"\0" * (-f.tell() % _ALIGNMENT))
                array.tofile(f)
        making.replace(path)
    finally:
        making.unlink(missing_ok=True)


def keep(index: Index, path: Path, newest: int, started: float) -> None:
    """Save an index for the next time, unless what it was read from may have changed meanwhile without a trace: where `newest`, the last change
    of it in ns, lies too near to `started`, the time before it was read. Where the cache cannot be written, the next time reads again, no more."""
    if newest < (started - _RACY_SECONDS) * 1e9:
        with contextlib.suppress(OSError):
            save(index, path)


def file_state(file: Path) -> list[int]:
    """What changes where a file does: mtime and ctime in ns, bytes, inode. To be found before it is read: what changes after is read anew."""
    status = os.stat(file)
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]


def open_saved(path: Path) -> Index | None:
    """The index in a file, memory-mapped; None where there is none, or it is of another version, cut off or otherwise not what `save` wrote."""
    try:
        size = path.stat().st_size
        header, place = _header(path, size)
        arrays: dict[str, NDArray[Any]] = {}
        files = header.get("files")
        for name, dtype in (_DTYPES | ({} if files is None else _SPAN_DTYPES)).items():
            stored, length = header["arrays"][name]
            place += -place % _ALIGNMENT
            if stored != dtype.str or not 0 <= place + length * dtype.itemsize <= size:
                return None
            arrays[name] = np.memmap(path, dtype, "r", place, (length,)) if length else np.empty(0, dtype)
            place += arrays[name].nbytes
        columns = (arrays["names"], arrays["ends"], arrays["labels"])
        spans = None if files is None else Spans(files, *(arrays[name] for name in _SPAN_DTYPES))
        index = Index(header["root"], *columns, header["classes"], header["fingerprint"], extra=header["extra"], spans=spans)
        return index if size == place and _holds_together(index) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """The header of an index file of `size` bytes, and where it ends. Raises ValueError or TypeError where it is none."""
    with path.open("rb") as f:
        if f.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("another format, or another version")
        length = int.from_bytes(f.read(_LENGTH_BYTES), "little")
        if length > size:
            raise ValueError("cut off")
        header = json.loads(f.read(length))
        if not isinstance(header, dict):
            raise TypeError("not a header")
        return header, f.tell()


def _holds_together(index: Index) -> bool:
    """Whether the columns of an index from a file fit each other. The last row stands for all: to read them all would take a scan's time."""
    typed = isinstance(index.root, str) and isinstance(index.fingerprint, str) and isinstance(index.extra, dict) and isinstance(index.classes, list)
    spans = index.spans
    if spans is not None and not (isinstance(spans.files, list) and len(spans.file) == len(spans.offset) == len(spans.length) == len(index.labels)):
        return False
    return typed and len(index.ends) == len(index.labels) and (int(index.ends[-1]) if len(index.ends) else 0) == len(index.names)


class Source(pydantic.BaseModel):
    """The base of all sources: a frozen model of what stands under `data:` in the YAML, beside `source: NAME`."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]

    def index(self, progress: Progress = quiet) -> Index:
        """The samples, from the cached index where it still holds, else scanned. May fetch the data first.

        Raises DataError where there is nothing to read, FetchError where fetching failed.
        """
        raise NotImplementedError(f"{type(self).__name__} must build an index")

    def absent(self) -> str:
        """Why the data is not there yet ("... will be fetched"), or "" where it is."""
        return ""


def names() -> list[str]:
    """The names of all sources: the built-in ones and those of installed plugins."""
    package = importlib.import_module("gpupipe.sources")
    builtin = {m.name for m in pkgutil.iter_modules(package.__path__)}
    return sorted(builtin | {e.name for e in entry_points(group=GROUP)})


def find(name: str) -> type[Source]:
    """The class of the source called `name`: `gpupipe/sources/NAME.py`, else the entry point NAME in the group `gpupipe.sources`.

    Raises KeyError with a message that suggests the nearest name.
    """
    if name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(f"gpupipe.sources.{name}"):
        module = importlib.import_module(f"gpupipe.sources.{name}")
        return getattr(module, "".join(part.capitalize() for part in name.split("_")))  # type: ignore[no-any-return]  # one class of its name a file
    for entry in entry_points(group=GROUP, name=name):
        return entry.load()  # type: ignore[no-any-return]  # a plugin's word
    raise KeyError(f"unknown source '{name}'{did_you_mean(name, names())}")
