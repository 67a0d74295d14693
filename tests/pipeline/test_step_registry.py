"""Steps by name."""

import inspect

import pytest
from torchvision.transforms import v2

from gpupipe.batch_stage.batch_step import BATCH_STEPS
from gpupipe.pipeline.step import Step
from gpupipe.pipeline.step_registry import (
    ALBUMENTATIONS,
    STEPS,
    advise_on_torchvision,
    to_snake_case,
)

NO_TRANSFORMS = {"AutoAugmentPolicy", "InterpolationMode", "Transform"}
CLASSES = [n for n, c in vars(v2).items() if inspect.isclass(c) and n not in NO_TRANSFORMS]


def test_the_steps_that_advice_names_exist() -> None:
    assert {"cutmix", "mixup"} <= set(BATCH_STEPS.names())
    assert "to_dtype" in STEPS.names()
    assert {*ALBUMENTATIONS.values()} <= set(STEPS.names())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("to_tensor", "there is no step 'to_tensor': write 'to_dtype: {dtype: float32"),
        ("ToTensor", "there is no step 'ToTensor': write 'to_dtype"),
        ("RandomCrop", "write 'random_crop'"),
        ("RandomIoUCrop", "write 'random_iou_crop'"),
        ("SanitizeKeyPoints", "write 'sanitize_keypoints'"),
        ("HueSaturationValue", "albumentations has it; the like here is 'color_jitter'"),
        ("Erasing", "the like here is 'random_erasing', and gpupipe.from_albumentations()"),
        ("A.HorizontalFlip", "the like here is 'random_horizontal_flip', and"),
        ("ToTensorV2", "write 'to_dtype: {dtype: float32, scale: true}'"),
        ("albumentations.GridDistortion", "no plugin has it: write a step of your own"),
        ("random_erasin", "did you mean 'random_erasing'"),
        ("unheard_of", "known: aug_mix"),
    ],
)
def test_an_unknown_step_says_what_to_write(name: str, words: str) -> None:
    with pytest.raises(LookupError) as raised:
        STEPS.find(name)
    assert words in raised.value.args[0]


def test_every_builtin_step_is_found_by_its_name() -> None:
    for name in STEPS.builtin_names:
        found = STEPS.find(name)
        assert issubclass(found, Step), name
        assert found.__module__ == f"gpupipe.steps.{STEPS.modules[name]}"
        assert found.__name__.lower() == name.replace("_", "")


def test_names_are_sorted_and_hold_the_builtin_ones() -> None:
    names = STEPS.names()
    assert names == sorted(names)
    assert STEPS.builtin_names <= set(names)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_a_step_of_batches_is_named_as_one(name: str) -> None:
    with pytest.raises(LookupError, match=f"'{name}' works on whole batches: .* 'batch:'"):
        STEPS.find(name)


@pytest.mark.parametrize("name", ["__init__", "_private", "a.b", "", "../decode", "Decode "])
def test_what_is_no_name_of_a_module_is_unknown(name: str) -> None:
    with pytest.raises(LookupError):
        STEPS.find(name)


def test_every_transform_of_torchvision_is_a_step_or_has_advice() -> None:
    steps = STEPS.names()
    for name in CLASSES:
        advice = advise_on_torchvision(name, steps)
        if to_snake_case(name) in steps:
            assert advice == f"write '{to_snake_case(name)}'", name
        else:
            assert advice, name
            assert advise_on_torchvision(to_snake_case(name), steps) == advice, name
