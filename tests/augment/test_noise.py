"""Fields of noise: the same wherever they are made, in units of the dtype."""

import numpy as np
import pytest

from gpupipe.augment import noise


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
