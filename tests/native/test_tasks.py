"""Tasks of the C++ extensions: a task before a kernel, several in a row, and what is no task."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from helpers.jpeg_kinds import as_data, encode
from helpers.kernel_arguments import target

jpeg = pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
kernels = pytest.importorskip("gpupipe._kernels", reason="the extension is not built")


def prepare_each(before: Any, image: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """Call each function with a task before it. Yields the task, and the target."""
    size = image.shape[:2]
    places = [target(*size, "uint8", True) for _ in range(3)]
    ends = [((place.numpy(), None, None), before) for place in places]
    resize = (*size, 0, 0, False, True, 0, 0)
    yield kernels.prepare_warp(image, (np.eye(2, 3), np.zeros(3)), *ends[0]), places[0]
    yield kernels.prepare_convert(image, (0, 0), *ends[1]), places[1]
    yield kernels.prepare_resize(image, resize, *ends[2]), places[2]


def test_a_task_runs_before_the_kernel() -> None:
    content = as_data(encode((40, 50), "420"))
    expected = np.empty((40, 50, 3), np.uint8)
    assert jpeg.decode(content, expected, 0, 0, 40, 50)
    image = np.zeros((40, 50, 3), np.uint8)
    for n in range(3):
        image[:] = 0
        before = jpeg.prepare(content, image, 0, 0, 40, 50)
        task, place = list(prepare_each(before, image))[n]
        assert not place.any(), "nothing is done before it runs"
        assert kernels.run([task]) == [True]
        assert np.array_equal(place.permute(1, 2, 0).numpy(), expected)


def test_nothing_is_written_if_the_task_before_fails() -> None:
    content = as_data(encode((40, 50), "420")[:300])
    image = np.ones((40, 50, 3), np.uint8)
    for task, place in prepare_each(jpeg.prepare(content, image, 0, 0, 40, 50), image):
        assert kernels.run([task]) == [False]
        assert not place.any()


def test_several_tasks_run_in_order_and_each_alone() -> None:
    """They share the memory of their pixels, and one in the middle is damaged."""
    contents = [as_data(encode((40, 50), "420", n)) for n in range(4)]
    shared = np.zeros((40, 50, 3), np.uint8)
    tasks, places = [], []
    for n, content in enumerate(contents):
        data = content[:300] if n == 2 else content
        decoding = jpeg.prepare(data, shared, 0, 0, 40, 50)
        task, place = list(prepare_each(decoding, shared))[n % 3]
        tasks.append(task)
        places.append(place)
    assert kernels.run(tuple(tasks)) == [True, True, False, True]
    for n in (0, 1, 3):
        expected = np.empty((40, 50, 3), np.uint8)
        assert jpeg.decode(contents[n], expected, 0, 0, 40, 50)
        assert np.array_equal(places[n].permute(1, 2, 0).numpy(), expected)
    assert not places[2].any()
    assert kernels.run([]) == []


def test_a_task_keeps_what_it_needs() -> None:
    content = encode((40, 50), "420")
    expected = np.empty((40, 50, 3), np.uint8)
    assert jpeg.decode(as_data(content), expected, 0, 0, 40, 50)
    pixels = np.zeros((40, 50, 3), np.uint8)
    decoding = jpeg.prepare(as_data(content), pixels, 0, 0, 40, 50)
    tasks, places = zip(*prepare_each(decoding, pixels), strict=True)
    del decoding, pixels
    gc.collect()
    assert kernels.run(tasks) == [True] * 3
    for place in places:
        assert np.array_equal(place.permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("tasks", [[object()], [None], 3])
def test_what_is_no_task_does_not_run(tasks: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"PyCapsule|not iterable"):
        kernels.run(tasks)


def test_what_is_no_task_cannot_run_before_one() -> None:
    image = np.ones((4, 5, 3), np.uint8)
    with pytest.raises(ValueError, match="PyCapsule"):
        next(prepare_each(object(), image))
    with pytest.raises(ValueError, match="window"):
        jpeg.prepare(b"", image, 0, 0, 5, 5)


def test_a_task_with_a_task_before_it_runs_before_none() -> None:
    """A chain of them would overflow the stack when it runs, and when it is freed."""
    image = np.ones((4, 5, 3), np.uint8)
    first, _ = next(prepare_each(None, image))
    for second, _ in prepare_each(first, image):
        assert kernels.run([second]) == [True]
        with pytest.raises(ValueError, match="has itself a task before it"):
            next(prepare_each(second, image))
