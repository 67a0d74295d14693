"""What hints that data was not read as it was meant."""

from typing import Any

import pytest

from gpupipe.init.detected import TRAIN, Detected
from gpupipe.init.survey import Survey, iter_doubts

PETS = Survey(count=10, classes=["cat", "dog"], used_labels=[0, 1])


def doubts(survey: Survey, part: str = TRAIN, **options: Any) -> list[str]:
    return list(iter_doubts(part, Detected("file_list", options, notes=["a note"]), survey))


def test_usual_data_has_the_notes_and_doubts_of_what_looked_at_it() -> None:
    survey = Survey(10, ["cat", "dog"], used_labels=[0, 1], doubts=["one is gray"])
    assert doubts(survey) == ["a note", "one is gray"]


@pytest.mark.parametrize(
    ("survey", "words"),
    [
        (Survey(10, ["cat"], used_labels=[0]), "all samples are of one class, 'cat'"),
        (Survey(2, ["cat", "dog"], used_labels=[0, 1]), "as many classes as samples (2)"),
        (Survey(10, list("0123"), used_labels=[0, 3]), "no sample has the label 1, 2, though"),
    ],
)
def test_labels_that_are_strange_are_a_doubt_of_training_data_alone(
    survey: Survey, words: str
) -> None:
    (doubt,) = doubts(survey)[1:]
    assert words in doubt
    assert doubts(survey, part="val") == ["a note"]


def test_it_says_what_to_write_for_no_labels() -> None:
    one = Survey(10, ["cat"], used_labels=[0])
    assert "write 'label: null' under data" in doubts(one)[1]
    assert "leave out labels under data" in doubts(one, files="rows.npy")[1]


def test_without_labels_there_is_no_doubt_about_them() -> None:
    assert doubts(Survey(2, [], has_labels=False)) == ["a note"]
