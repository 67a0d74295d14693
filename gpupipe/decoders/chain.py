"""Decodes an image file with the first decoder that accepts it, for the CPU side of every engine.

    bytes ─> probe, decoder by decoder ─> header ─> limits ─> decode ─> depth ─> EXIF ─> pixels
                       ^                                        │
                       └──── the next one, if it declines ──────┘

This module alone holds the rules that all decoders share: their order, `data.max_pixels`, whether
the file or the machine is to blame for an error, and these rules for depths and EXIF orientations:

- The EXIF orientation is applied only on request, also for TIFF.
- 16 bits become 8 by dropping the low byte (value >> 8), as in Pillow, libpng and `to_dtype`. If
  uint16 is requested, 8-bit values are multiplied by 257, so that 255 becomes 65,535.
"""

import logging
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoders.decoder import (
    CannotDecodeError,
    DeclinedError,
    Decoder,
    Header,
    Pixels,
    apply_orientation,
    as_bytes,
    find_blame,
    find_stored_window,
)
from gpupipe.decoders.image_header import (
    PlainFormats,
    check_header,
    keep_header,
    read_header,
    read_plain_sizes,
)
from gpupipe.errors import EngineError
from gpupipe.runtime.installation import install_command
from gpupipe.runtime.registry import Registry

_log = logging.getLogger("gpupipe")
AUTO = "auto"
DECODERS = Registry("decoder", "gpupipe.decoders.builtin", Decoder, "gpupipe.decoders")
ALIASES = {"pil": "pillow"}
REFERENCE = "torchvision"
"""The decoder of the reference implementation, with which engines are compared."""


class DecodeOptions(NamedTuple):
    """Options for decoding an image.

    Attributes:
        mode: "rgb" or "gray".
        apply_exif: Whether to apply the EXIF orientation of the image.
        dtype: "uint8" or "uint16".
    """

    mode: str = "rgb"
    apply_exif: bool = False
    dtype: str = "uint8"


class EncodedImage:
    """An image file, with the decoder that accepts it.

    Attributes:
        data: The bytes of the file.
        header: The header of the file.
        decoder: The decoder that accepts the file.
        size: [height, width] of the decoded image, after any rotation.
        pixels: The pixels (H, W, C) if only decoding could find the size; else None.
    """

    __slots__ = ("_chain", "_place", "data", "decoder", "header", "pixels", "size")

    def __init__(self, chain: "DecoderChain", data: Any, options: DecodeOptions) -> None:
        self._chain, self.data, self.pixels = chain, as_bytes(data), None
        self._place, self.decoder, self.header = chain.find(self.data)
        if self.header.is_plain:
            height, width = self.header.height, self.header.width
            swaps_sides = self._orientation_to_apply(options) >= 5
            self.size = (width, height) if swaps_sides else (height, width)
        else:
            self.pixels = self.decode(options)
            self.size = self.pixels.shape[:2]

    def is_upright(self, options: DecodeOptions) -> bool:
        """Return whether the pixels are delivered as stored, without rotating or flipping them."""
        return self._orientation_to_apply(options) == 1

    def _orientation_to_apply(self, options: DecodeOptions) -> int:
        """Return the EXIF orientation to apply, 1 to 8; 1 (upright) if `apply_exif` is False."""
        return self.header.orientation if options.apply_exif else 1

    def decode(
        self,
        options: DecodeOptions,
        window: Sequence[int] | None = None,
        out: NDArray[np.uint8] | None = None,
    ) -> Pixels:
        """Return the pixels as a writable array (H, W, C).

        Args:
            options: The same options that were passed to `DecoderChain.open`.
            window: [top, left, height, width] of the pixels that are needed; None for all of them.
                The result has the size of the whole image; pixels outside the window are undefined.
            out: Memory, uint8 (H, W, C), that the decoder may use for the pixels before rotation;
                None to allocate new memory.

        Raises:
            CannotDecodeError: The file is damaged.
            EngineError: The machine or the installation is to blame.
        """
        if self.pixels is not None:
            return self.pixels
        orientation = self._orientation_to_apply(options)
        stored_window = window and find_stored_window(window, orientation, self.size)
        stored = self._decode_stored(options, stored_window, out)
        pixels = _convert_depth(stored, options.dtype)
        if orientation > 1:
            pixels = apply_orientation(pixels, orientation, window)
        return pixels if pixels.flags.writeable else pixels.copy()

    def _decode_stored(self, options: DecodeOptions, window: Any, out: Any) -> Pixels:
        mode, _, dtype = options
        while True:
            header = self.header
            try:
                pixels = self.decoder.decode(
                    header, self.data, mode=mode, dtype=dtype, window=window, out=out
                )
            except DeclinedError as e:
                self._place, self.decoder, self.header = self._chain.find(
                    self.data, self._place + 1, e
                )
                continue
            except Exception as e:
                raise find_blame(e)  # noqa: B904  # it has its cause
            expected = (header.height, header.width) if header.is_plain else pixels.shape[:2]
            if pixels.shape != (*expected, 3 if mode == "rgb" else 1):
                raise EngineError(
                    f"the decoder {type(self.decoder).__name__} made an array of the shape "
                    f"{pixels.shape} of an image whose header says {expected}, mode {mode}"
                )
            return pixels


class DecoderChain:
    """Decodes each image file with the first decoder that accepts it.

    Args:
        name: The decoder to try first, or `auto`. The decoders of `auto` follow in their order, for
            files that the first does not accept.
        max_pixels: Refuse images with more pixels before they are decoded; None for no limit.

    Attributes:
        names: The names of the decoders, in the order in which they are tried.
        max_pixels: The argument.

    Raises:
        EngineError: The decoder is not installed or does not exist.
    """

    def __init__(self, name: str = AUTO, max_pixels: int | None = None) -> None:
        name = ALIASES.get(name, name)
        self.names, self.max_pixels = tuple(list_automatic()), max_pixels
        if name != AUTO:
            decoder = _create(name)
            if not isinstance(decoder, Decoder):
                raise EngineError(f"loader.decoder: {_describe_missing(name, decoder)}")
            self.names = (name, *(other for other in self.names if other != name))

    def open(self, data: Any, options: DecodeOptions) -> EncodedImage:
        """Find the decoder and the size of an image; decode it if only decoding finds the size.

        Args:
            data: All bytes of the file.
            options: How to decode it.

        Raises:
            CannotDecodeError: The file is not an image, has too many pixels, or is damaged.
        """
        return EncodedImage(self, data, options)

    def read_plain_sizes(self, files: Sequence[Any]) -> NDArray[np.int64]:
        """Read the sizes of several files in one call, without opening them.

        Args:
            files: All bytes of each file.

        Returns:
            [height, width] of each image of `plain_formats` that has no more than the maximum
            number of pixels, (N, 2). Such an image is upright. [0, 0] for all other files, whose
            sizes `open` finds.
        """
        if not self.plain_formats:
            return np.zeros((len(files), 2), np.int64)
        sizes = read_plain_sizes(files, self.plain_formats)
        if self.max_pixels is None:
            return sizes
        return np.where(sizes.prod(1, keepdims=True) <= self.max_pixels, sizes, 0)

    @cached_property
    def plain_formats(self) -> PlainFormats:
        """The formats whose plain files go to the first decoders, which take no others."""
        formats = PlainFormats.NONE
        for name in self.names:
            decoder = _create(name)
            if not isinstance(decoder, Decoder):
                continue
            taken = decoder.accepts_plain_jpegs * PlainFormats.JPEG
            taken |= decoder.accepts_plain_pngs * PlainFormats.PNG
            if not taken:
                break
            formats |= taken
        return formats

    def decode(self, data: Any, options: DecodeOptions) -> Pixels:
        """Return the pixels (H, W, C) of a file. Raises as `open` and `EncodedImage.decode` do."""
        return self.open(data, options).decode(options)

    def find_decoder(self, data: Any, options: DecodeOptions) -> str:
        """Return the name of the decoder that decodes a file. Raises as `decode` does."""
        image = self.open(data, options)
        image.decode(options)
        return next(name for name in self.names if _create(name) is image.decoder)

    def find(
        self, data: Any, first: int = 0, declined: DeclinedError | None = None
    ) -> tuple[int, Decoder, Header]:
        """Find the first decoder that accepts a file.

        Args:
            data: All bytes of the file.
            first: The index in `names` of the first decoder to try.
            declined: The error of the decoder before `first`. It is raised if no further decoder
                accepts the file.

        Returns:
            The decoder's index in `names`, the decoder, and the header of the file.

        Raises:
            CannotDecodeError: No decoder accepts the file, or it has too many pixels.
        """
        keep_header(data)
        try:
            for place in range(first, len(self.names)):
                decoder = _create(self.names[place])
                if isinstance(decoder, Decoder) and (header := decoder.probe(data)) is not None:
                    check_header(header, self.max_pixels)
                    return place, decoder, header
        except Exception as e:
            raise find_blame(e)  # noqa: B904  # it has its cause
        finally:
            keep_header(None)
        raise declined or CannotDecodeError(self._explain(data))

    def _explain(self, data: Any) -> str:
        """Return a message that explains why no decoder accepts a file."""
        check_header(header := read_header(data), self.max_pixels)
        if not header.format:
            head = bytes(data[:16])
            why = f"not an image in a known format (it begins with {head!r})"
            return why if head else "the file is empty"
        for name in self.names:
            if header.format in DECODERS.find(name).formats:
                return f"{header.format}: {_describe_missing(name, _create(name))}"
        return f"{header.format}: no decoder takes it"


def list_names() -> list[str]:
    """Return the values of `loader.decoder`, without importing any decoder."""
    return [AUTO, *sorted({*DECODERS.names(), *ALIASES})]


def list_automatic() -> list[str]:
    """Return the names of the decoders that `auto` tries, in order, whether installed or not."""
    places = {}
    for name in DECODERS.names():
        try:
            places[name] = DECODERS.find(name).place
        except LookupError as e:  # a broken package must not stop a run that does not need it
            _log.warning("%s", e)
    asked = {name: place for name, place in places.items() if place is not None}
    return sorted(asked, key=lambda name: asked[name])


@cache
def _create(name: str) -> Decoder | Exception:
    """Return this process's instance of a decoder, or the error if it cannot be created."""
    try:
        return DECODERS.find(name)()
    except (LookupError, ImportError, OSError, RuntimeError) as e:  # of another torch, for instance
        return e


def _describe_missing(name: str, error: Any) -> str:
    if isinstance(error, LookupError):
        return str(error)
    extra = DECODERS.find(name).extra
    advice = f": run {install_command(extra)}" if extra else ""
    return f"the decoder {name} is not installed ({error}){advice}"


def _convert_depth(pixels: Pixels, dtype: str) -> Pixels:
    if pixels.dtype == dtype:
        return pixels
    if dtype == "uint8":
        return (pixels >> 8).astype(np.uint8)
    return pixels.astype(np.uint16) * np.uint16(257)
