"""That DALI on the CPU and the DataLoader make the same of every step, to the last draw: in a full
run over 500 images, real and generated, else over half or a quarter of them.
"""

import functools
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe import config as configs
from gpupipe.bench.parity import Agreement, measure
from helpers.full_product import IS_FULL
from helpers.plugin import install

COUNT = 500
EXACT = [
    "decode",
    {"pad": {"padding": 3, "padding_mode": "reflect"}},
    {"pad": {"padding": [2, 1], "fill": 7}},
    {"center_crop": {"size": 90}},
    {"random_crop": {"size": 80}},
    "random_horizontal_flip",
    "random_vertical_flip",
]
MADE_NEW = {
    "resize": ([{"resize": {"size": 100}}], 0.25, 50),
    "resize, both sides": ([{"resize": {"size": [90, 70], "interpolation": "bicubic"}}], 0.25, 50),
    "random_affine": (
        [
            {
                "random_affine": {
                    "degrees": 10,
                    "translate": [0.1, 0.1],
                    "scale": [0.9, 1.1],
                    "interpolation": "bilinear",
                }
            }
        ],
        0.15,
        41,
    ),
    "random_rotation": (
        [{"random_rotation": {"degrees": 30, "interpolation": "bilinear"}}],
        0.15,
        41,
    ),
    "random_resized_crop": ([{"random_resized_crop": {"size": 64}}], 0.25, 50),
    "grayscale": ([{"grayscale": {"num_output_channels": 3}}], 0.05, 70),
    "floats": (
        [
            {"center_crop": {"size": 64}},
            {"to_dtype": {"dtype": "float32", "scale": True}},
            {"normalize": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}},
        ],
        0.05,
        90,
    ),
}
"""Steps, and the floors: the mean difference in levels, and PSNR in dB."""


@pytest.fixture(scope="module")
def images(photos: Path, faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All photographs, and as many pieces of them and of drawn faces as make 500: other sizes,
    qualities, kinds of JPEG and PNG, some turned by EXIF.
    """
    root = tmp_path_factory.mktemp("five-hundred")
    sources = sorted(photos.glob("*/*.jpg"))
    for n, source in enumerate(sources):
        _write(root, n, ".jpg", source.read_bytes())
    draw, drawn = random.Random(0), sorted(faces.glob("*/*.jpg"))
    for n in range(len(sources), COUNT):
        _write(root, n, *_piece(_decode(draw.choice(sources if n % 2 else drawn)), draw))
    _decode.cache_clear()
    return root


@functools.cache
def _decode(path: Path) -> Image.Image:
    with Image.open(path) as source:
        return source.convert("RGB")


def _write(root: Path, n: int, suffix: str, content: bytes) -> None:
    folder = root / f"{n % 7}"
    folder.mkdir(exist_ok=True)
    (folder / f"{n:03}{suffix}").write_bytes(content)


def _piece(source: Image.Image, draw: random.Random) -> tuple[str, bytes]:
    width, height = (draw.randint(100, min(220, side)) for side in source.size)
    left, top = draw.randint(0, source.width - width), draw.randint(0, source.height - height)
    piece = source.crop((left, top, left + width, top + height))
    written = io.BytesIO()
    if draw.random() < 0.15:
        piece.save(written, "PNG")
        return ".png", written.getvalue()
    if draw.random() < 0.1:
        piece = piece.convert("L")
    exif = Image.Exif()
    exif[0x0112] = draw.choice([1, 1, 1, 3, 6, 8])
    piece.save(
        written,
        "JPEG",
        quality=draw.randint(30, 95),
        progressive=draw.random() < 0.3,
        subsampling=draw.randint(0, 2),
        exif=exif,
    )
    return ".jpg", written.getvalue()


def agreement(root: Path, steps: list[Any], rows: slice = slice(None)) -> Agreement:
    """Of these rows of the index."""
    checked = configs.read({"data": {"source": "folder", "root": root}, "pipeline": steps})
    index = checked.source.index().subset(np.arange(COUNT)[rows])
    (found,) = measure(checked, index, ["cpu"], COUNT, last=True, engine="dali")
    return found


def test_what_moves_pixels_is_the_same_to_one_level(images: Path) -> None:
    every = 1 if IS_FULL else 2
    found = agreement(images, EXACT, slice(0, None, every))
    assert found.images == COUNT // every
    assert found.max <= 1


@pytest.mark.parametrize("name", MADE_NEW)
def test_what_makes_pixels_keeps_its_floor(images: Path, name: str) -> None:
    """Over a quarter of the images, another for each of four; of grayscale over half of them, as a
    few gray ones make all of its errors.
    """
    steps, mean, psnr = MADE_NEW[name]
    every = 1 if IS_FULL else 2 if name == "grayscale" else 4
    rows = slice(list(MADE_NEW).index(name) % every, None, every)
    found = agreement(images, ["decode", *steps], rows)
    print(
        f"{name}: mean {found.mean:.3f}, largest {found.max:.1f} levels, PSNR "
        f"{found.psnr:.1f} dB over {found.images}"
    )
    assert found.images == COUNT // every
    assert found.mean <= mean
    assert found.psnr >= psnr


REVEAL = '''
from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import Step


class Reveal(Step):
    """Paints a channel with each of its draws, to 1/200: the image shows what was drawn."""

    num_uniforms = 3

    def sample(self, u):
        return {"color": (u * 200).astype(int)}

    def infer_spec(self, given):
        return check_decoded(given)

    def lower(self, image, p):
        from nvidia.dali import fn, types
        image.apply(
            "reveal",
            lambda pixels, color: fn.cast(pixels * 0 + color, dtype=types.UINT8),
            p["color"],
        )

    def torch(self, image, p):
        import torch
        color = torch.as_tensor(p["color"], dtype=torch.uint8)
        return torch.zeros_like(image) + color[:, None, None]
'''


def test_draws_are_the_same_to_the_last_one(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, "reveal", REVEAL, reveal="Reveal"))
    config = {"data": {"source": "folder", "root": faces}, "pipeline": ["decode", "reveal"]}
    drawn = []
    for engine, more in (
        ("dali", {}),
        ("cpu", {}),
        ("dataloader", {"workers": 1}),
        ("dataloader", {"workers": 0, "batch_size": 7}),
    ):
        with gpupipe.load(
            config, **{"engine": engine, "device": "cpu", "ids": True, "batch_size": 16, **more}
        ) as loader:
            drawn.append(
                [
                    {
                        int(i): image
                        for b in loader
                        for i, image in zip(b["id"], b["image"], strict=True)
                    }
                    for _ in range(2)
                ]
            )
    for epoch in range(2):
        assert drawn[0][epoch].keys() == set(range(60))
        for other in drawn[1:]:
            assert all(torch.equal(image, other[epoch][i]) for i, image in drawn[0][epoch].items())
    colors = {tuple(image[:, 0, 0].tolist()) for epoch in drawn[0] for image in epoch.values()}
    assert len(colors) > 110, "every sample draws anew in every epoch"
