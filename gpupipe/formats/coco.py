"""Read COCO annotation files: images, categories, boxes and keypoints as arrays.

The format is described at https://cocodataset.org/#format-data. Segmentations are not read.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpupipe.formats.coco_records import (
    WRONG,
    BoxAnnotation,
    CocoAnnotations,
    CocoCategory,
    CocoImage,
    Fault,
    PointAnnotation,
    check_id,
    decode_all,
    find_fault,
    join_annotations,
    make_arrays,
)
from gpupipe.formats.json_items import Block, iter_blocks

_MAX_SIDE = 1 << 30
Tick = Callable[[int], None]
"""A progress callback; its argument is the number of annotations read so far."""


@dataclass(frozen=True)
class Category:
    """A category of a COCO file.

    Attributes:
        name: Its name.
        keypoints: The names of its K keypoints; empty if it has none.
        skeleton: Pairs of keypoints that a line connects, counted from 1, as in the file.
    """

    name: str
    keypoints: tuple[str, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class CocoFile:
    """The content of a COCO file with N images.

    Attributes:
        image_ids: The id of each image, int64 (N,).
        file_names: The path of each image.
        sizes: The height and width of each image in pixels, int32 (N, 2); 0 if the file lacks it.
        categories: The categories by id, in the order of ids.
        annotations: The annotations that can be read.
        faults: The annotations that cannot be read.
        num_annotations: How many annotations the file has.
    """

    image_ids: NDArray[np.int64]
    file_names: list[str]
    sizes: NDArray[np.int32]
    categories: dict[int, Category]
    annotations: CocoAnnotations
    faults: list[Fault]
    num_annotations: int


def read_coco(stream: BinaryIO, with_keypoints: bool, tick: Tick = lambda _: None) -> CocoFile:
    """Read a COCO file in blocks of a few megabytes.

    Args:
        stream: The file, open for reading.
        with_keypoints: Whether to read keypoints.
        tick: Called now and then with the number of annotations read so far.

    Raises:
        DamagedError: The file is truncated, or no JSON object.
        ValueError: The file lacks images, annotations or categories; or an image, a category, or an
            annotation whose image is not known, cannot be read.
        OSError: The file cannot be read.
    """
    reader = _Reader(with_keypoints)
    for block in iter_blocks(stream):
        reader.add(block)
        tick(reader.count)
    return reader.join()


class _Reader:
    """Collects the content of the blocks of a COCO file."""

    def __init__(self, with_keypoints: bool) -> None:
        self._with_keypoints = with_keypoints
        self._annotation = PointAnnotation if with_keypoints else BoxAnnotation
        self._image_ids, self._heights, self._widths = array("q"), array("i"), array("i")
        self._file_names: list[str] = []
        self._categories: dict[int, Category] = {}
        self._parts: list[tuple[CocoAnnotations, NDArray[np.int64]]] = []
        self._faults: list[Fault] = []
        self._missing = dict.fromkeys(("images", "annotations", "categories"))
        self.count = 0
        """The number of annotations read so far."""

    def add(self, block: Block) -> None:
        """Add the items of a block. Raises ValueError if one is wrong."""
        self._missing.pop(block.key, None)
        if block.key == "images":
            self._add_images(block)
        elif block.key == "categories":
            self._add_categories(block)
        elif block.key == "annotations":
            self._add_annotations(block)

    def _add_images(self, block: Block) -> None:
        for number, image in enumerate(decode_all(block, CocoImage), block.first):
            where = f"images[{number}]"
            if not (0 <= image.width < _MAX_SIDE and 0 <= image.height < _MAX_SIDE):
                raise ValueError(f"{where}: {image.width} x {image.height} is no size of an image")
            self._image_ids.append(check_id(image.id, where))
            self._file_names.append(image.file_name)
            self._heights.append(image.height)
            self._widths.append(image.width)

    def _add_categories(self, block: Block) -> None:
        for number, entry in enumerate(decode_all(block, CocoCategory), block.first):
            where = f"categories[{number}]"
            if entry.id in self._categories:
                raise ValueError(f"{where}: another category has the id {entry.id}")
            category = Category(entry.name, tuple(entry.keypoints), tuple(entry.skeleton))
            self._categories[check_id(entry.id, where)] = category

    def _add_annotations(self, block: Block) -> None:
        self.count = block.first + len(block)
        records = np.arange(block.first, self.count)
        kind: Any = list[self._annotation]  # type: ignore[name-defined]
        try:
            items = msgspec.json.decode(b"[" + block.data + b"]", type=kind)
            self._parts.append(make_arrays(records, items, self._with_keypoints))
        except WRONG:
            self._add_good_annotations(block, records)

    def _add_good_annotations(self, block: Block, records: NDArray[np.int64]) -> None:
        """Add the annotations of a block in which one or more cannot be read."""
        items, is_good = [], np.ones(len(block), bool)
        for number, record in enumerate(records.tolist()):
            text = block.item(number)
            try:
                item = msgspec.json.decode(text, type=self._annotation)
                for name in ("image_id", "category_id", "iscrowd"):
                    check_id(getattr(item, name), name)
                items.append(item)
            except (*WRONG, ValueError) as e:
                self._faults.append(find_fault(text, record, e))
                is_good[number] = False
        self._parts.append(make_arrays(records[is_good], items, self._with_keypoints))

    def join(self) -> CocoFile:
        """Return all that was read.

        Raises ValueError if an array is missing, or no annotation can be read.
        """
        for key in self._missing:
            raise ValueError(f"it has no array '{key}', as COCO's annotations have")
        if not self._file_names:
            raise ValueError("its array 'images' is empty")
        annotations, faults = self._join_annotations()
        if faults and not len(annotations):
            raise ValueError(
                f"annotations[{faults[0].record}]: {faults[0].reason}; no annotation can be read"
            )
        return CocoFile(
            np.array(self._image_ids),
            self._file_names,
            np.stack([self._heights, self._widths], 1),
            dict(sorted(self._categories.items())),
            annotations,
            faults,
            self.count,
        )

    def _join_annotations(self) -> tuple[CocoAnnotations, list[Fault]]:
        parts = self._parts or [make_arrays(np.empty(0, np.int64), [], False)]
        joined = join_annotations([part for part, _ in parts])
        if not self._with_keypoints:
            return replace(
                joined, keypoints=np.empty((len(joined), 0, 3), np.float32)
            ), self._faults
        counts = np.concatenate([numbers for _, numbers in parts])
        length = 3 * self._count_keypoints()
        is_good = (counts == 0) | (counts == length)
        faults = [
            Fault(
                int(joined.records[i]),
                int(joined.image_ids[i]),
                f"{counts[i]} numbers in 'keypoints', but its category has {length // 3} keypoints "
                "of 3 numbers",
            )
            for i in np.flatnonzero(~is_good)
        ]
        keypoints = np.zeros((len(joined), length), np.float32)
        is_value_good = np.repeat(is_good, counts)
        keypoints[counts == length] = joined.keypoints[is_value_good].reshape(-1, length)
        joined = replace(joined, keypoints=keypoints.reshape(len(joined), length // 3, 3))
        return joined.take(is_good), sorted(self._faults + faults, key=attrgetter("record"))

    def _count_keypoints(self) -> int:
        """Return K. Raises ValueError if the categories have no keypoints, or not all the same."""
        counts = {len(c.keypoints) for c in self._categories.values() if c.keypoints}
        if len(counts) != 1:
            raise ValueError(
                "its categories have different numbers of keypoints: "
                f"{', '.join(map(str, sorted(counts)))}"
                if counts
                else "none of its categories has 'keypoints': leave out data.keypoints"
            )
        return counts.pop()
