"""The stream of plans of a worker's engine, without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.errors import SampleError
from helpers.batch_makers import broken, maker, plan


def test_many_plans_at_once_are_answered_in_any_order_that_they_come(faces: Path) -> None:
    with maker(faces) as (ours, _):
        results = [ours.submit(plan(n, n + 1), (0, n)) for n in range(20)]
        for n, result in enumerate(results):
            made = result.result()
            assert made is not None and made.plan.ids.tolist() == [n, n + 1]


def test_a_sample_that_fails_costs_only_its_own_plan(tmp_path: Path, faces: Path) -> None:
    root = broken(tmp_path, faces)
    with maker(root) as (ours, job):
        results = [ours.submit(plan(n), (0, n)) for n in range(6)]
        for n, result in enumerate(results):
            if n == 2:
                with pytest.raises(SampleError) as error:
                    result.result()
                assert error.value.path == job.index.location(2)
            else:
                made = result.result()
                assert made is not None and made.batch is not None


def test_plans_of_an_ended_iteration_are_discarded(faces: Path) -> None:
    with maker(faces) as (ours, _):
        ours.discard_before(1)
        assert ours.submit(plan(0), (0, 0)).result() is None
        assert ours.submit(plan(0), (1, 0)).result() is not None
