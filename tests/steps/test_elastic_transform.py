from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali import Pipeline, fn, types

import gpupipe
from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.engines.dali.operators.image import ImageTracer
from gpupipe.pipeline.step import Spec
from gpupipe.steps.elastic_transform import ElasticTransform
from helpers.arrays import ENGINES, ULP, both, delivered, numbers, saved
from helpers.dali_nodes import check_runs_on_gpu, graph_of, operators
from helpers.many_fields import loaded, make, samples
from helpers.pipeline_texts import FLOAT, NORM, build, mistakes
from helpers.reference import differences, load

CROP = {"random_crop": {"size": [50, 60]}}
FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}
STEPS: list[dict[str, Any]] = [
    {},
    {"alpha": [90, 20], "sigma": [3, 4], "fill": [9, 100, 200]},
    {"interpolation": "nearest", "alpha": 200, "fill": 7},
    {"sigma": 0, "alpha": 9},
]


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("before", [[CROP], [CROP, FLOATS]], ids=["uint8", "float32"])
def test_engines_agree(small_gallery: Path, before: list[Any], step: dict[str, Any]) -> None:
    """The extension rounds coordinates as torch does, but for the last bit of a few."""
    made = list(differences(small_gallery, *before, {"elastic_transform": step}))
    assert max(d.mean for d in made) <= 1e-5
    if step.get("interpolation") != "nearest":
        assert max(d.most for d in made) <= (1 if before == [CROP] else 1e-5)


SMALL = {"alpha": 30, "sigma": 2}


@pytest.mark.parametrize("engine", ENGINES)
def test_images_of_any_size_are_moved_without_a_crop_before(
    small_gallery: Path, engine: str
) -> None:
    step, options = {"elastic_transform": SMALL}, {"batch_size": 4, "shapes": "list"}
    found = differences(small_gallery, step, engine=engine, **options)
    assert len({d.image.shape for d in found}) > 2
    assert max(d.most for d in found) <= 1
    assert max(d.mean for d in found) < 1e-4


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sample_smaller_than_the_blur_is_named(small_gallery: Path, engine: str) -> None:
    wide = {"elastic_transform": {"sigma": 60}}
    with (
        load(small_gallery, wide, CROP, engine=engine) as loader,
        pytest.raises(gpupipe.SampleError, match="the blur needs at least 241x241 pixels"),
    ):
        list(loader)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("layout", ["CHW", "HWC", "HW"])
def test_arrays_are_exact_but_for_the_rounding_of_float16(
    tmp_path: Path, layout: str, dtype: str
) -> None:
    shape = {"CHW": (3, 29, 32), "HWC": (29, 32, 3), "HW": (29, 32)}[layout]
    data = saved(tmp_path, numbers(dtype, (5, *shape)), layout=layout)
    # The CPU engine's remap adds the products of float32 in another order.
    for made, expected in both(data, ["elastic_transform"], apart=1e-5 * (dtype == "float32")):
        tolerance = ULP if dtype == "float16" else 0
        torch.testing.assert_close(made, expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_random_apply_moves_only_the_samples_that_take_it(tmp_path: Path, engine: str) -> None:
    array = np.random.default_rng(0).integers(0, 256, (40, 3, 24, 30), np.uint8)
    data = saved(tmp_path, array)
    step = {"random_apply": {"p": 0.3, "transforms": [{"elastic_transform": {"sigma": 2}}]}}
    made = delivered(data, [step], engine, batch_size=8)
    moved = {id for id, image in made.items() if not np.array_equal(image.numpy(), array[id])}
    assert 3 < len(moved) < 25
    for size in (1, 40):
        again = delivered(data, [step], engine, batch_size=size)
        assert all(torch.equal(again[id], image) for id, image in made.items())


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_move_with_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    data = make(tmp_path, monkeypatch)
    on = {"on": ["image", "mask"]}
    steps = [
        "decode",
        {"decode": {"mode": "gray", "on": "mask"}},
        {"center_crop": {"size": [24, 24], **on}},
        {"elastic_transform": {"sigma": 2, "alpha": 60, **on}},
    ]
    plain = samples(loaded(data, steps[:3], engine=engine))
    for id, sample in samples(loaded(data, steps, engine=engine)).items():
        assert not torch.equal(sample["mask"], plain[id]["mask"])
        assert set(sample["mask"].unique().tolist()) <= {0, *plain[id]["mask"].unique().tolist()}


def test_batches_after_a_resume_are_the_same(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (12, 3, 24, 30), np.uint8)
    written = {
        "data": saved(tmp_path, array),
        "pipeline": [{"elastic_transform": {"sigma": 2}}],
        "loader": {"device": "cpu", "batch_size": 3},
    }
    with gpupipe.load(written) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = [batch["array"] for batch in batches]
    with gpupipe.load(written) as resumed:
        resumed.load_state_dict(state)
        made = [batch["array"] for batch in resumed]
    assert len(made) == 3
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))


def gpu_graph(pixels: Any, step: ElasticTransform, is_cropped: bool) -> Any:
    def source(array: Any) -> Any:
        dtype = types.to_dali_type(str(array.dtype))
        return fn.external_source(lambda: array, dtype=dtype, ndim=array.ndim - 1)

    dtype = types.to_dali_type(str(pixels.dtype))
    node = fn.external_source(lambda: pixels, dtype=dtype, ndim=3, layout="HWC", device="gpu")
    image = ImageTracer(np.array([[30.0, 40.0], [50.0, 60.0]]), "gpu")
    if is_cropped:
        image._size = np.array([30.0, 40.0])
    image.spec = Spec.of_image(pixels.shape[-1], 30, 40, dtype=str(pixels.dtype))
    step.lower(image, {"seed": np.arange(len(pixels))})
    return graph_of(image, node, source)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize(("channels", "is_cropped"), [(1, True), (3, False)])
def test_the_graph_for_a_gpu_is_built_of_operators_that_run_there(
    dtype: str, channels: int, is_cropped: bool
) -> None:
    """As nodes: no GPU is needed for that."""
    step = ElasticTransform.model_validate({"sigma": 2})
    with Pipeline(batch_size=2, num_threads=1, device_id=None):
        node = gpu_graph(np.zeros((2, 30, 40, channels), dtype), step, is_cropped)
        names = [operator._op.schema_name for operator in operators(node)]
        check_runs_on_gpu(node)
    assert "experimental__Remap" in names
    assert not any("Python" in name for name in names)


def test_pixels_reach_no_further_than_a_gpu_pads() -> None:
    elastic = Elastic((40.0, 10.0), (0.0, 0.0))
    fields = np.stack([make_displacement(n, (50, 60), elastic) for n in range(2)])
    top, left = elastic.reach
    across, down = np.abs(fields).max((0, 1, 2)) * (60 / 2, 50 / 2)
    assert across <= left < across + 3
    assert down <= top < down + 3


@pytest.mark.parametrize(("fill", "values"), [(1, "usual"), (200, "filled")])
def test_a_fill_above_1_in_floats_is_known_to_later_steps(fill: int, values: str) -> None:
    step = f"elastic_transform: {{fill: {fill}}}"
    built = build("decode", "random_crop: {size: 40}", FLOAT, step)
    assert built.output_spec.pixels.values == values


def test_after_normalize_it_works_too() -> None:
    build("decode", "random_crop: {size: 40}", FLOAT, NORM, "elastic_transform")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            ["decode", "center_crop: {size: [20, 99]}", "elastic_transform"],
            "3:3: elastic_transform cannot stand here: the blur needs at least 21x21 pixels, but "
            "the image has 20x99: write a smaller sigma",
        ),
        (
            ["decode", "center_crop: {size: [20, 99]}", "elastic_transform: {sigma: [1, 5]}"],
            "3:3: elastic_transform cannot stand here: the blur needs at least 21x21 pixels",
        ),
        (
            ["decode", "elastic_transform: {sigma: [0, 5]}"],
            "2:30: elastic_transform.sigma is [0, 5], but should be above 0 for both x and y, or 0 "
            "for both",
        ),
        (
            ["decode", "elastic_transform: {alpha: -1}"],
            "2:30: elastic_transform.alpha",
        ),
        (
            ["decode", "elastic_transform: {interpolation: bicubic}"],
            "2:38: elastic_transform.interpolation is 'bicubic'",
        ),
        (
            ["decode", "center_crop: {size: 40}", "elastic_transform: {fill: [1, 2]}"],
            "3:3: elastic_transform cannot stand here: fill has 2 numbers, but the image has 3",
        ),
    ],
)
def test_mistakes(steps: list[str], message: str) -> None:
    (mistake,) = mistakes(*steps)
    assert mistake.startswith(message)
