"""Reads the fields of samples, and decodes image files to the pixels of libjpeg-turbo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.dataset.columns import Column, as_array, read_rows
from gpupipe.decoders import pillow as pillow_decoder
from gpupipe.decoders.decoder import blame_file
from gpupipe.decoders.image_header import ImageHeader, check_header, read_header
from gpupipe.engines.cpu.decoded_windows import decode_window
from gpupipe.engines.cpu.scratch import scratch
from gpupipe.errors import EngineError
from gpupipe.pipeline.tensors import to_steps
from gpupipe.runtime.torchvision_import import import_torchvision
from gpupipe.steps.decode import Decode

try:
    import simplejpeg
except ImportError:  # the extra `cpu` has it; torchvision decodes to the same pixels
    simplejpeg = None


@dataclass
class ImageFile:
    """An image file that was read.

    Attributes:
        data: Its bytes, uint8 (bytes,).
        header: Its header.
        pixels: Its pixels (H, W, C) if it had to be decoded to find their number, else None.
        size: [height, width] of the decoded image.
    """

    data: NDArray[np.uint8]
    header: ImageHeader
    pixels: NDArray[Any] | None
    size: tuple[int, int]


def try_to_read(column: Column, rows: NDArray[np.int64]) -> list[NDArray[np.uint8]] | None:
    """Return the bytes of several rows; None if one of them cannot be read."""
    try:
        return read_rows(column, rows)
    except Exception:  # read_bytes finds the row, and raises
        return None


def read_bytes(
    column: Column, row: int, data: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Return the bytes of a row, in memory that can be written to.

    Args:
        column: The column.
        row: The row.
        data: Its bytes, if they have been read.

    Raises:
        OSError, ValueError: The row cannot be read, or has no bytes.
        EngineError: The column failed.
    """
    if data is None:
        (data,) = read_rows(column, np.array([row]))
    if column.array is None and not len(data):
        raise ValueError("the file is empty")
    return data if data.flags.writeable else data.copy()  # torch warns of memory that is read-only


def read_array(column: Column, row: int, layout: str) -> torch.Tensor:
    """Return the array of a row with its axes in the order that `Step.torch` gets."""
    assert column.array is not None
    array = as_array(read_bytes(column, row), column.array, row)
    return to_steps(torch.from_numpy(array), layout)


def open_image(data: NDArray[np.uint8], step: Decode, max_pixels: int | None) -> ImageFile:
    """Find the size of an image; decode it if only its decoder knows the size.

    Args:
        data: The bytes of the file.
        step: How it is decoded.
        max_pixels: Refuse images with more pixels; None for no limit.

    Raises:
        CannotDecodeError: The file is no image, has too many pixels, or is damaged.
    """
    header = read_header(data)
    check_header(header, max_pixels)
    if header.plain:
        turned = step.apply_exif_orientation and header.orientation >= 5
        size = (header.width, header.height) if turned else (header.height, header.width)
        return ImageFile(data, header, None, size)
    how = step.mode, step.dtype, step.apply_exif_orientation, max_pixels
    pixels = pillow_decoder.decode(data, header.format, *how)
    pixels = pixels if pixels.flags.writeable else pixels.copy()
    return ImageFile(data, header, pixels, pixels.shape[:2])


def decode(
    image: ImageFile,
    mode: str,
    apply_exif_orientation: bool,
    dtype: str,
    window: Sequence[int] | None = None,
) -> Any:
    """Return the pixels of an image.

    The extension `gpupipe._jpeg` decodes a window of most JPEGs. simplejpeg decodes the others.
    What it refuses goes to torchvision, which accepts some damage. With the exact discrete cosine
    transform and upsampling, all decode to the same pixels.

    Args:
        image: The file.
        mode: "rgb" or "gray".
        apply_exif_orientation: Whether to turn the image as its EXIF tag says.
        dtype: "uint8" or "uint16".
        window: [top, left, height, width] of the pixels that are needed; None for all of them. The
            image keeps its size, with any values beside the window.

    Raises:
        CannotDecodeError: The file is damaged.
        EngineError: The import of torchvision fails.
    """
    if image.pixels is not None:
        return image.pixels
    if is_simple_jpeg(image, apply_exif_orientation, dtype):
        pixels = _decode_window(image, mode, window)
        if pixels is None:
            pixels = _with_simplejpeg(image, mode)
        if pixels is not None:
            return pixels
    import_torchvision()
    step = Decode(mode=mode, apply_exif_orientation=apply_exif_orientation, dtype=dtype)
    with blame_file():
        return step.pixels(image.data)


def is_simple_jpeg(image: ImageFile, apply_exif_orientation: bool, dtype: str) -> bool:
    """Whether an image is a JPEG that the decoders of JPEGs deliver as it is wanted."""
    is_upright = image.header.orientation == 1 or not apply_exif_orientation
    return image.header.format == "JPEG" and is_upright and dtype == "uint8"


def _decode_window(
    image: ImageFile, mode: str, window: Sequence[int] | None
) -> NDArray[np.uint8] | None:
    """Decode a window of a JPEG that has one scan; return None if that is not possible."""
    if not image.header.end:
        return None
    return decode_window(image.data, image.size, 3 if mode == "rgb" else 1, window)


def _with_simplejpeg(image: ImageFile, mode: str) -> NDArray[np.uint8] | None:
    """Decode a JPEG to the thread's scratch memory; return None if simplejpeg refuses it."""
    if simplejpeg is None:
        return None
    colors, channels = ("RGB", 3) if mode == "rgb" else ("GRAY", 1)
    pixels = scratch.take((*image.size, channels))
    try:
        decoded = simplejpeg.decode_jpeg(
            image.data, colors, fastdct=False, fastupsample=False, buffer=pixels
        )
    except ValueError:
        return None
    if decoded.shape != pixels.shape:
        raise EngineError(f"simplejpeg decoded {decoded.shape}, but the header says {pixels.shape}")
    return decoded  # type: ignore[no-any-return]
