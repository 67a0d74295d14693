import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, PngImagePlugin

from gpupipe.decoders.png_chunks import is_quiet
from helpers.image_files import encoded, png_chunk
from helpers.loaders import load


def noise(height: int = 40, width: int = 40) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8))


def chunk(kind: bytes, value: bytes) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add(kind, value)
    return info


def test_a_right_png_is_quiet_and_a_changed_bit_is_not() -> None:
    data = encoded(noise(), "PNG", pnginfo=chunk(b"sRGB", b"\0"))
    assert is_quiet(data)
    for at in range(40, len(data) - 12, 97):
        assert not is_quiet(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (b"gAMA", (45455).to_bytes(4, "big"), True),
        (b"gAMA", (100000).to_bytes(4, "big"), False),
        (b"sRGB", b"\x07", False),
        (b"cHRM", bytes(32), False),
    ],
)
def test_chunks_that_libpng_may_ignore(kind: bytes, value: bytes, expected: bool) -> None:
    assert is_quiet(encoded(noise(), "PNG", pnginfo=chunk(kind, value))) is expected


COLORS = [
    (("RGB", b"tRNS", bytes(6)), True),
    (("RGB", b"bKGD", b"\0\xff" * 3), True),
    (("L", b"tRNS", b"\0\xff"), True),
    (("L", b"bKGD", b"\0\0"), True),
    (("RGBA", b"bKGD", bytes(6)), True),
    (("P", b"tRNS", bytes(2)), True),
    (("P", b"bKGD", b"\1"), True),
    (("RGB", b"tRNS", bytes(2)), False),  # of another size
    (("RGB", b"bKGD", b"\1\0" * 3), False),  # above 255
    (("L", b"tRNS", b"\1\0"), False),
    (("RGBA", b"tRNS", bytes(6)), False),  # beside alpha
    (("P", b"tRNS", bytes(257)), False),  # beyond the palette
    (("P", b"tRNS", b""), False),
    (("P", b"bKGD", b"\xff"), False),
]


def of_mode(mode: str) -> Image.Image:
    return noise().quantize(8) if mode == "P" else noise().convert(mode)


def with_chunk(mode: str, kind: bytes, value: bytes) -> bytes:
    """Return a PNG with a chunk right before its pixels."""
    data = encoded(of_mode(mode), "PNG")
    at = data.index(b"IDAT") - 4
    return data[:at] + png_chunk(kind, value) + data[at:]


@pytest.mark.parametrize(("parts", "expected"), COLORS, ids=str)
def test_colors_in_chunks(parts: tuple[str, bytes, bytes], expected: bool) -> None:
    assert is_quiet(with_chunk(*parts)) is expected


def test_colors_in_chunks_out_of_place() -> None:
    color = png_chunk(b"tRNS", b"\0")
    palette = encoded(of_mode("P"), "PNG")
    for at in (palette.index(b"PLTE") - 4, palette.index(b"IEND") - 4):
        assert not is_quiet(palette[:at] + color + palette[at:])
    at = palette.index(b"IDAT") - 4
    assert not is_quiet(palette[:at] + color + color + palette[at:])


def test_dali_decodes_colors_in_chunks_and_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    right = [parts for parts, is_right in COLORS if is_right]
    (tmp_path / "a").mkdir()
    for n, parts in enumerate(right):
        (tmp_path / "a" / f"{n:02}.png").write_bytes(with_chunk(*parts))
    options = {"engine": "dali", "threads": 1, "batch_size": len(right), "shuffle": False}
    with load(tmp_path, **options) as loader:
        images = next(iter(loader))["image"].numpy()
        assert not loader.engine.quarantine.reasons
    for image, (mode, _, _) in zip(images, right, strict=True):
        expected = np.asarray(of_mode(mode).convert("RGB")).transpose(2, 0, 1)
        assert (image == expected).all(), mode
    assert capfd.readouterr().err == ""


def png(*chunks: bytes, color_type: int = 2) -> bytes:
    """Return a PNG of 64x64 pixels of 8 bits, with these chunks between IHDR and IEND."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, color_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + png_chunk(b"IEND", b"")


def idat(stream: bytes) -> bytes:
    return png_chunk(b"IDAT", stream)


ROWS = (b"\0" + np.asarray(noise(1, 64)).tobytes()) * 64
STREAM = zlib.compress(ROWS)
GRAY = idat(zlib.compress((b"\0" + bytes(64)) * 64))
OF_FAULTY_ENCODERS = {
    "a bit": png(idat(STREAM[:150] + bytes([STREAM[150] ^ 16]) + STREAM[151:])),
    "cut": png(idat(STREAM[:-50])),
    "without its end": png(idat(STREAM[:-2])),
    "checksum": png(idat(STREAM[:-4] + b"abcd")),
    "header": png(idat(b"\x79" + STREAM[1:])),
    "window": png(idat(b"\x28\x15" + STREAM[2:])),
    "filter": png(idat(zlib.compress(ROWS[: 193 * 5] + b"\5" + ROWS[193 * 5 + 1 :]))),
    "too few rows": png(idat(zlib.compress(ROWS[:-400]))),
    "too many rows": png(idat(zlib.compress(ROWS * 2))),
    "more data": png(idat(STREAM + b"more")),
    "chunk between": png(idat(STREAM[:99]), png_chunk(b"tEXt", b"a\0b"), idat(STREAM[99:])),
    "palette of 7 bytes": png(png_chunk(b"PLTE", bytes(7)), GRAY, color_type=3),
    "palette of gray": png(png_chunk(b"PLTE", bytes(30)), GRAY, color_type=0),
    "density": png(png_chunk(b"pHYs", bytes(8)), idat(STREAM)),
    "two densities": png(*[png_chunk(b"pHYs", bytes(9))] * 2, idat(STREAM)),
    "time": png(png_chunk(b"tIME", bytes(3)), idat(STREAM)),
    "compressed text": png(png_chunk(b"zTXt", b"key\0\0nonsense"), idat(STREAM)),
    "compressed iTXt": png(idat(STREAM), png_chunk(b"iTXt", b"key\0\1\0\0\0nonsense")),
    "empty text": png(png_chunk(b"tEXt", b""), idat(STREAM)),
    "many texts": png(*[png_chunk(b"tEXt", b"a\0b")] * 1001, idat(STREAM)),
    "long text": png(png_chunk(b"tEXt", bytes(8_000_001)), idat(STREAM)),
    "end": png(idat(STREAM))[:-12] + png_chunk(b"IEND", b"abc"),
}


def test_what_a_faulty_encoder_writes_with_right_checksums_is_not_quiet() -> None:
    assert is_quiet(png(idat(STREAM[:99]), idat(b""), idat(STREAM[99:])))
    assert is_quiet(png(png_chunk(b"iTXt", b"key\0\0\0en\0\0text"), idat(STREAM)))
    assert [name for name, data in OF_FAULTY_ENCODERS.items() if is_quiet(data)] == []


def test_a_side_that_libpng_refuses_is_not_quiet() -> None:
    assert is_quiet(encoded(Image.new("1", (1_000_000, 1)), "PNG"))
    assert not is_quiet(encoded(Image.new("1", (1_000_001, 1)), "PNG"))


def test_the_dali_engine_lets_no_line_of_libpng_reach_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = encoded(noise(), "PNG")
    rng = np.random.default_rng(1)
    (tmp_path / "a").mkdir()
    for n in range(12):
        at = int(rng.integers(45, len(data) - 20))
        changed = data[:at] + bytes([data[at] ^ 1 << n % 8]) + data[at + 1 :]
        (tmp_path / "a" / f"{n:02}.png").write_bytes(changed)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    right = [
        data,
        encoded(noise(), "PNG", pnginfo=chunk(b"cHRM", bytes(32))),
        encoded(noise(), "PNG", icc_profile=profile[:-4] + b"\xff\xff\xff\xff"),
        encoded(noise(), "PNG", pnginfo=chunk(b"sRGB", b"\x07")),
    ]
    for n, content in enumerate(right):
        (tmp_path / "a" / f"z{n}.png").write_bytes(content)
    for name, content in OF_FAULTY_ENCODERS.items():
        (tmp_path / "a" / f"{name}.png").write_bytes(content)
    decode = [{"decode": {}}, {"center_crop": {"size": 40}}]
    options = {"on_error": "skip", "max_bad": 1.0, "batch_size": 4, "shuffle": False}
    with load(tmp_path, decode, engine="dali", threads=1, **options) as loader:
        delivered = [batch["image"] for batch in loader]
        reasons = loader.engine.quarantine.reasons
    pixels = np.concatenate([images.numpy() for images in delivered])
    assert len(pixels) + len(reasons) == 16 + len(OF_FAULTY_ENCODERS)
    assert reasons  # each of these is named with its reason, once
    assert (pixels[-4:] == np.asarray(noise()).transpose(2, 0, 1)).all()
    assert "libpng" not in capfd.readouterr().err
