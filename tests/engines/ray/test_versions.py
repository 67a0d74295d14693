"""The versions on which pixels depend, and how those of two nodes differ."""

from __future__ import annotations

import torchvision

from gpupipe.engines.ray.versions import explain_difference, list_versions


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
