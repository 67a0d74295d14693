"""Parse the headers of image files: format, size, and whether the image is plain.

Every decoder of every engine reads a plain image alike. DALI sets up a large batch on several
threads, and the process ends if DALI rejects an image there. DALI accepts plain images there, so
only plain images may reach DALI. Pillow decodes most other images on every engine: see pillow.py.

These images are plain:

- JPEG: baseline, extended and progressive with Huffman codes, 8 bits, gray or YCbCr with the
  usual subsamplings.
- PNG: up to 8 bits a sample, with contiguous chunks up to the end of the file, without animation
  and without EXIF.
- WebP: without animation and without EXIF.

Every byte of the header must be valid. An image that raises any doubt is not plain.
"""

import re
import struct
import threading
from collections.abc import Sequence
from enum import IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoders.decoder import CannotDecodeError, Header, read_orientation
from gpupipe.runtime.installation import find_extension

_extension = find_extension()

_RIFF = b"RIFF"
_MAGIC = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"BM": "BMP",
    **dict.fromkeys((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), "TIFF"),  # TIFF and BigTIFF
    b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"\0\0\x01\0": "ICO",
    **{b"P%d" % n: "PNM" for n in range(1, 7)},
    **dict.fromkeys((b"\xff\n", b"\0\0\0\x0cJXL \r\n\x87\n"), "JPEG XL"),
}
_AVIF = re.compile(rb"....ftyp(....)*?avi[fs]", re.DOTALL)
_HEIC = re.compile(rb"....ftyp(....)*?(hei[cxms]|hev[cx])", re.DOTALL)
_HEIF_BRANDS = (b"mif1", b"msf1")
_HEAD = 64
"""Number of leading bytes that identify the format, with some brands of an AVIF or HEIC."""
_BE16, _BE32, _LE32 = (struct.Struct(f).unpack_from for f in (">H", ">I", "<I"))
_SUBSAMPLINGS = {0x11, 0x21, 0x12, 0x22, 0x41}
"""Luma factors of 4:4:4, 4:2:2, 4:4:0, 4:2:0 and 4:1:1, as horizontal << 4 | vertical."""
_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")
"""Matches a JPEG marker, but neither the stuffed bytes nor the restart markers in a scan."""
_MAX_SCANS = 100
_PNG_DEPTHS = {0: (1, 2, 4, 8), 2: (8,), 3: (1, 2, 4, 8), 4: (8,), 6: (8,)}
"""Bit depths of plain PNGs, by colour type."""
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_PNG_LONGEST = 2**31 - 1
_ANIMATED, _EXIF = 0x02, 0x08

_last_jpeg: tuple[bytes, Header] = b"", Header("")
"""Cache: the bytes before the scan of the last plain JPEG, and the header that they give. JPEGs of
one size and quality often share these bytes. Comparing takes a tenth of the time of parsing."""


class _Kept(threading.local):
    data: Any = None
    header = Header("")


_kept = _Kept()


def keep_header(data: Any) -> None:
    """Parse the header of an image, and keep it for `read_header` on this thread.

    Until the next call of `keep_header`, `read_header` returns the kept header if it gets the same
    object `data`. So several decoders that probe an image do not parse it again.

    Args:
        data: All bytes of the image; None to drop the reference to the last image.
    """
    _kept.data = None
    if data is not None:
        _kept.header = read_header(data)
        _kept.data = data


class PlainFormats(IntFlag):
    """Formats whose sizes the extension reads: see native/headers.h."""

    NONE = 0
    JPEG = 1
    PNG = 2


def read_plain_sizes(files: Sequence[Any], formats: PlainFormats) -> NDArray[np.int64]:
    """Read the sizes of several images in one call of the extension, without the GIL.

    Args:
        files: All bytes of each file, in buffers.
        formats: The formats whose sizes are read.

    Returns:
        [height, width] of each file, (N, 2), as in the result of `read_header`, for plain JPEGs of
        one scan without EXIF, and for plain PNGs that `gpupipe._png` decodes; [0, 0] for all other
        files, and for all files without the extension.
    """
    if _extension is None:
        return np.zeros((len(files), 2), np.int64)
    return np.frombuffer(_extension.read_plain_sizes(files, formats), np.int64).reshape(-1, 2)


def read_plain_jpeg(data: Any) -> Header | None:
    """Return the header of a plain JPEG (see Header.is_plain); None for any other file."""
    header = read_header(data)
    return header if header.is_plain and header.format == "JPEG" else None


def read_header(data: Any) -> Header:
    """Parse the header of an encoded image. Never raises, whatever the bytes are.

    Args:
        data: All bytes of the image: bytes, or any buffer of single bytes. Only the header is read.

    Returns:
        The header. Its format is "" for bytes of no known format. A damaged header is not plain.
    """
    if data is not None and data is _kept.data:
        return _kept.header
    view = memoryview(data).cast("B")
    begin, header = _last_jpeg
    if begin and len(view) > len(begin) and bytes(view[: len(begin)]) == begin:
        return header
    parse = _PARSERS.get(kind := _kind(bytes(view[:_HEAD])))
    if parse is None:
        return Header(kind)
    try:
        return parse(view)
    except (IndexError, struct.error):  # the file ends in its header
        return Header(kind)


def _kind(head: bytes) -> str:
    """Return the format of a file by its first bytes; "" if the format is not known."""
    if head.startswith(_RIFF):
        return "WebP" if head[8:12] == b"WEBP" else ""
    if head[4:8] == b"ftyp":
        brands = head[: int.from_bytes(head[:4], "big")]
        if _HEIC.match(brands) and not _AVIF.match(brands):
            return "HEIC"
        return "AVIF" if _AVIF.match(brands) or head[8:12] in _HEIF_BRANDS else ""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")


# --- JPEG


def _jpeg(view: memoryview) -> Header:
    """Return the header of a JPEG, from its segments up to the first scan."""
    at, frame, plain, jfif, adobe, orientation = 2, 0, True, False, -1, 1
    while True:
        if view[at] != 0xFF:
            return _unusual_jpeg(view, frame)
        marker = view[at + 1]
        size = _BE16(view, at + 2)[0]
        if marker == 0xDA:
            break
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            plain = plain and marker <= 0xC2 and not frame
            frame = at
        elif marker == 0xE0:
            jfif = jfif or bytes(view[at + 4 : at + 9]) == b"JFIF\0"
        elif marker == 0xE1 and bytes(view[at + 4 : at + 10]) == b"Exif\0\0":
            tag = read_orientation(view[at + 10 : at + 2 + size]) if size >= 8 else None
            plain, orientation = plain and tag is not None, tag or 1
        elif marker == 0xEE and bytes(view[at + 4 : at + 9]) == b"Adobe":
            adobe, plain = view[at + 15], plain and size == 14
        elif not (marker in (0xC4, 0xDB, 0xDD, 0xFE) or 0xE0 <= marker <= 0xEF):
            plain = False
        if size < 2:
            return _unusual_jpeg(view, frame)
        at += 2 + size
    height, width = _jpeg_size(view, frame)
    plain = plain and bool(height and width) and 8 <= size < len(view) - at - 2
    plain = plain and size == 6 + 2 * view[at + 4]
    plain = plain and _is_plain_frame(view, frame, jfif, adobe)
    is_one_scan = frame and view[frame + 1] < 0xC2 and view[at + 4] == view[frame + 9]
    too_many = not is_one_scan and _has_too_many_scans(view, at)
    end = at + 2 + size + 1 if is_one_scan else 0  # with the first byte of the scan
    channels, depth = (view[frame + 9], view[frame + 4]) if frame else (0, 0)
    header = Header("JPEG", height, width, plain, orientation, too_many, end, channels, depth)
    if plain and end:
        global _last_jpeg  # noqa: PLW0603  # one assignment: threads see the old one or the new
        _last_jpeg = bytes(view[: end - 1]), header
    return header


def _unusual_jpeg(view: memoryview, frame: int) -> Header:
    too_many = _has_too_many_scans(view, 2)
    return Header("JPEG", *_jpeg_size(view, frame), too_many_scans=too_many)


def _has_too_many_scans(view: memoryview, at: int) -> bool:
    """Return whether more than 100 scans of a JPEG (_MAX_SCANS) begin at byte `at` or later."""
    if bytes(view[at:]).count(b"\xff\xda") <= _MAX_SCANS:  # 10 times as fast as the search
        return False
    count = 0
    while count <= _MAX_SCANS and (match := _MARKER.search(view, at)):
        marker, at = match[1][0], match.end()
        if marker == 0xD9 or at + 2 > len(view):
            return False
        count += marker == 0xDA
        at += 0 if marker in (0x01, 0xD8) else _BE16(view, at)[0]
    return count > _MAX_SCANS


def _jpeg_size(view: memoryview, frame: int) -> tuple[int, int]:
    return (_BE16(view, frame + 5)[0], _BE16(view, frame + 7)[0]) if frame else (0, 0)


def _is_plain_frame(view: memoryview, frame: int, jfif: bool, adobe: int) -> bool:
    """Return whether all decoders agree on the colors of a JPEG frame.

    They agree if it has 8 bits, a usual subsampling, and is gray or YCbCr.

    Args:
        view: The bytes of the file.
        frame: The offset of the frame's marker in bytes.
        jfif: Whether the file has a JFIF segment.
        adobe: The color transform in the Adobe segment; -1 if there is no such segment.
    """
    bits, components = view[frame + 4], view[frame + 9]
    if bits != 8 or _BE16(view, frame + 2)[0] != 8 + 3 * components:
        return False
    if components == 1:
        return view[frame + 11] in (0x11, 0x21, 0x12, 0x22)
    if components != 3 or adobe not in (-1, 1):
        return False
    ids = tuple(view[frame + 10 : frame + 19 : 3])
    sampling = tuple(view[frame + 11 : frame + 19 : 3])
    is_ycbcr = jfif or adobe == 1 or ids == (1, 2, 3)
    return is_ycbcr and sampling[0] in _SUBSAMPLINGS and sampling[1:] == (0x11, 0x11)


# --- PNG


def _png(view: memoryview) -> Header:
    """Parse all chunks of a PNG. With EXIF, an animation or no IEND chunk, it is not plain."""
    fields = struct.unpack_from(">IIBBBBB", view, 16)
    width, height, bits, colour, compression, filtering, interlace = fields
    if _BE32(view, 8)[0] != 13 or bytes(view[12:16]) != b"IHDR":
        return Header("PNG")
    channels = _PNG_CHANNELS.get(colour, 0)
    header = Header("PNG", height, width, channels=channels, depth=bits)
    plain = bits in _PNG_DEPTHS.get(colour, ()) and not (compression or filtering) and interlace < 2
    plain = plain and 0 < width <= _PNG_LONGEST and 0 < height <= _PNG_LONGEST
    at, seen, palette = 33, False, False
    while plain:
        size, kind = _BE32(view, at)[0], bytes(view[at + 4 : at + 8])
        plain = at + 12 + size <= len(view)
        if kind == b"IEND":
            plain = plain and seen and (palette or colour != 3)
            return header._replace(is_plain=plain)
        plain = (
            plain and kind not in (b"IHDR", b"eXIf", b"acTL") and (kind != b"PLTE" or not palette)
        )
        seen, palette = seen or kind == b"IDAT", palette or (kind == b"PLTE" and not seen)
        at += 12 + size
    return header


# --- WebP


def _webp(view: memoryview) -> Header:
    """Parse the first chunk of a WebP, and in an extended file also the image's chunk."""
    if _LE32(view, 4)[0] + 8 > len(view):
        return Header("WebP")
    kind = bytes(view[12:16])
    if kind != b"VP8X":
        height, width = _webp_frame(view, 12)
        return Header("WebP", height, width, bool(height and width))
    flags, size = view[20], _LE32(view, 16)[0]
    width, height = (1 + int.from_bytes(view[at : at + 3], "little") for at in (24, 27))
    plain, at = size == 10 and not flags & (_ANIMATED | _EXIF), 30
    while plain and bytes(view[at : at + 4]) not in (b"VP8 ", b"VP8L"):
        plain = bytes(view[at : at + 4]) in (b"ICCP", b"ALPH")
        at += 8 + _LE32(view, at + 4)[0] + _LE32(view, at + 4)[0] % 2
    plain = plain and _webp_frame(view, at) == (height, width)
    return Header("WebP", height, width, plain)


def _webp_frame(view: memoryview, at: int) -> tuple[int, int]:
    """Return [height, width] of the image in the chunk at byte `at`; (0, 0) if it is invalid."""
    kind, size = bytes(view[at : at + 4]), _LE32(view, at + 4)[0]
    if at + 8 + size > len(view):
        return 0, 0
    if kind == b"VP8 " and bytes(view[at + 11 : at + 14]) == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", view, at + 14)
        return height & 0x3FFF, width & 0x3FFF
    if kind == b"VP8L" and view[at + 8] == 0x2F:
        packed = _LE32(view, at + 9)[0]
        return (packed >> 14 & 0x3FFF) + 1, (packed & 0x3FFF) + 1
    return 0, 0


_PARSERS = {"JPEG": _jpeg, "PNG": _png, "WebP": _webp}


def check_header(header: Header, max_pixels: int | None) -> None:
    """Raise CannotDecodeError if an image has more than `max_pixels` pixels, or too many scans.

    None as `max_pixels` means no limit.
    """
    height, width = header.height, header.width
    if header.tile[0] * header.tile[1] > height * width:
        height, width = header.tile
    if max_pixels is not None and height * width > max_pixels:
        raise CannotDecodeError(
            f"an image of {width:,} x {height:,} pixels, more than data.max_pixels={max_pixels:,}"
        )
    if header.too_many_scans:
        raise CannotDecodeError(
            "a JPEG of more than 100 scans, which would take a decoder very long"
        )
