"""The perceptual hash, against the package imagehash."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inspection.conftest import open_photo

pytest.importorskip("cv2", reason="needs OpenCV: install the extra 'inspect'")
pytest.importorskip("scipy", reason="needs SciPy: install the extra 'inspect'")
imagehash = pytest.importorskip("imagehash", reason="needs imagehash: install the extra 'test'")

from gpupipe.inspection.perceptual_hash import hash_tiles, make_tile  # noqa: E402


def test_hashes_of_many_tiles_are_those_of_imagehash(photos: Path) -> None:
    paths = sorted(photos.glob("*/*.jpg"))[:60]
    tiles = np.stack([make_tile(np.array(open_photo(path).convert("RGB"))) for path in paths])
    assert tiles.shape == (len(paths), 32, 32)
    expected = [int(str(imagehash.phash(Image.fromarray(tile))), 16) for tile in tiles]
    assert hash_tiles(tiles).tolist() == expected
    assert len(set(expected)) > len(expected) // 2


@pytest.mark.parametrize("channels", [1, 3])
def test_a_tile_has_the_means_of_areas(channels: int) -> None:
    means = np.random.default_rng(0).integers(0, 256, (32, 32, 1), np.uint8)
    pixels = np.repeat(np.repeat(np.repeat(means, 3, 0), 5, 1), channels, 2)
    assert (make_tile(pixels) == means[..., 0]).all()
