"""tfrecord: TensorFlow's Example messages in TFRecord shards, one sample per record."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.dataset.reading import map_file
from gpupipe.dataset.shards import (
    ByteRanges,
    Dtype,
    Shape,
    ShardedSource,
    ShardFile,
    array_spec,
    name_shard,
)
from gpupipe.errors import shown
from gpupipe.formats import example, framing
from gpupipe.formats.example import Feature
from gpupipe.formats.protobuf import Bytes, Messages, find_first
from gpupipe.pipeline.step import Spec


class Numbers(pydantic.BaseModel):
    """Describes a field whose samples are arrays, and not image files.

    Attributes:
        feature: Name of the feature, which holds either a packed list of floats, or bytes.
        shape: Shape of every sample.
        dtype: Dtype of the numbers in the bytes, which are in C order and little-endian. A list of
            floats is float32.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    feature: str
    shape: Shape
    dtype: Dtype = "float32"


class Tfrecord(ShardedSource):
    """The records of TFRecord shards, one sample per record.

    Attributes:
        shards: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands
            for the home directory.
        fields: The feature of each field: {FIELD: FEATURE}, where FIELD is the name in a batch.
            FEATURE is the feature's name if the feature holds the bytes of an image file, and
            {feature, shape, dtype} if it holds an array.
        label: The feature with the label: one int64, or bytes with a name. null means that no
            feature is a label.
        values: Features with further numbers: {VALUE: FEATURE}, where VALUE is the name in a batch.
            They hold int64s or floats, the same number of them in each record.
        verify: Whether to check the checksum of every record while the shards are indexed. Needs
            crc32c.
    """

    name: ClassVar[str] = "tfrecord"

    fields: dict[str, str | Numbers] = Field(default={"image": "image/encoded"}, min_length=1)
    label: str | None = "image/class/label"
    values: dict[str, str] = Field(default={})
    verify: bool = False

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self.fields), list(self.values)

    def specs(self) -> dict[str, Spec]:
        return {
            name: Spec() if isinstance(field, str) else array_spec(field.dtype, field.shape)
            for name, field in self.fields.items()
        }

    def read(self, path: Path) -> list[ShardFile]:
        with name_shard(path):
            data = map_file(path)
            return [
                self._index_records(data, records)
                for records in framing.iter_records(data, self.verify)
                if len(records)
            ]

    def _index_records(self, data: Bytes, records: Messages) -> ShardFile:
        """Return a ShardFile with consecutive records of a shard."""
        names = [f if isinstance(f, str) else f.feature for f in self.fields.values()]
        names += [*self.values.values()] + ([] if self.label is None else [self.label])
        features = example.parse_features(data, records, dict.fromkeys(names))
        fields = {name: _find_byte_ranges(field, features) for name, field in self.fields.items()}
        values = {name: features[feature].numbers(data) for name, feature in self.values.items()}
        labels = None if self.label is None else _read_labels(features[self.label], data)
        return ShardFile([str(n) for n in records.record.tolist()], fields, labels, values)


def _find_byte_ranges(field: str | Numbers, features: dict[str, Feature]) -> ByteRanges:
    """Return the byte ranges of a field, one per record.

    Raises MalformedProtobufError if the field's feature has the wrong type or size.
    """
    if isinstance(field, str):
        feature = features[field]
        if feature.kind != "bytes":
            raise feature.error(
                0,
                f"holds {feature.kind}, and no image file: write {{feature: {field}, shape: "
                f"[...]}} for an array",
            )
        spans = feature.spans()
        return ByteRanges(spans.begin, spans.end - spans.begin)
    feature = features[field.feature]
    if feature.kind == "floats" and field.dtype != "float32":
        raise feature.error(
            0,
            f"holds floats, which are float32, and not {field.dtype}: set dtype: float32, or "
            "leave it out",
        )
    spans = feature.spans()
    length = spans.end - spans.begin
    expected = math.prod(field.shape) * np.dtype(field.dtype).itemsize
    row = find_first(length != expected)
    if row is not None:
        raise feature.error(
            row,
            f"holds {int(length[row]):,} bytes, but {field.dtype} of shape "
            f"{shown(field.shape)} has {expected:,}",
        )
    return ByteRanges(
        spans.begin, length, field.dtype, np.tile(np.array(field.shape, np.int64), (len(length), 1))
    )


def _read_labels(feature: Feature, data: Bytes) -> list[str] | NDArray[np.int64]:
    """Return the labels: names if the feature holds bytes, else int64 (N,).

    Raises MalformedProtobufError if the feature holds floats, or several numbers per record.
    """
    if feature.kind == "bytes":
        return [text.decode("utf-8", "surrogateescape") for text in feature.texts(data)]
    if feature.kind == "floats":
        raise feature.error(
            0, "holds floats, and no label: a label is an int64 or a name; set data.label"
        )
    numbers = feature.numbers(data)
    if numbers.ndim > 1:
        raise feature.error(
            0,
            f"holds {numbers.shape[1]} numbers, and no label, which is one: set data.label, "
            "and use it in data.values",
        )
    return numbers.astype(np.int64, copy=False)
