"""The random fields with which DALI is fed: those of every other engine, where they are needed."""

import numpy as np

from gpupipe.augment import noise
from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.engines.dali.operators import fields
from gpupipe.pipeline.step import Spec

SPEC = Spec.of_image(3, 20, 30)
PRESENT, SEEDS = np.array([True, False, True]), np.array([4, 5, 6])


def test_absent_samples_get_no_noise() -> None:
    for dtype, fed in (("uint8", "int16"), ("float32", "float32")):
        spec = Spec.of_image(3, 20, 30, dtype=dtype)
        made = fields.make_noise(spec, PRESENT, SEEDS, 0.1, 0.2)
        assert (made.shape, made.dtype) == ((3, 20, 30, 3), fed)
        assert not made[1].any()
        for n in (0, 2):
            expected = noise.make_noise(SEEDS[n], (20, 30, 3), dtype, 0.1, 0.2)
            assert np.array_equal(made[n], expected)


def test_noise_fills_windows_alone() -> None:
    anchor, shape = np.array([[1.0, 2.0], [0.0, 0.0], [5.0, 6.0]]), np.array([4.0, 7.0])
    made = fields.fill_windows(SPEC, PRESENT, SEEDS, anchor, shape)
    for n, (top, left) in ((0, (1, 2)), (2, (5, 6))):
        window = made[n, top : top + 4, left : left + 7]
        assert np.array_equal(window, noise.normal_field(SEEDS[n], (4, 7, 3)))
        assert np.count_nonzero(made[n]) == window.size
    assert not made[1].any()


def test_displacements_are_those_of_each_seed() -> None:
    elastic = Elastic((9.0, 8.0), (1.0, 2.0))
    made = fields.make_displacements(SPEC, PRESENT, SEEDS, elastic)
    assert not made[1].any()
    for n in (0, 2):
        assert np.array_equal(made[n], make_displacement(SEEDS[n], (20, 30), elastic))
