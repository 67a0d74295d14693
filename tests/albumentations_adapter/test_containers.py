from typing import Any

import albumentations as A
import pytest

from gpupipe.albumentations_adapter.containers import CHOICES

PAIR = [A.InvertImg(p=0.2), A.Transpose(p=0.6)]


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (A.OneOf(PAIR), (0.4, "random_choice", [0.25, 0.75])),
        (A.OneOrOther(*PAIR, p=0.3), (1.0, "random_choice", [0.3, 0.7])),
        (A.SomeOf(PAIR, n=1), (0.4, "random_choice", None)),
        (A.SomeOf(PAIR, n=2), None),
        (A.SomeOf(PAIR, n=1, replace=True), None),
        (A.RandomOrder(PAIR, n=2), (0.4, "random_order", None)),
        (A.RandomOrder(PAIR, n=1), (0.4, "random_choice", None)),
    ],
    ids=[f"{number}" for number in range(7)],
)
def test_a_container_has_the_step_that_draws_alike(container: Any, expected: Any) -> None:
    choice = CHOICES[type(container).__name__](container, 0.4)
    assert (choice is None) == (expected is None)
    if choice is not None:
        assert choice[:2] == expected[:2]
        assert choice[2] == (None if expected[2] is None else pytest.approx(expected[2]))
