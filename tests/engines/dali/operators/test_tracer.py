"""The primitive switch in DALI: samples take different branches of one graph."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn

from gpupipe.dataset.spec import Spec
from gpupipe.engines.dali.operators.array import ArrayTracer
from gpupipe.engines.dali.operators.dtypes import dali_type
from helpers.dali_nodes import graph_of

Branch = Callable[[Any], None]
SIZES = [(6, 8), (5, 5), (9, 4), (3, 7), (8, 8), (4, 6), (7, 7)]


def images(dtype: str = "uint8", channels: int = 3) -> list[np.ndarray[Any, Any]]:
    """Images of sizes that differ, each of its own number."""
    return [np.full((*size, channels), n + 1, dtype) for n, size in enumerate(SIZES)]


def run_pipeline(
    work: Callable[[Any], None], samples: Sequence[np.ndarray[Any, Any]]
) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Return what primitives make of a batch in DALI, and the sizes that the image says."""

    def feed(array: np.ndarray[Any, Any]) -> Any:
        return fn.external_source(
            lambda: list(array), batch=True, dtype=dali_type(str(array.dtype)), ndim=array.ndim - 1
        )

    size = np.array([sample.shape[:2] for sample in samples], np.float64)
    dtype, channels = str(samples[0].dtype), samples[0].shape[-1]
    with Pipeline(
        len(samples), 1, None, exec_pipelined=False, exec_async=False
    ) as pipe:  # python_function needs it
        data = fn.external_source(
            lambda: list(samples), batch=True, dtype=dali_type(dtype), ndim=3, layout="HWC"
        )
        spec = Spec.of_array(dtype, (None, None, channels), "HWC")
        image = ArrayTracer(size, "cpu", spec)
        work(image)
        pipe.set_outputs(graph_of(image, data, feed))
    pipe.build()
    (made,) = pipe.run()
    return [np.array(sample) for sample in made], np.broadcast_to(image.size, size.shape)


class Seen:
    """Records the samples of each batch that an operator sees."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, image: Any) -> None:
        def look(batch: list[Any]) -> list[Any]:
            self.batches.append([int(np.array(sample)[0, 0, 0]) for sample in batch])
            return batch

        image.apply(
            "python_function",
            lambda pixels: fn.python_function(
                pixels, function=look, batch_processing=True, output_layouts="HWC"
            ),
        )


def same(image: Any) -> None:
    """Call no primitive."""


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_an_operator_sees_the_samples_of_its_branch_alone(count: int) -> None:
    seen = [Seen() for _ in range(count)]
    index = np.array([1, 0, 1, 0, 1, 1, 0])
    made, _ = run_pipeline(lambda image: image.switch(index, seen), images())
    assert seen[0].batches == [[2, 4, 7]]
    assert seen[1].batches == [[1, 3, 5, 6]]
    assert all(not any(batch) for other in seen[2:] for batch in other.batches)
    for sample, given in zip(made, images(), strict=True):
        assert (sample == given).all()


@pytest.mark.parametrize("branch", [0, 1])
def test_all_samples_may_take_one_branch(branch: int) -> None:
    seen = [Seen(), Seen()]
    run_pipeline(lambda image: image.switch(np.full(7, branch), seen), images())
    assert seen[branch].batches == [[1, 2, 3, 4, 5, 6, 7]]
    assert not any(map(any, seen[1 - branch].batches))


def crop(image: Any, anchor: Any, shape: Any, fill: Any = None) -> None:
    image.crop(anchor, shape, fill)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "bool"])
def test_arguments_go_to_their_samples(dtype: str) -> None:
    """Arguments are of the whole batch; each branch gets its part."""
    index = np.array([2, 0, 1, 2, 0, 1, 1])
    shapes = np.arange(14).reshape(7, 2) % 3 + 1.0
    branches = [
        same,
        partial(crop, anchor=np.zeros((7, 2)), shape=shapes),
        partial(crop, anchor=np.array([-1.0, -2.0]), shape=np.array([9.0, 9.0]), fill=(0.0,)),
    ]
    given = images(dtype)
    made, size = run_pipeline(lambda image: image.switch(index, branches), given)
    for n, sample in enumerate(made):
        expected = given[n]
        if index[n] == 1:
            height, width = shapes[n].astype(int)
            expected = expected[:height, :width]
        elif index[n] == 2:
            expected = np.zeros((9, 9, 3), dtype)
            height, width = min(8, SIZES[n][0]), min(7, SIZES[n][1])
            expected[1 : height + 1, 2 : width + 2] = given[n][:height, :width]
        assert sample.dtype == dtype
        assert np.array_equal(sample, expected)
        assert tuple(size[n]) == expected.shape[:2]


def test_sizes_are_known_after_it() -> None:
    """A window at the end of each image: what follows a switch is given the merged sizes."""

    def work(image: Any) -> None:
        image.switch(
            np.array([0, 1, 0, 1, 0, 1, 0]),
            [same, partial(crop, anchor=np.array([1.0, 1.0]), shape=np.array([2.0, 3.0]))],
        )
        assert image.size.tolist() == [
            [2, 3] if n % 2 else list(size) for n, size in enumerate(SIZES)
        ]
        image.crop(image.size - 1.0, np.array([1.0, 1.0]))

    made, size = run_pipeline(work, images())
    assert [sample.shape for sample in made] == [(1, 1, 3)] * 7
    assert size.tolist() == [[1, 1]] * 7


def test_one_size_of_all_branches_stays_one() -> None:
    """So that later operators get it as a plain number."""
    window = np.array([2.0, 3.0])

    def work(image: Any) -> None:
        image.switch(
            np.arange(7) % 2,
            [partial(crop, anchor=np.full(2, float(n)), shape=window) for n in range(2)],
        )
        assert image.size.shape == (2,)

    run_pipeline(work, images())


def test_switches_may_be_nested_and_follow_each_other() -> None:
    inner, outer, after = Seen(), Seen(), Seen()
    first, second = np.array([1, 1, 0, 1, 0, 1, 1]), np.array([1, 0, 1, 1, 0, 0, 1])

    def both(image: Any) -> None:
        outer(image)
        image.switch(second, [same, inner])

    def work(image: Any) -> None:
        image.switch(first, [same, both])
        image.switch(second, [after, same])

    made, _ = run_pipeline(work, images())
    assert outer.batches == [[1, 2, 4, 6, 7]]
    assert inner.batches == [[1, 4, 7]], "those of which both are 1"
    assert after.batches == [[2, 5, 6]]
    assert [sample[0, 0, 0] for sample in made] == [1, 2, 3, 4, 5, 6, 7]


def test_a_window_outside_is_an_error_of_its_branch_alone() -> None:
    """Samples that do not take the branch are not looked at."""
    from gpupipe.pipeline.step import SampleIncompatibleError

    def arguments(index: list[int]) -> None:
        size = np.array([[4.0, 4.0], [9.0, 9.0]])
        spec = Spec.of_array("uint8", (None, None, 3), "HWC")
        image = ArrayTracer(size, "cpu", spec)
        image.switch(
            np.array(index), [same, partial(crop, anchor=np.zeros(2), shape=np.full(2, 6.0))]
        )

    arguments([0, 1])
    with pytest.raises(
        SampleIncompatibleError, match=r"at least 6x6 pixels, but the image has 4x4"
    ):
        arguments([1, 0])


def test_the_graph_of_a_switch_is_fed_its_splits_and_the_arguments_of_all_branches() -> None:
    index = np.array([3, 0, 1, 2, 0, 1, 1])
    branches = [
        partial(crop, anchor=np.zeros((7, 2)), shape=np.full((7, 2), n + 1.0)) for n in range(4)
    ]
    image = ArrayTracer(
        np.array(SIZES, np.float64), "cpu", Spec.of_array("uint8", (None, None, 3), "HWC")
    )
    image.switch(index, branches)
    graph = image.subgraph()
    fed = [(str(array.dtype), array.shape) for array in graph.arrays]
    windows = [("int32", (7, 2))] * 4
    assert fed == [("bool", (7,)), *[("bool", (7,)), *windows] * 2], "three splits, four windows"
    with Pipeline(7, 1, None):
        nodes = [
            fn.external_source(dtype=dali_type(str(a.dtype)), ndim=a.ndim - 1) for a in graph.arrays
        ]
        rest = iter([*nodes, "not taken"])
        graph.add_to(fn.external_source(dtype=dali_type("uint8"), ndim=3, layout="HWC"), rest)
    assert list(rest) == ["not taken"]
