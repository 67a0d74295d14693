"""Fields of noise: the same wherever they are made, in units of the dtype, and in threads."""

import threading

import numpy as np
import pytest

from gpupipe.augment import noise
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import NoLoweringError


def test_seeds_keep_all_bits_of_the_draws() -> None:
    u = np.array([0.0, 2.0**-53, 0.5, 1.0 - 2.0**-53])
    assert noise.draw_seeds(u).tolist() == [0, 1, 2**52, 2**53 - 1]


@pytest.mark.parametrize("shape", [(8, 5, 3), (40, 33, 1), (5,)])
def test_fields_are_the_same_with_and_without_the_extension(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = noise.normal_field, noise.uniform_field
    made = [make(7, shape) for make in makers]
    monkeypatch.setattr(noise, "find_kernels", lambda: None)
    for make, field in zip(makers, made, strict=True):
        assert (field.dtype, field.shape) == (np.float32, shape)
        assert np.array_equal(field, make(7, shape))


@pytest.mark.parametrize(("dtype", "unit"), [("uint8", 255), ("float32", 1)])
def test_noise_is_in_units_of_the_range(dtype: str, unit: int) -> None:
    made = noise.make_noise(3, (9, 5, 3), dtype, 0.1, 0.2)
    expected = (noise.normal_field(3, (9, 5, 3)) * 0.2 + 0.1) * unit
    assert made.dtype == ("int16" if dtype == "uint8" else "float32")
    assert np.abs(made - (np.trunc(expected) if unit > 1 else expected)).max() < 1e-6


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_noise_of_any_size_is_finite(dtype: str) -> None:
    """And no warning comes of a number that no float32 holds."""
    for mean, sigma in ((1e300, 1e300), (-1e300, 0.0), (1e38, 1e38)):
        made = noise.make_noise(3, (9, 5, 3), dtype, mean, sigma)
        assert np.isfinite(made).all()
        assert np.abs(made).max() >= 255


def test_only_samples_that_are_present_get_a_field() -> None:
    made = []

    def make(n: int) -> np.ndarray:
        made.append(n)
        return noise.normal_field(n, (4, 6, 3))

    present = np.array([False, True, False, True, True])
    fields = noise.stack_fields(make, present, (4, 6, 3))
    assert sorted(made) == [1, 3, 4]
    assert (fields.shape, fields.dtype) == ((5, 4, 6, 3), np.float32)
    for n in range(5):
        expected = noise.normal_field(n, (4, 6, 3)) if present[n] else np.zeros((4, 6, 3))
        assert np.array_equal(fields[n], expected)


def test_without_any_sample_nothing_is_made() -> None:
    def make(n: int) -> np.ndarray:
        raise AssertionError(n)

    fields = noise.stack_fields(make, np.zeros(2, bool), (4, 6, 3), "int16")
    assert (fields.shape, fields.dtype) == ((2, 4, 6, 3), np.int16)
    assert not fields.any()


def test_fields_are_made_in_threads_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "cores_of_rank", lambda: 2)
    before = threading.active_count()
    meeting = threading.Barrier(2, timeout=60)

    def make(n: int) -> np.ndarray:
        meeting.wait()  # fails if the two do not run at the same time
        return np.full((1, 1, 1), n + 1, np.float32)

    assert noise.stack_fields(make, np.ones(2, bool), (1, 1, 1)).ravel().tolist() == [1, 2]
    assert threading.active_count() == before


def test_an_error_in_a_thread_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        noise.stack_fields(lambda n: np.full(1, 1 // (3 - n)), np.ones(5, bool), (1,))


def test_dali_must_know_the_size() -> None:
    assert noise.shape_of_pixels(Spec.of_image(3, 4, 5)) == (4, 5, 3)
    assert noise.shape_of_pixels(Spec.of_array("float32", (4, 5), "HW")) == (4, 5, 1)
    for shape in ((3, 4, None), (3, None, 5), (3, None, None), (None, 4, 5)):
        with pytest.raises(NoLoweringError, match="one size: put it after random_resized"):
            noise.shape_of_pixels(Spec.of_image(*shape))
