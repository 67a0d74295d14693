"""Steps of the batch stage that hold others, as random_choice does."""

from typing import Any

import numpy as np
import pytest

from batch_stage.mixing_cases import IMAGE, MASK, stage_of
from gpupipe.batch_stage.batch_step import BatchContainer
from gpupipe.errors import ConfigError


def container_of(*transforms: Any) -> BatchContainer:
    step = stage_of({"random_choice": {"transforms": list(transforms)}}).entries[0].step
    assert isinstance(step, BatchContainer)
    return step


def test_own_draws_come_first_and_then_those_of_the_steps_in_order() -> None:
    step = container_of("mixup", "cutmix")
    mixup, cutmix = (nested.step for nested in step.transforms)
    assert step.num_uniforms == 1 + mixup.num_uniforms + cutmix.num_uniforms
    u = np.random.default_rng(0).random((5, step.num_uniforms))
    drawn = step.sample(u)
    assert np.array_equal(drawn["choice"], (u[:, 0] >= 0.5).astype(np.int32))
    expected = mixup.sample(u[:, 1 : 1 + mixup.num_uniforms])
    expected_after = cutmix.sample(u[:, 1 + mixup.num_uniforms :])
    for number, parameters in enumerate((expected, expected_after)):
        for name, values in parameters.items():
            np.testing.assert_array_equal(drawn[f"{number}.{name}"], values)


def test_it_mixes_samples_if_one_of_its_steps_does() -> None:
    assert container_of("one_hot", "mixup").mixes_samples
    assert not container_of("one_hot", "one_hot").mixes_samples


def test_numbers_of_classes_are_those_of_all_steps() -> None:
    assert container_of("mixup", {"one_hot": {"num_classes": 7}}).list_num_classes() == [7]


def test_a_step_is_written_as_yaml_has_it() -> None:
    written = container_of({"mixup": {"alpha": 0.5}}, "one_hot").model_dump(mode="json")
    assert [list(item) for item in written["transforms"]] == [["mixup"], ["one_hot"]]
    assert written["transforms"][0]["mixup"]["alpha"] == 0.5


def test_a_step_that_cannot_work_on_a_field_is_named() -> None:
    step = {"random_choice": {"transforms": ["one_hot", "mixup"], "on": ["image", "mask"]}}
    with pytest.raises(ConfigError, match="mixup: "):
        stage_of(step, fields={"image": IMAGE, "mask": MASK})


def test_it_holds_at_least_one_step() -> None:
    with pytest.raises(ConfigError, match="transforms"):
        container_of()
