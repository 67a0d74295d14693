import pytest

from gpupipe.albumentations_adapter.items import as_one, is_on, make_item, without_on
from gpupipe.torchvision_adapter.parameters import NoCounterpartError


def test_parameters_with_their_defaults_are_left_out() -> None:
    assert make_item("transpose", {}, 0.5) == "transpose"
    assert make_item("transpose", {}, 0.2) == {"transpose": {"p": 0.2}}
    assert make_item("pad", {"padding": (1, 2)}, None) == {"pad": {"padding": [1, 2]}}


def test_parameters_that_a_step_refuses_have_no_counterpart() -> None:
    with pytest.raises(NoCounterpartError):
        make_item("coarse_dropout", {"hole_height_range": (0.5, 1.5)}, 0.5)


def test_several_steps_become_one_that_works_on_the_same_fields() -> None:
    on = {"on": ["image", "mask"]}
    flip = {"random_horizontal_flip": on}
    assert as_one([]) == "identity"
    assert as_one([flip]) == flip
    assert as_one([{"pad": {"padding": 3, **on}}, "random_invert"]) == {
        "random_apply": {"p": 1.0, "transforms": [{"pad": {"padding": 3}}, "random_invert"], **on}
    }
    assert is_on(flip)
    assert not is_on("random_invert")
    assert without_on(flip) == "random_horizontal_flip"
