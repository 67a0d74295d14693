"""The items of a list of steps."""

from typing import Any

import pytest

from gpupipe.dataset.spec import Spec
from gpupipe.errors import Problem
from gpupipe.pipeline.entry import ParsedStep
from gpupipe.pipeline.parsing import parse_nested_step, parse_step, parse_targets, split_item
from gpupipe.schema.document import UNRESOLVED, Document, Node
from gpupipe.steps.random_flips import RandomHorizontalFlip

FIELDS = {"image": Spec(), "mask": Spec()}


def parse(item: Any, nested: bool = False) -> tuple[ParsedStep | None, list[str]]:
    """The step of an item that stands in a list at `0`, and what is wrong with it."""
    problems: list[Problem] = []
    function = parse_nested_step if nested else parse_step
    step = function(Node(Document("p", [item]), (0,), problems), FIELDS)
    return step, [problem.what for problem in problems]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("decode", ("decode", None)),
        ({"resize": {"size": 9}}, ("resize", {"size": 9})),
        ({"resize": None}, ("resize", None)),
        ({"resize": 1, "pad": 2}, ("", None)),
        ({}, ("", None)),
        (None, ("", None)),
        (7, ("", None)),
    ],
)
def test_an_item_has_one_name(item: Any, expected: tuple[str, Any]) -> None:
    assert split_item(item) == expected


def test_a_step_has_its_parameters_and_works_on_the_main_field() -> None:
    step, problems = parse({"random_horizontal_flip": {"p": 0.25}})
    assert problems == []
    assert step is not None
    assert step.step == RandomHorizontalFlip(p=0.25)
    assert (step.name, step.on) == ("random_horizontal_flip", ("image",))


def test_on_names_other_fields_and_is_no_parameter() -> None:
    for on, fields in (("mask", ("mask",)), (["mask", "image", "mask"], ("mask", "image"))):
        step, problems = parse({"random_horizontal_flip": {"on": on}})
        assert problems == []
        assert step is not None
        assert step.on == fields
        assert step.step == RandomHorizontalFlip()


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (None, "a step is empty"),
        (7, "a step is 7, but should be '- name: {parameter: value}'"),
        ({"pad": 1, "resize": 2}, "one step has 2 names (pad, resize)"),
        ("random_horizontal_flp", "did you mean 'random_horizontal_flip'"),
        ({"random_horizontal_flip": {"p": 2}}, "random_horizontal_flip.p is 2"),
        ({"random_horizontal_flip": {"on": "masc"}}, "no field 'masc'; did you mean 'mask'"),
    ],
)
def test_what_is_wrong_has_no_step_and_one_problem(item: Any, words: str) -> None:
    step, problems = parse(item)
    assert step is not None
    assert step.step is None
    assert len(problems) == 1
    assert words in problems[0]


def test_what_a_container_holds_has_no_fields_of_its_own() -> None:
    step, problems = parse({"random_horizontal_flip": {"on": "mask"}}, nested=True)
    assert step is None
    assert problems == [
        "random_horizontal_flip.on: a step of a container or a view has no 'on': it works where "
        "they work"
    ]
    step, problems = parse("random_horizontal_flip", nested=True)
    assert step is not None
    assert step.step == RandomHorizontalFlip()


@pytest.mark.parametrize("on", [[], 5, [1], {"image": 1}])
def test_targets_are_a_name_or_a_list_of_names(on: Any) -> None:
    problems: list[Problem] = []
    assert parse_targets(Node(Document("p:1", on), (), problems), FIELDS) == ()
    assert [p.where for p in problems] == ["p:1"]
    assert "or a list of names: image, mask" in problems[0].what


def test_a_target_that_an_interpolation_did_not_resolve_is_told_elsewhere() -> None:
    problems: list[Problem] = []
    assert parse_targets(Node(Document("p", UNRESOLVED), (), problems), FIELDS) == ()
    assert problems == []
