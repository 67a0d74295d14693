from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2._utils import _setup_fill_arg

from gpupipe.augment.policy import AugmentPolicy
from gpupipe.augment.policy_ops import OPS, Warping, apply_op, lower_move
from gpupipe.steps.auto_augment import AutoAugment, RandAugment, TrivialAugmentWide
from helpers import many_fields
from helpers.color_differences import as_gray
from helpers.plugin import install
from helpers.reference import Difference, differences

SIZES = [(97, 64), (64, 97), (80, 80), (121, 75), (60, 61), (131, 50)]
VALUES = {
    "ShearX": [-0.3, 0.11, 0.99],
    "ShearY": [-0.3, 0.11, 0.99],
    "TranslateX": [-20, 7, 31.9],
    "TranslateY": [-20, 7, 31.9],
    "TranslateXRel": [-0.45, 0.2, 0.33],
    "TranslateYRel": [-0.45, 0.2, 0.33],
    "Rotate": [-28, 11, 133],
    "Brightness": [0.1, 0.5, 1.9],
    "Color": [0.0, 0.5, 1.9],
    "Contrast": [0.1, 0.5, 1.9],
    "Sharpness": [0.1, 0.5, 1.9],
    "Posterize": [0, 3, 8],
    "Solarize": [0, 100.5, 255],
    "SolarizeAdd": [0, 77, 128],
    "GaussianBlur": [0.1, 0.9, 2.0],
    "AutoContrast": [0],
    "Equalize": [0],
    "Invert": [0],
}
"""By the name of the operation."""
GEOMETRY = [name for name in VALUES if name.startswith(("Shear", "Translate", "Rotate"))]
COLORS = [name for name in VALUES if name not in GEOMETRY]
EXACT = ("Posterize", "Solarize", "SolarizeAdd", "Invert")
CODE = '''
import numpy as np
from gpupipe.augment.policy_ops import OPS
from gpupipe.augment.policy import AugmentPolicy
from gpupipe.augment.policy_tables import choose

class OneOp(AugmentPolicy):
    """One operation, with one of the values."""

    op: str
    values: list[float]
    num_uniforms = 1

    @property
    def op_names(self):
        return (self.op,)

    def sample(self, u):
        value = np.array(self.values)[choose(u, len(self.values))]
        return {"op": np.full(u.shape, OPS.index(self.op), np.int32), "value": value}
'''


@pytest.fixture
def one_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the step `one_op`."""
    (tmp_path / "plugin").mkdir()
    code = install(tmp_path / "plugin", "one_op_plugin", CODE, one_op="OneOp")
    monkeypatch.syspath_prepend(code)


@pytest.fixture(scope="module")
def small_photos(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of different small sizes, without loss."""
    root = tmp_path_factory.mktemp("small")
    (root / "one").mkdir()
    files = sorted(photos.glob("*/*.jpg"))[:: len(list(photos.glob("*/*.jpg"))) // len(SIZES)]
    for n, (file, size) in enumerate(zip(files, SIZES, strict=False)):
        Image.open(file).convert("RGB").resize(size).save(root / "one" / f"{n}.png")
    return root


def compared(root: Path, name: str, **options: Any) -> list[Difference]:
    """DALI against torch, with several values."""
    decode = options.pop("decode", None)
    step = {"one_op": {"op": name, "values": VALUES[name], **options}}
    return differences(root, step, decode=decode)


@pytest.mark.usefixtures("one_op")
@pytest.mark.parametrize("name", GEOMETRY)
def test_nearest_pixels_are_the_same(small_photos: Path, name: str) -> None:
    """But for points on the border of two pixels, where both round float32s."""
    found = compared(small_photos, name, fill=[10, 200, 30])
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.002


@pytest.mark.usefixtures("one_op")
@pytest.mark.parametrize("name", GEOMETRY)
def test_bilinear_is_within_a_level(small_photos: Path, name: str) -> None:
    for d in compared(small_photos, name, interpolation="bilinear"):
        assert d.most <= 1


@pytest.mark.usefixtures("one_op")
@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("name", COLORS)
def test_colors_are_equal_or_within_a_level(small_photos: Path, name: str, mode: str) -> None:
    root = as_gray(small_photos) if mode == "gray" else small_photos
    found = compared(root, name, decode={"mode": mode})
    assert found[0].image.shape[0] == (1 if mode == "gray" else 3)
    assert max(d.most for d in found) <= (0 if name in EXACT else 1)


@pytest.mark.parametrize("step", [TrivialAugmentWide(), RandAugment(), AutoAugment()], ids=repr)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [None, (10.0, 20.0, 30.0)])
def test_in_torch_it_is_what_torchvisions_class_does(
    step: AugmentPolicy, interpolation: str, fill: tuple[float, ...] | None
) -> None:
    """To the bit, for what both draw from the same tables."""
    step = step.model_copy(update={"interpolation": interpolation, "fill": fill})
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 61, 83), np.uint8))
    theirs = v2.RandAugment()
    drawn = step.sample(np.random.default_rng(1).random((100, step.num_uniforms)))
    seen = set()
    for op, value in zip(drawn["op"].ravel().tolist(), drawn["value"].ravel(), strict=True):
        name, magnitude = OPS[op].removesuffix("Rel"), value
        if OPS[op].endswith("Rel"):
            magnitude *= {"TranslateXRel": 83, "TranslateYRel": 61}[OPS[op]]
        if name in ("Brightness", "Color", "Contrast", "Sharpness"):
            magnitude -= 1.0
        if name == "Solarize":
            magnitude /= 255.0
        expected = theirs._apply_image_or_video_transform(
            image, name, float(magnitude), InterpolationMode(interpolation), _setup_fill_arg(fill)
        )
        assert torch.equal(apply_op(image, op, value, step.warping), expected), name
        seen.add(name)
    assert len(seen) > 9


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


PIL = {
    "ShearX": lambda image, v: _affine(image, 1, v, 0, 0, 1, 0),
    "ShearY": lambda image, v: _affine(image, 1, 0, 0, v, 1, 0),
    "TranslateXRel": lambda image, v: _affine(image, 1, 0, -v * image.width, 0, 1, 0),
    "TranslateYRel": lambda image, v: _affine(image, 1, 0, 0, 0, 1, -v * image.height),
    "Rotate": lambda image, v: image.rotate(v, Image.Resampling.BILINEAR),
    "Brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "Color": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "Contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "Sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    "Posterize": lambda image, v: image.point([i & (255 << (8 - v)) for i in range(256)] * 3),
    "Solarize": ImageOps.solarize,
    "SolarizeAdd": lambda image, v: image.point(
        [min(255, i + v * (i < 128)) for i in range(256)] * 3
    ),
    "GaussianBlur": lambda image, v: image.filter(ImageFilter.GaussianBlur(v)),
    "AutoContrast": lambda image, v: ImageOps.autocontrast(image),
    "Equalize": lambda image, v: ImageOps.equalize(image),
    "Invert": lambda image, v: ImageOps.invert(image),
}
"""timm's operations, as PIL does them."""


@pytest.mark.parametrize("name", PIL)
def test_it_is_what_timm_does_with_pil(small_photos: Path, name: str) -> None:
    """In the mean, within three levels: PIL rounds, and ends at borders, in its own way."""
    warping = Warping("bilinear", (0.0,), has_whole_shifts=False)
    for file in sorted(small_photos.glob("*/*.png")):
        image = Image.open(file)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        for value in VALUES[name]:
            made = apply_op(pixels, OPS.index(name), float(value), warping)
            expected = np.array(PIL[name](image, value)).transpose(2, 0, 1)
            assert np.abs(made.numpy() - expected.astype(float)).mean() < 3


def test_masks_move_with_their_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearest pixels and class 0 outside; operations that change colours leave masks alone."""
    data = many_fields.make(tmp_path, monkeypatch)
    both = {"on": ["image", "mask"], "interpolation": "bilinear", "fill": 9}
    for step in ("rand_augment", "trivial_augment_wide"):
        steps = [*many_fields.STEPS[:2], {step: both}]
        by_engine = [
            many_fields.samples(many_fields.loaded(data, steps, **options))
            for options in ({}, {"engine": "dataloader", "workers": 0})
        ]
        shown = set()
        for id, sample in by_engine[0].items():
            mask, expected = (samples[id]["mask"] for samples in by_engine)
            assert set(mask.unique().tolist()) <= {0, 100, 200}
            assert float((mask != expected).double().mean()) < 0.01
            shown.add(bool((mask == 0).any()))
            if (mask == 0).any():
                outside = sample["image"][0][mask[0] == 0].double()
                assert float((outside - 9).abs().mean()) < 60
        assert shown == {True, False}


class Warps:
    """What lower_move warps: images of one size each, or all of one."""

    def __init__(self, size: Any) -> None:
        self.size, self.width_height = size, size[..., ::-1]

    def warp(self, *arguments: Any) -> None:
        self.arrays = arguments[:3]


@pytest.mark.parametrize("has_whole_shifts", [False, True])
def test_a_batch_is_moved_as_its_formula_says(has_whole_shifts: bool) -> None:
    """To the bit: the extension moves a batch of images with a size each."""
    op = np.arange(200, dtype=np.int32) % len(OPS)
    value = np.random.default_rng(0).uniform(-30, 30, 200)
    value[::3] = np.round(value[::3]) - 1e-9  # which float32 rounds to whole numbers
    warping = Warping("bilinear", None, has_whole_shifts)
    one, each = Warps(np.array([97.0, 64.0])), Warps(np.tile([97.0, 64.0], (200, 1)))
    for images in (one, each):
        lower_move(images, op, value, warping)  # type: ignore[arg-type]
    for found, expected in zip(each.arrays, one.arrays, strict=True):
        assert np.array_equal(found, expected)
