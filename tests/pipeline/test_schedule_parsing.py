"""What a schedule may be, and what is said of one that is wrong."""

from pathlib import Path

import pytest

from gpupipe.pipeline.schedule_parsing import Schedule
from helpers.config_texts import mistakes as config_mistakes
from helpers.odd_steps import installer
from helpers.pipeline_texts import build, mistakes

NUMBER = "a number: schedules change numbers, and nothing else"
EPOCHS = "whole numbers from 0 to 10000; epochs count from 0"
RULE = f"but should be [first, last], {EPOCHS}"
EARLY = "else it would end before it begins"


def wrong(schedule: str) -> list[str]:
    """The mistakes of a schedule in `resize: {size: SCHEDULE}`, with their columns."""
    return mistakes("decode", f"resize: {{size: {schedule}}}")


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (10, 20, [10, 10, 10, 12, 15, 18, 20, 20]),  # 12.5 and 17.5: halves to the even one
        (20, 10, [20, 20, 20, 18, 15, 12, 10, 10]),
        (10.0, 20, [10.0, 10.0, 10.0, 12.5, 15.0, 17.5, 20, 20]),
        (0.5, 0.1, [0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1]),
    ],
)
def test_linear(begin: float, end: float, expected: list[float]) -> None:
    numbers = [Schedule(begin, end, 2, 6).at(epoch) for epoch in range(8)]
    assert numbers == pytest.approx(expected)
    is_int = isinstance(begin, int) and isinstance(end, int)
    assert all(isinstance(n, int) == is_int for n in numbers[3:6])


def test_both_ends_of_a_ramp_are_the_numbers_as_they_are_written() -> None:
    ramp = Schedule(0.1, 0.3, 0, 3)
    assert (ramp.at(0), ramp.at(3), ramp.at(10_000)) == (0.1, 0.3, 0.3)


def test_a_chain_of_jumps_and_a_ramp() -> None:
    chain = Schedule(None, Schedule(8, Schedule(8, 12, 5, 7), 3, 4), 1, 2)
    assert [chain.at(epoch) for epoch in range(9)] == [None, None, 8, 8, 8, 8, 10, 12, 12]
    assert list(chain.epochs) == [2, 4, 6, 7]


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ("{form: 8, to: 9, epochs: [0, 2]}", "form: unknown key; did you mean 'from'?"),
        ("{from: 8, to: 9, epoch: [0, 2]}", "epoch: unknown key; did you mean 'epochs'?"),
        ("{value: 8, untill: 3, then: 9}", "untill: unknown key; did you mean 'until'?"),
        (
            "{value: 8, until: 3, then: 9, epochs: [1, 2]}",
            "epochs: unknown key; known: then, until, value",
        ),
        ("{from: 8, to: 9}", "epochs: missing; write 'epochs: ...' ([first, last], the epochs"),
        ("{to: 9, epochs: [0, 2]}", "from: missing; write 'from: ...'"),
        ("{value: 8, until: 3}", "then: missing; write 'then: ...'"),
        ("{from: 8, to: 9, epochs: [6, 2]}", f"epochs is [6, 2], but should be [first, last], the "
         f"first before the last: {EARLY}"),
        ("{from: 8, to: 9, epochs: [6, 6]}", "epochs is [6, 6], but should be [first, last], the "
         "first before the last; for a jump write {value: 8, until: 6, then: 9}"),
        ("{from: 8, to: 9, epochs: [-1, 6]}", f"epochs is [-1, 6], {RULE}"),
        ("{from: 8, to: 9, epochs: [0, 2.5]}", f"epochs is [0, 2.5], {RULE}"),
        ("{from: 8, to: 9, epochs: [true, 2]}", f"epochs is [true, 2], {RULE}"),
        ("{from: 8, to: 9, epochs: [0, 10001]}", f"epochs is [0, 10001], {RULE}"),
        ("{from: 8, to: 9, epochs: 5}", "epochs is 5, but should be [first, last], two epochs"),
        ("{from: 8, to: 9, epochs: [1, 2, 3]}", "epochs is [1, 2, 3], but should be [first, last]"),
        ("{from: small, to: 9, epochs: [0, 2]}", f"from is 'small', but should be {NUMBER}"),
        ("{from: 8, to: true, epochs: [0, 2]}", f"to is true, but should be {NUMBER}"),
        ("{from: 8, to: .inf, epochs: [0, 2]}", f"to is inf, but should be {NUMBER}"),
        ("{from: 8, to: [9, 9], epochs: [0, 2]}", f"to is [9, 9], but should be {NUMBER}"),
        ("{value: 8, until: 0, then: 9}", f"until is 0, but should be later than epoch 0, in which "
         f"this schedule begins: {EARLY}"),
        ("{value: 8, until: -3, then: 9}", f"until is -3, but should be an epoch: {EPOCHS}"),
        ("{value: 8, until: 1.5, then: 9}", f"until is 1.5, but should be an epoch: {EPOCHS}"),
        ("{value: null, until: 1, then: 9}", f"value is empty, but should be {NUMBER}"),
        ("{value: 8, until: 1, then: big}", f"then is 'big', but should be {NUMBER}"),
        ("{value: 8, until: 6, then: {value: 9, until: 6, then: 7}}", "then.until is 6, but should "
         f"be later than epoch 6, in which this schedule begins: {EARLY}"),
        ("{value: 8, until: 6, then: {from: 9, to: 7, epochs: [5, 9]}}", "then.epochs is [5, 9], "
         f"but should be epochs from 6 on, in which this schedule begins: {EARLY}"),
        ("{value: 8, until: 6, then: {from: 9, too: 7, epochs: [6, 9]}}", "then.too: unknown key; "
         "did you mean 'to'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(schedule: str, says: str) -> None:
    (problem,) = wrong(schedule)
    place, _, message = problem.partition(" ")
    assert message.startswith(f"resize.size.{says}")
    line, column, _ = place.split(":")
    assert line == "2"
    assert int(column) > len("- resize: {size: ")


def test_a_wrong_value_is_where_it_stands_and_an_unknown_key_where_the_key_does() -> None:
    (value,) = mistakes("decode", "resize: {size: {from: 8, to: 9, epochs: 3}}")
    assert value.startswith("2:43: resize.size.epochs is 3,")
    (key,) = mistakes("decode", "resize: {size: {form: 8, to: 9, epochs: [1, 2]}}")
    assert key.startswith("2:19: resize.size.form: unknown key")


def test_an_item_of_a_list_has_no_default() -> None:
    assert wrong("[{until: 3, then: 9}, 8]") == [
        "2:19: resize.size.0.value: missing; write 'value: ...' (the number until then)"
    ]


def test_nor_has_a_later_part_of_its_schedule() -> None:
    assert wrong("[{value: 8, until: 3, then: {until: 5, then: 9}}, 8]") == [
        "2:46: resize.size.0.then.value: missing; write 'value: ...' (the number until then)"
    ]


def test_the_last_epoch_that_a_schedule_may_name() -> None:
    scheduled = build("decode", "resize: {size: {value: 8, until: 10000, then: 9}}")
    assert list(scheduled.later) == [10_000]


def test_what_is_no_number_has_no_schedule() -> None:
    (problem, other) = mistakes(
        "decode", "resize: {size: 9, interpolation: {value: bilinear, until: 3, then: nearest}}"
    )
    assert f"resize.interpolation.value is 'bilinear', but should be {NUMBER}" in problem
    assert f"resize.interpolation.then is 'nearest', but should be {NUMBER}" in other
    (problem,) = mistakes(
        "decode", "resize: {size: 9, interpolation: {value: 1, until: 3, then: 2}}"
    )
    assert "resize.interpolation is 1, but should be 'nearest', 'bilinear'" in problem


def test_all_mistakes_are_reported_at_once() -> None:
    problems = mistakes(
        "decode",
        "resize: {size: {from: 8, to: 9, epochs: [6, 2]}}",
        "center_crop: {sise: 3}",
        "random_horizontal_flip: {p: {value: 0, until: 0, then: 1}}",
    )
    assert [p.split(" ")[1] for p in problems] == [
        "resize.size.epochs",
        "center_crop.sise:",
        "random_horizontal_flip.p.until",
    ]


def test_no_other_part_of_a_config_has_schedules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "data: {source: folder, root: /x}\npipeline: [decode]\n"
        "loader:\n  batch_size: {from: 8, to: 16, epochs: [0, 3]}\n"
    )
    assert config_mistakes(text) == [
        "4:15: loader.batch_size is a schedule, but only numbers in steps have schedules, under "
        "'pipeline:' and 'batch:': write one value"
    ]


def test_a_schedule_in_the_place_of_a_step_is_no_step() -> None:
    assert (
        "but should be '- name: {parameter: value}'"
        in mistakes("decode", "{from: 8, to: 16, epochs: [0, 3]}")[0]
    )


def test_a_text_that_cannot_be_resolved_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "data: {source: folder, root: /x}\n"
        "pipeline: [decode, {resize: {size: {from: '${no.such}', to: 16, epochs: [0, 3]}}}]\n"
    )
    (problem,) = config_mistakes(text)
    assert "pipeline.1.resize.size.from: " in problem


def test_a_step_may_have_a_parameter_that_is_called_like_a_key_of_schedules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = installer(tmp_path, monkeypatch)(
        num_uniforms="    to: int = 0\n    epochs: int = 0\n    num_uniforms = 1"
    )
    nested = f"random_apply: {{transforms: [{step}: {{to: 3, epochs: 5}}]}}"
    for built in (build("decode", f"{step}: {{to: 3, epochs: 5}}"), build("decode", nested)):
        assert not built.later
