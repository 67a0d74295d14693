"""What is measured on one file, against Pillow."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inspection.conftest import Planted, open_photo


def test_mean_and_deviation_are_those_of_the_whole_image(planted: Planted) -> None:
    scan = planted.scan("train")
    largest = np.argsort(scan.facts["width"] * scan.facts["height"])[-2:]
    for row in largest.tolist():
        pixels = np.asarray(open_photo(scan.index.location(row)), np.float64).reshape(-1, 3)
        facts = scan.facts[row]
        assert facts["mean"] == pytest.approx(pixels.mean(0), abs=0.2)
        deviation = np.sqrt(facts["square"] - facts["mean"] ** 2)
        assert deviation == pytest.approx(pixels.std(0), rel=0.08)


def test_headers_say_the_same_with_and_without_pixels(planted: Planted) -> None:
    for name in ("train", "val"):
        full, headers = planted.scan(name), planted.scan(name, headers_only=True)
        readable = [row for row in range(len(full.index)) if row not in full.errors]
        assert full.errors == headers.errors
        for fact in ("format", "height", "width", "channels", "orientation", "bytes"):
            assert (full.facts[fact][readable] == headers.facts[fact][readable]).all(), fact


def test_the_hash_is_that_of_the_upright_image(orientation_photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("cv2", reason="needs OpenCV: install the extra 'inspect'")
    root = tmp_path / "train" / "0"
    root.mkdir(parents=True)
    photo = open_photo(orientation_photos / "no_exif.jpg")
    photo.save(root / "upright.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a turn of 90 degrees clockwise
    photo.transpose(Image.Transpose.ROTATE_90).save(root / "turned.png", exif=exif)
    hashes = Planted(tmp_path).scan("train").facts["hash"]
    assert hashes[0] == hashes[1] != 0
