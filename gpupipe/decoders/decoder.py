"""The contract Decoder for image files, and shared helpers for errors, modes and orientations.

A decoder is a class in a file of its own: `builtin/NAME.py` holds the built-in decoder NAME. Other
packages add decoders by entry points of the group `gpupipe.decoders`:

    class Ppm(Decoder):
        def probe(self, data):
            ...  # None unless it begins as a PPM file does
            return Header("PNM", height, width, is_plain=True)

        def decode(self, header, data, *, mode, dtype, window=None, out=None):
            ...  # (H, W, 3) or (H, W, 1)

`chain.py` calls the decoders, and applies the rules that all of them share.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import GpupipeError
from gpupipe.runtime.failures import machine_failure

Pixels = NDArray[Any]
"""uint8 or uint16, (height, width, channels)."""


FileBytes = NDArray[np.uint8]
"""All bytes of a file, (bytes,)."""


class CannotDecodeError(RuntimeError):
    """The image is damaged, too large, or has values without a meaning as pixels."""


class DeclinedError(CannotDecodeError):
    """A decoder accepted a file but cannot decode it; another decoder may be able to."""


class Header(NamedTuple):
    """The properties of an image file that are known before it is decoded.

    Attributes:
        format: "JPEG", "PNG", "WebP" and so on; "" if the format is unknown.
        height: Height in pixels as stored, before any rotation; 0 if only the decoder can find it.
        width: Width in pixels as stored; 0 if only the decoder can find it.
        is_plain: Whether every decoder reads the image alike, and the size is certain. The rules of
            each format are in image_header.py. Images that are not plain are decoded to find their
            size.
        orientation: The EXIF orientation, 1 to 8. Decoders do not apply it: gpupipe rotates the
            decoded pixels if the step `decode` asks for it.
        too_many_scans: Whether this is a JPEG with more than 100 scans. Writers make about 10. A
            decoder passes over the whole image for each scan, even if the scan has only 12 bytes.
            So a file of 100 kB can take minutes.
        end: For a plain image, how many of the first bytes of the file suffice to read this header;
            0 if the whole file is needed.
        channels: Number of stored channels, including alpha; 0 if not known.
        depth: Bits of one channel of a stored pixel; 0 if not known.
        tile: [height, width] of the pixels that a decoder must decode at once: one tile of a TIFF,
            or all images of a HEIC, stacked. They may be more pixels than the image has, so
            `data.max_pixels` limits them, too. (0, 0) stands for the size of the image.
    """

    format: str
    height: int = 0
    width: int = 0
    is_plain: bool = False
    orientation: int = 1
    too_many_scans: bool = False
    end: int = 0
    channels: int = 0
    depth: int = 0
    tile: tuple[int, int] = (0, 0)


class Decoder(ABC):
    """Decodes image files of some formats. `probe` and `decode` run on several threads at once.

    The constructor raises ImportError if a library is missing. Then `loader.decoder: auto` skips
    this decoder.

    Attributes:
        place: The place in the order in which `loader.decoder: auto` tries decoders. Lower numbers
            come first; the built-in decoders have 10 to 60. With None, the decoder is used only
            if `loader.decoder` names it.
        formats: Formats that only this decoder reads. If the decoder is not installed, an error
            about a file of these formats names the decoder.
        accepts_plain_jpegs: Whether `probe` returns the header of all plain JPEGs of one scan, as
            `image_header.read_header` does. Then it need not be called for them.
        accepts_plain_pngs: The same of PNGs as `image_header.read_plain_sizes` reads their sizes. A
            decoder with one of the two takes no file of another format.
        extra: The pip extra of gpupipe that installs the decoder's library; "" if none does.
    """

    place: ClassVar[int | None] = 100
    formats: ClassVar[frozenset[str]] = frozenset()
    accepts_plain_jpegs: ClassVar[bool] = False
    accepts_plain_pngs: ClassVar[bool] = False
    extra: ClassVar[str] = ""

    @abstractmethod
    def probe(self, data: Any) -> Header | None:
        """Return the header of a file; None if this decoder does not accept the file.

        Args:
            data: All bytes of the file, uint8 (bytes,).

        Raises:
            CannotDecodeError: The file cannot be decoded, and no other decoder should try it.
        """

    @abstractmethod
    def decode(
        self,
        header: Header,
        data: Any,
        *,
        mode: str,
        dtype: str,
        window: Sequence[int] | None = None,
        out: NDArray[np.uint8] | None = None,
    ) -> Pixels:
        """Decode a file that `probe` accepted.

        Args:
            header: The header that `probe` returned.
            data: All bytes of the file, uint8 (bytes,).
            mode: "rgb" for 3 channels, "gray" for 1.
            dtype: The requested dtype, "uint8" or "uint16". The decoder may return the
                other dtype; gpupipe then converts the pixels.
            window: [top, left, height, width] of the pixels that are needed, in the stored
                orientation; None for all. Pixels outside the window may have any value.
            out: Memory for the image, uint8 (H, W, C), that the decoder may fill and return; None
                if the decoder must allocate the memory.

        Returns:
            The pixels of the whole image in the stored orientation, (H, W, C), uint8 or uint16.

        Raises:
            DeclinedError: This decoder cannot decode the file. The next decoder is then tried.
            Exception: Any other error counts as the file's fault, unless the machine caused it.
        """


def find_blame(error: Exception) -> Exception:
    """Return the error to raise for a decoder's error: CannotDecodeError if the file is to blame.

    If the machine or gpupipe is to blame, return `error` itself.
    """
    is_known = isinstance(error, CannotDecodeError | GpupipeError | MemoryError)
    # No file causes a DeprecationWarning.
    if is_known or isinstance(error, DeprecationWarning) or machine_failure(error):
        return error
    blame = CannotDecodeError(str(error) or type(error).__name__)
    blame.__cause__ = error
    return blame


def as_bytes(data: Any) -> NDArray[np.uint8]:
    """Return a buffer of bytes as a writable array, since torch warns about read-only arrays."""
    array = data if isinstance(data, np.ndarray) else np.asarray(memoryview(data).cast("B"))
    return array if array.flags.writeable else array.copy()


def iterate_boxes(data: bytes | memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Yield each box of an ISO base media file: its kind, and where its content begins and ends."""
    at = 0
    while at + 8 <= len(data):
        size, begin = int.from_bytes(data[at : at + 4], "big"), at + 8
        if size == 1:
            size, begin = int.from_bytes(data[at + 8 : at + 16], "big"), at + 16
        yield bytes(data[at + 4 : at + 8]), begin, at + size
        if size < 8:
            return
        at += size


def convert_mode(pixels: Pixels, mode: str) -> Pixels:
    """Convert pixels to the channels of a mode, and drop alpha.

    Args:
        pixels: Pixels (H, W, C) with 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGBA) channels.
        mode: "rgb" or "gray". RGB becomes gray as in Pillow, with the luma of ITU-R BT.601.
    """
    pixels = pixels[..., : 1 if pixels.shape[-1] < 3 else 3]
    if mode == "rgb":
        return pixels if pixels.shape[-1] == 3 else np.repeat(pixels, 3, -1)
    if pixels.shape[-1] == 1:
        return pixels
    wide = pixels.astype(np.uint32)
    gray = wide[..., 0] * 19595 + wide[..., 1] * 38470 + wide[..., 2] * 7471 + 0x8000
    return (gray >> 16).astype(pixels.dtype)[..., None]


_ORIENTATION, _SHORT = 0x0112, 3
_MAX_TAGS = 200


def read_orientation(data: memoryview) -> int | None:
    """Return the orientation in EXIF data.

    Args:
        data: The EXIF data, which begins with its TIFF header.

    Returns:
        1 to 8; 1 if there is no orientation tag; None if the data is so unusual that decoders could
        disagree about it.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(data[:4]))
    if order is None:
        return None
    try:
        (at,) = struct.unpack_from(order + "I", data, 4)
        (count,) = struct.unpack_from(order + "H", data, at)
        if at < 8 or count > _MAX_TAGS or at + 2 + 12 * count > len(data):
            return None
        tags = [struct.unpack_from(order + "HHIH", data, at + 2 + 12 * n) for n in range(count)]
    except struct.error:
        return None
    matches = [(kind, number, value) for tag, kind, number, value in tags if tag == _ORIENTATION]
    if not matches:
        return 1
    kind, number, value = matches[0]
    is_usual = len(matches) == 1 and kind == _SHORT and number == 1 and 1 <= value <= 8
    return value if is_usual else None


def apply_orientation(pixels: Any, orientation: int, window: Sequence[int] | None = None) -> Any:
    """Return stored pixels, rotated and flipped so that they are upright.

    Args:
        pixels: The pixels as stored, (H, W, C).
        orientation: The EXIF orientation, 1 to 8.
        window: [top, left, height, width] of the pixels of the result that are needed; None for
            all. Pixels outside the window may have any value.
    """
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if window is None:
        return np.ascontiguousarray(pixels)
    top, left, height, width = window
    needed = np.s_[top : top + height, left : left + width]
    turned = np.empty(pixels.shape, pixels.dtype)
    turned[needed] = pixels[needed]
    return turned


def find_stored_window(
    window: Sequence[int], orientation: int, size: Sequence[int]
) -> tuple[int, int, int, int]:
    """Return the window of the stored image that `apply_orientation` turns into `window`.

    Args:
        window: [top, left, height, width] in the image after rotation.
        orientation: The EXIF orientation.
        size: [height, width] of the image after rotation.
    """
    top, left, height, width = window
    if orientation in (3, 4, 7, 8):
        top = size[0] - top - height
    if orientation in (2, 3, 6, 7):
        left = size[1] - left - width
    return (left, top, width, height) if orientation >= 5 else (top, left, height, width)
