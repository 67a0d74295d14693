"""The records of COCO annotation files: what they hold, how they are decoded, what is wrong."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpupipe.errors import short
from gpupipe.formats.json_items import Block

T = TypeVar("T", bound=Struct)
_INT64 = range(-(2**63), 2**63)
WRONG = (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeError)
"""What decoding a record may raise."""


class CocoImage(Struct, gc=False):
    """A record of the array `images`."""

    id: int
    file_name: str
    width: int = 0
    height: int = 0


class BoxAnnotation(Struct, gc=False):
    """A record of the array `annotations`; bbox is [left, top, width, height]."""

    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    area: float | None = None
    iscrowd: int | bool = 0


class PointAnnotation(BoxAnnotation, gc=False):
    """The same with keypoints: x, y and visibility of each."""

    keypoints: list[float] = []


class CocoCategory(Struct):
    """A record of the array `categories`."""

    id: int
    name: str
    keypoints: list[str] = []
    skeleton: list[tuple[int, int]] = []


@dataclass(frozen=True)
class Fault:
    """An annotation of a COCO file that cannot be used.

    Attributes:
        record: The position of the annotation in the array `annotations`.
        image_id: The image that the annotation belongs to.
        reason: What is wrong.
    """

    record: int
    image_id: int
    reason: str


@dataclass(frozen=True)
class CocoAnnotations:
    """M annotations, in the order of the file.

    Attributes:
        records: The position of each annotation in the array `annotations`, int64 (M,).
        image_ids: The id of each annotation's image, int64 (M,).
        category_ids: The id of each annotation's category, int64 (M,).
        boxes: left, top, right and bottom in pixels, float32 (M, 4).
        area: The area of each annotation in pixels, float32 (M,); that of the box if it is missing.
        is_crowd: Whether an annotation stands for a crowd, bool (M,).
        keypoints: x, y and visibility of each keypoint, float32 (M, K, 3). K is 0 if keypoints were
            not asked for.
    """

    records: NDArray[np.int64]
    image_ids: NDArray[np.int64]
    category_ids: NDArray[np.int64]
    boxes: NDArray[np.float32]
    area: NDArray[np.float32]
    is_crowd: NDArray[np.bool_]
    keypoints: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.records)

    def take(self, rows: Any) -> "CocoAnnotations":
        """Return the annotations of `rows`, an array of numbers or of booleans."""
        return CocoAnnotations(*(getattr(self, field.name)[rows] for field in fields(self)))


def join_annotations(parts: Sequence[CocoAnnotations]) -> CocoAnnotations:
    """Concatenate the annotations of several parts."""
    if len(parts) == 1:
        return parts[0]
    return CocoAnnotations(
        *(
            np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(CocoAnnotations)
        )
    )


def make_arrays(
    records: NDArray[np.int64], items: Sequence[Any], with_keypoints: bool
) -> tuple[CocoAnnotations, NDArray[np.int64]]:
    """Return the arrays of some annotations, and how many numbers each has in its keypoints.

    The keypoints are joined to one axis, since their number may be wrong. Raises OverflowError if a
    number is beyond int64.
    """
    count = len(items)
    boxes = _concat((item.bbox for item in items), 4 * count).reshape(count, 4)
    area = np.fromiter((np.nan if a.area is None else a.area for a in items), np.float64, count)
    lists = [item.keypoints for item in items] if with_keypoints else []
    numbers = np.fromiter(map(len, lists), np.int64, len(lists))
    with np.errstate(all="ignore"):  # Numbers beyond float32 become infinite, which is noticed.
        area = np.where(np.isnan(area), boxes[:, 2] * boxes[:, 3], area)
        boxes[:, 2:] += boxes[:, :2]
        annotations = CocoAnnotations(
            records,
            np.fromiter(map(attrgetter("image_id"), items), np.int64, count),
            np.fromiter(map(attrgetter("category_id"), items), np.int64, count),
            boxes.astype(np.float32),
            area.astype(np.float32),
            np.fromiter(map(attrgetter("iscrowd"), items), np.int64, count) != 0,
            _concat(lists, int(numbers.sum())).astype(np.float32),
        )
    return annotations, numbers


def _concat(lists: Iterable[Sequence[float]], count: int) -> NDArray[np.float64]:
    return np.fromiter(chain.from_iterable(lists), np.float64, count)


def check_id(number: int, where: str) -> int:
    """Return the number. Raises ValueError if it is beyond int64."""
    if number not in _INT64:
        raise ValueError(f"{where}: {short(str(number))} is beyond 64 bits")
    return number


def decode_all(block: Block, kind: type[T]) -> list[T]:
    """Decode the items of a block. Raises ValueError that names the first that is wrong."""
    wanted: Any = list[kind]  # type: ignore[valid-type]
    try:
        items: list[T] = msgspec.json.decode(b"[" + block.data + b"]", type=wanted)
    except WRONG:
        return [_decode_one(block, number, kind) for number in range(len(block))]
    return items


def _decode_one(block: Block, number: int, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(block.item(number), type=kind)
    except WRONG as e:
        raise ValueError(f"{block.key}[{block.first + number}]: {_explain(e)}") from e


def _explain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "too many brackets within each other"
    return str(error).replace("`", "'").replace(" - at '$.", ": '").replace("$", "the record")


def find_fault(text: bytes, record: int, error: Exception) -> Fault:
    """Return the fault of an annotation. Raises ValueError if its image is not known."""
    reason = _explain(error)
    try:
        item = json.loads(text)  # which reads NaN
        image_id = item.get("image_id") if isinstance(item, dict) else None
    except (ValueError, RecursionError):
        image_id = None
    else:
        if type(error) is msgspec.DecodeError:
            reason = "NaN or Infinity in place of a number"
    if type(image_id) is not int or image_id not in _INT64:
        raise ValueError(f"annotations[{record}]: {reason}")
    return Fault(record, image_id, reason)
