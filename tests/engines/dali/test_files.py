"""Images that are valid but odd: what DALI makes of each, against PIL and torchvision.

Measured with DALI 2.4, nvImageCodec 0.9.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2 import functional as F

from helpers.image_files import encoded, turned
from helpers.loaders import load
from helpers.odd_images import DEEP, HEIGHT, ODD, WIDTH, deep


@pytest.fixture(scope="module")
def picture(faces: Path) -> Image.Image:
    return (
        Image.open(min(faces.glob("*/*.jpg")))
        .convert("RGB")
        .crop((45, 65, 45 + WIDTH, 65 + HEIGHT))
    )


@pytest.fixture(scope="module")
def odd(picture: Image.Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("odd")
    (root / "class").mkdir()
    for name, each in ODD.items():
        (root / "class" / name).write_bytes(each.make(picture))
    return root


def delivered(root: Path, *steps: Any, **options: Any) -> dict[str, torch.Tensor]:
    with load(root, steps or ["decode"], **{"engine": "dali", "threads": 2, **options}) as loader:
        return {
            Path(loader.index.location(i)).name: image
            for b in loader
            for i, image in zip(b["id"].tolist(), b["image"], strict=True)
        }


def by_pil(path: Path, exif: bool = False) -> torch.Tensor:
    with warnings.catch_warnings(), Image.open(path) as image:
        warnings.filterwarnings("ignore", "Palette images with Transparency", UserWarning)
        upright = ImageOps.exif_transpose(image) if exif else image
        return torch.from_numpy(np.asarray(upright.convert("RGB")).copy()).permute(2, 0, 1)


def by_torchvision(path: Path, exif: bool = False) -> torch.Tensor:
    return decode_image(
        torch.from_numpy(np.fromfile(path, np.uint8)),
        mode=ImageReadMode.RGB,
        apply_exif_orientation=exif,
    )


def most(a: torch.Tensor, b: torch.Tensor) -> int:
    """The largest difference in levels."""
    assert a.shape == b.shape
    return int((a.int() - b.int()).abs().max())


@pytest.fixture(scope="module")
def at_once(odd: Path) -> dict[str, torch.Tensor]:
    """Every odd image, all in one batch."""
    return delivered(odd, batch_size=len(ODD))


def test_all_of_them_are_delivered_in_one_batch(at_once: dict[str, torch.Tensor]) -> None:
    assert at_once.keys() == ODD.keys()
    assert {tuple(image.shape) for image in at_once.values()} == {(3, HEIGHT, WIDTH)}


def test_the_pixels_are_those_of_pil(odd: Path, at_once: dict[str, torch.Tensor]) -> None:
    apart = {name: most(at_once[name], by_pil(odd / "class" / name)) for name in ODD}
    assert not {name: levels for name, levels in apart.items() if levels > ODD[name].pil}


def test_the_pixels_are_those_of_torchvision(odd: Path, at_once: dict[str, torch.Tensor]) -> None:
    for name, file in ODD.items():
        if file.torchvision is None:
            with pytest.raises(RuntimeError):
                by_torchvision(odd / "class" / name)
        else:
            apart = most(at_once[name], by_torchvision(odd / "class" / name))
            assert apart <= file.torchvision, name


def test_a_window_of_each_is_the_window_of_the_whole(odd: Path) -> None:
    """Decoding only a part, and the size from the header that this needs, work for every format."""
    for name, image in delivered(
        odd, "decode", {"resize": {"size": 60}}, {"center_crop": {"size": 48}}, batch_size=8
    ).items():
        whole = by_pil(odd / "class" / name)
        assert most(image, F.center_crop(F.resize(whole, [60], antialias=True), [48])) <= 1 + (
            ODD[name].pil or 0
        ), name


def test_gray_of_each(odd: Path) -> None:
    """PNG is turned to gray by libpng, JPEG by its own luma, the others by OpenCV: within 3 levels
    of PIL's formula.
    """
    for name, image in delivered(odd, {"decode": {"mode": "gray"}}, batch_size=8).items():
        gray = torch.from_numpy(
            np.asarray(
                Image.fromarray(by_pil(odd / "class" / name).permute(1, 2, 0).numpy()).convert("L")
            ).copy()
        )[None]
        assert most(image, gray) <= 3, name


@pytest.mark.parametrize("name", DEEP)
def test_16_bits_become_8_without_their_low_byte(
    picture: Image.Image, tmp_path: Path, name: str
) -> None:
    """PIL clips gray at 255 instead, and torchvision keeps uint16: neither is a reference here."""
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / name).write_bytes(DEEP[name](picture))
    (image,) = delivered(tmp_path, batch_size=1).values()
    wanted = (deep(picture.convert("L") if "gray" in name else picture) >> 8).astype(np.uint8)
    wanted = wanted if wanted.ndim == 3 else np.stack([wanted] * 3, -1)
    assert torch.equal(image, torch.from_numpy(wanted).permute(2, 0, 1))
    if name.endswith("png"):
        assert by_torchvision(tmp_path / "class" / name).dtype == torch.uint16


@pytest.mark.parametrize("size", [(1, 1), (3000, 2), (2, 3000)], ids=str)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_extreme_shapes(
    picture: Image.Image, tmp_path: Path, size: tuple[int, int], form: str
) -> None:
    (tmp_path / "class").mkdir()
    picture.resize(size).save(tmp_path / "class" / "x.jpg", form)
    (image,) = delivered(tmp_path, batch_size=1).values()
    assert torch.equal(image, by_pil(tmp_path / "class" / "x.jpg"))


@pytest.mark.parametrize("form", ["GIF", "AVIF", "ICO"])
def test_a_format_that_dali_does_not_know_is_delivered_all_the_same(
    picture: Image.Image, tmp_path: Path, form: str
) -> None:
    if form.lower() not in {f.lower() for f in Image.registered_extensions().values()}:
        pytest.skip(f"this Pillow does not write {form}")
    (tmp_path / "class").mkdir()
    path = tmp_path / "class" / "x.jpg"
    path.write_bytes(encoded(picture, form))
    (image,) = delivered(tmp_path, batch_size=1).values()
    assert torch.equal(image, by_pil(path))


@pytest.mark.parametrize("apply", [True, False])
def test_a_webp_without_loss_that_has_exif_is_delivered_right(
    picture: Image.Image, tmp_path: Path, apply: bool
) -> None:
    """nvImageCodec 0.9 refuses it ("Unexpected end of stream"), with EXIF but without loss or with
    alpha.
    """
    (tmp_path / "class").mkdir()
    path = tmp_path / "class" / "x.webp"
    path.write_bytes(encoded(picture, "WEBP", lossless=True, exif=turned(6)))
    (image,) = delivered(
        tmp_path, {"decode": {"apply_exif_orientation": apply}}, batch_size=1
    ).values()
    assert torch.equal(image, by_pil(path, apply))


@pytest.mark.parametrize("apply", [True, False])
def test_exif_orientation_of_a_photograph(
    orientation_photos: Path, tmp_path: Path, apply: bool
) -> None:
    (tmp_path / "class").symlink_to(orientation_photos)
    images = delivered(tmp_path, {"decode": {"apply_exif_orientation": apply}}, batch_size=1)
    assert len(images) == 10
    for name, image in images.items():
        assert most(image, by_torchvision(orientation_photos / name, apply)) == 0, name
        assert most(image, by_pil(orientation_photos / name, apply)) == 0, name
    shapes = {tuple(image.shape) for image in images.values()}
    assert shapes == ({(3, 426, 640), (3, 640, 426)} if apply else {(3, 426, 640)})


@pytest.mark.parametrize("apply", [True, False])
@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
def test_exif_orientation_in_every_format(
    picture: Image.Image, tmp_path: Path, orientation: int, apply: bool
) -> None:
    """Also through a resize and a crop, which take the size from the header before the pixels are
    there.
    """
    (tmp_path / "class").mkdir()
    exif = turned(orientation)
    for name, form in {"a.jpg": "JPEG", "c.png": "PNG", "d.webp": "WEBP", "e.tif": "TIFF"}.items():
        picture.save(tmp_path / "class" / name, form, exif=exif)
    picture.save(tmp_path / "class" / "b.jpg", exif=exif, progressive=True)
    picture.convert("L").save(tmp_path / "class" / "f.jpg", exif=exif)
    picture.convert("CMYK").save(tmp_path / "class" / "g.jpg", exif=exif, quality=90)
    upright = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)
    decode = {"decode": {"apply_exif_orientation": apply}}
    whole = delivered(tmp_path, decode, batch_size=7)
    part = delivered(
        tmp_path,
        decode,
        {"resize": {"size": 60}},
        {"center_crop": {"size": [40, 50]}},
        batch_size=7,
    )
    for name, image in whole.items():
        wanted = (
            by_pil(tmp_path / "class" / name, apply) if apply or name != "e.tif" else upright
        )  # PIL turns a TIFF whenever it reads one
        tolerance = (
            1 if name == "g.jpg" and apply else 0
        )  # DALI turns CMYK to RGB by another road where it must rotate
        assert most(image, wanted) <= tolerance, name
        assert (
            most(part[name], F.center_crop(F.resize(wanted, [60], antialias=True), [40, 50]))
            <= 1 + tolerance
        ), name
