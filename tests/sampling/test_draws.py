"""Draws: pure functions of what they belong to, and distributions computed from them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.sampling import draws
from gpupipe.sampling.draws import Choice, Distribution, Flip, Normal, Uniform, Vector

MANY = np.arange(100_000, dtype=np.int64)
STREAM = draws.stream("random_affine")
WORDS = st.integers(0, 2**63 - 1)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]))


def expected_correlation(count: int) -> float:
    """Five standard deviations of the correlation of independent numbers."""
    return float(5 / np.sqrt(count))


@given(
    seed=WORDS,
    epoch=st.integers(0, 2**40),
    ids=st.lists(WORDS, max_size=20),
    stream=st.integers(0, 2**64 - 1),
    num_uniforms=st.integers(0, 8),
)
def test_range_shape_and_type(
    seed: int, epoch: int, ids: list[int], stream: int, num_uniforms: int
) -> None:
    u = draws.uniform(seed, epoch, np.array(ids, np.int64), stream, num_uniforms)
    assert u.shape == (len(ids), num_uniforms)
    assert u.dtype == np.float64
    assert ((u >= 0) & (u < 1)).all()


def test_fifty_three_bits_and_never_one() -> None:
    u = draws.uniform(0, 0, MANY, STREAM, 4)
    whole = u * 2.0**53
    assert (whole == np.floor(whole)).all()
    assert 0.45 < (whole % 2).mean() < 0.55, "the last of the 53 bits is used"
    ones = np.full((1, 1), 0xFFFFFFFFFFFFFFFF, np.uint64)
    assert float((ones >> np.uint64(11)).astype(np.float64)[0, 0] * 2.0**-53) < 1.0


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("epoch", [0, 1, 1000])
def test_uniform(seed: int, epoch: int) -> None:
    u = draws.uniform(seed, epoch, MANY, STREAM, 3)
    deviations = 5 / np.sqrt(len(u))
    assert np.abs(u.mean(0) - 1 / 2).max() < deviations * np.sqrt(1 / 12)
    assert np.abs(u.var(0) - 1 / 12).max() < deviations * np.sqrt(1 / 180)
    for lane in u.T:
        counts = np.histogram(lane, 100, (0, 1))[0]
        chi_square = ((counts - 1000) ** 2 / 1000).sum()
        assert 45 < chi_square < 180, "99 degrees of freedom: 99 +- 14"


def test_lanes_and_neighbouring_samples_are_independent() -> None:
    u = draws.uniform(7, 0, MANY, STREAM, 8)
    limit = expected_correlation(len(u))
    off_diagonal = np.corrcoef(u.T) - np.eye(8)
    assert np.abs(off_diagonal).max() < limit
    for distance in (1, 2, 64, 256):
        assert correlation(u[:-distance], u[distance:]) < expected_correlation(u[distance:].size)
    assert correlation(u[:-1, 1:], u[1:, :-1]) < expected_correlation(u[1:, 1:].size), (
        "nor along the diagonal"
    )


@pytest.mark.parametrize(("one", "other"), [
    ((0, 0, STREAM), (1, 0, STREAM)),
    ((0, 0, STREAM), (0, 1, STREAM)),
    ((0, 1, STREAM), (1, 0, STREAM)),
    ((5, 7, STREAM), (7, 5, STREAM)),
    ((0, 0, STREAM), (0, 0, draws.stream("random_affine_2"))),
    ((0, 0, STREAM), (0, 0, STREAM + 1)),
    ((2**62, 0, STREAM), (2**62 + 1, 0, STREAM)),
], ids=str)  # fmt: skip
def test_seeds_epochs_and_streams_are_independent(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    a, b = (draws.uniform(seed, epoch, MANY, stream, 2) for seed, epoch, stream in (one, other))
    assert correlation(a, b) < expected_correlation(a.size)
    assert len(np.intersect1d(a, b)) == 0


def test_no_two_samples_share_a_draw() -> None:
    u = draws.uniform(3, 4, MANY, STREAM, 6)
    assert len(np.unique(u)) == u.size


@given(st.lists(WORDS, min_size=1, max_size=30), st.data())
def test_a_row_depends_on_its_own_id_only(ids: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(len(ids))), max_size=40))
    whole = draws.uniform(1, 2, np.array(ids, np.int64), STREAM, 5)
    part = draws.uniform(1, 2, np.array(ids, np.int64)[chosen], STREAM, 5)
    assert (part == whole[chosen]).all()


def test_the_first_lanes_do_not_depend_on_how_many_follow() -> None:
    few, many = (draws.uniform(1, 2, MANY[:100], STREAM, num_uniforms) for num_uniforms in (2, 9))
    assert (few == many[:, :2]).all()


def test_numpy_integers_are_as_good_as_pythons() -> None:
    ids = np.arange(3, dtype=np.int64)
    own = draws.uniform(np.int64(605), np.int64(606), ids, STREAM, 2)  # keys are cached: first
    assert (own == draws.uniform(605, 606, ids, STREAM, 2)).all()


@given(seed=WORDS, epoch=st.integers(0, 2**40), count=st.integers(0, 500))
@settings(max_examples=50)
def test_a_permutation_holds_every_id_once(seed: int, epoch: int, count: int) -> None:
    order = draws.permutation(seed, epoch, count)
    assert order.dtype == np.int64
    assert (np.sort(order) == np.arange(count)).all()


def test_permutations_are_uniform() -> None:
    """Where each of 20 ids comes, over 2,000 epochs: 20 x 20 counts of 100 in expectation."""
    orders = np.stack([draws.permutation(11, epoch, 20) for epoch in range(2000)])
    counts = np.stack([np.bincount(place, minlength=20) for place in orders.T])
    for table in (counts, counts.T):
        assert (((table - 100) ** 2 / 100).sum(1) < 60).all(), "19 degrees of freedom: 19 +- 6"
    assert 250 < ((counts - 100) ** 2 / 100).sum() < 475, "361 degrees of freedom: 361 +- 27"
    neighbours = (np.diff(orders) == 1).mean()
    assert abs(neighbours - 1 / 20) < 0.006, "an id follows its predecessor as chance has it"


def test_permutations_of_neighbouring_seeds_and_epochs_are_unrelated() -> None:
    base = draws.permutation(0, 0, 10_000)
    for seed, epoch in ((1, 0), (0, 1), (1, 1), (2, 0), (0, 2)):
        other = draws.permutation(seed, epoch, 10_000)
        assert correlation(base.astype(float), other.astype(float)) < expected_correlation(10_000)
        assert (base == other).sum() < 12


def by_hand(seed: int, epoch: int, stream: int, sample: int, lane: int) -> int:
    """The 64 bits of one draw, in Python's own integers: what the head of sampling/draws.py
    describes.
    """
    word, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & word
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & word
        return x ^ (x >> 31)

    key = 0
    for part in (seed, epoch, stream):
        key = mix((key + golden + part) & word)
    of_sample = mix((sample * golden + key) & word)
    return mix((of_sample + lane * golden + key) & word)


@given(
    seed=WORDS,
    epoch=st.integers(0, 2**40),
    stream=st.integers(0, 2**64 - 1),
    sample=WORDS,
    lane=st.integers(0, 25),
)
def test_draws_are_what_the_formula_says(
    seed: int, epoch: int, stream: int, sample: int, lane: int
) -> None:
    u = draws.uniform(seed, epoch, np.array([sample], np.int64), stream, lane + 1)
    assert u[0, lane] == (by_hand(seed, epoch, stream, sample, lane) >> 11) / 2**53


@given(seed=WORDS, epoch=st.integers(0, 2**40), count=st.integers(0, 60))
def test_the_order_is_that_of_the_first_draws(seed: int, epoch: int, count: int) -> None:
    keys = [by_hand(seed, epoch, draws.stream("order"), i, 0) for i in range(count)]
    order = draws.permutation(seed, epoch, count)
    assert order.tolist() == sorted(range(count), key=keys.__getitem__)


@given(
    seed=WORDS,
    epoch=st.integers(0, 2**40),
    samples=st.lists(st.tuples(WORDS, st.integers(0, 999)), max_size=20),
)
def test_repeat_0_has_the_draws_of_no_repeats(
    seed: int, epoch: int, samples: list[tuple[int, int]]
) -> None:
    ids, repeats = np.array(samples, np.int64).reshape(-1, 2).T
    plain = draws.uniform(seed, epoch, ids, STREAM, 3)
    repeated = draws.uniform(seed, epoch, ids, STREAM, 3, repeats)
    assert (repeated[repeats == 0] == plain[repeats == 0]).all()
    assert (repeated[repeats > 0] != plain[repeats > 0]).all()
    assert (draws.uniform(seed, epoch, ids, STREAM, 3, np.zeros_like(ids)) == plain).all()


def test_repeats_are_independent() -> None:
    ids, repeats = np.repeat(MANY[:25_000], 4), np.tile(np.arange(4), 25_000)
    u = draws.uniform(7, 0, ids, STREAM, 2, repeats)
    assert len(np.unique(u)) == u.size, "no two repeats share a draw"
    assert np.abs(u.mean(0) - 1 / 2).max() < 5 / np.sqrt(len(u)) * np.sqrt(1 / 12)
    by_repeat = u.reshape(25_000, 8)
    off_diagonal = np.corrcoef(by_repeat.T) - np.eye(8)
    assert np.abs(off_diagonal).max() < expected_correlation(25_000)
    neighbours = correlation(by_repeat[:-1, :6], by_repeat[1:, 2:])
    assert neighbours < expected_correlation(by_repeat[1:, 2:].size)


def test_golden_values() -> None:
    """No release may change these: a run that was checkpointed under an older one goes on with the
    same draws.
    """
    assert draws.stream("order") == 15958964071288741444
    assert draws.stream("random_affine") == 7367392216479389442
    assert draws.permutation(0, 0, 10).tolist() == [7, 2, 4, 5, 1, 3, 8, 9, 6, 0]
    assert draws.permutation(2**63 - 1, 12, 10).tolist() == [5, 1, 7, 8, 4, 9, 3, 6, 2, 0]
    repeated = draws.uniform(1234, 5, np.array([3, 3]), STREAM, 1, np.array([1, 2]))
    assert [value.hex() for value in repeated[:, 0].tolist()] == [
        "0x1.2e86cfc159ae8p-4",
        "0x1.4ccc0966ac70bp-1",
    ]
    u = draws.uniform(1234, 5, np.array([0, 1, 10**12], np.int64), STREAM, 2)
    assert [[value.hex() for value in row] for row in u.tolist()] == [
        ["0x1.3fd6f8eafb3c0p-2", "0x1.204506b393fc2p-1"],
        ["0x1.db2e6453e49c0p-4", "0x1.d3efd61e2f023p-1"],
        ["0x1.8bb5f4cb36a60p-1", "0x1.87b1fada8cf84p-1"],
    ]


COUNT = 20_000
ALMOST_ONE = 1.0 - 2.0**-53


def values(distribution: Distribution) -> np.ndarray:
    ids = np.arange(COUNT)
    return distribution(draws.uniform(0, 0, ids, draws.stream("x"), distribution.num_uniforms))


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_uniform_numbers_fill_their_range_evenly() -> None:
    found = values(Uniform(-2.0, 6.0))
    assert -2 <= found.min() < -1.99
    assert 5.99 < found.max() < 6
    counts, _ = np.histogram(found, 16, (-2, 6))
    assert chi_square(counts, np.full(16, COUNT / 16)) < 37.7  # 15 degrees of freedom, p = 0.001


def test_uniform_whole_numbers_have_both_ends() -> None:
    found = values(Uniform(3, 7, whole=True))
    assert found.dtype.kind == "i"
    numbers, counts = np.unique(found, return_counts=True)
    assert numbers.tolist() == [3, 4, 5, 6, 7]
    assert chi_square(counts, np.full(5, COUNT / 5)) < 18.5  # 4 degrees of freedom, p = 0.001


def test_normal_numbers_have_mean_deviation_and_tails() -> None:
    found = (values(Normal(10.0, 3.0)) - 10.0) / 3.0
    assert abs(found.mean()) < 4 / np.sqrt(COUNT)
    assert abs(found.std() - 1.0) < 4 / np.sqrt(2 * COUNT)
    for bound, share in ((0.5, 0.3829), (1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)):
        deviation = np.sqrt(share * (1 - share) / COUNT)
        assert abs((np.abs(found) < bound).mean() - share) < 4 * deviation


def test_normal_numbers_are_finite_for_every_draw_and_round_to_whole_ones() -> None:
    ends = np.array([[0.0, 0.0], [ALMOST_ONE, 0.0], [ALMOST_ONE, 0.5], [0.5, ALMOST_ONE]])
    assert np.isfinite(Normal(0.0, 1.0)(ends)).all()
    assert Normal(2.6, 0.0, whole=True)(ends).tolist() == [3, 3, 3, 3]


def test_choices_are_equally_probable_and_may_be_lists() -> None:
    numbers, counts = np.unique(values(Choice((2.5, 1.0, 9.0))), return_counts=True)
    assert numbers.tolist() == [1.0, 2.5, 9.0]
    assert chi_square(counts, np.full(3, COUNT / 3)) < 13.9  # 2 degrees of freedom, p = 0.001
    pairs = values(Choice(((1, 2), (3, 4))))
    assert pairs.shape == (COUNT, 2)
    assert set(map(tuple, pairs.tolist())) == {(1, 2), (3, 4)}
    assert Choice((1, 2))(np.array([[ALMOST_ONE]])).tolist() == [2]


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_flips_are_1_with_their_probability(p: float) -> None:
    found = values(Flip(p))
    assert set(found.tolist()) <= {0, 1}
    assert abs(found.mean() - p) <= 4 * np.sqrt(p * (1 - p) / COUNT)


def test_the_parts_of_a_vector_are_drawn_independently() -> None:
    vector = Vector((Uniform(0, 1), 5.0, Normal(0, 1), Flip(0.5)))
    assert vector.num_uniforms == 4
    found = values(vector)
    assert found.shape == (COUNT, 4)
    assert (found[:, 1] == 5).all()
    correlation = np.corrcoef(found[:, [0, 2, 3]].T) - np.eye(3)
    assert np.abs(correlation).max() < 5 / np.sqrt(COUNT)


def test_the_first_draws_can_be_left_out() -> None:
    ids = np.arange(5)
    every = draws.uniform(1, 2, ids, 3, 12)
    assert (draws.uniform(1, 2, ids, 3, 5, first=7) == every[:, 7:]).all()


@given(
    ids=st.lists(WORDS, max_size=20),
    counts=st.lists(st.integers(0, 5), max_size=6),
    has_repeats=st.booleans(),
)
def test_streams_together_have_the_draws_of_each(
    ids: list[int], counts: list[int], has_repeats: bool
) -> None:
    rows = np.array(ids, np.int64)
    repeats = np.arange(len(ids)) % 3 if has_repeats else None
    streams = [(draws.stream(f"step {n % 4}"), count) for n, count in enumerate(counts)]
    together = draws.uniform_for_streams(3, 4, rows, streams, repeats)
    assert len(together) == len(streams)
    for u, (stream, count) in zip(together, streams, strict=True):
        alone = draws.uniform(3, 4, rows, stream, count, repeats)
        assert u.shape == (len(ids), count)
        assert np.array_equal(u, alone)
        assert u.flags.c_contiguous, "NumPy computes other last bits from other strides"
    twice = [stream for stream in streams for _ in range(2)]
    joined = draws.uniform_for_streams(3, 4, rows, twice, repeats, [2] * len(streams))
    for u, both in zip(together, joined, strict=True):
        assert np.array_equal(both, np.concatenate([u, u]))
