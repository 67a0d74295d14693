from __future__ import annotations

import inspect

import pytest
from torchvision.transforms import v2

from gpupipe.batch_stage import registry
from gpupipe.pipeline import step_registry
from gpupipe.pipeline.torchvision_names import advise, to_snake_case

NO_TRANSFORMS = {"AutoAugmentPolicy", "InterpolationMode", "Transform"}
CLASSES = [n for n, c in vars(v2).items() if inspect.isclass(c) and n not in NO_TRANSFORMS]


def test_every_transform_of_torchvision_is_a_step_or_has_advice() -> None:
    steps = step_registry.names()
    for name in CLASSES:
        advice = advise(name, steps)
        if to_snake_case(name) in steps:
            assert advice == f"write '{to_snake_case(name)}'", name
        else:
            assert advice, name
            assert advise(to_snake_case(name), steps) == advice, name


def test_the_steps_that_advice_names_exist() -> None:
    assert {"cutmix", "mixup"} <= set(registry.names())
    assert "to_dtype" in step_registry.names()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("to_tensor", "there is no step 'to_tensor': write 'to_dtype: {dtype: float32"),
        ("ToTensor", "there is no step 'ToTensor': write 'to_dtype"),
        ("RandomCrop", "write 'random_crop'"),
        ("random_iou_crop", "no boxes"),
        ("random_erasin", "did you mean 'random_erasing'"),
        ("unheard_of", "known: aug_mix"),
    ],
)
def test_an_unknown_step_says_what_to_write(name: str, words: str) -> None:
    with pytest.raises(LookupError) as raised:
        step_registry.find(name)
    assert words in raised.value.args[0]
