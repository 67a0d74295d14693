"""The random fields with which DALI is fed: those of every other engine, where they are needed."""

import threading
from typing import Any

import numpy as np
import pytest

from gpupipe.augment import noise
from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.engines.dali.operators import fields
from gpupipe.pipeline.step import NoLoweringError, Spec

SPEC = Spec.of_image(3)
SIZES = [(20, 30), (8, 9), (17, 12)]
SIZE, PRESENT, SEEDS = np.array(SIZES, float), np.array([True, False, True]), np.array([4, 5, 6])


@pytest.mark.parametrize(("dtype", "fed"), [("uint8", "int16"), ("float32", "float32")])
def test_each_image_gets_noise_of_its_own_size_and_absent_samples_get_none(
    dtype: str, fed: str
) -> None:
    spec = Spec.of_image(3, dtype=dtype)
    deferred = fields.make_noise(spec, SIZE, PRESENT, SEEDS, 0.1, 0.2)
    made = deferred.make()
    assert {array.dtype for array in made} == {deferred.dtype} == {np.dtype(fed)}
    assert {array.ndim + 1 for array in made} == {deferred.ndim} == {4}
    assert made[1].tolist() == [[[0]]]
    for n in (0, 2):
        expected = noise.make_noise(SEEDS[n], (*SIZES[n], 3), dtype, 0.1, 0.2)
        assert np.array_equal(made[n], expected)


def test_one_size_is_that_of_each_image() -> None:
    made = fields.make_noise(SPEC, SIZE[0], PRESENT, SEEDS, 0.1, 0.2).make()
    assert [array.shape for array in made] == [(20, 30, 3), (1, 1, 1), (20, 30, 3)]


def test_noise_fills_windows_alone() -> None:
    anchor, shape = np.array([[1.0, 2.0], [0.0, 0.0], [5.0, 3.0]]), np.array([4.0, 7.0])
    made = fields.fill_windows(SPEC, SIZE, PRESENT, SEEDS, anchor, shape).make()
    for n, (top, left) in ((0, (1, 2)), (2, (5, 3))):
        window = made[n][top : top + 4, left : left + 7]
        assert made[n].shape == (*SIZES[n], 3)
        assert np.array_equal(window, noise.normal_field(SEEDS[n], (4, 7, 3)))
        assert np.count_nonzero(made[n]) == window.size
    assert not made[1].any()


def test_displacements_are_those_of_each_seed() -> None:
    elastic = Elastic((9.0, 8.0), (1.0, 2.0))
    made = fields.make_displacements(SIZE, PRESENT, SEEDS, elastic).make()
    assert not made[1].any()
    for n in (0, 2):
        assert np.array_equal(made[n], make_displacement(SEEDS[n], SIZES[n], elastic))


def test_the_number_of_channels_must_be_known() -> None:
    spec = Spec.of_array("float32", (None, None, None), "CHW")
    with pytest.raises(NoLoweringError, match="the number of channels differs between samples"):
        fields.fill_windows(spec, SIZE, PRESENT, SEEDS, SIZE * 0, SIZE)
    gray = Spec.of_array("float32", (None, None), "HW")
    made = fields.make_noise(gray, SIZE, PRESENT, SEEDS, 0.1, 0.2).make()
    assert made[0].shape == (20, 30, 1)


def test_fields_are_made_in_threads_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "cores_of_rank", lambda: 2)
    before = threading.active_count()
    meeting = threading.Barrier(2, timeout=60)

    def make(*_: Any) -> np.ndarray:
        meeting.wait()  # fails if the two do not run at the same time
        return np.ones((1, 1, 1), np.float32)

    monkeypatch.setattr(noise, "make_noise", make)
    made = fields.make_noise(SPEC, SIZE, PRESENT, SEEDS, 0.1, 0.2).make()
    assert [float(array[0, 0, 0]) for array in made] == [1, 0, 1]
    assert threading.active_count() == before


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(seed: int, *_: Any) -> np.ndarray:
        return np.full((1, 1, 1), 1 // (6 - int(seed)))

    monkeypatch.setattr(noise, "make_noise", fail)
    with pytest.raises(ZeroDivisionError):
        fields.make_noise(SPEC, SIZE, PRESENT, SEEDS, 0.1, 0.2).make()
