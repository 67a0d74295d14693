"""Surveys a data set by its index and a few samples: counts, sizes, classes and masks.

`iter_doubts` yields hints that the data may be read in a wrong way.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpupipe.dataset.index import Index
from gpupipe.dataset.source import SOURCES, Progress, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.init.arrays import infer_layout
from gpupipe.init.detected import TRAIN, Detected, name_some

MAX_LOOKED_AT = 64
_FEW = 8
"""Max number of masks to decode."""
_GRAY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B")
"""Pillow's modes of gray images."""
_MAX_CLASSES = 64
"""Masks with more values than this may not hold class numbers."""


@dataclass(frozen=True)
class MaskSurvey:
    """The findings about the masks of a data set, from a few of them.

    Attributes:
        field: The field of the masks.
        is_binary: Whether the values are 0 and 255, which mean the classes 0 and 1.
        have_other_sizes: Whether some masks differ in size from their images.
        doubts: Sentences about uncertain findings.
    """

    field: str
    is_binary: bool
    have_other_sizes: bool
    doubts: list[str]


@dataclass(frozen=True)
class Survey:
    """The findings about a data set, from its index and a few samples.

    Attributes:
        count: The number of samples.
        classes: The names of the classes.
        sizes: (height, width) of some images; empty for arrays.
        is_gray: Whether all images in `sizes` are gray.
        num_unreadable: The number of sampled images that cannot be read.
        has_labels: Whether the samples have labels.
        used_labels: The distinct labels of the samples, ascending.
        doubts: Sentences about uncertain findings on the images, masks or arrays.
        spec: The spec of the first field, for arrays; None for images.
        smallest: The min length of each spatial axis, if arrays may differ in shape; otherwise
            empty.
        masks: The findings about the masks; None if there are none.
        has_boxes: Whether the images have boxes.
    """

    count: int
    classes: Sequence[str]
    sizes: Sequence[tuple[int, int]] = ()
    is_gray: bool = False
    num_unreadable: int = 0
    has_labels: bool = True
    used_labels: Sequence[int] = ()
    doubts: Sequence[str] = ()
    spec: Spec | None = None
    smallest: Sequence[int] = ()
    masks: MaskSurvey | None = None
    has_boxes: bool = False


def survey(detected: Detected, progress: Progress = ignore_progress) -> Survey:
    """Build the index of detected data, read some headers, and return the findings.

    Raises:
        DataError: The source cannot read the data.
    """
    source: Any = SOURCES.find(detected.source).model_validate(detected.options)
    index: Index = source.index(progress)
    used = np.unique(index.labels).tolist()
    # Arrays in `files` have their labels in files of their own.
    has_files = "files" in detected.options and hasattr(source, "labels")
    label = source.labels if has_files else getattr(source, "label", None)
    has_labels = label is not None
    spec = source.specs()[index.main]
    if not spec.encoded:
        layout, doubt = infer_layout(spec.shape)
        spec = Spec.of_array(spec.dtype, spec.shape, layout)
        return Survey(
            len(index),
            index.classes,
            has_labels=has_labels,
            used_labels=used,
            doubts=[doubt] if doubt else [],
            spec=spec,
            smallest=_find_min_sizes(index, spec),
        )
    rows = np.unique(np.linspace(0, len(index) - 1, MAX_LOOKED_AT).astype(int)).tolist()
    headers = {row: _read_header(index, row) for row in rows}
    readable = [header for header in headers.values() if header is not None]
    pages = [index.names[row] for row, h in headers.items() if h is not None and h.pages > 1]
    doubts = [f"images of several pages, read as the first alone: {name_some(pages)}."]
    kinds = {name: spec.kind for name, spec in source.field_specs().items()}
    mask = next((name for name, kind in kinds.items() if kind == "mask"), None)
    masks = _look_at_masks(index, mask, rows[:_FEW]) if mask else None
    return Survey(
        len(index),
        index.classes,
        [header.size for header in readable],
        bool(readable) and all(header.mode in _GRAY_MODES for header in readable),
        len(headers) - len(readable),
        has_labels,
        used,
        (doubts if pages else []) + (masks.doubts if masks else []),
        masks=masks,
        has_boxes=bool(index.annotations),
    )


class _Header(NamedTuple):
    """The (height, width) of an image file, its mode in Pillow, and its number of pages."""

    size: tuple[int, int]
    mode: str
    pages: int


def _read_header(index: Index, row: int) -> _Header | None:
    """Return the header of an image; None if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(index.read(row).tobytes())) as image:
            pages = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
            return _Header((image.height, image.width), image.mode, pages)
    except (OSError, ValueError, Image.DecompressionBombError):
        return None


def _find_min_sizes(index: Index, spec: Spec) -> list[int]:
    array = index.columns[index.main].array
    if array is None or array.shapes is None:
        return []
    axes = [spec.layout.index(letter) for letter in spec.space]
    return [int(n) for n in array.shapes.min(axis=0)[axes]]


def _look_at_masks(index: Index, field: str, rows: Sequence[int]) -> MaskSurvey:
    """Decode the images and masks in `rows` of an index, and return findings about the masks."""
    values: set[int] = set()
    colored, resized = [], []
    for row in rows:
        image, mask = _open(index, row, index.main), _open(index, row, field)
        if image is None or mask is None:
            continue
        name = index.location(row, field).removeprefix(f"{index.root}/")
        values.update(value for _, value in mask.convert("L").getcolors() or ())
        if mask.mode not in _GRAY_MODES and _has_colors(mask.convert("RGB")):
            colored.append(name)
        if mask.size != image.size:
            resized.append(name)
    is_binary = max(values, default=0) == 255 and values <= {0, 255}
    doubts = []
    if colored:
        doubts.append(
            f"masks in colours, or with a palette, of which decode delivers the brightness: "
            f"{name_some(colored)}; write them as gray PNG files whose levels are the classes "
            "(of a palette, numpy.array(PIL.Image.open(FILE)) holds the classes)."
        )
    elif is_binary:
        doubts.append(
            "the masks hold 0 and 255, taken for 0 and 1: a batch has them as float32 from 0 to 1."
        )
    elif len(values) > _MAX_CLASSES:
        doubts.append(
            f"the masks hold {len(values)} levels up to {max(values)}, more than classes usually "
            "are: JPEG and resizing blur masks, so write them as PNG with the classes as levels."
        )
    if resized:
        doubts.append(
            f"masks of another size than their images, so that crops differ: {name_some(resized)}."
        )
    return MaskSurvey(field, is_binary and not colored, bool(resized), doubts)


def _has_colors(image: Any) -> bool:
    pixels = np.asarray(image)
    return bool((pixels != pixels[..., :1]).any())


def _open(index: Index, row: int, field: str) -> Any:
    """Open and load an image or a mask with Pillow; return None if it cannot be read."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(index.read(row, field).tobytes()))
        image.load()
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    return image


def iter_doubts(part: str, detected: Detected, found: Survey) -> Iterator[str]:
    """Yield sentences for the user on what may be wrong about the detected data.

    Sentences about labels are for training data only: validation data may lack some classes.
    """
    yield from detected.notes
    yield from found.doubts
    if found.has_labels and part == TRAIN:
        no_labels = "leave out labels" if "files" in detected.options else "write 'label: null'"
        yield from _iter_label_doubts(found, no_labels)


def _iter_label_doubts(found: Survey, no_labels: str) -> Iterator[str]:
    used = found.used_labels
    gaps = sorted(set(range(len(found.classes))) - set(used))
    if len(used) == 1:
        name = found.classes[used[0]]
        yield (
            f"all samples are of one class, '{name}'; if that is wrong, {no_labels} under data, or "
            "name the folder or column that has the classes."
        )
    elif len(used) == found.count:
        yield (
            f"there are as many classes as samples ({found.count:,}), so the labels may be names "
            f"of samples; for no labels {no_labels} under data."
        )
    if gaps:
        yield (
            f"no sample has the label {name_some(map(str, gaps))}, though labels go up to "
            f"{used[-1]}: a model needs {len(found.classes):,} outputs, unless the labels are "
            "numbered again, from 0 without gaps."
        )
