"""recordio: image records in MXNet's .rec files, one sample per record."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from gpupipe.dataset.index_cache import write_parts
from gpupipe.dataset.reading import map_file
from gpupipe.dataset.shards import ByteRanges, ShardedSource, ShardFile, name_shard
from gpupipe.errors import DataError
from gpupipe.formats import recordio_records
from gpupipe.formats.recordio_records import Images, Records
from gpupipe.schema.field_types import WHOLE, check_list, check_ordered, should_be

_NumberIndex = Annotated[int, Field(ge=0, le=2**31), WHOLE]


def _parse_range(value: Any) -> Any:
    expected = "the place of a number, from 0, or [first, one past the last]"
    if isinstance(value, int):
        return value, value + 1
    first, end = check_ordered(tuple(check_list(value, (2,), expected)))
    if first == end:
        raise should_be(expected)
    return first, end


class Recordio(ShardedSource):
    """The records of .rec files: each is an image, with numbers in its header.

    Attributes:
        shards: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands
            for the home directory.
            If x.idx exists next to x.rec, the samples are the records that it lists. Else all
            records are samples.
        label: The position of the label among the header's numbers, from 0. null means that none of
            them is a label.
        values: Further numbers of the header, float32: {VALUE: POSITIONS}, where VALUE is the name
            in a batch, such as {weight: 1, landmarks: [2, 12]}. [2, 12] stands for the numbers at
            the positions 2 to 11.
        empty: What to do with a record without an image: "raise", or "skip". Face data sets end
            in such records.
    """

    name: ClassVar[str] = "recordio"

    label: _NumberIndex | None = 0
    values: dict[
        str, Annotated[tuple[_NumberIndex, _NumberIndex], BeforeValidator(_parse_range)]
    ] = Field(default={})
    empty: Literal["raise", "skip"] = "raise"

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return ["image"], list(self.values)

    def find_companions(self, files: list[Path]) -> list[Path]:
        return [path.with_suffix(".idx") for path in files if path.with_suffix(".idx").is_file()]

    def read(self, path: Path) -> list[ShardFile]:
        with name_shard(path):
            data, wanted = map_file(path), _read_idx(path.with_suffix(".idx"))
            shards = [
                shard
                for records in recordio_records.iter_records(data)
                for shard in self._iter_shards(path, data, records, wanted)
            ]
        if wanted:
            key, offset = wanted.popitem()[::-1]
            raise DataError(
                f"{path.with_suffix('.idx')}: no record of {path} begins at byte {offset:,}, "
                f"as it says of '{key}': make it again, or remove it"
            )
        return shards

    def _iter_shards(
        self, path: Path, data: NDArray[np.uint8], records: Records, wanted: dict[int, str] | None
    ) -> Iterator[ShardFile]:
        """Yield a ShardFile for each run of records that all have one part, or all have several.

        The parts of a record are not contiguous in the file. So they are joined in another file, in
        the cache folder.

        Args:
            path: The RecordIO file.
            data: The bytes of the file.
            records: Records of the file.
            wanted: The records to index: maps the byte at which each begins to its key. This
                method removes the records that it has indexed. None indexes all records.
        """
        several = records.find_multipart()
        for run in np.split(np.arange(len(several)), np.flatnonzero(np.diff(several)) + 1):
            if wanted is None:
                rows, names = run, [str(number) for number in records.number[run].tolist()]
            else:
                rows = run[[start in wanted for start in records.start[run].tolist()]]
                names = [wanted.pop(start) for start in records.start[rows].tolist()]
            if not names:
                continue
            number = records.number[rows]
            if several[rows[0]]:
                payloads = [records.join_payload(data, int(row)) for row in rows]
                yield self._join_parts(path, payloads, number, names)
            else:
                first = np.searchsorted(records.part, rows)
                begin, length = records.begin[first], records.length[first]
                images = recordio_records.parse_images(data, number, begin, length)
                yield self._index_images(data, images, names)

    def _join_parts(
        self, path: Path, payloads: list[bytes], number: NDArray[np.int64], names: list[str]
    ) -> ShardFile:
        """Write records of several parts to a file in the cache folder, and return its ShardFile.

        Args:
            path: The RecordIO file.
            payloads: The payload of each record, its parts joined.
            number: The number of each record in the RecordIO file, from 0.
            names: The name of each record.
        """
        joined = b"".join(payloads)
        reason = f"{path} holds records in several parts, which are put together there"
        with write_parts(path, ("parts", names), reason) as (parts_file, file):
            file.write(joined)
        length = np.array(list(map(len, payloads)), np.int64)
        whole = np.frombuffer(joined, np.uint8)
        images = recordio_records.parse_images(whole, number, np.cumsum(length) - length, length)
        shard = self._index_images(whole, images, [f"{path}:{name}" for name in names])
        shard.path = parts_file
        return shard

    def _index_images(self, data: NDArray[np.uint8], images: Images, names: list[str]) -> ShardFile:
        full = images.length > 0
        if not full.all():
            if self.empty == "raise":
                raise ValueError(
                    f"record {int(images.number[~full][0]):,} holds no image: set data.empty=skip "
                    "where such records are no samples"
                )
            images = images.select(full)
            names = [name for name, has_image in zip(names, full, strict=True) if has_image]

        def read(first: int, end: int) -> NDArray[np.float32]:
            numbers = recordio_records.read_numbers(data, images, first, end)
            return numbers[:, 0] if end - first == 1 else numbers

        values = {name: read(*span) for name, span in self.values.items()}
        labels = None
        if self.label is not None:
            labels = _as_labels(images.number, read(self.label, self.label + 1))
        return ShardFile(names, {"image": ByteRanges(images.offset, images.length)}, labels, values)


def _as_labels(number: NDArray[np.int64], labels: NDArray[np.float32]) -> NDArray[np.int64]:
    odd = np.flatnonzero(~(np.abs(labels) < 2**24) | (labels != np.trunc(labels)))
    if len(odd):
        raise ValueError(
            f"record {int(number[odd[0]]):,}: the label {labels[odd[0]]:g} is not a whole "
            "number: set data.label, or data.label: null"
        )
    return labels.astype(np.int64)


def _read_idx(file: Path) -> dict[int, str] | None:
    """Return a dict from the byte offset of each record in an .idx file to the record's key.

    Return None if there is no such file. Raises DataError if the file cannot be parsed.
    """
    if not file.is_file():
        return None
    try:
        return recordio_records.parse_index(file.read_text("utf-8", "surrogateescape"))
    except ValueError as e:
        raise DataError(f"{file}:{e}") from e
