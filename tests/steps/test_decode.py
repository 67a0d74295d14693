from pathlib import Path

import pytest

from gpupipe.pipeline.step import Spec, StepIncompatibleError
from gpupipe.steps.decode import Decode
from helpers.reference import differences, emitted, load


def test_photographs_decode_to_the_very_pixels_of_torchvision(photos: Path) -> None:
    assert max(d.most for d in differences(photos)) == 0


def test_gray_is_the_luma_of_the_file(photos: Path) -> None:
    found = differences(photos, decode={"mode": "gray"})
    assert found[0].image.shape[0] == 1
    assert max(d.most for d in found) <= 1


@pytest.mark.parametrize("turned", [False, True])
def test_exif_orientation_is_applied_only_when_asked_for(
    orientation_photos: Path, tmp_path: Path, turned: bool
) -> None:
    (tmp_path / "class").symlink_to(orientation_photos)
    found = differences(tmp_path, decode={"apply_exif_orientation": turned})
    assert len(found) == 10
    assert max(d.most for d in found) == 0
    shapes = {tuple(d.image.shape) for d in found}
    assert len(shapes) == (2 if turned else 1)


def test_only_bytes_can_be_decoded() -> None:
    with pytest.raises(StepIncompatibleError, match="decoded already"):
        Decode().infer_spec(Spec.of_image(3))


def test_lowering_is_one_decoder(photos: Path) -> None:
    with load(photos) as loader:
        assert emitted(loader) == ["decoders.image", "transpose"]
