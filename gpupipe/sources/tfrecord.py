"""tfrecord: samples in TFRecord shards, as TensorFlow's Example messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.dataset.shard_index import Pieces, ShardFile
from gpupipe.dataset.shards import Dtype, Shape, Sharded, array_spec, blamed, mapped
from gpupipe.errors import shown
from gpupipe.formats import example, framing
from gpupipe.formats.example import Feature
from gpupipe.formats.protobuf import Bytes, Messages
from gpupipe.pipeline.step import Spec


class Numbers(pydantic.BaseModel):
    """A feature that is an array.

    feature: its name; a packed list of floats, or bytes. shape: of every sample. dtype: what the
    bytes are, in C order and little-endian; floats are float32.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    feature: str
    shape: Shape
    dtype: Dtype = "float32"


class Tfrecord(Sharded):
    """The records of TFRecord shards, a sample each.

    shards: one pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands for the
    home directory. fields: what is in a batch, and the feature that each is: the bytes of an image
    file, or with {feature, shape, dtype} an array. label: the feature with the label: an int64, or
    bytes with a name; null: none, all are 0. values: numbers to deliver with each sample, and the
    features that they are: int64s or floats, as many in each record. verify: check the checksum of
    every record, while the shards are indexed.
    """

    name: ClassVar[str] = "tfrecord"

    fields: dict[str, str | Numbers] = Field(default={"image": "image/encoded"}, min_length=1)
    label: str | None = "image/class/label"
    values: dict[str, str] = Field(default={})
    verify: bool = False

    def delivered(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self.fields), list(self.values)

    def specs(self) -> dict[str, Spec]:
        return {
            name: Spec() if isinstance(told, str) else array_spec(told.dtype, told.shape)
            for name, told in self.fields.items()
        }

    def read(self, path: Path) -> list[ShardFile]:
        with blamed(path):
            data = mapped(path)
            return [
                self._part(data, records)
                for records in framing.records(data, self.verify)
                if len(records)
            ]

    def _part(self, data: Bytes, records: Messages) -> ShardFile:
        """Some records of a shard."""
        wanted = [told if isinstance(told, str) else told.feature for told in self.fields.values()]
        wanted += [*self.values.values()] + ([] if self.label is None else [self.label])
        found = example.features(data, records, dict.fromkeys(wanted))
        fields = {name: _pieces(told, found) for name, told in self.fields.items()}
        values = {name: found[feature].numbers(data) for name, feature in self.values.items()}
        labels = None if self.label is None else _labels(found[self.label], data)
        return ShardFile([str(n) for n in records.record.tolist()], fields, labels, values)

    def nothing(self) -> str:
        return "the files hold no records: set data.shards"


def _pieces(told: str | Numbers, found: dict[str, Feature]) -> Pieces:
    """Where the field is. Raises MalformedProtobuf."""
    if isinstance(told, str):
        feature = found[told]
        if feature.kind != "bytes":
            raise feature.wrong(
                0,
                f"holds {feature.kind}, and no image file: write {{feature: {told}, shape: "
                f"[...]}} for an array",
            )
        spans = feature.spans()
        return Pieces(spans.begin, spans.end - spans.begin)
    feature = found[told.feature]
    if feature.kind == "floats" and told.dtype != "float32":
        raise feature.wrong(
            0,
            f"holds floats, which are float32, and not {told.dtype}: set dtype: float32, or "
            "leave it out",
        )
    spans = feature.spans()
    length, expected = (
        spans.end - spans.begin,
        math.prod(told.shape) * np.dtype(told.dtype).itemsize,
    )
    odd = np.flatnonzero(length != expected)
    if len(odd):
        row = int(odd[0])
        raise feature.wrong(
            row,
            f"holds {int(length[row]):,} bytes, but {told.dtype} of shape "
            f"{shown(told.shape)} has {expected:,}",
        )
    return Pieces(
        spans.begin, length, told.dtype, np.tile(np.array(told.shape, np.int64), (len(length), 1))
    )


def _labels(feature: Feature, data: Bytes) -> list[str] | NDArray[np.int64]:
    """Numbers, or names. Raises MalformedProtobuf."""
    if feature.kind == "bytes":
        return [text.decode("utf-8", "surrogateescape") for text in feature.texts(data)]
    if feature.kind == "floats":
        raise feature.wrong(
            0, "holds floats, and no label: a label is an int64 or a name; set data.label"
        )
    found = feature.numbers(data)
    if found.ndim > 1:
        raise feature.wrong(
            0,
            f"holds {found.shape[1]} numbers, and no label, which is one: set data.label, "
            "and use it in data.values",
        )
    return found.astype(np.int64, copy=False)
