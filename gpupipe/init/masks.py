"""Finds images and their segmentation masks: in folders of their own, or side by side."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.dataset.index import Index
from gpupipe.errors import counted
from gpupipe.init.detected import (
    IMAGE_WORDS,
    Detected,
    choose_parts,
    find_part_word,
    is_image,
    name_some,
    split_words,
)

_MASK_WORDS = {"mask", "masks", "label", "labels", "annotation", "annotations", "trimaps"}
_MASK_WORDS |= {"seg", "segmentation", "segmentations", "segmentationclass", "gt", "gtfine"}
_SUFFIX = re.compile(
    r"(?:[_\-. ](?P<mask>masks?|labels?|labelids|seg|segmentation|gt|gtfine|trimap)"
    r"|[_\-. ](?:image|img|leftimg8bit))+$"
)
_HINTS = ("mask", "label", "annotation", "seg", "gt", "trimap")
"""Every path of a mask contains one of these texts: `detect_masks` skips data without them."""
_Key = tuple[str, ...]
GRAY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B")
"""Pillow's modes of images with one channel."""
_MAX_LEVELS = 64


def detect_masks(folder: Path, files: Sequence[str]) -> dict[str, Detected]:
    """Detect pairs of an image and its segmentation mask, which have the same stem.

    Args:
        folder: The folder of the data.
        files: The paths of all files below it, relative to it.

    Returns:
        The detected pairs of each part, by "train" and "val"; {} if too few images have
        a mask.
    """
    text = "\n".join(files).lower()
    if not any(hint in text for hint in _HINTS):
        return {}
    images: dict[_Key, str] = {}
    masks: dict[_Key, str] = {}
    for path in files:
        if is_image(path) or path.lower().endswith(".gif"):
            is_mask, key = _parse_path(path)
            (masks if is_mask else images).setdefault(key, path)
    pairs = [(path, masks[key]) for key, path in images.items() if key in masks]
    if not pairs or 2 * len(pairs) < min(len(images), len(masks)):
        return {}
    alone = {
        "image": [path for key, path in images.items() if key not in masks],
        "mask": [path for key, path in masks.items() if key not in images],
    }
    notes = [
        f"{counted(len(paths), kind)} left out, without a partner of the same name: "
        f"{name_some(paths)}."
        for kind, paths in alone.items()
        if paths
    ]
    groups: dict[str, list[tuple[str, str]]] = {}
    for pair in pairs:
        groups.setdefault(find_part_word(pair[0].rpartition("/")[0]), []).append(pair)
    used = [path for paths in (images.values(), masks.values()) for path in paths]
    return {
        part: _describe(folder, group, notes, used) for part, group in choose_parts(groups).items()
    }


def _parse_path(path: str) -> tuple[bool, _Key]:
    """Return whether a file is a mask, and a key that an image and its mask share."""
    *folders, name = path.lower().split("/")
    words = [split_words(folder) for folder in folders]
    stem = name.rpartition(".")[0]
    suffix = _SUFFIX.search(stem)
    is_mask = any(not _MASK_WORDS.isdisjoint(some) for some in words) or bool(
        suffix and suffix["mask"]
    )
    rest = [" ".join(w for w in some if w not in _MASK_WORDS | IMAGE_WORDS) for some in words]
    return is_mask, (*filter(None, rest), _SUFFIX.sub("", stem))


def _describe(
    folder: Path, pairs: Sequence[tuple[str, str]], notes: list[str], used: list[str]
) -> Detected:
    columns = {"image": [image for image, _ in pairs], "mask": [mask for _, mask in pairs]}
    options = {
        "root": str(folder),
        "path": "image",
        "label": None,
        "fields": {"mask": "mask"},
        "masks": ["mask"],
    }
    return Detected("file_list", options, list(notes), columns, used)


@dataclass(frozen=True)
class MaskSurvey:
    """The findings about some masks.

    Attributes:
        field: The field of the masks.
        is_binary: Whether the levels are 0 and 255, which mean the classes 0 and 1.
        have_other_sizes: Whether some masks differ in size from their images.
        doubts: Sentences about uncertain findings.
    """

    field: str
    is_binary: bool
    have_other_sizes: bool
    doubts: list[str]


def look_at_masks(index: Index, field: str, rows: Sequence[int]) -> MaskSurvey:
    """Decode the images and masks in `rows` of an index, and return findings about the masks."""
    levels: set[int] = set()
    colored, unlike = [], []
    for row in rows:
        image, mask = _open(index, row, index.main), _open(index, row, field)
        if image is None or mask is None:
            continue
        name = index.location(row, field).removeprefix(f"{index.root}/")
        levels.update(level for _, level in mask.convert("L").getcolors() or ())
        if mask.mode not in GRAY_MODES and _has_colors(mask.convert("RGB")):
            colored.append(name)
        if mask.size != image.size:
            unlike.append(name)
    binary = max(levels, default=0) == 255 and levels <= {0, 255}
    doubts = []
    if colored:
        doubts.append(
            f"masks in colours, or with a palette, of which decode delivers the brightness: "
            f"{name_some(colored)}; write them as gray PNG files whose levels are the classes "
            "(of a palette, numpy.array(PIL.Image.open(FILE)) holds the classes)."
        )
    elif binary:
        doubts.append(
            "the masks hold 0 and 255, taken for 0 and 1: a batch has them as float32 from 0 to 1."
        )
    elif len(levels) > _MAX_LEVELS:
        doubts.append(
            f"the masks hold {len(levels)} levels up to {max(levels)}, more than classes usually "
            "are: JPEG and resizing blur masks, so write them as PNG with the classes as levels."
        )
    if unlike:
        doubts.append(
            f"masks of another size than their images, so that crops differ: {name_some(unlike)}."
        )
    return MaskSurvey(field, binary and not colored, bool(unlike), doubts)


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
