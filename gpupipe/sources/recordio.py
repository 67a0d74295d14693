"""recordio: image records in MXNet's .rec files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from gpupipe.dataset import index_cache, index_file
from gpupipe.dataset.index import Index, SpanColumn
from gpupipe.dataset.shard_index import Pieces, ShardFile
from gpupipe.dataset.shards import Sharded, blamed, mapped
from gpupipe.errors import DataError
from gpupipe.formats import recordio
from gpupipe.formats.recordio import Images, Records
from gpupipe.schema.field_types import WHOLE, form, listed, ordered

_Place = Annotated[int, Field(ge=0, le=2**31), WHOLE]


def _range(value: Any) -> Any:
    words = "the place of a number, from 0, or [first, behind the last]"
    first, end = (
        (value, value + 1) if isinstance(value, int) else ordered(tuple(listed(value, (2,), words)))
    )
    if first == end:
        raise form(words)
    return first, end


class Recordio(Sharded):
    """The records of .rec files, a sample each: an image, and the numbers in its header.

    shards: one pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands for the
    home directory. Where x.idx stands beside x.rec, the samples are the records that it lists; else
    all. label: which of the header's numbers is the label; 0 is the first, or the only one; null:
    none, all are 0. values: further numbers of the header to deliver with each sample, float32:
    {weight: 1, landmarks: [2, 12]}, to before the last. empty: what to do with a record without an
    image: raise, or skip (face data sets end in such records).
    """

    name: ClassVar[str] = "recordio"

    label: _Place | None = 0
    values: dict[str, Annotated[tuple[_Place, _Place], BeforeValidator(_range)]] = Field(default={})
    empty: Literal["raise", "skip"] = "raise"

    def delivered(self) -> tuple[Sequence[str], Sequence[str]]:
        return ["image"], list(self.values)

    def beside(self, files: list[Path]) -> list[Path]:
        return [path.with_suffix(".idx") for path in files if path.with_suffix(".idx").is_file()]

    def holds(self, index: Index) -> bool:
        column = index.columns["image"]
        return isinstance(column, SpanColumn) and all(
            Path(column.path(n)).is_file() for n in range(len(column.files))
        )

    def read(self, path: Path) -> list[ShardFile]:
        with blamed(path):
            data, wanted = mapped(path), _listed(path.with_suffix(".idx"))
            found = [
                shard
                for records in recordio.records(data)
                for shard in self._shards(path, data, records, wanted)
            ]
        if wanted:
            key, place = wanted.popitem()[::-1]
            raise DataError(
                f"{path.with_suffix('.idx')}: no record of {path} begins at byte {place:,}, "
                f"as it says of '{key}': make it anew, or remove it"
            )
        return found

    def _shards(
        self, path: Path, data: NDArray[np.uint8], records: Records, wanted: dict[int, str] | None
    ) -> Iterator[ShardFile]:
        """What those of the records say that are wanted, which is taken out of `wanted`; records in
        several parts by themselves, made whole.
        """
        several = records.several()
        for run in np.split(np.arange(len(several)), np.flatnonzero(np.diff(several)) + 1):
            rows = (
                run
                if wanted is None
                else run[[start in wanted for start in records.start[run].tolist()]]
            )
            names = [
                str(n) if wanted is None else wanted.pop(s)
                for n, s in zip(
                    records.number[rows].tolist(), records.start[rows].tolist(), strict=True
                )
            ]
            if not names:
                continue
            if several[rows[0]]:
                yield self._made_whole(path, data, records, rows, names)
            else:
                first = np.searchsorted(records.part, rows)
                yield self._shard(
                    data, records.number[rows], records.begin[first], records.length[first], names
                )

    def _made_whole(
        self,
        path: Path,
        data: NDArray[np.uint8],
        records: Records,
        rows: NDArray[np.int64],
        names: list[str],
    ) -> ShardFile:
        """Records in several parts, whose bytes are nowhere behind one another: they are written
        into the cache folder.
        """
        payloads = [records.payload(data, int(row)) for row in rows]
        place = index_cache.place(
            "parts", str(path), index_file.file_state(path), names
        ).with_suffix(".parts")
        try:
            index_file.write_whole(place, payloads)
        except OSError as e:
            what = f"{path} holds records in several parts, which are put together there"
            raise DataError(
                f"{place}: cannot be written ({e.strerror or e}): {what}: set GPUPIPE_CACHE "
                "to a folder that can"
            ) from e
        length = np.array(list(map(len, payloads)), np.int64)
        whole = np.frombuffer(b"".join(payloads), np.uint8)
        shard = self._shard(
            whole,
            records.number[rows],
            np.cumsum(length) - length,
            length,
            [f"{path}:{name}" for name in names],
        )
        shard.path = place
        return shard

    def _shard(
        self,
        data: NDArray[np.uint8],
        number: NDArray[np.int64],
        begin: NDArray[np.int64],
        length: NDArray[np.int64],
        names: list[str],
    ) -> ShardFile:
        found = recordio.images(data, number, begin, length)
        full = found.length > 0
        if not full.all():
            if self.empty == "raise":
                raise ValueError(
                    f"record {int(number[~full][0]):,} holds no image: set data.empty=skip "
                    "where such records are no samples"
                )
            found, number, names = (
                found.where(full),
                number[full],
                [name for name, there in zip(names, full, strict=True) if there],
            )
        values = {
            name: _numbers(data, number, found, *where) for name, where in self.values.items()
        }
        labels = (
            None
            if self.label is None
            else _labels(number, _numbers(data, number, found, self.label, self.label + 1))
        )
        return ShardFile(names, {"image": Pieces(found.offset, found.length)}, labels, values)

    def nothing(self) -> str:
        return "the files hold no records: set data.shards"


def _numbers(
    data: NDArray[np.uint8], number: NDArray[np.int64], found: Images, first: int, end: int
) -> NDArray[np.float32]:
    """(N,) of a single number, else (N, end - first)."""
    numbers = recordio.numbers(data, number, found, first, end)
    return numbers[:, 0] if end - first == 1 else numbers


def _labels(number: NDArray[np.int64], labels: NDArray[np.float32]) -> NDArray[np.int64]:
    odd = np.flatnonzero(~(np.abs(labels) < 2**24) | (labels != np.trunc(labels)))
    if len(odd):
        raise ValueError(
            f"record {int(number[odd[0]]):,}: the label {labels[odd[0]]:g} is not a whole "
            "number: set data.label, or data.label: null"
        )
    return labels.astype(np.int64)


def _listed(file: Path) -> dict[int, str] | None:
    """The records that an .idx file lists: keys by where each begins; None where there is no such
    file. Raises DataError.
    """
    if not file.is_file():
        return None
    try:
        keys, places = recordio.listed(file.read_text("utf-8", "surrogateescape"))
    except ValueError as e:
        raise DataError(f"{file}:{e}") from e
    found = dict(zip(places, keys, strict=True))
    if len(found) < len(places):
        twice, _ = Counter(places).most_common(1)[0]
        raise DataError(f"{file}: byte {twice:,} stands in it more than once: make it anew")
    return found
