from __future__ import annotations

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
        (tmp_path / "a" / f"right{n}.png").write_bytes(content)
    options = {"on_error": "skip", "max_bad": 1.0, "batch_size": 4, "shuffle": False}
    with load(tmp_path, engine="dali", threads=1, **options) as loader:
        delivered = [batch["image"] for batch in loader]
        reasons = loader.engine.quarantine.reasons
    pixels = np.concatenate([images.numpy() for images in delivered])
    assert len(pixels) + len(reasons) == 16
    assert reasons  # each of these is named with its reason, once
    assert (pixels[-4:] == np.asarray(noise()).transpose(2, 0, 1)).all()
    assert "libpng" not in capfd.readouterr().err
