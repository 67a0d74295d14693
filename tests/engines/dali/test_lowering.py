"""What a pipeline becomes: the operators and their devices, looked at as nodes (no GPU is needed
for that).
"""

from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, types

from gpupipe import config
from gpupipe.dataset.index import build_empty
from gpupipe.engines.base import Job
from gpupipe.engines.dali.lowering import Lowering
from gpupipe.engines.dali.operators import fields
from gpupipe.engines.dali.operators.image import ImageTracer
from gpupipe.pipeline.step import Spec
from gpupipe.sampling.sampler import Plan
from helpers.dali_nodes import graph_of

SIZE = np.array([[480.0, 640.0]])
DATA = {"source": "folder", "root": "/nowhere"}


def job(pipeline: Any, **options: Any) -> Job:
    checked = config.read({"data": DATA, "pipeline": pipeline}, **options)
    return Job(build_empty(), checked.pipeline, checked.loader, 2)


def as_input(array: Any) -> Any:
    return fn.external_source(
        dtype=types.INT32 if array.dtype == "int32" else types.FLOAT, ndim=array.ndim - 1
    )


def plan(pipeline: Any, device: Any, region_decode: bool) -> list[tuple[str, str, str]]:
    return [
        (e.op, e.device, "+".join(e.steps))
        for e in Lowering(job(pipeline), device, region_decode).operators()
    ]


SHIPPED = {
    ("affine", "cpu", True): [
        ("decoders.image", "cpu", "decode"),
        ("experimental.warp_perspective", "cpu", "random_affine"),
        ("crop_mirror_normalize", "cpu", "to_dtype"),
    ],
    ("affine", "gpu", False): [
        ("decoders.image", "mixed", "decode"),
        ("warp_affine", "gpu", "random_affine"),
        ("crop_mirror_normalize", "gpu", "to_dtype"),
    ],
    ("imagenet_train", "cpu", True): [
        ("decoders.image_slice", "cpu", "decode+random_resized_crop"),
        ("resize", "cpu", "random_resized_crop"),
        ("crop_mirror_normalize", "cpu", "random_horizontal_flip+to_dtype+normalize"),
    ],
    ("imagenet_train", "gpu", True): [
        ("decoders.image_slice", "mixed", "decode+random_resized_crop"),
        ("resize", "gpu", "random_resized_crop"),
        ("crop_mirror_normalize", "gpu", "random_horizontal_flip+to_dtype+normalize"),
    ],
    ("imagenet_train", "gpu", False): [
        ("decoders.image", "mixed", "decode"),
        ("slice", "gpu", "random_resized_crop"),
        ("resize", "gpu", "random_resized_crop"),
        ("crop_mirror_normalize", "gpu", "random_horizontal_flip+to_dtype+normalize"),
    ],
    ("imagenet_eval", "cpu", True): [
        ("decoders.image_slice", "cpu", "decode+resize+center_crop"),
        ("resize", "cpu", "resize+center_crop"),
        ("crop_mirror_normalize", "cpu", "to_dtype+normalize"),
    ],
    ("imagenet_eval", "gpu", False): [
        ("decoders.image", "mixed", "decode"),
        ("resize", "gpu", "resize+center_crop"),
        ("crop_mirror_normalize", "gpu", "to_dtype+normalize"),
    ],
    ("affine_heavy", "gpu", False): [
        ("decoders.image", "mixed", "decode"),
        ("warp_affine", "gpu", "random_affine"),
        ("slice", "gpu", "random_resized_crop"),
        ("resize", "gpu", "random_resized_crop"),
        ("flip", "gpu", "random_horizontal_flip+random_vertical_flip"),
        ("crop_mirror_normalize", "gpu", "to_dtype+normalize"),
    ],
}


@pytest.mark.parametrize(("pipeline", "device", "region_decode"), SHIPPED, ids=str)
def test_shipped_pipelines(pipeline: str, device: str, region_decode: bool) -> None:
    assert plan(pipeline, device, region_decode) == SHIPPED[pipeline, device, region_decode]


def test_a_crop_before_the_end_is_cut_by_the_last_operator() -> None:
    steps = [
        "decode",
        {"random_affine": {"degrees": 5}},
        {"random_crop": {"size": 10}},
        {"to_dtype": {"dtype": "float32"}},
    ]
    assert plan(steps, "cpu", True)[-1] == ("crop_mirror_normalize", "cpu", "random_crop+to_dtype")


def fed(pipeline: Any, device: Any = "cpu") -> list[tuple[str, tuple[int, ...]]]:
    """What the graph is fed for a sample: the dtype and shape of each."""
    arrays = Lowering(job(pipeline), device, True).example_arguments()
    return [(a.dtype.name, a.shape[1:]) for a in arrays]


def test_only_what_differs_from_sample_to_sample_is_fed() -> None:
    steps = [
        "decode",
        {"random_affine": {"degrees": 5}},
        {"random_rotation": {"degrees": 5}},
        "random_vertical_flip",
        {"resize": {"size": [9, 9]}},
    ]
    assert fed(steps) == [("float32", (3, 3)), ("float32", (3, 3)), ("int32", ())]
    assert fed(steps, "gpu") == [("float32", (2, 3)), ("float32", (2, 3)), ("int32", ())]
    assert fed("imagenet_train") == [("int32", (2,)), ("int32", (2,)), ("int32", ())]
    assert fed(["decode", {"resize": {"size": [90, 90]}}, {"center_crop": {"size": 80}}]) == [
        ("int32", (2,)),
        ("int32", (2,)),
        *[("float32", (2,))] * 2,
    ]


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_noise_is_made_for_batches_alone(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    """The example that a graph is built from has 4096x4096 pixels where the size is unknown."""

    def refuse(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(fields.noise, "make_noise", refuse)
    monkeypatch.setattr(fields, "make_displacement", refuse)
    lowering = Lowering(job(["decode", "gaussian_noise", "elastic_transform"]), device, True)
    assert len(lowering.operators()) == 4
    assert [str(dtype) for dtype, _, _ in lowering.inputs()][1] == "DALIDataType.INT16"
    with pytest.raises(AssertionError):
        lowering.arguments(Plan(0, np.arange(1), 1, True), {"image": np.array([[30.0, 40.0]])})


def test_values_are_those_that_the_graph_was_built_for() -> None:
    """Of many pipelines: as many arrays, of the same dtypes and shapes, contiguous, one row a
    sample.
    """
    plan = Plan(3, np.arange(5), 5, True)
    size = np.array([[300.0, 400.0], [200.0, 200.0], [111.0, 97.0], [250.0, 97.0], [64.0, 640.0]])
    step = {"random_crop": {"size": 100, "pad_if_needed": True, "padding_mode": "edge"}}
    for pipeline in [
        *{name for name, _, _ in SHIPPED},
        ["decode", {"random_rotation": {"degrees": 30, "expand": True}}, step],
    ]:
        wanted = job(pipeline)
        found = Lowering(wanted, "cpu", True).arguments(plan, {"image": size})
        assert [(a.dtype.name, a.shape[1:]) for a in found] == fed(pipeline)
        assert all(len(a) == 5 and a.flags.c_contiguous for a in found)


def nodes_above(node: Any) -> list[tuple[str, str, list[str]]]:
    """The operators that a node comes from: (class, device of what it makes, devices of its
    inputs).
    """
    seen: dict[int, tuple[str, str, list[str]]] = {}

    def visit(node: Any) -> None:
        op = node.source
        if op.id in seen:
            return
        seen[op.id] = (
            op.name.strip("_").rsplit("_", 1)[0],
            node.device,
            [i.device for i in op.inputs],
        )
        for above in op.inputs:
            visit(above)

    visit(node)
    return list(seen.values())


@pytest.mark.parametrize("pipeline", ["affine", "affine_heavy", "imagenet_train", "imagenet_eval"])
def test_on_a_gpu_pixels_never_go_back_and_there_is_no_arithmetic_in_dali(pipeline: str) -> None:
    wanted = job(pipeline)
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        data = fn.external_source(dtype=types.UINT8, ndim=1)
        image = ImageTracer(SIZE, "gpu", False, {"hw_decoder_load": 0.5})
        for entry in wanted.pipeline.entries:
            image.spec, image.step = entry.input_spec, entry.key
            entry.step.lower(image, entry.parameters(0, 0, np.zeros(1, np.int64)))
        image.finish("float32", "CHW")
        above = nodes_above(graph_of(image, data, as_input))
    on_gpu = [name for name, device, _ in above if device == "gpu"]
    assert on_gpu[0] == "CropMirrorNormalize"
    assert "Image" in on_gpu
    assert not any("Arithmetic" in name for name, _, _ in above)
    assert all("gpu" not in inputs for _, device, inputs in above if device == "cpu"), (
        "pixels go back to the CPU"
    )


def test_what_a_plugin_applies_is_behind_all_that_was_deferred_before_it() -> None:
    image = ImageTracer(SIZE, "cpu", True)
    image.spec, image.step = Spec(), "decode"
    image.decode("rgb", False)
    image.spec, image.step = Spec.of_image(3), "blur"
    image.apply(
        "gaussian_blur", lambda pixels, sigma: fn.gaussian_blur(pixels, sigma=sigma), np.ones(1)
    )
    image.finish("uint8", "CHW")
    assert [(e.op, e.steps) for e in image.subgraph().emitted] == [
        ("decoders.image", ("decode",)),
        ("gaussian_blur", ("blur",)),
        ("transpose", ()),
    ]
