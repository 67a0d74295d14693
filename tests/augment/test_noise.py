"""Numbers from seeds: their distribution, and that they are the same wherever they are made.

The displacements of elastic_transform are compared with torchvision's.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np
import pytest

from gpupipe.augment import noise
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError

FIRST, DIGEST = [-0.35166812, 2.69452143, 0.14600369], "14663766db23a8aa"
"""Of NumPy 2.2 to 2.5."""


def test_seeds_keep_all_bits_of_the_draws() -> None:
    u = np.array([0.0, 2.0**-53, 0.5, 1.0 - 2.0**-53])
    assert noise.draw_seeds(u).tolist() == [0, 1, 2**52, 2**53 - 1]


def test_the_field_of_a_seed_never_changes() -> None:
    """If NumPy changes its method, states that were saved before it resume with other noise."""
    field = noise.normal_field(2**53 - 1, (8, 5, 3))
    assert field.dtype == np.float32
    assert field[0, 0].tolist() == pytest.approx(FIRST, abs=1e-6)
    digest = hashlib.sha256(np.round(field * 1e4).astype("<i4").tobytes()).hexdigest()
    assert digest[:16] == DIGEST


def test_a_field_is_normally_distributed() -> None:
    """Moments, and the shares beyond 1, 2 and 3 standard deviations, to 5 standard errors."""
    field = noise.normal_field(3, (500, 400, 3)).astype(np.float64)
    error = field.size**-0.5
    assert abs(field.mean()) < 5 * error
    assert abs(field.var() - 1) < 5 * error * 2**0.5
    assert abs((field**3).mean()) < 5 * error * 15**0.5
    assert abs((field**4).mean() - 3) < 5 * error * 96**0.5
    for limit, share in ((1, 0.317311), (2, 0.045500), (3, 0.002700)):
        assert abs((np.abs(field) > limit).mean() - share) < 5 * error * share**0.5


def test_neighbours_and_seeds_have_nothing_in_common() -> None:
    first, second = (noise.normal_field(seed, (300, 300, 3)) for seed in (4, 5))
    pairs = [
        (first, second),
        (first[1:], first[:-1]),
        (first[:, 1:], first[:, :-1]),
        (first[..., 1:], first[..., :-1]),
    ]
    for a, b in pairs:
        assert abs(float((a * b).mean())) < 5 * a.size**-0.5


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


def test_the_size_must_be_known() -> None:
    assert noise.shape_of_pixels(Spec.of_image(3, 4, 5)) == (4, 5, 3)
    assert noise.shape_of_pixels(Spec.of_array("float32", (4, 5), "HW")) == (4, 5, 1)
    for shape in ((3, 4, None), (3, None, 5), (3, None, None), (None, 4, 5)):
        with pytest.raises(
            StepIncompatibleError, match="one size here: put it after random_resized"
        ):
            noise.shape_of_pixels(Spec.of_image(*shape))
