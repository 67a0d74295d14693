"""The step `dali`: operators of DALI in a pipeline, against the same operators in a pipeline by
hand, which must agree to the bit.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types
from PIL import Image

import gpupipe
from gpupipe import config
from gpupipe.dataset.index import build_empty
from gpupipe.engines.base import Job
from gpupipe.engines.dali.lowering import Lowering
from gpupipe.pipeline.step import Spec, StepIncompatibleError
from gpupipe.runtime.installation import install_command
from gpupipe.sampling import draws
from gpupipe.steps.dali import Dali
from helpers.loaders import load
from helpers.pipeline_texts import build, mistakes

SIZES = ((90, 120), (75, 64), (120, 90), (64, 64), (101, 77), (80, 133), (66, 91))
TWIST = {
    "op": "color_twist",
    "brightness": {"uniform": [0.7, 1.3]},
    "hue": {"normal": [0, 20]},
    "saturation": {"choice": [0.5, 1.0, 2.0]},
}
ROTATE = {"op": "rotate", "angle": {"uniform": [-30, 30]}, "size": [48, 56]}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Coloured images of several sizes, one of them gray, with shades and noise."""
    root = tmp_path_factory.mktemp("images")
    (root / "one").mkdir()
    rng = np.random.default_rng(3)
    for n, (height, width) in enumerate(SIZES):
        small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
        smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.int16)
        noisy = np.clip(smooth + rng.integers(-12, 13, smooth.shape), 0, 255).astype(np.uint8)
        image = Image.fromarray(noisy)
        (image.convert("L") if n == 4 else image).save(root / "one" / f"{n}.png")
    return root


def by_id(root: Path, *steps: Any, **options: Any) -> dict[int, torch.Tensor]:
    """An epoch of the DALI engine, each image under its id."""
    with load(root, ["decode", *steps], **{"engine": "dali", "batch_size": 1, **options}) as loader:
        return {
            int(id): image
            for batch in loader
            for id, image in zip(batch["id"], batch["image"], strict=True)
        }


def by_hand(op: Any, pixels: NDArray[Any], arguments: dict[str, NDArray[Any]]) -> torch.Tensor:
    """One image (H, W, C) through one operator."""
    pipe: Any = Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipe:
        image = fn.external_source(lambda: [pixels], batch=True, layout="HWC")
        nodes = {name: _node(value) for name, value in arguments.items()}
        pipe.set_outputs(op(image, **nodes))
    pipe.build()
    (output,) = pipe.run()
    return torch.from_numpy(np.array(output[0])).permute(2, 0, 1)


def _node(value: NDArray[Any]) -> Any:
    """An argument as a tensor: DALI ignores a mask of 0 that is a constant."""
    return fn.external_source(lambda: [value], batch=True)


def drawn(parameters: dict[str, Any], id: int, key: str = "dali") -> dict[str, NDArray[Any]]:
    step = Dali.model_validate(parameters)
    u = draws.uniform(0, 0, np.array([id]), draws.stream(key), step.num_uniforms)
    return {name: values[0] for name, values in step.sample(u).items()}


@pytest.mark.parametrize(
    ("parameters", "op"),
    [
        (TWIST, fn.color_twist),
        (
            {"op": "gaussian_blur", "sigma": {"uniform": [0.3, 2.0]}, "window_size": 7},
            lambda x, **a: fn.gaussian_blur(x, window_size=7, **a),
        ),
        (
            {"op": "hsv", "hue": {"uniform": [-40, 40]}, "value": {"normal": [1, 0.1]}},
            fn.hsv,
        ),
        (
            {"op": "water", "ampl_x": 3.5, "mask": {"flip": 0.5}, "interp_type": "INTERP_LINEAR"},
            lambda x, **a: fn.water(x, ampl_x=3.5, interp_type=types.INTERP_LINEAR, **a),
        ),
        ({"op": "sphere", "mask": {"flip": 0.5}}, fn.sphere),
        (ROTATE, lambda x, **a: fn.rotate(x, size=[48, 56], **a)),
        (
            {
                "op": "crop_mirror_normalize",
                "output_layout": "HWC",
                "mirror": {"flip": 0.5},
                "crop": [32, 40],
                "crop_pos_x": {"uniform": [0, 1]},
                "mean": [100, 110, 120],
            },
            lambda x, **a: fn.crop_mirror_normalize(
                x, output_layout="HWC", crop=[32, 40], mean=[100, 110, 120], **a
            ),
        ),
        (
            {"op": "jpeg_compression_distortion", "quality": {"uniform": [5, 60]}},
            fn.jpeg_compression_distortion,
        ),
        (
            {
                "op": "erase",
                "anchor": [{"uniform": [0, 0.5]}, 0.25],
                "shape": {"choice": [[0.2, 0.3], [0.5, 0.1]]},
                "normalized": True,
                "fill_value": 7,
            },
            lambda x, **a: fn.erase(x, normalized=True, fill_value=7, **a),
        ),
        (
            {"op": "color_space_conversion", "image_type": "RGB", "output_type": "GRAY"},
            lambda x: fn.color_space_conversion(x, image_type=types.RGB, output_type=types.GRAY),
        ),
        (
            {"op": "cast", "dtype": "float32"},
            lambda x: fn.cast(x, dtype=types.FLOAT),
        ),
    ],
    ids=lambda value: value["op"] if isinstance(value, dict) else "",
)
def test_it_is_the_operator_with_the_steps_draws(
    images: Path, parameters: dict[str, Any], op: Any
) -> None:
    plain = by_id(images)
    for id, made in by_id(images, {"dali": parameters}).items():
        pixels = plain[id].permute(1, 2, 0).contiguous().numpy()
        expected = by_hand(op, pixels, drawn(parameters, id))
        assert made.dtype == expected.dtype
        assert torch.equal(made, expected), id


def test_samples_have_the_same_draws_at_every_batch_size_and_epochs_have_others(
    images: Path,
) -> None:
    one = by_id(images, {"dali": ROTATE}, {"dali": TWIST})
    for batch_size in (3, 7):
        other = by_id(images, {"dali": ROTATE}, {"dali": TWIST}, batch_size=batch_size, threads=2)
        assert other.keys() == one.keys()
        assert all(torch.equal(other[id], one[id]) for id in one)
    assert drawn(TWIST, 0) != drawn(TWIST, 1)
    assert drawn(TWIST, 0) != drawn(TWIST, 0, "dali_2")


def test_later_steps_know_the_size(images: Path) -> None:
    """A centre crop, and steps that compute with the size of each image."""
    crop = {"center_crop": {"size": [20, 20]}}
    turned = by_id(images, {"dali": ROTATE})
    for id, image in by_id(images, {"dali": ROTATE}, crop).items():
        assert torch.equal(image, turned[id][:, 14:34, 18:38])
    square = {"dali": {"op": "resize", "resize_x": 50, "resize_y": 40}}
    affine = {"random_affine": {"degrees": 20, "translate": [0.2, 0.2]}}
    blur = {"dali": {"op": "gaussian_blur", "sigma": 1e-3, "window_size": 3}}
    expected = by_id(images, square, affine)
    for id, image in by_id(images, square, blur, affine).items():
        assert torch.equal(image, expected[id])


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_other_dtypes(images: Path, dtype: str) -> None:
    steps = [{"to_dtype": {"dtype": dtype}}, {"dali": {"op": "flip", "horizontal": 1}}]
    plain = by_id(images, steps[0])
    for id, image in by_id(images, *steps).items():
        assert image.dtype == plain[id].dtype
        assert torch.equal(image, plain[id].flip(-1))


def test_gray_images(images: Path) -> None:
    gray = {"decode": {"mode": "gray"}}
    with load(images, [gray, {"dali": {"op": "flip"}}], batch_size=1) as loader:
        flipped = {int(batch["id"]): batch["image"][0] for batch in loader}
    with load(images, [gray], engine="dali", batch_size=1) as loader:
        for batch in loader:
            assert torch.equal(batch["image"][0].flip(-1), flipped[int(batch["id"])])


def test_a_container_runs_it_on_some_samples(images: Path) -> None:
    nested = {"random_apply": {"p": 0.5, "transforms": [{"dali": {"op": "sphere"}}]}}
    plain, made = by_id(images), by_id(images, nested)
    always = by_id(images, {"dali": {"op": "sphere"}})
    kinds = {id: torch.equal(made[id], plain[id]) for id in made}
    assert set(kinds.values()) == {True, False}
    assert all(
        torch.equal(made[id], plain[id] if same else always[id]) for id, same in kinds.items()
    )


def test_it_needs_dali(images: Path) -> None:
    for steps in (
        [{"dali": TWIST}],
        [{"random_apply": {"transforms": [{"dali": TWIST}]}}],
    ):
        with pytest.raises(gpupipe.EngineError, match=r"pipeline\.1: .*DALI only.*engine: dali"):
            load(images, ["decode", *steps], engine="dataloader", workers=0)


def test_without_dali_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    (mistake,) = mistakes("decode", "dali: {op: water}")
    assert mistake.startswith("2:10: dali.op: ")
    assert install_command("cuda12") in mistake


def test_pipelines_with_other_arguments_are_others() -> None:
    one, other = (build("decode", f"dali: {{op: hsv, hue: {hue}}}") for hue in (10, 20))
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == build("decode", "dali: {hue: 10, op: hsv}").fingerprint


def lowered(steps: list[Any], device: Any) -> list[tuple[str, str]]:
    written = {"data": {"source": "folder", "root": "/nowhere"}, "pipeline": ["decode", *steps]}
    checked = config.read(written)
    spec = Job(build_empty(), checked.pipeline, checked.loader, 1)
    return [(e.op, e.device) for e in Lowering(spec, device, False).operators()]


def test_graphs_for_a_gpu_are_built_of_its_gpu_version() -> None:
    assert lowered([{"dali": TWIST}, {"dali": ROTATE}], "gpu")[1:3] == [
        ("color_twist", "gpu"),
        ("rotate", "gpu"),
    ]


@pytest.mark.parametrize(
    ("op", "device", "other"),
    [("experimental.median_blur", "cpu", "gpu"), ("ones_like", "gpu", "cpu")],
)
def test_an_operator_without_a_version_for_the_device_is_refused(
    op: str, device: str, other: str
) -> None:
    assert (op, other) in lowered([{"dali": {"op": op}}], other)
    words = rf"pipeline\.1: DALI has no {device.upper()} version of {op}: set 'device: {other}'"
    with pytest.raises(gpupipe.EngineError, match=words):
        lowered([{"dali": {"op": op}}], device)


def test_a_size_that_real_images_do_not_have_is_found_before_the_first_batch(
    images: Path,
) -> None:
    """The crop keeps what is smaller than itself, which no image of the trial was."""
    crop = {"op": "crop", "crop": [110, 110], "out_of_bounds_policy": "trim_to_shape"}
    with pytest.raises(gpupipe.StepError, match=r"step 'dali'.*spec says"):
        by_id(images, {"dali": crop})


MASK = replace(Spec.of_image(1), kind="mask")


@pytest.mark.parametrize(
    "parameters",
    [
        {"op": "rotate", "angle": {"uniform": [-30, 30]}, "keep_size": True},
        {"op": "resize", "size": [30, 40], "interp_type": "INTERP_CUBIC"},
        {"op": "flip", "horizontal": {"flip": 0.5}},
    ],
)
def test_geometry_moves_masks_with_nearest_pixels(parameters: dict[str, Any]) -> None:
    step = Dali.model_validate(parameters).adapt_to_mask().resolve(MASK)
    assert step.infer_spec(MASK).dtype == "uint8"
    if "interp_type" in step.operator.arguments:
        assert step.model_dump()["interp_type"] == "INTERP_NN"


@pytest.mark.parametrize("op", [TWIST, {"op": "gaussian_blur", "sigma": 2}])
def test_what_makes_other_numbers_is_refused_on_a_mask(op: dict[str, Any]) -> None:
    spec = replace(Spec.of_image(3), kind="mask")
    with pytest.raises(StepIncompatibleError, match="leave the mask out of 'on'"):
        Dali.model_validate(op).adapt_to_mask().infer_spec(spec)
