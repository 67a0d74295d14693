"""Several fields a sample: an image, a mask that moves with it, an array, and numbers from the
index.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe import config as configs
from gpupipe.bench.plan import facts
from gpupipe.engines.base import Job
from gpupipe.engines.dali.lowering import Lowering
from gpupipe.loading.assembly import resolve
from helpers.loaders import ENGINES
from helpers.many_fields import COUNT, SIDE, STEPS, loaded, make, samples


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return make(tmp_path, monkeypatch)


@pytest.mark.parametrize("options", ENGINES, ids=["dali", "cpu", "dataloader"])
def test_all_fields_are_delivered_and_belong_together(
    data: dict[str, Any], options: dict[str, Any]
) -> None:
    found = samples(loaded(data, **options))
    assert sorted(found) == list(range(COUNT))
    for id, sample in found.items():
        assert list(sample) == ["image", "mask", "depth", "weight", "box", "label", "id"]
        assert (sample["image"].shape, sample["mask"].shape) == ((3, SIDE, SIDE), (1, SIDE, SIDE))
        assert sample["depth"].dtype == torch.float32
        assert sample["depth"].flatten().tolist() == list(range(40 * id, 40 * id + 40))
        assert (float(sample["weight"]), sample["box"].tolist(), int(sample["label"])) == (
            id / 4,
            [id, id + 1, id + 2, id + 3],
            id % 2,
        )


@pytest.mark.parametrize("options", ENGINES, ids=["dali", "cpu", "dataloader"])
def test_a_mask_moves_with_its_image_and_has_no_class_between_two(
    data: dict[str, Any], options: dict[str, Any]
) -> None:
    moved, outside = 0, []
    for sample in samples(loaded(data, **options)).values():
        image, mask = sample["image"][0].float(), sample["mask"][0]
        assert set(mask.unique().tolist()) <= {0, 100, 200}, "nearest pixel, and class 0 outside"
        inside = mask > 0
        assert ((image - mask)[inside].abs() > 60).float().mean() < 0.08, (
            "they differ along edges alone"
        )
        moved += int((~inside).sum())
        outside += image[~inside].tolist()
    assert np.median(outside) == 9, "the image has its own fill"
    assert moved > 500


FILL = {"image": 9, "mask": 255}
FILLING = [
    {"pad": {"padding": 4}},
    {"random_crop": {"size": SIDE + 6, "pad_if_needed": True}},
    {"random_affine": {"degrees": 30}},
    {"random_rotation": {"degrees": [20, 40]}},
    {"random_perspective": {"p": 1, "interpolation": "nearest"}},
    {"random_zoom_out": {"p": 1, "side_range": [1.5, 2]}},
]


@pytest.mark.parametrize("options", ENGINES, ids=["dali", "cpu", "dataloader"])
@pytest.mark.parametrize("step", FILLING, ids=lambda step: next(iter(step)))
def test_masks_have_their_own_fill(
    data: dict[str, Any], step: dict[str, Any], options: dict[str, Any]
) -> None:
    ((name, parameters),) = step.items()
    inner = {name: parameters | {"fill": FILL}}
    outer = {"random_apply": {"p": 1.0, "transforms": [inner], "on": ["image", "mask"]}}
    resize = {"size": [SIDE, SIDE], "interpolation": "nearest", "on": ["image", "mask"]}
    steps = [*STEPS[:2], outer, {"resize": resize | {"antialias": False}}]
    filled, values = 0, []
    for sample in samples(loaded(data, steps, **options)).values():
        image, mask = sample["image"][0], sample["mask"][0]
        assert set(mask.unique().tolist()) <= {100, 200, 255}
        filled += int((mask == 255).sum())
        values += image[mask == 255].tolist()
    assert filled > 100
    assert np.mean(np.array(values) == 9) > 0.95


def test_a_fill_that_is_not_of_images_and_masks_is_refused(data: dict[str, Any]) -> None:
    for wrong in ({"mask": 255}, {"image": 0, "masks": 255}, {"image": 0, "mask": 300}):
        with pytest.raises(gpupipe.ConfigError, match=r"random_affine\.fill is \{.*should be"):
            loaded(data, ["decode", {"random_affine": {"degrees": 3, "fill": wrong}}])
    with pytest.raises(gpupipe.ConfigError, match=r"pad cannot stand here on mask: fill is 256"):
        steps = [*STEPS[:2], {"pad": {"padding": 1, "on": ["image", "mask"]}}]
        steps[-1]["pad"]["fill"] = {"image": 0, "mask": 256}
        loaded(data, steps)


def test_engines_agree_on_every_field(data: dict[str, Any]) -> None:
    *others, reference = (samples(loaded(data, **options)) for options in ENGINES)
    for one in others:
        for id, sample in one.items():
            other = reference[id]
            assert torch.equal(sample["depth"], other["depth"])
            assert (sample["mask"] != other["mask"]).float().mean() < 0.01, (
                "but for ties of the nearest pixel"
            )
            assert (sample["image"].float() - other["image"].float()).abs().mean() < 0.5


def test_the_draws_are_those_of_a_pipeline_of_the_image_alone(data: dict[str, Any]) -> None:
    alone = {"source": "file_list", "file": Path(data["root"]) / "list.txt"}
    (Path(data["root"]) / "list.txt").write_text("".join(f"{n}.png\n" for n in range(COUNT)))
    steps = [
        "decode",
        {"random_affine": {"degrees": 30, "scale": [0.7, 1.3], "fill": 9}},
        "random_horizontal_flip",
    ]
    one, other = samples(loaded(data)), samples(loaded(alone, steps))
    assert all(torch.equal(one[id]["image"], other[id]["image"]) for id in range(COUNT))


@pytest.mark.parametrize("options", ENGINES, ids=["dali", "cpu", "dataloader"])
def test_a_dtype_and_a_memory_format_are_of_the_image(
    data: dict[str, Any], options: dict[str, Any]
) -> None:
    with loaded(data, dtype="float16", memory_format="channels_last", **options) as loader:
        batch = next(iter(loader))
    assert {name: batch[name].dtype for name in ("image", "mask", "depth")} == {
        "image": torch.float16,
        "mask": torch.uint8,
        "depth": torch.float32,
    }
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert batch["depth"].is_contiguous()
    with loaded(data, format="tuple", ids=False, **options) as loader:
        image, label = next(iter(loader))
        assert (image.shape, label.shape) == ((5, 3, SIDE, SIDE), (5,))


@pytest.mark.parametrize("options", ENGINES, ids=["dali", "cpu", "dataloader"])
@pytest.mark.parametrize("field", ["mask", "depth"])
def test_a_sample_whose_second_field_is_broken_is_skipped_and_named(
    data: dict[str, Any], options: dict[str, Any], field: str, tmp_path: Path
) -> None:
    root = Path(data["root"])
    if field == "mask":
        (root / "11.mask.png").write_bytes(b"no image")
        told = f"its mask, {root / '11.mask.png'}: "
    else:
        whole = (root / "depth.bin").read_bytes()
        (root / "depth.bin").write_bytes(whole[:-5])
        told = (
            f"{root / 'depth.bin'} ends 5 bytes before the sample does: it changed since it was "
            "indexed"
        )
    list_of_bad = tmp_path / "bad.jsonl"
    found = samples(loaded(data, on_error="skip", max_bad=0.1, quarantine=list_of_bad, **options))
    assert sorted(found) == list(range(COUNT - 1))
    assert found[10]["depth"].flatten().tolist() == list(range(400, 440))
    (record,) = [json.loads(line) for line in list_of_bad.read_text().splitlines()]
    assert record["path"] == str(root / "11.png")
    assert told in record["reason"]
    assert (
        field == "depth"
        or "not an image in a known format (it begins with b'no image')" in record["reason"]
    )
    with loaded(data, **options) as loader, pytest.raises(gpupipe.SampleError, match=r"11\.png"):
        list(loader)


def test_images_that_differ_in_size_are_told_from_masks_that_do(data: dict[str, Any]) -> None:
    Image.new("L", (30, 20)).save(Path(data["root"]) / "3.mask.png")
    for options in ENGINES:
        with (
            loaded(data, STEPS[:2], shuffle=False, **options) as loader,
            pytest.raises(gpupipe.ShapeError) as e,
        ):
            list(loader)
        assert "the fields 'mask' of a batch differ in size (height x width)" in str(e.value)
        assert f"{Path(data['root']) / '3.mask.png'} is 20x30" in str(e.value)
        assert "on: mask" in str(e.value)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([{"decode": {"on": "imgae"}}], "on: there is no field 'imgae'; did you mean 'image'?"),
        (
            [{"decode": {"on": []}}],
            "on is [], but should be the name of a field, or a list of names: image, mask, depth",
        ),
        (
            [{"decode": {"on": 3}}],
            "on is 3, but should be the name of a field, or a list of names: image, mask, depth",
        ),
        (
            ["decode"],
            "no step decodes the mask: write '- decode: {on: mask}' before the steps on it",
        ),
        (
            [{"decode": {"on": ["image", "mask", "depth"]}}],
            "decode cannot stand here on depth: the image is decoded already: remove this step",
        ),
        (
            [{"resize": {"size": 8, "on": "mask"}}, {"decode": {"on": ["image", "mask"]}}],
            "move it after 'decode'",
        ),
    ],
)
def test_a_wrong_field_is_a_mistake_with_its_place(
    data: dict[str, Any], steps: list[Any], said: str
) -> None:
    with pytest.raises(gpupipe.ConfigError) as e:
        loaded(data, steps)
    assert said in str(e.value)
    assert len(e.value.problems) == 1 or steps == ["decode"]


def test_masks_that_are_no_fields_are_a_mistake(data: dict[str, Any]) -> None:
    with pytest.raises(
        gpupipe.ConfigError, match=r"data\.masks: there is no field 'masc'; did you mean 'mask'\?"
    ):
        loaded(data | {"masks": ["masc"]})


def test_another_field_for_a_step_is_another_pipeline(data: dict[str, Any]) -> None:
    with (
        loaded(data) as one,
        loaded(data, [*STEPS[:3], {"random_horizontal_flip": {"on": "image"}}]) as other,
    ):
        assert one.config.pipeline.fingerprint != other.config.pipeline.fingerprint


def test_a_state_goes_on_with_all_fields(data: dict[str, Any]) -> None:
    with loaded(data) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = list(batches)
    with loaded(data) as loader:
        loader.load_state_dict(state)
        found = list(loader)
    assert [{n: t.tolist() for n, t in b.items()} for b in found] == [
        {n: t.tolist() for n, t in b.items()} for b in expected
    ]


def test_check_tells_all_fields(data: dict[str, Any]) -> None:
    steps = [*STEPS, {"to_dtype": {"dtype": "float32", "scale": True}}, {"resize": {"size": 16}}]
    *_, batch = facts(resolve(configs.read({"data": data, "pipeline": steps})))
    fields = (
        "image float32 (B, 3, H, W) contiguous, mask uint8 (B, 1, H, W), depth float32 (B, "
        "2, 4, 5), label int64 (B,), weight float64 (B,), box int64 (B, 4)"
    )
    assert (
        batch == f"batch: {fields}; no step fixes the size of image and mask, so all images must "
        "have the same"
    )


def test_the_graph_for_a_gpu_has_all_fields(data: dict[str, Any]) -> None:
    with loaded(data, [*STEPS, {"to_dtype": {"dtype": "float16", "on": "depth"}}]) as loader:
        job = Job(loader.index, loader.config.pipeline, loader.config.loader, 1)
    emitted = [(e.op, e.device, e.steps) for e in Lowering(job, "gpu", False).operators()]
    decoders = [device for op, device, _ in emitted if op == "decoders.image"]
    assert decoders == ["mixed", "mixed"]
    assert {device for op, device, _ in emitted if op != "decoders.image"} == {"gpu"}
    assert [steps for _, _, steps in emitted if "to_dtype" in steps] == [("to_dtype",)]
