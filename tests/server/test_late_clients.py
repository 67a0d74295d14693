"""Where clients begin that come when others are there, or are gone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import gpupipe
from helpers.served import Batches, ids_of, same_batches, serving


def test_a_client_that_comes_when_the_others_are_gone_begins_with_the_first_epoch(
    config: dict[str, Any], whole: list[Batches]
) -> None:
    with serving(config) as server:
        with gpupipe.connect(server.address, device="cpu", ids=True) as loader:
            assert same_batches(list(loader), whole[0])
            next(iter(loader))
        with gpupipe.connect(server.address, device="cpu", ids=True) as loader:
            assert loader.sampler.epoch == 0
            assert same_batches(list(loader), whole[0])
            assert same_batches(list(loader), whole[1])


@pytest.mark.filterwarnings("ignore:others consumed epoch 0")
def test_a_client_that_is_slow_to_begin_gets_nothing_of_an_epoch_that_others_have_read(
    config: dict[str, Any], whole: list[Batches]
) -> None:
    """Whether or not the server has begun the next epoch for the others when they leave."""
    with serving(config) as server, _connected(server.address) as slow:
        with _connected(server.address) as loader:
            assert same_batches(list(loader), whole[0])
        found = list(slow) or list(slow)
        assert same_batches(found, whole[1])
        slow.sampler.set_epoch(0)
        assert same_batches(list(slow), whole[0]), "the user named it"


@pytest.mark.parametrize("world", [2])
def test_ranks_that_come_again_begin_with_the_first_epoch(
    config: dict[str, Any], world: int
) -> None:
    """All of them, wherever each of them was."""
    with serving(config, clients=world) as server:
        for _ in range(2):
            for rank in range(world):
                shard = {"rank": rank, "world_size": world}
                with gpupipe.load(config, shard=shard) as loader:
                    expected = ids_of(list(loader))
                with gpupipe.connect(server.address, device="cpu", ids=True, shard=shard) as loader:
                    assert ids_of(list(loader)) == expected
                    for _ in range(rank):
                        next(iter(loader))


def _connected(address: str, **more: Any) -> gpupipe.Loader:
    return gpupipe.connect(address, device="cpu", ids=True, **more)


def _told() -> Any:
    return pytest.warns(UserWarning, match="3 of the 8 batches")


@contextmanager
def _reading(address: str, taken: int) -> Iterator[tuple[gpupipe.Loader, list[list[int]]]]:
    """A client that has `taken` batches of its first epoch, holds the last of them, and has nothing
    more.
    """
    with gpupipe.connect(address, device="cpu", ids=True, hwm=1) as loader:
        iterator = iter(loader)
        yield loader, ids_of([next(iterator) for _ in range(taken)])


def test_a_client_that_joins_in_the_middle_is_told_by_a_warning_and_by_its_len(
    config: dict[str, Any], whole: list[Batches]
) -> None:
    with serving(config, hwm=1) as server, _reading(server.address, 3) as (loader, found):
        with pytest.warns(
            UserWarning,
            match=r"3 of the 8 batches of epoch 0 went to others before this client came "
            r"\(.*--mode broadcast",
        ) as warned:
            late = gpupipe.connect(server.address, device="cpu", ids=True)
        assert [w.filename for w in warned] == [__file__], "the line of the user's"
        with late:
            assert (len(late), late.sampler.left) == (5, 5)
            loader.close()
            rest = ids_of(list(late))
            assert sorted(found + rest) == sorted(ids_of(whole[0]))
            assert (len(late), late.sampler.left) == (8, 8)
            assert same_batches(list(late), whole[1])


def test_a_late_client_that_leaves_its_first_epoch_early_has_whole_epochs_then(
    config: dict[str, Any],
) -> None:
    with (
        serving(config, hwm=1) as server,
        _reading(server.address, 3),
        _told(),
        gpupipe.connect(server.address, device="cpu", ids=True) as late,
    ):
        for _ in late:
            assert len(late) == 5
            break
        late.sampler.set_epoch(2)
        assert len(late) == 8


def test_the_whole_of_an_epoch_is_refused_while_others_share_it(
    config: dict[str, Any], whole: list[Batches]
) -> None:
    """And given, once they are gone."""
    with (
        serving(config, hwm=1) as server,
        _reading(server.address, 3) as (loader, _),
        _told(),
        gpupipe.connect(server.address, device="cpu", ids=True) as late,
    ):
        late.sampler.set_epoch(0)
        assert len(late) == 8, "what was asked for"
        with pytest.raises(
            gpupipe.ServerError,
            match=r"epoch 0 from sample 0 .* 1 other client .* share epoch 0 now, and 3 of its 8 "
            r"batches.*epoch 1",
        ):
            list(late)
        loader.close()
        late.sampler.set_epoch(0)
        assert same_batches(list(late), whole[0])


def test_an_epoch_that_others_are_beyond_is_refused(config: dict[str, Any]) -> None:
    """It is not given the epoch of the others in its place."""
    with (
        serving(config, hwm=1) as server,
        gpupipe.connect(server.address, device="cpu", ids=True, hwm=1) as loader,
    ):
        list(loader)
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        with (
            pytest.warns(UserWarning, match="3 of the 8 batches of epoch 1"),
            gpupipe.connect(server.address, device="cpu", ids=True) as late,
        ):
            late.sampler.set_epoch(0)
            with pytest.raises(gpupipe.ServerError, match=r"epoch 0 .*share epoch 1 now"):
                list(late)


def test_an_epoch_that_passed_before_a_client_began_is_said(
    config: dict[str, Any], whole: list[Batches]
) -> None:
    with (
        serving(config, hwm=1) as server,
        _connected(server.address, hwm=1) as loader,
        _connected(server.address) as idle,
    ):
        list(loader)
        iterator = iter(loader)
        next(iterator)
        with pytest.warns(UserWarning, match=r"others consumed epoch 0 .*its share of epoch 1"):
            assert list(idle) == []
        second = iter(idle)
        assert ids_of([next(second)])[0] in ids_of(whole[1])
