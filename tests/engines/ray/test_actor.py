"""What an actor answers before it has an engine; in this process, without a cluster."""

from __future__ import annotations

import pickle

from gpupipe.engines.ray.actor import WorkerActor


def test_paths_that_it_does_not_see_are_its_answer() -> None:
    answer = WorkerActor().build("key", [], "cpu", "cpu", ("/", "/nowhere/at/all"))
    assert answer.missing == ("/nowhere/at/all",)
    assert answer.engine == "" and answer.error is None


def test_an_engine_that_cannot_be_built_is_its_answer() -> None:
    answer = WorkerActor().build("key", [], "cpu", "cpu", ())  # a job is missing
    assert isinstance(answer.error, IndexError)
    assert isinstance(pickle.loads(pickle.dumps(answer)).error, IndexError)


def test_without_an_engine_there_is_nothing_to_discard_or_to_end() -> None:
    actor = WorkerActor()
    actor.discard(0, 0)
    actor.discard_before(1)
    actor.close()
