"""Errors of workers and of the cluster, in words; without a cluster."""

from __future__ import annotations

import pickle
import re
import sys

import pytest

from gpupipe.config import RayConfig
from gpupipe.engines import registry
from gpupipe.engines.ray.errors import explain_missing_paths, explain_no_room, name_node
from gpupipe.errors import EngineError, SampleError, ShapeError, StepError
from gpupipe.runtime.installation import install_command


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=re.escape(install_command("ray"))):
        registry.find("ray")


def test_an_error_keeps_its_class_and_names_the_node() -> None:
    sample = name_node(
        pickle.loads(pickle.dumps(SampleError("/a.jpg", "cut off"))), "n1 (10.0.0.1)"
    )
    assert isinstance(sample, SampleError) and sample.path == "/a.jpg"
    assert str(sample).startswith("/a.jpg: cut off (on node n1 (10.0.0.1)); set")
    step = name_node(StepError("its torch raised x", "Traceback"), "n1")
    assert isinstance(step, StepError) and step.traceback == "Traceback" and "n1" in str(step)
    assert isinstance(name_node(ShapeError("differ"), "n1"), ShapeError)
    other = name_node(EngineError("KeyError(1)"), "n1", trace="File x.py, line 3")
    assert isinstance(other, EngineError) and "n1" in str(other) and "x.py, line 3" in str(other)


def test_a_path_that_a_worker_does_not_see_is_named_with_the_node() -> None:
    message = explain_missing_paths("n1 (10.0.0.1)", ("/nowhere/at/all",))
    assert "n1 (10.0.0.1)" in message and "/nowhere/at/all" in message


def test_what_the_trainer_waits_for_is_said_with_numbers() -> None:
    nodes = [{"Resources": {"CPU": 4.0}}, {"Resources": {"CPU": 1.0}}]
    options = RayConfig(workers=3, cpus=2, wait=5)
    waits = explain_no_room(options, 3, 2, 1.0, nodes, gave_up=False)
    assert "1 of 3 workers, each with 2 CPUs" in waits
    assert "1 of the 5 CPUs on 2 nodes are free" in waits and "5 seconds" in waits
    gave_up = explain_no_room(options, 3, 2, 1.0, nodes, gave_up=True)
    assert "gave up after 5 seconds" in gave_up and "loader.ray.workers" in gave_up
