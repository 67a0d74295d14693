"""Read the annotations of one image in Pascal VOC's XML.

The format is described in the development kit of the challenge (VOC2012, section 9.1). XML may
define entities that grow exponentially, or that name other files. A definition needs a DOCTYPE,
which annotations do not have: it is refused before it is read.
"""

import math
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import short
from gpupipe.formats import DamagedError

MAX_BYTES = 1 << 24
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True)
class VocImage:
    """The annotations of one image, with M objects.

    Attributes:
        size: The height and width in pixels; (0, 0) if the file lacks them.
        names: The class of each object.
        boxes: xmin, ymin, xmax and ymax as the file has them, float64 (M, 4): VOC's pixels begin at
            1, and those at both ends belong to the object.
        is_difficult: Whether an object is marked as difficult to recognise, bool (M,).
    """

    size: tuple[int, int]
    names: list[str]
    boxes: NDArray[np.float64]
    is_difficult: NDArray[np.bool_]


class _Builder(ElementTree.TreeBuilder):
    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("it has a DOCTYPE, which annotations of VOC do not have")


def parse_voc(content: bytes) -> VocImage:
    """Parse the annotations of one image.

    Raises:
        DamagedError: The content is no XML, or has more than 16 MB.
        ValueError: The XML does not hold annotations of VOC.
    """
    if len(content) > MAX_BYTES:
        raise DamagedError(f"{len(content):,} bytes are no annotations of one image")
    parser = ElementTree.XMLParser(target=_Builder())
    try:
        parser.feed(content)
        root = parser.close()
    except (ElementTree.ParseError, LookupError) as e:  # LookupError: an unknown encoding
        raise DamagedError(f"no XML: {e}") from e
    if root.tag != "annotation":
        raise ValueError(f"its element is <{short(root.tag)}>, and not <annotation>")
    objects = root.findall("object")
    return VocImage(
        _read_size(root),
        [_read_text(entry, "name", f"object {n}") for n, entry in enumerate(objects, 1)],
        np.array(
            [_read_box(entry, f"object {n}") for n, entry in enumerate(objects, 1)], np.float64
        ).reshape(-1, 4),
        np.array([_is_difficult(entry, f"object {n}") for n, entry in enumerate(objects, 1)], bool),
    )


def _read_size(root: ElementTree.Element) -> tuple[int, int]:
    size = root.find("size")
    if size is None:
        return 0, 0
    height, width = (_read_number(size, tag, "size") for tag in ("height", "width"))
    if not (0 <= height < 2**30 and 0 <= width < 2**30):
        raise ValueError(f"size: {width:g} x {height:g} is no size of an image")
    return int(height), int(width)


def _read_box(entry: ElementTree.Element, where: str) -> list[float]:
    box = entry.find("bndbox")
    if box is None:
        raise ValueError(f"{where}: it has no <bndbox>")
    return [_read_number(box, tag, where) for tag in _CORNERS]


def _is_difficult(entry: ElementTree.Element, where: str) -> bool:
    return bool(entry.findtext("difficult")) and _read_number(entry, "difficult", where) != 0


def _read_number(entry: ElementTree.Element, tag: str, where: str) -> float:
    text = _read_text(entry, tag, where)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{where}: <{tag}> is {short(repr(text))}, and no number")
    return number


def _read_text(entry: ElementTree.Element, tag: str, where: str) -> str:
    text = (entry.findtext(tag) or "").strip()
    if not text:
        raise ValueError(f"{where}: it has no <{tag}>")
    return text
