"""Batches that are prepared together have the pixels and labels of those that are mixed alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from batch_stage.mixing_cases import MASK, stage_of
from gpupipe.batch_stage.batch_step import BatchStep, Images, MixedBatch, MixFunctions, Sizes
from gpupipe.batch_stage.mixer import BatchMixer
from gpupipe.batch_stage.preparation import PreparedBatch, prepare_batches
from gpupipe.batch_stage.stage import BatchStage
from gpupipe.batch_stage.steps.mixup import Mixup
from gpupipe.batch_stage.steps.random_choice import RandomStepChoice
from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.index import Index
from gpupipe.dataset.spec import Spec
from gpupipe.errors import GpupipeError, ShapeError
from gpupipe.pipeline.step import Params, StepIncompatibleError
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.sampling.sampler import Plan
from gpupipe.sampling.siblings import Siblings

COUNT, CLASSES = 60, [str(n) for n in range(7)]
SMOOTH = {"one_hot": {"label_smoothing": 0.1}}
CHOICE = {"random_choice": {"transforms": [{"mixup": {"alpha": 0.2}}, "cutmix", "one_hot"]}}
STEPS = [["mixup", SMOOTH], ["cutmix"], [CHOICE, SMOOTH], [SMOOTH, CHOICE], [CHOICE, "cutmix"]]


def make_index(labels: Any = None) -> Index:
    numbers = np.random.default_rng(0).integers(0, 7, COUNT) if labels is None else labels
    names = StringArray.from_strings([str(n) for n in range(COUNT)])
    return Index("", names, numbers, CLASSES, {}, "")


def make_plans(*batches: list[int]) -> list[Plan]:
    siblings = Siblings([np.array(ids, np.int64) for ids in batches])
    return [
        Plan(0, ids, 0, False, siblings=siblings, number=number)
        for number, ids in enumerate(siblings.batches)
    ]


def make_batch(plan: Plan, index: Index, dtype: torch.dtype, size: int = 12) -> Any:
    pixels = np.random.default_rng(plan.number).integers(0, 256, (len(plan.ids), 3, size, 10))
    return {
        "image": torch.from_numpy(pixels).to(dtype),
        "mask": torch.from_numpy(pixels[:, :1].astype(np.uint8)),
        "label": torch.from_numpy(index.labels[plan.ids]),
        "id": torch.from_numpy(plan.ids),
    }


def mix_both(stage: BatchStage, plan: Plan, batch: Any, index: Index) -> list[Any]:
    """Return a batch mixed with the index, which prepares it, and without."""
    mixers = [BatchMixer(stage, 3, CLASSES, given) for given in (index, None)]
    mixed = [mixer.mix_planned(plan, batch) for mixer in mixers]
    assert plan.siblings is not None
    draws = plan.siblings.take(plan.number, mixers[0], "", lambda every: every.batches)
    assert draws is plan.ids, "it was not prepared: its draws were taken"
    return mixed


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_pixels_and_labels_are_those_of_a_batch_alone(
    steps: list[Any], dtype: torch.dtype, format: torch.memory_format
) -> None:
    stage, index = stage_of(*steps), make_index()
    views = [n for n in range(20, 26) for _ in range(4)]
    for plan in make_plans([*range(16)], views, [3], [4, 4], [5, 6], [*range(40, 60)]):
        batch = make_batch(plan, index, dtype)
        batch["image"] = batch["image"].to(memory_format=format)
        prepared, alone = mix_both(stage, plan, batch, index)
        assert list(prepared) == list(alone)
        assert all(torch.equal(prepared[name], alone[name]) for name in alone)
        assert prepared["image"].stride() == alone["image"].stride()


@pytest.mark.parametrize("on", [[["image", "mask"]], [["image"], ["mask"]]], ids=str)
def test_masks_and_bytes_are_those_of_a_batch_alone(on: list[list[str]]) -> None:
    fields = {"image": Spec.of_array("uint8", (3, 12, 10), "CHW"), "mask": MASK}
    stage = stage_of(*({"cutmix": {"on": names}} for names in on), fields=fields)
    index = make_index()
    for plan in make_plans([*range(9)], [*range(9, 12)]):
        batch = make_batch(plan, index, torch.uint8)
        if len(on) > 1:  # the fields of different steps may differ in size
            batch["mask"] = batch["mask"][:, :, :7].clone()
        prepared, alone = mix_both(stage, plan, batch, index)
        assert all(torch.equal(prepared[name], alone[name]) for name in alone)
        assert not torch.equal(prepared["mask"], batch["mask"])


def test_a_batch_of_another_size_is_mixed_alone() -> None:
    stage, index = stage_of("cutmix"), make_index()
    first, second = make_plans([*range(8)], [*range(8, 16)])
    mixer, alone = BatchMixer(stage, 3, CLASSES, index), BatchMixer(stage, 3, CLASSES)
    for plan, size in ((first, 12), (second, 30)):
        batch = make_batch(plan, index, torch.float32, size)
        expected = alone.mix(0, plan.ids, batch)
        mixed = mixer.mix_planned(plan, batch)
        assert all(torch.equal(mixed[name], expected[name]) for name in expected)


def test_a_label_that_is_no_class_is_refused() -> None:
    index = make_index(np.full(COUNT, 7))
    (plan,) = make_plans([*range(8)])
    with pytest.raises(ShapeError, match=r"a sample has the label 7, .* 0 to 6"):
        mix_both(stage_of("mixup"), plan, make_batch(plan, index, torch.float32), index)


def prepare(stage: BatchStage, num_classes: int = 7) -> list[PreparedBatch | None]:
    ids = [np.arange(8), np.arange(8, 16)]
    sizes: Sizes = {"image": (12, 10)}
    return prepare_batches(stage, stage.draw(0, 0, ids), sizes, [i % 7 for i in ids], num_classes)


class Halved(Mixup):
    """A step of another package, which changes what mixup does to images."""

    def torch(self, images: Images, labels: torch.Tensor, p: Params) -> MixedBatch:
        mixed, soft = super().torch(images, labels, p)
        return {name: image / 2 for name, image in mixed.items()}, soft


class Erased(RandomStepChoice):
    """A container of another package, which changes what random_choice does to images."""

    def torch(self, images: Images, labels: torch.Tensor, p: Params) -> MixedBatch:
        return {name: image * 0 for name, image in images.items()}, labels


class Cropped(BatchStep):
    """A step of another package, whose results have other shapes."""

    part: Literal["images", "labels"]

    def prepare(self, sizes: Sizes, num_classes: int, p: Params) -> MixFunctions:
        if self.part == "images":
            return MixFunctions(lambda image, memory: image[1:])
        return MixFunctions(labels=lambda labels: labels[1:])


class Dark(BatchStep):
    """A step of another package that takes no labels."""

    uses_labels = False

    def prepare(self, sizes: Sizes, num_classes: int, p: Params) -> MixFunctions:
        return MixFunctions(lambda image, memory: image / 2)


class Refused(BatchStep):
    """A step of another package, which finds that it cannot do a batch when it has it."""

    def prepare(self, sizes: Sizes, num_classes: int, p: Params) -> MixFunctions:
        def refuse(image: torch.Tensor, memory: BatchMemory | None) -> torch.Tensor:
            raise StepIncompatibleError("no image is red")

        return MixFunctions(refuse)


def stage_with(*steps: BatchStep) -> BatchStage:
    """A stage of steps that are no built-in ones."""
    entry = stage_of("one_hot").entries[0]
    return BatchStage(tuple(replace(entry, step=step, where="c.yaml:3:5") for step in steps))


def test_steps_that_define_torch_are_not_prepared() -> None:
    assert None not in prepare(stage_of("mixup"))
    assert prepare(stage_with(Halved())) == [None, None]
    choice = stage_of(CHOICE).entries[0].step
    assert choice.can_prepare
    assert not Erased.model_construct(**dict(choice)).can_prepare
    assert not stage_of({"python": {"call": "math:sqrt"}}).entries[0].step.can_prepare


def test_labels_that_no_step_takes_stay_class_numbers() -> None:
    index = make_index()
    for given in (index, None):
        (plan,) = make_plans([*range(8)])
        batch = make_batch(plan, index, torch.float32)
        mixed = BatchMixer(stage_with(Dark()), 3, CLASSES, given).mix_planned(plan, batch)
        assert torch.equal(mixed["label"], batch["label"])
        assert torch.equal(mixed["image"], batch["image"] / 2)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([Cropped(part="images")], r"c.yaml:3:5: .* its torch\(\) made \(7, 3, 12, 10\) .*'image'"),
        ([Mixup(), Mixup(), Cropped(part="labels")], r"c.yaml:3:5: .* made \(7, 7\) .*'label'"),
        ([Refused()], "c.yaml:3:5: .*no image is red"),
    ],
)
def test_the_errors_are_those_of_a_batch_alone(steps: list[BatchStep], said: str) -> None:
    index = make_index()
    for given in (index, None):
        (plan,) = make_plans([*range(8)])
        with pytest.raises(GpupipeError, match=said):
            BatchMixer(stage_with(*steps), 3, CLASSES, given).mix_planned(
                plan, make_batch(plan, index, torch.float32)
            )


def test_soft_labels_of_very_many_classes_do_not_wait_in_memory() -> None:
    assert None not in prepare(stage_of("mixup"), 10_000)
    assert prepare(stage_of("mixup"), 1_000_000) == [None, None]


def test_a_step_defines_torch_or_prepare() -> None:
    class Plain(BatchStep):
        pass

    image: Mapping[str, torch.Tensor] = {"image": torch.zeros(2, 3, 4, 4)}
    with pytest.raises(NotImplementedError):
        Plain().torch(image, torch.zeros(2, 3), {})
