"""What headers of image files say, which images are plain, and that no bytes end in an
exception.
"""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpupipe.decoders import image_header
from gpupipe.decoders.decoder import Header
from gpupipe.decoders.image_header import PlainFormats, read_header
from helpers import image_files
from helpers.image_files import turned

PICTURE = Image.linear_gradient("L").resize((70, 50)).convert("RGB")
ARITHMETIC = Path(__file__).parents[1] / "data" / "arithmetic.jpg"


def encoded(form: str, image: Image.Image = PICTURE, **options: Any) -> bytes:
    return image_files.encoded(image, form, **options)


def animated(form: str) -> bytes:
    other = PICTURE.rotate(180)
    return encoded(form, save_all=True, append_images=[other])


JPEG = PlainFormats.JPEG
PLAIN = {
    "baseline.jpg": encoded("JPEG"),
    "progressive.jpg": encoded("JPEG", progressive=True),
    "gray.jpg": encoded("JPEG", PICTURE.convert("L")),
    "4:4:4.jpg": encoded("JPEG", subsampling=0),
    "4:2:2.jpg": encoded("JPEG", subsampling=1),
    "mpo.jpg": animated("MPO"),
    "rgb.png": encoded("PNG"),
    "palette.png": encoded("PNG", PICTURE.quantize(16)),
    "bits.png": encoded("PNG", PICTURE.convert("1")),
    "alpha.png": encoded("PNG", PICTURE.convert("LA")),
    "lossy.webp": encoded("WEBP"),
    "lossless.webp": encoded("WEBP", lossless=True),
    "alpha.webp": encoded("WEBP", PICTURE.convert("RGBA").rotate(5)),
}
SPECIAL = {
    "arithmetic": ("JPEG", ARITHMETIC.read_bytes()),
    "cmyk": ("JPEG", encoded("JPEG", PICTURE.convert("CMYK"))),
    "rgb": ("JPEG", encoded("JPEG", keep_rgb=True)),
    "exif png": ("PNG", encoded("PNG", exif=turned(6))),
    "animated png": ("PNG", animated("PNG")),
    "animated webp": ("WebP", animated("WEBP")),
    "exif webp": ("WebP", encoded("WEBP", exif=turned(6))),
    "bmp": ("BMP", encoded("BMP")),
    "tiff": ("TIFF", encoded("TIFF")),
    "bigtiff": ("TIFF", encoded("TIFF", big_tiff=True)),
    "gif": ("GIF", encoded("GIF")),
    "jpeg 2000": ("JPEG 2000", encoded("JPEG2000")),
    "ppm": ("PNM", encoded("PPM")),
    "ico": ("ICO", encoded("ICO")),
    "text": ("", b"hello world"),
    "wave": ("", b"RIFF\x10\0\0\0WAVEfmt "),
    "nothing": ("", b""),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_image_has_its_size(name: str) -> None:
    found = read_header(PLAIN[name])
    assert found.is_plain
    assert (found.width, found.height) == PICTURE.size


@pytest.mark.parametrize("name", SPECIAL)
def test_what_not_all_decoders_read_alike_is_not_plain(name: str) -> None:
    form, data = SPECIAL[name]
    found = read_header(data)
    assert (found.format, found.is_plain) == (form, False)


def test_the_end_of_a_jpegs_header_is_the_first_byte_of_its_scan() -> None:
    """What stands before it says all that the header says, and no less does."""
    data = PLAIN["baseline.jpg"]
    found = read_header(data)
    assert read_header(data[: found.end]) == found
    assert not read_header(data[: found.end - 1]).is_plain
    assert read_header(PLAIN["rgb.png"]).end == 0


def test_a_file_that_begins_as_the_last_one_has_a_header_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The header of the last JPEG is remembered, for files with the same bytes before the scan."""
    first = PLAIN["baseline.jpg"]
    whole = read_header(first)
    end = whole.end
    wider = encoded("JPEG", PICTURE.resize((71, 50)))
    others = [data for _, data in SPECIAL.values()] + list(PLAIN.values())
    others += [first[:size] for size in (0, 3, 20, end - 2, end - 1, end, end + 1)]
    others += [bytes([*first[:n], first[n] ^ 1, *first[n + 1 :]]) for n in range(end + 1)]
    others += [wider, first[:end] + bytes(100), encoded("JPEG", exif=turned(3))]
    for data in others:
        monkeypatch.setattr(image_header, "_last_jpeg", (b"", Header("")))
        expected = read_header(data)
        monkeypatch.setattr(image_header, "_last_jpeg", (b"", Header("")))
        assert read_header(first).is_plain
        assert read_header(data) == expected
        assert read_header(memoryview(data)) == expected
        assert read_header(first) == whole, "whatever came before it"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_jpeg(orientation: int) -> None:
    found = read_header(encoded("JPEG", exif=turned(orientation)))
    assert found[:5] == Header("JPEG", 50, 70, True, orientation)[:5]


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_is_none_makes_a_jpeg_not_plain(orientation: int) -> None:
    data = encoded("JPEG", exif=turned(6))
    at = (
        data.index(struct.pack("<HHI", 0x0112, 3, 1))
        if b"II*\0" in data
        else data.index(struct.pack(">HHI", 0x0112, 3, 1))
    )
    order = "<" if b"II*\0" in data else ">"
    wrong = data[: at + 8] + struct.pack(order + "H", orientation) + data[at + 10 :]
    assert not read_header(wrong).is_plain


def test_exif_data_shorter_than_their_name_are_not_plain() -> None:
    """nvImageCodec takes the length of what follows for a number without a sign."""
    data = encoded("JPEG", exif=turned(6))
    at = data.index(b"Exif\0\0") - 2
    assert not read_header(data[:at] + b"\0\x07" + data[at + 2 :]).is_plain


def test_sixteen_bits_are_not_plain() -> None:
    data = bytearray(PLAIN["rgb.png"])
    data[24] = 16
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    assert read_header(data) == Header("PNG", 50, 70, channels=3, depth=16)


def test_a_png_without_its_end_is_not_plain() -> None:
    assert not read_header(PLAIN["rgb.png"][:-12]).is_plain


@pytest.mark.parametrize("name", PLAIN)
def test_a_file_that_ends_in_its_header_is_not_plain(name: str) -> None:
    data = PLAIN[name]
    whole = len(data)
    if name.endswith(".jpg"):
        at = data.index(b"\xff\xda")
        whole = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    for end in range(whole):
        assert not read_header(data[:end]).is_plain, end


def test_no_bytes_raise_and_no_mutant_is_looked_at_for_long() -> None:
    """25,000 mutants."""
    rng = np.random.default_rng(0)
    seeds = [*PLAIN.values(), *(data for _, data in SPECIAL.values() if data)]
    for _ in range(25_000):
        data = bytearray(seeds[rng.integers(len(seeds))])
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(min(len(data), 700)))
            data[at] = int(rng.integers(256))
        found = read_header(
            bytes(data[: rng.integers(1, len(data) + 1)]) if rng.random() < 0.2 else data
        )
        assert not found.is_plain or (found.height > 0 and found.width > 0)


def with_scans(data: bytes, count: int) -> bytes:
    """A JPEG whose last scan, with what comes before it, is repeated until there are so many."""
    last, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    return data[:end] + data[last:end] * (count - data.count(b"\xff\xda")) + data[end:]


@pytest.mark.parametrize("kind", ["progressive", "CMYK", "garbage before a marker"])
def test_more_than_100_scans_are_too_many(kind: str) -> None:
    image = PICTURE.convert("CMYK") if kind == "CMYK" else PICTURE
    data = encoded("JPEG", image, progressive=True)
    if kind == "garbage before a marker":
        data = data[:20] + b"\0" + data[20:]
    assert not read_header(data).too_many_scans
    assert not read_header(with_scans(data, 100)).too_many_scans
    assert read_header(with_scans(data, 101)).too_many_scans


def test_what_follows_the_image_or_lies_in_a_segment_is_no_scan() -> None:
    data = encoded("JPEG", progressive=True)
    assert not read_header(data + b"\xff\xda\0\2" * 200).too_many_scans
    last = data.rindex(b"\xff\xda")
    comment = b"\xff\xfe" + struct.pack(">H", 402) + b"\xff\xda" * 200
    assert not read_header(data[:last] + comment + data[last:]).too_many_scans
    assert not read_header(data[: last + 1] + b"\xda\0" * 200).too_many_scans


@pytest.mark.parametrize("length", [0, 1, 2, 11, 13])
def test_a_scan_header_of_another_length_is_not_plain(length: int) -> None:
    """libjpeg refuses it. Read before by its first bytes, a part of the file is not plain, too."""
    data = PLAIN["baseline.jpg"]
    at = data.index(b"\xff\xda") + 2
    data = data[:at] + struct.pack(">H", length) + data[at + 2 :]
    for file in (data, data[: at + length + 1]):
        assert not read_header(file).is_plain
        assert not image_header.read_plain_sizes([file], JPEG).any()


def damaged_jpegs(count: int) -> list[bytes]:
    """JPEGs with one or two other bytes before the scan, or that end early."""
    random = np.random.default_rng(0)
    files = [data for name, data in PLAIN.items() if name.endswith(".jpg")]
    files += [data for form, data in SPECIAL.values() if form == "JPEG"]
    damaged = []
    for n in range(count):
        data = bytearray(files[n % len(files)])
        for at in random.integers(0, data.find(b"\xff\xda") + 14, 1 + n % 2):
            data[at] = random.integers(256)
        damaged.append(bytes(data[: random.integers(1, len(data))] if n % 5 == 0 else data))
    return damaged


@pytest.mark.skipif(image_header._extension is None, reason="the extension is not built")
def test_the_extension_reads_the_sizes_of_plain_jpegs_of_one_scan() -> None:
    names = ["baseline.jpg", "gray.jpg", "4:4:4.jpg", "4:2:2.jpg"]
    sizes = image_header.read_plain_sizes([PLAIN[name] for name in names], JPEG)
    headers = [read_header(PLAIN[name]) for name in names]
    assert sizes.tolist() == [[header.height, header.width] for header in headers]


@pytest.mark.skipif(image_header._extension is None, reason="the extension is not built")
def test_the_extension_leaves_all_other_files_to_the_parser() -> None:
    turned_jpeg = encoded("JPEG", exif=turned(6))
    others = [PLAIN["progressive.jpg"], turned_jpeg, *(data for _, data in SPECIAL.values())]
    assert image_header.read_plain_sizes(others, JPEG).tolist() == [[0, 0]] * len(others)


@pytest.mark.skipif(image_header._extension is None, reason="the extension is not built")
def test_the_extension_and_the_parser_agree_on_damaged_headers() -> None:
    files = damaged_jpegs(3000)
    sizes = map(tuple, image_header.read_plain_sizes(files, JPEG).tolist())
    pairs = list(zip(sizes, map(read_header, files), strict=True))
    read = [(size, header) for size, header in pairs if size != (0, 0)]
    assert all(size == (h.height, h.width) and h.is_plain and h.end for size, h in read)
    assert all(h.orientation == 1 for _, h in read)
    missed = [header for size, header in pairs if size == (0, 0) and header.end > 0]
    assert all(header.orientation != 1 or not header.is_plain for header in missed), missed[:3]
    assert len(read) > 500
