import numpy as np
import pytest

from gpupipe.dataset.columns import Rows
from gpupipe.errors import StateError
from gpupipe.sampling.chunk_order import ChunkOrder
from gpupipe.sampling.epochs import order_epoch
from gpupipe.sampling.sampler import Sampler
from gpupipe.sampling.selection import CHUNK_ORDER, Selection

CHUNK = np.repeat(np.arange(40), [16] * 39 + [5])[::-1].copy()
COUNT = len(CHUNK)


def number_chunks(rows: Rows | None) -> Rows:
    return CHUNK if rows is None else CHUNK[rows]


ORDER = ChunkOrder(number_chunks, 6)


def count_chunks_in_use(order: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int:
    """Return the most chunks that are in use at one time: begun, and not ended."""
    chunks = CHUNK[order]
    first = np.full(40, COUNT)
    last = np.full(40, -1)
    np.minimum.at(first, chunks, np.arange(len(chunks)))
    np.maximum.at(last, chunks, np.arange(len(chunks)))
    steps = np.arange(COUNT)[:, None]
    return int(((first <= steps) & (steps <= last)).sum(1).max())


def test_every_sample_once_and_few_chunks_at_a_time() -> None:
    order = ORDER.permute(1, 0, None)
    assert sorted(order.tolist()) == list(range(COUNT))
    assert count_chunks_in_use(order) <= ORDER.buffer + 1
    assert not np.array_equal(order, ORDER.permute(1, 1, None))
    assert not np.array_equal(order, ORDER.permute(2, 0, None))
    assert np.array_equal(order, ChunkOrder(number_chunks, 6).permute(1, 0, None))


def test_batches_mix_chunks_and_chunks_come_in_another_order_each_pass() -> None:
    order = ORDER.permute(1, 0, None)
    assert len(np.unique(CHUNK[order[100:116]])) >= 4
    firsts = [CHUNK[ORDER.permute(1, number, None)[0]] for number in range(20)]
    assert len(set(firsts)) > 8


def test_a_subset_of_the_rows() -> None:
    rows = np.arange(0, COUNT, 3)
    order = ORDER.permute(1, 0, rows)
    assert sorted(order.tolist()) == list(range(len(rows)))


@pytest.mark.parametrize("epoch_size", [None, 100])
def test_epochs_are_parts_of_one_sequence_of_passes(epoch_size: int | None) -> None:
    selection = Selection(epoch_size=epoch_size, chunks=ORDER)
    size = epoch_size or COUNT
    taken = [
        order_epoch(selection, COUNT, seed=5, epoch=epoch, shuffle=True)
        for epoch in range(-(-2 * COUNT // size))
    ]
    passes = np.concatenate(taken)[: 2 * COUNT]
    assert np.array_equal(passes[:COUNT], ORDER.permute(5, 0, None))
    assert np.array_equal(passes[COUNT:], ORDER.permute(5, 1, None))
    plain = order_epoch(selection, COUNT, seed=5, epoch=0, shuffle=False)
    assert np.array_equal(plain, np.arange(size))


def make_sampler(world_size: int = 1, rank: int = 0, order: ChunkOrder | None = ORDER) -> Sampler:
    settings = {CHUNK_ORDER: str(order)} if order else {}
    return Sampler(
        COUNT,
        7,
        shuffle=True,
        seed=3,
        last_batch="partial",
        rank=rank,
        world_size=world_size,
        selection=Selection(settings=settings, chunks=order),
    )


def test_ranks_share_an_epoch_and_a_state_goes_on_with_other_ranks() -> None:
    expected = make_sampler().order(0)
    plans = [list(make_sampler(3, rank).begin()) for rank in range(3)]
    assert {len(of_rank) for of_rank in plans} == {len(make_sampler(3))}
    ids = np.concatenate([plan.ids for of_rank in plans for plan in of_rank])
    assert sorted(ids.tolist()) == list(range(COUNT))
    state = make_sampler(3).state_after(plans[0][4])
    rest = make_sampler()
    rest.load_state(state)
    ids = np.concatenate([plan.ids for plan in rest.begin()])
    assert np.array_equal(ids, expected[5 * 21 :])


def test_a_state_of_another_order_is_refused() -> None:
    state = make_sampler().state()
    for other in (None, ChunkOrder(number_chunks, 7)):
        sampler = make_sampler(order=other)
        with pytest.raises(StateError, match=r"chunks, buffer 6.*set data\.order and data\.buffer"):
            sampler.load_state(state)
        sampler.load_state(state, strict=False)
