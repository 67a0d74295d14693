"""Files that the engine decodes itself, and files that Pillow decodes for it, in one batch: what
must come of them on a CPU and on a GPU.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import gpupipe
from helpers.image_files import encoded

SIDE = 48
JPEGS = 24
"""Plain ones, beside which all others lie."""
Pixels = NDArray[Any]


def check_pixels(
    root: Path, device: str, batch_size: int, mode: str, tolerance: int, **options: Any
) -> None:
    """Each good file has Pillow's pixels once, and the bad one is listed by name. tolerance: levels
    of a plain JPEG.

    What Pillow decoded is the same to the bit, and what DALI made gray of a plain PNG or WebP to a
    level.
    """
    expected = _write(root, mode)
    config = {"data": {"source": "folder", "root": root}, "pipeline": [{"decode": {"mode": mode}}]}
    own: dict[str, Any] = {"on_error": "skip", "max_bad": 0.5, "quarantine": root / "bad.jsonl"}
    with gpupipe.load(
        config, engine="dali", device=device, batch_size=batch_size, ids=True, **own, **options
    ) as loader:
        for _ in range(2):
            found = _by_name(loader)
            assert sorted(found) == sorted(expected)
            for name, pixels in expected.items():
                allowed = {"other": 0, "deep": 0, "cmyk": 0, "plain": mode == "gray"}.get(
                    name.partition(".")[0], tolerance
                )
                _compare(found[name], pixels, allowed, name)
        assert len(loader.engine.quarantine) == 1
    (line,) = [json.loads(line) for line in (root / "bad.jsonl").read_text().splitlines()]
    assert line["path"] == str(root / "class" / "deep.tif")
    assert "32" in line["reason"]


def check_a_refusal_is_named(root: Path, device: str, **options: Any) -> str:
    """Return what is said of the bad file under on_error: raise."""
    _write(root, "rgb")
    config = {"data": {"source": "folder", "root": root}, "pipeline": ["decode"]}
    with gpupipe.load(config, engine="dali", device=device, batch_size=64, **options) as loader:
        try:
            list(loader)
        except gpupipe.SampleError as e:
            assert e.path == str(root / "class" / "deep.tif")
            return e.reason
    raise AssertionError("no file was refused")


def check_uint16(root: Path, device: str, mode: str, tolerance: int, **options: Any) -> None:
    """16 bits are whole, and 8 bits times 257."""
    (root / "class").mkdir()
    deep = np.random.default_rng(0).integers(0, 1 << 16, (SIDE, SIDE), np.uint16)
    flat = np.asarray(_smooth(1).convert("L"))
    files = {
        "deep.png": encoded(Image.fromarray(deep), "PNG"),
        "flat.png": encoded(Image.fromarray(flat), "PNG"),
    }
    files |= {
        f"{n:02}.jpg": encoded(Image.fromarray(flat), "JPEG", quality=95) for n in range(JPEGS)
    }
    for name, content in files.items():
        (root / "class" / name).write_bytes(content)
    config = {
        "data": {"source": "folder", "root": root},
        "pipeline": [{"decode": {"mode": mode, "dtype": "uint16"}}],
    }
    with gpupipe.load(
        config, engine="dali", device=device, batch_size=64, ids=True, **options
    ) as loader:
        found = _by_name(loader)
    assert sorted(found) == sorted(files)
    for name, pixels in found.items():
        assert pixels.dtype == np.uint16
        jpeg = (
            np.asarray(Image.open(io.BytesIO(files[name]))).astype(np.uint16) * 257
            if name.endswith(".jpg")
            else None
        )
        levels = (
            jpeg
            if jpeg is not None
            else deep
            if name == "deep.png"
            else flat.astype(np.uint16) * 257
        )
        for channel in pixels:
            _compare(channel, levels, 0 if jpeg is None else 257 * tolerance, name)


def _write(root: Path, mode: str) -> dict[str, Pixels]:
    """Write the files of both kinds; what is to come of the good ones, (C, H, W), by name."""
    rgb = _smooth(99)
    deep = np.random.default_rng(0).integers(0, 1 << 16, (SIDE, SIDE), np.uint16)
    files = {f"{n:02}.jpg": encoded(_smooth(n), "JPEG", quality=95) for n in range(JPEGS)}
    files["cmyk.jpg"] = encoded(rgb.convert("CMYK"), "JPEG", quality=95)
    files["plain.png"] = encoded(rgb, "PNG")
    files["plain.webp"] = encoded(rgb, "WEBP", lossless=True)
    files["other.bmp"] = encoded(rgb, "BMP")
    files["other.tif"] = encoded(rgb, "TIFF")
    expected = {name: _expected(content, mode) for name, content in files.items()}
    files["deep.png"] = encoded(Image.fromarray(deep), "PNG")
    expected["deep.png"] = np.stack([(deep >> 8).astype(np.uint8)] * (3 if mode == "rgb" else 1))
    files["deep.tif"] = encoded(Image.fromarray(deep.astype(np.int32)), "TIFF")
    (root / "class").mkdir()
    for name, content in files.items():
        (root / "class" / name).write_bytes(content)
    return expected


def _expected(content: bytes, mode: str) -> Pixels:
    with Image.open(io.BytesIO(content)) as image:
        pixels = np.asarray(image.convert("RGB" if mode == "rgb" else "L"))
    return pixels.transpose(2, 0, 1) if mode == "rgb" else pixels[None]


def _smooth(seed: int) -> Image.Image:
    """Shades that every JPEG decoder takes for the same, whatever its filter for chroma."""
    red, green, blue = np.random.default_rng(seed).integers(0, 120, 3)
    y, x = np.mgrid[0:SIDE, 0:SIDE] * 2
    return Image.fromarray(np.stack([red + y, green + x, blue + (x + y) // 2], -1).astype(np.uint8))


def _by_name(loader: gpupipe.Loader) -> dict[str, Pixels]:
    found: dict[str, Pixels] = {}
    for batch in loader:
        for id, image in zip(batch["id"].tolist(), batch["image"].cpu(), strict=True):
            name = Path(loader.index.location(id)).name
            assert name not in found
            found[name] = (
                image.view(torch.int16).numpy().view(np.uint16)
                if image.dtype == torch.uint16
                else image.numpy()
            )
    return found


def _compare(found: Pixels, expected: Pixels, tolerance: int, name: str) -> None:
    assert found.shape == expected.shape, name
    worst = int(np.abs(found.astype(np.int64) - expected).max())
    assert worst <= tolerance, f"{name} differs by {worst}"
