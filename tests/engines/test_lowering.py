"""What a pipeline becomes: the operators and their devices, looked at as nodes (no GPU is needed for that)."""

from __future__ import annotations

from typing import Any

import pytest
from nvidia.dali import Pipeline, fn, types

from gpupipe import config
from gpupipe.engines.base import Job
from gpupipe.engines.dali_graph import emitted_of, inputs_of
from gpupipe.engines.dali_image import FusingImage
from gpupipe.source import nothing
from gpupipe.step import Spec

DATA = {"source": "folder", "root": "/nowhere"}


def job(pipeline: Any, **options: Any) -> Job:
    checked = config.read({"data": DATA, "pipeline": pipeline}, **options)
    return Job(nothing(), checked.pipeline, checked.loader, 2)


def plan(pipeline: Any, device: Any, region_decode: bool) -> list[tuple[str, str, str]]:
    return [(e.op, e.device, "+".join(e.steps)) for e in emitted_of(job(pipeline), device, region_decode)]


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
    steps = ["decode", {"random_affine": {"degrees": 5}}, {"random_crop": {"size": 10}}, {"to_dtype": {"dtype": "float32"}}]
    assert plan(steps, "cpu", True)[-1] == ("crop_mirror_normalize", "cpu", "random_crop+to_dtype")


def test_only_what_the_graph_uses_is_fed() -> None:
    steps = ["decode", {"random_affine": {"degrees": 5}}, {"random_rotation": {"degrees": 5}}, "random_vertical_flip"]
    assert [(i.step, i.name) for i in inputs_of(job(steps), "cpu")] == [(1, "linear"), (2, "linear"), (3, "flip")]


def nodes_above(node: Any) -> list[tuple[str, str, list[str]]]:
    """The operators that a node comes from: (class, device of what it makes, devices of its inputs)."""
    seen: dict[int, tuple[str, str, list[str]]] = {}

    def visit(node: Any) -> None:
        op = node.source
        if op.id in seen:
            return
        seen[op.id] = (op.name.strip("_").rsplit("_", 1)[0], node.device, [i.device for i in op.inputs])
        for above in op.inputs:
            visit(above)

    visit(node)
    return list(seen.values())


@pytest.mark.parametrize("pipeline", ["affine", "affine_heavy", "imagenet_train", "imagenet_eval"])
def test_on_a_gpu_pixels_never_go_back_and_arithmetic_stays_on_the_cpu(pipeline: str) -> None:
    wanted = job(pipeline)
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        image = FusingImage(fn.external_source(dtype=types.UINT8, ndim=1), "gpu", False, {"hw_decoder_load": 0.5})
        for entry in wanted.pipeline.entries:
            image.spec, image.step = entry.given, entry.key
            known = entry.parameters(0, 0, wanted.index.labels[:0])
            sources = {n: fn.external_source(dtype=types.INT32 if v.dtype == "int32" else types.FLOAT64, ndim=v.ndim - 1) for n, v in known.items()}
            entry.step.dali(image, sources)
        above = nodes_above(image.finish("float32", "CHW"))
    on_gpu = [name for name, device, _ in above if device == "gpu"]
    assert on_gpu[0] == "CropMirrorNormalize"
    assert "Image" in on_gpu
    assert not any("Arithmetic" in name for name in on_gpu)
    for name, device, inputs in above:
        if device == "cpu":
            assert "gpu" not in inputs or name == "Shapes", f"{name} takes pixels back to the CPU"


def test_pixels_of_unknown_steps_are_replaced() -> None:
    """What a plugin does with `pixels` and `replace` is behind all that was deferred before it."""
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        image = FusingImage(fn.external_source(dtype=types.UINT8, ndim=1), "cpu", True, {})
        image.spec, image.step = Spec(), "decode"
        image.decode("rgb", False)
        image.spec, image.step = Spec(encoded=False, channels=3), "blur"
        image.replace("gaussian_blur", fn.gaussian_blur(image.pixels, sigma=2.0))
        image.finish("uint8", "CHW")
    assert [(e.op, e.steps) for e in image.emitted] == [("decoders.image", ("decode",)), ("gaussian_blur", ("blur",)), ("transpose", ())]
