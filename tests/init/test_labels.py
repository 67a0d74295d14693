"""Which column of a table holds the labels."""

from __future__ import annotations

import pytest

from gpupipe.init.labels import choose_label, find_label_name, holds_parts

PATHS = [f"{n}.jpg" for n in range(8)]
PETS = ["cat", "dog"] * 4


def table(**columns: list[str]) -> dict[str, list[str]]:
    return {"path": PATHS, **columns}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["id", "Label"], "Label"),
        (["class_id", "label"], "label"),
        (["target", "y"], "target"),
        (["breed", "id"], None),
        ([], None),
    ],
)
def test_names_of_labels(names: list[str], expected: str | None) -> None:
    assert find_label_name(names) == expected


def test_a_column_that_is_called_labels_is_taken_without_a_note() -> None:
    choice = choose_label(table(label=PETS, breed=PETS), "path")
    assert (choice.label, choice.values, choice.notes, choice.fault) == ("label", [], [], "")


def test_a_column_of_few_values_is_taken_and_that_is_said() -> None:
    choice = choose_label(table(breed=PETS, name=[f"rex{n}" for n in range(8)]), "path")
    assert choice.label == "breed"
    assert "'breed' is taken for the labels, since it has few values (cat, dog)" in choice.notes[0]
    both = choose_label(table(breed=PETS, color=["red", "black"] * 4), "path")
    assert (both.label, both.notes[0].endswith("so has color.")) == ("breed", True)


def test_texts_are_taken_before_numbers_and_several_numbers_are_not() -> None:
    numbers = ["0", "1"] * 4
    assert choose_label(table(count=numbers, breed=PETS), "path").label == "breed"
    assert choose_label(table(count=numbers), "path").label == "count"
    assert choose_label(table(count=numbers, weight=numbers), "path").label is None


def test_numbers_that_are_no_classes_are_values() -> None:
    choice = choose_label(table(label=[f"{n}.5" for n in range(8)]), "path")
    assert (choice.label, choice.values) == (None, ["label"])
    assert "holds numbers that are no classes" in choice.notes[0]


def test_captions_are_not_labels() -> None:
    captions = [f"a photo of animal {n}" for n in range(8)]
    for name in ("label", "text"):
        choice = choose_label(table(**{name: captions}), "path")
        assert choice.label is None
        assert f"'{name}' has 8 different texts in 8 rows, as captions have" in choice.notes[0]


def test_without_a_likely_column_there_are_no_labels() -> None:
    choice = choose_label(table(weight=[f"{n}.25" for n in range(8)]), "path")
    assert choice.label is None
    assert "no column looks like labels" in choice.notes[0]
    assert "values: [weight]" in choice.notes[0]


@pytest.mark.parametrize(
    ("texts", "expected"), [(["Train", "val"] * 4, True), (["cat", "train"], False), ([], False)]
)
def test_parts_are_no_labels(texts: list[str], expected: bool) -> None:
    assert holds_parts(texts) is expected
    if expected:
        assert choose_label(table(split=texts), "path").label is None
