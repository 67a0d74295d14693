"""Finds what is wrong with single samples: files, their names, and their annotations."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.annotation_columns import offsets_of, scale_to_pixels
from gpupipe.inspection.scan import Scan

KINDS = {
    "broken": "cannot be decoded",
    "truncated": "their end is missing",
    "extensions": "the name says another format than the content",
    "rotated": "their EXIF tag says to rotate or mirror them: see apply_exif_orientation of decode",
    "uniform": "almost one colour",
    "sizes": "the annotations state another size than the file has",
    "annotations": "annotations that cannot be used",
    "outside": "boxes that reach beyond their image",
    "tiny": "boxes with a side under 2 pixels",
    "duplicates": "equal files",
    "near": "nearly equal images",
    "labels": "equal or nearly equal images with different labels",
    "leaks": "equal or nearly equal images in train and val",
}
"""The name of each kind of finding, as --fail-on has it, and its description."""
OF_PIXELS = ("uniform", "duplicates", "near", "labels", "leaks")
"""The kinds that headers alone do not show."""
IMPLIED = {"broken": ("broken", "truncated")}
"""The kinds that the name of one kind stands for in --fail-on."""
_MIN_DEVIATION = 3.0
"""An image is almost uniform if no channel deviates more from its mean, in levels of 0 to 255."""
_MIN_BOX, _MARGIN = 2.0, 1.0
"""The shortest side of a box, and how far it may reach beyond its image, in pixels."""
_CUT_OFF = "that was cut off"
"""Part of the reason why a file whose end is missing cannot be decoded: see describe_damage."""
_ALIASES = {"MPO": "JPEG", "PPM": "PNM", "JPEG2000": "JPEG 2000", "WEBP": "WebP", "DIB": "BMP"}


class Sample(NamedTuple):
    """A sample of a finding, and what is wrong with it; "" if the kind says all."""

    scan: Scan
    row: int
    why: str = ""

    @property
    def location(self) -> str:
        """Where the file is: FILE or FILE:NAME."""
        return self.scan.index.location(self.row, self.scan.field)

    @property
    def full_name(self) -> str:
        """The data set, and where the file is in it: "val: cat/7.jpg"."""
        root = self.scan.index.root
        place = os.path.relpath(self.location, root) if Path(root).is_dir() else self.location
        return f"{self.scan.name}: {place}"

    @property
    def label(self) -> str:
        """The name of its class; "" if it has none."""
        index, label = self.scan.index, int(self.scan.index.labels[self.row])
        if 0 <= label < len(index.classes):
            return index.classes[label]
        return str(label) if label >= 0 else ""


def find_faults(scan: Scan) -> Iterator[tuple[str, Sample]]:
    """Yield the faults of single samples: their kind, and the sample."""
    for row, why in sorted(scan.errors.items()):
        yield "truncated" if _CUT_OFF in why else "broken", Sample(scan, row, why)
    for row in range(len(scan.index)):
        stored = _expected_format(scan.index.names[row])
        found = scan.facts["format"][row].decode()
        if stored and found and stored != found:
            yield "extensions", Sample(scan, row, f"a {found}")
    for row in np.flatnonzero(scan.facts["orientation"] > 1).tolist():
        yield "rotated", Sample(scan, row, f"orientation {scan.facts['orientation'][row]}")
    for row in find_uniform(scan).tolist() if not scan.headers_only else []:
        mean = scan.facts["mean"][row][: scan.channels].round().astype(int).tolist()
        yield "uniform", Sample(scan, row, f"about {mean}")
    yield from _find_annotations(scan)


def find_uniform(scan: Scan) -> NDArray[np.int64]:
    """Return the rows of images whose pixels all have nearly one value."""
    facts = scan.facts[scan.pixels]
    variance = (facts["square"] - facts["mean"] ** 2).max(1)
    found: NDArray[np.int64] = scan.pixels[variance < _MIN_DEVIATION**2]
    return found


@cache
def _formats() -> dict[str, str]:
    from PIL import Image

    return {
        suffix: _ALIASES.get(name, name) for suffix, name in Image.registered_extensions().items()
    }


def _expected_format(name: str) -> str:
    """Return the format that the extension of a name stands for; "" if it stands for none."""
    return _formats().get(PurePath(name).suffix.lower(), "")


def _find_annotations(scan: Scan) -> Iterator[tuple[str, Sample]]:
    index, sizes = scan.index, scan.sizes
    for n, row in enumerate(index.faults.rows.tolist()):
        yield "annotations", Sample(scan, row, index.faults.reasons[n])
    is_known = np.all(sizes > 0, axis=1)
    if (declared := index.sizes.get(scan.field)) is not None:
        differs = is_known & np.all(declared > 0, 1) & np.any(declared != sizes, 1)
        for row in np.flatnonzero(differs).tolist():
            (height, width), (h, w) = sizes[row].tolist(), declared[row].tolist()
            why = f"{width} x {height} pixels, and the annotations say {w} x {h}"
            yield "sizes", Sample(scan, row, why)
    columns = scale_to_pixels(index.annotations, scan.field, sizes.astype(np.int64))
    for name, column in columns.items():
        if column.kind != "boxes" or column.of != scan.field:
            continue
        boxes = np.asarray(column.values, np.float64)
        rows = np.repeat(np.arange(len(index)), np.diff(offsets_of(columns, name)))
        height, width = sizes[rows].T.astype(np.float64)
        beyond = (boxes[:, :2] < -_MARGIN).any(1)
        beyond |= (boxes[:, 2] > width + _MARGIN) | (boxes[:, 3] > height + _MARGIN)
        narrow = (boxes[:, 2:] - boxes[:, :2]).min(1) < _MIN_BOX
        for kind, wrong in (("outside", beyond), ("tiny", narrow)):
            positions = np.flatnonzero(wrong & is_known[rows])
            for row, first in zip(*np.unique(rows[positions], return_index=True), strict=True):
                box = boxes[positions[first]].round(1).tolist()
                number = int((rows[positions] == row).sum())
                more = f", and {number - 1} more" if number > 1 else ""
                yield kind, Sample(scan, int(row), f"{name} {box}{more}")
