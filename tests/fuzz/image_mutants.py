"""Damaged image files: a deterministic stream of them, by format and by kind of damage."""

import itertools
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from image_seeds import SUFFIXES, Seed, bomb, png_chunk, seed
from PIL import Image

Rng = np.random.Generator
FORMATS = list(SUFFIXES)


class Mutant(NamedTuple):
    """A file that may be damaged. name: its number, its damage and its suffix."""

    format: str
    damage: str
    name: str
    content: bytes


def mutants(
    numbers: Sequence[int], max_pixels: int, photographs: Sequence[Image.Image] = ()
) -> Iterator[Mutant]:
    """The mutants of these numbers.

    A number, max_pixels and the photographs make the same file always.
    """
    names = list(_DAMAGES)
    for n in numbers:
        rng = np.random.default_rng([14, n])
        format, damage = FORMATS[n % len(FORMATS)], names[n // len(FORMATS) % len(names)]
        whole = bomb(rng, max_pixels) if damage == "bomb" else seed(format, rng, photographs)
        content = _DAMAGES[damage](whole, rng)
        if damage not in ("bomb", "truncated") and rng.random() < 0.5:
            content = _sums_made_right(whole.format, content)
        name = f"mutant_{n:05}_{damage.replace(' ', '_')}.{SUFFIXES[whole.format]}"
        yield Mutant(whole.format, damage, name, content)


# --- chunks


def chunks(whole: Seed) -> list[bytes]:
    """A file in parts that mean something in its format; the first is what it is recognized by."""
    cuts = {
        "JPEG": _jpeg_cuts,
        "PNG": _png_cuts,
        "WebP": _webp_cuts,
        "TIFF": _tiff_cuts,
        "BMP": _bmp_cuts,
    }
    data = whole.content
    places = sorted({0, len(data), *(at for at in cuts[whole.format](data) if 0 < at < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def _jpeg_cuts(data: bytes) -> list[int]:
    places, at = [2], 2
    while at + 4 <= len(data):
        marker, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        at += 2 + size
        if marker == 0xDA:  # its data end at the next marker that is none of theirs
            ends = [
                n
                for n in range(at, len(data) - 1)
                if data[n] == 0xFF and data[n + 1] not in (0, *range(0xD0, 0xD8))
            ]
            at = ends[0] if ends else len(data)
        places.append(at)
    return places


def _png_cuts(data: bytes) -> list[int]:
    places, at = [8], 8
    while at + 12 <= len(data):
        at += 12 + int.from_bytes(data[at : at + 4], "big")
        places.append(at)
    return places


def _webp_cuts(data: bytes) -> list[int]:
    places, at = [12], 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
        places.append(at)
    return places


def _tiff_cuts(data: bytes) -> list[int]:
    """The entries of its first directory, and a cut every 256 bytes elsewhere."""
    first, count, entry = _tiff_directory(data)
    entries = [first + entry * n for n in range(count + 1)]
    return [
        8,
        *(at for at in range(264, len(data), 256) if not first <= at <= entries[-1]),
        *entries,
    ]


def _tiff_directory(data: bytes) -> tuple[int, int, int]:
    """Where the entries of the first directory begin, how many there are, and their length."""
    if data[2] == 43:
        at = int.from_bytes(data[8:16], "little")
        return at + 8, int.from_bytes(data[at : at + 8], "little"), 20
    at = int.from_bytes(data[4:8], "little")
    return at + 2, int.from_bytes(data[at : at + 2], "little"), 12


def _bmp_cuts(data: bytes) -> list[int]:
    return [2, *range(14, 54, 4), *range(54, len(data), 128)]


def _sums_made_right(format: str, data: bytes) -> bytes:
    """With right CRCs and sizes of files, so that decoders go deeper."""
    if format == "PNG":
        parts = chunks(Seed(format, data))
        return b"".join(
            [
                parts[0],
                *(
                    p[:-4] + struct.pack(">I", zlib.crc32(p[4:-4])) if len(p) >= 12 else p
                    for p in parts[1:]
                ),
            ]
        )
    if format == "WebP" and len(data) >= 12:
        return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]
    if format == "BMP" and len(data) >= 6:
        return data[:2] + struct.pack("<I", len(data)) + data[6:]
    return data


# --- damage


def _bits(whole: Seed, rng: Rng, end: int | None = None) -> bytes:
    data = bytearray(whole.content)
    for _ in range(int(rng.integers(1, 12))):
        data[int(rng.integers(2, len(data) if end is None else min(end, len(data))))] ^= 1 << int(
            rng.integers(8)
        )
    return bytes(data)


def _header_bits(whole: Seed, rng: Rng) -> bytes:
    return _bits(whole, rng, int(rng.choice([40, 200, 700])))


def _truncated(whole: Seed, rng: Rng) -> bytes:
    return whole.content[: int(rng.integers(0, len(whole.content)))]


def _zeros(whole: Seed, rng: Rng) -> bytes:
    return _overwritten(whole, rng, bytes)


def _noise(whole: Seed, rng: Rng) -> bytes:
    return _overwritten(whole, rng, rng.bytes)


def _overwritten(whole: Seed, rng: Rng, content: Callable[[int], bytes]) -> bytes:
    data, at = whole.content, int(rng.integers(2, len(whole.content)))
    length = min(int(rng.choice([1, 4, 16, 64, 512])), len(data) - at)
    return data[:at] + content(length) + data[at + length :]


def _dropped(whole: Seed, rng: Rng) -> bytes:
    parts = chunks(whole)
    del parts[int(rng.integers(1, len(parts)))]
    return b"".join(parts)


def _swapped(whole: Seed, rng: Rng) -> bytes:
    parts = chunks(whole)
    a, b = rng.integers(1, len(parts), 2)
    parts[a], parts[b] = parts[b], parts[a]
    return b"".join(parts)


def _doubled(whole: Seed, rng: Rng) -> bytes:
    parts = chunks(whole)
    n = int(rng.integers(1, len(parts)))
    return b"".join([*parts[:n], *[parts[n]] * int(rng.integers(2, 5)), *parts[n + 1 :]])


def _another_size(whole: Seed, rng: Rng) -> bytes:
    """The header claims another size: none, one, somewhat more, the most that it can hold."""
    data = whole.content
    width, height = (
        int(rng.choice([0, 1, 47, 100, 1000, 16383, 32768, 65000, 65535, 2**31 - 1, 2**32 - 1]))
        for _ in range(2)
    )
    if whole.format == "JPEG":
        at = next(at for at in (data.find(b"\xff\xc0"), data.find(b"\xff\xc2")) if at >= 0)
        return data[: at + 5] + struct.pack(">HH", height & 0xFFFF, width & 0xFFFF) + data[at + 9 :]
    if whole.format == "PNG":
        return (
            data[:8]
            + png_chunk(b"IHDR", struct.pack(">II", width, height) + data[24:29])
            + data[33:]
        )
    if whole.format == "BMP":
        return data[:18] + struct.pack("<II", width, height) + data[26:]
    if whole.format == "WebP":
        return _another_webp_size(data, width, height)
    first, count, entry = _tiff_directory(data)
    for n in range(count):
        at = first + entry * n
        tag, value = int.from_bytes(data[at : at + 2], "little"), width if n % 2 else height
        if tag in (256, 257, 278) and rng.random() < 0.7:
            head = struct.pack("<HHI" if entry == 12 else "<HHQ", tag, 4, 1)
            data = (
                data[:at]
                + head
                + struct.pack("<I", value).ljust(entry - len(head), b"\0")
                + data[at + entry :]
            )
    return data


def _another_webp_size(data: bytes, width: int, height: int) -> bytes:
    kind = data[12:16]
    if kind == b"VP8X":
        fields = (width & 0xFFFFFF).to_bytes(3, "little") + (height & 0xFFFFFF).to_bytes(
            3, "little"
        )
        return data[:24] + fields + data[30:]
    if kind == b"VP8L":
        return data[:21] + struct.pack("<I", width & 0x3FFF | (height & 0x3FFF) << 14) + data[25:]
    return data[:26] + struct.pack("<HH", width & 0xFFFF, height & 0xFFFF) + data[30:]


def _deep(whole: Seed, rng: Rng) -> bytes:
    """What only a decoder meets: rows of a PNG, tables of a JPEG, entries of a TIFF's directory."""
    return {"PNG": _other_rows, "JPEG": _other_tables, "TIFF": _other_entries}.get(
        whole.format, _bits
    )(whole, rng)


def _other_rows(whole: Seed, rng: Rng) -> bytes:
    """Packed rows that are too few, too many, or of other bytes, with right sums everywhere."""
    parts = chunks(whole)
    place = next(n for n, part in enumerate(parts) if part[4:8] == b"IDAT")
    rows = bytearray(zlib.decompress(b"".join(p[8:-4] for p in parts if p[4:8] == b"IDAT")))
    kind = int(rng.integers(4))
    if kind == 0:
        del rows[int(rng.integers(len(rows))) :]
    elif kind == 1:
        rows += rng.bytes(int(rng.choice([1, 1000, 100_000])))
    else:
        for at in rng.integers(0, len(rows), int(rng.integers(1, 40))):
            rows[at] = int(rng.integers(256))
    packed = zlib.compress(bytes(rows))
    if kind == 3:
        packed = packed[: int(rng.integers(len(packed)))]
    kept = [part for part in parts if part[4:8] != b"IDAT"]
    return b"".join([*kept[:place], png_chunk(b"IDAT", packed), *kept[place:]])


def _other_tables(whole: Seed, rng: Rng) -> bytes:
    """Bytes changed in the tables, the frame and the heads of the scans; or an endless run of one
    scan.
    """
    parts = chunks(whole)
    markers = {0xC4, 0xDB, 0xDA, 0xC0, 0xC2, 0xDD}
    places = [n for n, part in enumerate(parts) if part[0] == 0xFF and part[1] in markers]
    for n in rng.choice(places, int(rng.integers(1, 3))):
        part, head = bytearray(parts[n]), 2 + int.from_bytes(parts[n][2:4], "big")
        part[int(rng.integers(4, min(head, len(part))))] = int(
            rng.choice([0, 1, 0x7F, 0xFF, int(rng.integers(256))])
        )
        parts[n] = bytes(part)
    scans = [n for n in places if parts[n][1] == 0xDA]
    if rng.random() < 0.2:
        parts[scans[-1]] *= 100
    return b"".join(parts)


def _other_entries(whole: Seed, rng: Rng) -> bytes:
    """Entries with other tags, types, counts and values, and directories that name themselves."""
    data = bytearray(whole.content)
    first, count, entry = _tiff_directory(whole.content)
    start, half = first - (8 if entry == 20 else 2), 8 if entry == 20 else 4
    kind = int(rng.integers(3))
    if (
        kind == 0
    ):  # the next directory is this one, or one of its entries is a list of directories: this one
        data[first + entry * count : first + entry * count + half] = start.to_bytes(half, "little")
        if rng.random() < 0.5:
            at = first + entry * int(rng.integers(count))
            tag = int(rng.choice([330, 34665]))
            data[at : at + entry] = (
                struct.pack("<HH", tag, 4)
                + (1).to_bytes(half, "little")
                + start.to_bytes(half, "little")
            )
        return bytes(data)
    for at in first + entry * rng.integers(0, count, 2):
        place = int(rng.choice([2, 4, entry - half]))
        most = int(
            rng.choice([0, 1, 2, 5, 16, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, int(rng.integers(1 << 16))])
        )
        size = 2 if place == 2 else 4
        data[at + place : at + place + size] = (most & (1 << 8 * size) - 1).to_bytes(size, "little")
    return bytes(data)


_DAMAGES: dict[str, Callable[[Seed, Rng], bytes]] = {
    "bits": _bits,
    "header bits": _header_bits,
    "truncated": _truncated,
    "zeros": _zeros,
    "noise": _noise,
    "dropped": _dropped,
    "swapped": _swapped,
    "doubled": _doubled,
    "another size": _another_size,
    "deep": _deep,
    "bomb": lambda whole, _: whole.content,
}
