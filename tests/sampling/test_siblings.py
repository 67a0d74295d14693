"""What is computed for several plans at once, and what each of them gets."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
from numpy.typing import NDArray

from gpupipe.sampling.siblings import Siblings

IDS = np.arange(10, 17)


def make_siblings() -> Siblings:
    return Siblings([IDS[:3], IDS[3:6], IDS[6:]])


def test_each_plan_gets_its_rows() -> None:
    siblings = make_siblings()
    assert [part.tolist() for part in siblings.split(siblings.ids)] == [
        [10, 11, 12],
        [13, 14, 15],
        [16],
    ]


def test_each_plan_gets_its_rows_of_every_part() -> None:
    siblings = make_siblings()
    views = np.stack([IDS, IDS + 100]).reshape(-1, 1)
    parts = siblings.split(views)
    assert [part[:, 0].tolist() for part in parts] == [
        [10, 11, 12, 110, 111, 112],
        [13, 14, 15, 113, 114, 115],
        [16, 116],
    ]
    assert all(part.flags.c_contiguous for part in parts)  # as the extension needs them


def test_results_are_computed_once_for_all_and_taken_once() -> None:
    siblings, calls = make_siblings(), []

    def compute(every: Siblings) -> list[int]:
        calls.append(every)
        return [len(ids) for ids in every.batches]

    owner = object()
    assert [siblings.take(n, owner, "", compute) for n in (2, 0, 2)] == [1, 3, None]
    assert calls == [siblings]
    assert siblings.take(2, owner, "other", compute) == 1
    assert siblings.take(2, object(), "", compute) == 1
    assert calls == [siblings] * 3


def test_no_plan_gets_anything_if_one_is_at_fault() -> None:
    siblings = make_siblings()

    def compute(every: Siblings) -> list[int]:
        raise ValueError(len(every.ids))

    assert [siblings.take(n, siblings, "", compute) for n in range(3)] == [None] * 3


def test_two_threads_that_compute_at_the_same_time_each_get_their_part() -> None:
    siblings, both = make_siblings(), Barrier(2)

    def compute(every: Siblings) -> list[NDArray[np.int64]]:
        both.wait(60)
        return [ids.copy() for ids in every.batches]

    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda n: siblings.take(n, siblings, "", compute), (0, 1)))
    assert [None if part is None else part.tolist() for part in parts] == [
        [10, 11, 12],
        [13, 14, 15],
    ]
