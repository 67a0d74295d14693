"""What an actor answers before it has an engine, and what depends on its node: errors and versions.

All of it runs in this process, without a cluster.
"""

import pickle

import pytest
import torchvision

from gpupipe.engines.ray.actor import (
    WorkerActor,
    add_node_name,
    explain_difference,
    get_node_name,
    list_versions,
)
from gpupipe.errors import EngineError, SampleError, ShapeError, StepError


def test_a_path_that_it_does_not_see_is_named_with_the_node() -> None:
    error = WorkerActor().build([], "cpu", "cpu", ("/", "/nowhere/at/all"))
    assert isinstance(error, EngineError)
    assert f"{get_node_name()} of the Ray cluster does not see /nowhere/at/all" in str(error)


def test_an_engine_that_cannot_be_built_is_an_error_with_the_traceback() -> None:
    error = WorkerActor().build([], "cpu", "cpu", ())  # a job is missing
    error = pickle.loads(pickle.dumps(error))
    assert isinstance(error, EngineError)
    assert "IndexError" in str(error) and "actor.py" in str(error) and get_node_name() in str(error)


def test_an_error_keeps_its_class_and_names_the_node() -> None:
    sample = pickle.loads(
        pickle.dumps(add_node_name(SampleError("/a.jpg", "cut off"), "n1 (10.0.0.1)"))
    )
    assert isinstance(sample, SampleError) and sample.path == "/a.jpg"
    assert str(sample).startswith("/a.jpg: cut off (on node n1 (10.0.0.1)); set")
    step = add_node_name(StepError("its torch raised x", "Traceback"), "n1")
    assert isinstance(step, StepError) and step.traceback == "Traceback" and "n1" in str(step)
    assert isinstance(add_node_name(ShapeError("differ"), "n1"), ShapeError)
    with pytest.raises(KeyError) as raised:
        {}["x"]
    other = add_node_name(raised.value, "n1")
    assert isinstance(other, EngineError)
    assert "n1" in str(other) and "KeyError" in str(other) and "test_actor.py" in str(other)


def test_the_versions_are_those_installed() -> None:
    versions = list_versions()
    assert versions.keys() == {"gpupipe", "DALI", "torchvision"}
    # Its own version may name the build, such as +cpu, which the package's may leave out.
    own = torchvision.__version__.partition("+")[0]
    assert versions["torchvision"].partition("+")[0] == own


def test_versions_that_differ_are_named_with_their_nodes() -> None:
    own = list_versions()
    assert explain_difference(own, "a", own, "b") == ""
    difference = explain_difference(own, "a", {**own, "DALI": "1.0"}, "b")
    assert difference == f"DALI is {own['DALI']} on a and 1.0 on b"


def test_a_package_that_a_node_lacks_is_a_difference() -> None:
    own = {"gpupipe": "1.0", "DALI": "2.0", "torchvision": "0.29"}
    difference = explain_difference(own, "a", {"gpupipe": "1.1", "torchvision": "0.29"}, "b")
    assert difference == "gpupipe is 1.0 on a and 1.1 on b; DALI is 2.0 on a and none on b"
