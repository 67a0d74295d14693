"""The order of the samples in an epoch, and its division into batches."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpupipe.errors import ConfigError, DataError
from gpupipe.sampling import draws
from gpupipe.sampling.epochs import count_earlier, order_epoch
from gpupipe.sampling.sampler import Sampler
from gpupipe.sampling.selection import ALL_ONCE, Selection
from helpers.epochs_of_ranks import (
    DROP,
    PAD,
    PARTIAL,
    Case,
    cases,
    chosen_cases,
    delivered,
    in_order,
    selections,
    steps_of,
)

COUNTS = st.integers(1, 40)
SEEDS = st.integers(0, 2**63 - 1)


def order(selection: Selection, count: int, epoch: int = 0, seed: int = 3) -> list[int]:
    return order_epoch(selection, count, seed=seed, epoch=epoch, shuffle=True).tolist()


@given(COUNTS, st.integers(0, 5), SEEDS)
def test_by_default_an_epoch_is_one_permutation(count: int, epoch: int, seed: int) -> None:
    expected = draws.permutation(seed, epoch, count).tolist()
    assert order(ALL_ONCE, count, epoch, seed) == expected
    assert order(Selection(epoch_size=count), count, epoch, seed) == expected
    assert order(Selection(epoch_size="all"), count, epoch, seed) == expected


@given(COUNTS, st.integers(1, 5), st.integers(1, 120), st.integers(1, 12), st.booleans())
def test_epochs_cut_one_sequence_of_passes(
    count: int, repeats: int, size: int, epochs: int, shuffle: bool
) -> None:
    selection = Selection(repeats, size)
    delivered = [
        int(i)
        for epoch in range(epochs)
        for i in order_epoch(selection, count, seed=3, epoch=epoch, shuffle=shuffle)
    ]
    assert len(delivered) == epochs * size
    for number, first in enumerate(range(0, len(delivered), count * repeats)):
        one_pass = delivered[first : first + count * repeats]
        base = draws.permutation(3, number, count) if shuffle else np.arange(count)
        assert one_pass == np.repeat(base, repeats).tolist()[: len(one_pass)]


@given(COUNTS, st.integers(1, 5), st.integers(1, 120), st.integers(0, 20))
def test_all_samples_come_equally_often(count: int, repeats: int, size: int, epochs: int) -> None:
    """Over any number of epochs, two samples differ by less than one more pass."""
    times = Counter(i for e in range(epochs) for i in order(Selection(repeats, size), count, e))
    often = [times[i] for i in range(count)]
    assert max(often) - min(often) <= repeats


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_repeats_are_those_of_torchvisions_sampler(world_size: int) -> None:
    """The loop of RASampler in torchvision's references, over our permutation."""
    count, repeats = 512, 4
    indices = draws.permutation(9, 0, count).tolist()
    indices = [i for i in indices for _ in range(repeats)]
    selected = count // 256 * 256 // world_size
    for rank in range(world_size):
        sampler = Sampler(
            count,
            16,
            shuffle=True,
            seed=9,
            last_batch=PARTIAL,
            rank=rank,
            world_size=world_size,
            selection=Selection(repeats),
        )
        mine = [int(i) for plan in sampler.begin() for i in plan.ids]
        assert mine == indices[rank::world_size][:selected]
        assert sampler.epoch_size == count


@given(chosen_cases())
def test_every_epoch_of_a_selection(case: Case) -> None:
    """Equal steps, exact lengths, no empty batch, and repeats numbered, whatever is chosen."""
    samplers = case.ranks()
    assert {s.epoch_size for s in samplers} == {case.total}
    lengths = {len(s) for s in samplers}
    whole = samplers[0].order(0)
    assert len(whole) == case.total
    steps = steps_of(samplers)
    assert lengths == {len(steps)}
    assert all(1 <= len(p.ids) <= case.batch_size for step in steps for p in step)
    for step in steps:
        assert len({(p.epoch, p.end, p.last) for p in step}) == 1
    got = [i for step in steps for i in in_order(step, case)]
    wanted = len(steps) * case.everyone if case.last_batch in (DROP, PAD) else case.total
    assert got == np.resize(whole, wanted).tolist()
    if case.selection.may_repeat:
        earlier = [n for step in steps for n in in_order(step, case, "repeats")]
        assert earlier == np.resize(count_earlier(whole), wanted).tolist()
    if case.selection.rows is not None:
        assert set(got) <= set(case.selection.rows.tolist())


@given(st.lists(st.integers(0, 9), max_size=60))
def test_count_earlier(ids: list[int]) -> None:
    expected = [ids[:n].count(i) for n, i in enumerate(ids)]
    assert count_earlier(np.array(ids, np.int64)).tolist() == expected


@given(st.data(), COUNTS, st.integers(0, 3))
def test_the_order_is_a_function_of_the_epoch(data: st.DataObject, count: int, epoch: int) -> None:
    selection = data.draw(selections(count))
    assert order(selection, count, epoch) == order(selection, count, epoch)


@pytest.mark.parametrize("size", [1000, None])
def test_weights_are_probabilities(size: int | None) -> None:
    weights = np.array([1.0, 0.0, 2.0, 3.0, 0.5, 0.0, 3.5, 0.0])
    selection = Selection(weights=weights, epoch_size=size)
    epochs = range(40_000 // (size or 8))
    counts = sum(np.bincount(order(selection, 8, epoch), minlength=8) for epoch in epochs)
    expected = 40_000 * weights / weights.sum()
    assert (counts[weights == 0] == 0).all()
    used = weights > 0
    chi_square = ((counts[used] - expected[used]) ** 2 / expected[used]).sum()
    assert chi_square < 25, "4 degrees of freedom: 4 +- 2.8"


def test_weighted_draws_are_independent_of_each_other() -> None:
    """Pairs of neighbours among 4 equally likely samples: 16 counts of 2,500."""
    drawn = np.array(order(Selection(weights=np.ones(4), epoch_size=40_000), 4))
    pairs = np.bincount(4 * drawn[:-1] + drawn[1:], minlength=16)
    assert ((pairs - 2500) ** 2 / 2500).sum() < 45, "about 15 degrees of freedom: 15 +- 5.5"
    first, second = (order(Selection(weights=np.ones(99)), 99, epoch) for epoch in (0, 1))
    assert first != second


def test_weights_with_repeats() -> None:
    drawn = order(Selection(3, 10, weights=np.ones(50)), 50)
    assert len(drawn) == 10
    assert drawn[0] == drawn[1] == drawn[2] and drawn[3] == drawn[4] == drawn[5]


def test_weights_of_rows_that_are_chosen() -> None:
    rows = np.array([1, 3, 4])
    weights = np.array([9.0, 0.0, 9.0, 1.0, 0.0, 9.0])
    selection = Selection(weights=weights, rows=rows)
    drawn = order_epoch(selection, 3, rows, seed=0, epoch=0, shuffle=True)
    assert drawn.tolist() == [1, 1, 1], "only row 3 has a weight"
    with pytest.raises(DataError, match=r"loader\.weights: none of the 2 samples"):
        order_epoch(selection, 2, np.array([1, 4]), seed=0, epoch=0, shuffle=True)


def test_golden_orders() -> None:
    """No release may change these: a checkpointed run must go on with the same batches."""
    assert order(Selection(2, 7), 5) == [0, 0, 2, 2, 4, 4, 3]
    assert order(Selection(epoch_size=7), 5, 1) == [1, 4, 3, 4, 0, 3, 1]
    weighted = Selection(epoch_size=9, weights=np.array([1.0, 2.0, 30.0, 0.0]))
    assert order(weighted, 4, 4) == [2, 1, 2, 2, 2, 1, 2, 2, 2]


@given(cases())
@example(Case(9, 2, 4, PARTIAL))
@example(Case(7, 3, 6, PARTIAL))
@example(Case(1, 9, 9, PAD))
def test_every_epoch(case: Case) -> None:
    """The laws that hold whatever happens to the remainder."""
    samplers = case.ranks()
    steps = steps_of(samplers)
    assert {len(s) for s in samplers} == {len(steps)}
    sizes = [len(plan.ids) for step in steps for plan in step]
    assert min(sizes) >= 1
    assert max(sizes) <= case.batch_size
    assert all(plan.ids.dtype == np.int64 for step in steps for plan in step)
    assert [step[0].last for step in steps] == [False] * (len(steps) - 1) + [True]
    for step in steps:
        assert len({(p.epoch, p.end, p.last) for p in step}) == 1, (
            "the ranks agree on where they are"
        )
        assert case.last_batch == PAD or len({int(i) for p in step for i in p.ids}) == sum(
            len(p.ids) for p in step
        ), "disjoint within a step"
    assert [step[0].end for step in steps] == np.cumsum(
        [sum(len(p.ids) for p in step) for step in steps]
    ).tolist()


@given(cases(PARTIAL))
@example(Case(9, 2, 4, PARTIAL))
def test_partial_delivers_every_sample_once(case: Case) -> None:
    steps = steps_of(case.ranks())
    assert sorted(delivered(steps)) == list(range(case.count))
    assert len(steps) == -(-case.count // case.everyone)
    assert all(len(p.ids) == case.batch_size for step in steps[:-2] for p in step), (
        "only the last two steps may be smaller"
    )
    last = [len(p.ids) for p in steps[-1]]
    assert max(last) - min(last) <= 1


@given(cases(DROP))
def test_drop_delivers_full_batches_only(case: Case) -> None:
    samplers = case.ranks()
    steps = steps_of(samplers)
    assert {len(p.ids) for step in steps for p in step} == {case.batch_size}
    whole = case.count // case.everyone * case.everyone
    assert delivered(steps) == samplers[0].order(0)[:whole].tolist()


@given(cases(PAD))
def test_pad_fills_up_with_samples_from_the_start(case: Case) -> None:
    samplers = case.ranks()
    steps = steps_of(samplers)
    assert {len(p.ids) for step in steps for p in step} == {case.batch_size}
    order = samplers[0].order(0).tolist()
    whole = -(-case.count // case.everyone) * case.everyone
    assert delivered(steps) == (order * whole)[:whole]


def test_drop_leaves_a_rest_out_that_makes_no_full_batch() -> None:
    sampler = Sampler(10, 3, shuffle=True, seed=8, last_batch=DROP, world_size=2)
    sampler.load_state({"seed": 8, "shuffle": True, "epoch": 0, "position": 6})
    assert (sampler.epoch, sampler.position) == (1, 0)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case(3, 2, 4, PARTIAL),
            "3 samples cannot give each of 4 ranks one: use fewer ranks, or set last_batch: pad",
        ),
        (
            Case(1, 2, 2, PARTIAL),
            "1 sample cannot give each of 2 ranks one: use fewer ranks, or set last_batch: pad",
        ),
        (
            Case(5, 1, 2, PARTIAL),
            "5 samples one at a time cannot give 2 ranks equal steps: set batch_size above 1, or "
            "last_batch: drop or pad",
        ),
        (
            Case(5, 3, 2, DROP),
            "5 samples cannot give 2 ranks a full batch of 3 each: make "
            "loader.batch_size smaller, or set last_batch: partial",
        ),
        (
            Case(5, 6, 1, DROP),
            "5 samples cannot give 1 rank a full batch of 6 each: make "
            "loader.batch_size smaller, or set last_batch: partial",
        ),
        (Case(0, 1, 1, PARTIAL), "there are no samples"),
        (Case(0, 1, 1, DROP), "there are no samples"),
        (Case(0, 1, 1, PAD), "there are no samples"),
    ],
    ids=str,
)
def test_what_cannot_be_dealt_out_is_refused_with_advice(case: Case, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        case.ranks()
    assert str(error.value) == f"loader: {message}"


@given(
    st.builds(
        Case,
        st.integers(0, 40),
        st.integers(1, 9),
        st.integers(1, 9),
        st.sampled_from([PARTIAL, DROP, PAD]),
    )
)
def test_nothing_else_is_refused(case: Case) -> None:
    if case.possible:
        case.ranks()
    else:
        with pytest.raises(ConfigError):
            case.ranks()


def test_the_advice_helps() -> None:
    """What each message says to do makes the case possible."""
    assert steps_of(Case(3, 2, 3, PARTIAL).ranks())
    assert steps_of(Case(3, 2, 4, PAD).ranks())
    assert steps_of(Case(5, 2, 2, PARTIAL).ranks())
    assert steps_of(Case(5, 2, 2, DROP).ranks())


def test_a_rank_that_would_run_dry_gets_a_sample_from_its_batch_before() -> None:
    """9 samples on 4 ranks, two at a time: a full step of 8 would leave one for four ranks."""
    sizes = [[len(p.ids) for p in step] for step in steps_of(Case(9, 2, 4, PARTIAL).ranks())]
    assert sizes == [[2, 1, 1, 1], [1, 1, 1, 1]]
