"""What a batch holds of boxes and points: names, views, selection, sizes that do not fit."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.annotations.batch_annotations import list_arrays, list_ragged
from gpupipe.annotations.rows import AnnotationRows
from gpupipe.dataset.spec import Spec
from gpupipe.loader import create_loader
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.step import Params, Primitives, Sampled, Step
from gpupipe.schema.document import Document
from helpers.annotated_folder import RAGGED, SPECS, by_sample, configure, load
from helpers.small_images import shrink_all

SQUARE = ["decode", {"resize": {"size": [40, 40]}}]
VIEWS: dict[str, Any] = {
    "steps": ["decode"],
    "views": {
        "large": {"steps": [{"resize": {"size": [80, 80]}}]},
        "small": {"count": 2, "steps": [{"random_resized_crop": {"size": 24}}]},
    },
}


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("annotated") / "faces", 48)


def test_a_batch_holds_ragged_fields_beside_dense_ones(root: Path) -> None:
    with load(root, SQUARE, batch_size=6, shuffle=False, engine="cpu") as loader:
        batch = next(iter(loader))
        assert list_ragged(loader.config.pipeline) == SPECS
        assert len(loader.index.annotations) == len(RAGGED)
        index = loader.index
    assert set(batch) == {"image", "image_id", "orig_size", "to_original", "id", *RAGGED}
    assert all(isinstance(batch[name], gpupipe.Ragged) for name in RAGGED)
    assert "label" not in batch
    boxes, column = batch["boxes"], index.annotations["boxes"]
    assert column.offsets is not None
    assert boxes.offsets.tolist() == column.offsets[:7].tolist()
    assert [len(boxes[n]) for n in (2, 5)] == [0, 0]
    scale = 40 / index.sizes["image"][0][::-1]
    expected = column.values[: len(boxes[0])] * np.tile(scale, 2)
    np.testing.assert_allclose(boxes[0].numpy(), expected, rtol=1e-6)
    back = gpupipe_to_original(boxes[0], batch["to_original"][0])
    np.testing.assert_allclose(back, column.values[: len(boxes[0])], rtol=1e-5, atol=1e-4)
    assert batch["orig_size"].tolist() == index.sizes["image"][:6].tolist()
    assert (
        batch["labels"].values.tolist()
        == index.annotations["labels"].values[: len(boxes.values)].tolist()
    )


def gpupipe_to_original(boxes: torch.Tensor, matrix: torch.Tensor) -> Any:
    corners = boxes.double().reshape(-1, 2)
    return (corners @ matrix[:2, :2].T + matrix[:2, 2]).reshape(-1, 4).numpy()


def test_each_view_has_annotations_of_its_own(root: Path) -> None:
    with load(root, VIEWS, batch_size=8, engine="cpu") as loader:
        batch = next(iter(loader))
        names = list(list_ragged(loader.config.pipeline))
        arrays = list_arrays(loader.config.pipeline)
    assert names == [f"{view}_{name}" for view in ("large", "small_0", "small_1") for name in SPECS]
    assert {"large_to_original", "small_0_to_original", "orig_size"} <= batch.keys()
    assert {"large_boxes.values", "large_boxes.offsets", "orig_size"} <= set(arrays)
    assert "boxes" not in batch
    large, small, other = (batch[f"{name}_boxes"] for name in ("large", "small_0", "small_1"))
    assert large.offsets.tolist() == small.offsets.tolist() == other.offsets.tolist()
    assert float(small.values.max()) <= 24.0 < float(large.values.max())
    assert not torch.equal(small.values, other.values)


def test_selecting_samples_selects_their_rows(root: Path) -> None:
    config = configure(root, ["decode", "random_horizontal_flip"])
    index = config.source.index()
    ids = np.arange(9)

    def annotate(ids: Any) -> Any:
        drawn = {"image": [(e, e.parameters(0, 0, ids)) for e in config.pipeline.entries]}
        sizes = {"image": index.sizes["image"][ids].astype(np.float64)}
        return AnnotationRows.of(index, config.pipeline, ids).annotate(
            config.pipeline, drawn, sizes, {}
        )

    whole, part = annotate(ids), annotate(ids[[7, 2, 4]])
    by_bool = annotate(ids).select(np.isin(ids, [2, 4, 7]))
    for name, array in part.arrays().items():
        assert np.array_equal(whole.select([7, 2, 4]).arrays()[name], array), name
    for name, array in annotate(np.array([2, 4, 7])).arrays().items():
        assert np.array_equal(by_bool.arrays()[name], array), name
    flips = [drawn["flip"] for drawn in whole.parameters["image"] if "flip" in drawn]
    selected = [d["flip"] for d in whole.select([7, 2]).parameters["image"] if "flip" in d]
    assert selected[0].tolist() == flips[0][[7, 2]].tolist()


class CropToBoxes(Step):
    """Crop to the hull of the boxes: a step whose window depends on annotations."""

    needs: ClassVar[frozenset[str]] = frozenset({"boxes"})
    decided: ClassVar[dict[str, Any]] = {"anchor": (0, 0), "shape": (1, 1)}

    def infer_spec(self, input_spec: Spec) -> Spec:
        return input_spec.with_size((None, None))

    def decide(self, image: Primitives, p: Params) -> Sampled:
        assert image.annotations is not None
        boxes, samples = image.annotations.values("boxes"), image.annotations.samples("boxes")
        first, last = image.size.copy(), np.zeros_like(image.size)
        np.minimum.at(first, samples, np.floor(boxes[:, 1::-1]))
        np.maximum.at(last, samples, np.ceil(boxes[:, :1:-1]))
        is_empty = (last <= first).any(-1)[:, None]
        first, last = np.where(is_empty, 0, first), np.where(is_empty, image.size, last)
        return {"anchor": first, "shape": last - first}

    def lower(self, image: Primitives, p: Params) -> None:
        image.crop(p["anchor"], p["shape"])

    def torch(self, image: Any, p: Params) -> Any:
        (top, left), (high, wide) = p["anchor"].astype(int), p["shape"].astype(int)
        return image[..., top : top + high, left : left + wide]


@pytest.fixture
def crop_to_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpupipe.pipeline.step_registry import STEPS

    find = STEPS.find

    def find_step(name: str) -> Any:
        return CropToBoxes if name == "crop_to_boxes" else find(name)

    monkeypatch.setattr(STEPS, "find", find_step)


NESTED = [
    "decode",
    "random_horizontal_flip",
    {"random_apply": {"p": 0.6, "transforms": [{"random_crop": {"size": 20}}, "crop_to_boxes"]}},
    {"resize": {"size": [40, 40]}},
]


@pytest.mark.parametrize("steps", [["decode", "crop_to_boxes", SQUARE[1]], NESTED], ids=["", "in"])
@pytest.mark.usefixtures("crop_to_boxes")
def test_decided_windows_are_the_same_on_every_engine(root: Path, steps: list[Any]) -> None:
    every = {}
    for engine in ("cpu", "dali", "dataloader"):
        options = {"workers": 0} if engine == "dataloader" else {}
        with load(root, steps, batch_size=7, engine=engine, **options) as loader:
            every[engine] = by_sample(loader)
    for engine, samples in every.items():
        for number, sample in samples.items():
            assert torch.equal(sample["boxes"], every["cpu"][number]["boxes"]), engine
            difference = sample["image"].float() - every["cpu"][number]["image"].float()
            assert difference.abs().mean() < 2.0, (engine, number)
    if len(steps) == 3:
        with_boxes = [s["boxes"] for s in every["cpu"].values() if len(s["boxes"])]
        spans = torch.stack([boxes[:, 2:].amax(0) - boxes[:, :2].amin(0) for boxes in with_boxes])
        assert float(spans.median()) > 36.0
        assert (spans > 10).all()


@pytest.mark.usefixtures("crop_to_boxes")
def test_a_step_that_needs_boxes_is_refused_without_them() -> None:
    document = Document("p", ["decode", "crop_to_boxes"])
    with pytest.raises(gpupipe.ConfigError, match="crop_to_boxes needs boxes on the field 'image'"):
        build_pipeline("p", document)


def test_a_step_that_boxes_cannot_follow_is_an_error_at_its_place(root: Path) -> None:
    steps = ["decode", SQUARE[1], {"aug_mix": {}}]
    with (
        load(root, steps, batch_size=4, engine="cpu") as loader,
        pytest.raises(gpupipe.StepError, match=r"aug_mix cannot move the boxes.*no single"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("engine", ["cpu", "dali", "dataloader"])
def test_an_image_of_another_size_is_a_broken_sample(
    root: Path, tmp_path: Path, engine: str
) -> None:
    config = configure(root, SQUARE)
    index = config.source.index()
    sizes = index.sizes["image"].copy()
    sizes[4] = 11, 22
    index.sizes["image"] = sizes
    for on_error in ("raise", "skip"):
        options = configure(
            root, SQUARE, engine=engine, batch_size=5, on_error=on_error,
            max_bad=0.1,
            quarantine=tmp_path / f"{engine}.jsonl", workers=0,
        )  # fmt: skip
        with create_loader(options, index) as loader:
            if on_error == "raise":
                with pytest.raises(gpupipe.SampleError, match="22x11 pixels") as error:
                    by_sample(loader)
                assert index.location(4) in str(error.value)
            else:
                assert by_sample(loader).keys() == set(range(len(index))) - {4}
