"""The YAML of steps that an adapter returned."""

import yaml

from gpupipe.config.step_list import StepList
from helpers import user_functions
from helpers.user_transforms import TwoSided


def test_functions_are_named_and_what_no_file_can_have_gets_a_comment() -> None:
    steps = StepList(["decode", {"python": {"call": user_functions.halve}}])
    assert str(steps) == "- decode\n- python: {call: 'helpers.user_functions:halve'}\n"
    steps.append({"random_apply": {"transforms": [{"python": {"call": TwoSided(8)}}]}})
    steps.append({"python": {"call": lambda image: image}})
    text = steps.to_yaml()
    assert text.startswith(str(StepList(steps[:2])))
    assert text.count("# no file can have helpers.user_transforms:TwoSided") == 1
    assert text.count(f"# no file can have {__name__}:") == 1
    assert [next(iter(s)) for s in yaml.safe_load(text)[2:]] == ["random_apply", "python"]
