"""Subgraphs of subgraphs: each operator gets its own arguments."""

from typing import Any

import numpy as np

from gpupipe.engines.dali.operators.subgraph import Emitted, Subgraph, blend, join, switch


def calling(name: str, *arguments: Any) -> Subgraph:
    """An operator on texts in place of pixels, which notes what it is called with."""

    def make(pixels: Any, *nodes: Any) -> str:
        return f"{name}({', '.join(map(str, (pixels, *nodes)))})"

    return Subgraph(make, arguments, (Emitted(name, "cpu", (f"step {name}",)),))


FIRST, SECOND = np.array([1, 2]), np.array([3, 4])


def test_arrays_are_fed_and_other_arguments_are_passed_as_they_are() -> None:
    graph = calling("crop", FIRST, None, [2, 2])
    assert [array.tolist() for array in graph.arrays] == [[1, 2]]
    assert graph.add_to("x", iter(["anchor"])) == "crop(x, anchor, None, [2, 2])"


def test_parts_that_are_joined_follow_one_another() -> None:
    graph = join([calling("a", FIRST), calling("b", 7), calling("c", SECOND)])
    assert [array.tolist() for array in graph.arrays] == [[1, 2], [3, 4]]
    assert graph.add_to("x", iter(["m", "n"])) == "c(b(a(x, m), 7), n)"
    assert [emitted.op for emitted in graph.emitted] == ["a", "b", "c"]
    assert join([]).add_to("x", iter(())) == "x"


def test_parts_that_are_blended_begin_with_the_same_pixels() -> None:
    graph = blend([calling("a", FIRST), join([])], calling("sum", SECOND))
    assert graph.add_to("x", iter(["m", "weights"])) == "sum(['a(x, m)', 'x'], weights)"
    assert [emitted.op for emitted in graph.emitted] == ["a", "sum"]


def test_a_switch_is_fed_who_takes_the_lower_branches_before_their_arguments() -> None:
    index = np.array([0, 2, 1])
    graph = switch(index, [calling("a", FIRST), join([]), calling("c", SECOND)])
    assert [array.tolist() for array in graph.arrays] == [
        [True, False, False],
        [1, 2],
        [True, False, True],
        [3, 4],
    ]
    assert [emitted.op for emitted in graph.emitted] == ["a", "c"]
    assert switch(index, [graph]) is graph
