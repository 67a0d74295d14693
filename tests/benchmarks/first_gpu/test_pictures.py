from pathlib import Path


def test_the_mixture_has_every_kind(photos: Path, tmp_path: Path) -> None:
    from first_gpu import pictures
    from PIL import Image

    made = pictures.mixture(tmp_path, sorted(photos.glob("*/*.jpg"))[:5], 40)
    assert {kind for _, kind in made} == set(pictures.KINDS)
    for path, kind in made:
        with Image.open(path) as image:
            assert ("progressive" in image.info, image.mode) == (
                kind == "progressive",
                "L" if kind == "gray" else "RGB",
            )
