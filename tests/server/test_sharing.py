"""Several clients of one server: what they share, what they all get, and what ranks get."""

import threading
import time
from typing import Any

import pytest

import gpupipe
from helpers.served import serving

Epochs = list[list[list[int]]]


def _together(
    address: str, count: int, epochs: int, ranks: bool = False, after: int = 0
) -> list[Epochs]:
    """The ids of all batches that clients get who run beside one another, by client and epoch.

    after: batches after which they wait for one another.
    """
    found: list[Epochs] = [[] for _ in range(count)]
    ready = threading.Barrier(count)

    def consume(n: int) -> None:
        shard = {"rank": n, "world_size": count} if ranks else {"rank": 0, "world_size": 1}
        with gpupipe.connect(address, device="cpu", ids=True, hwm=3, shard=shard) as loader:
            ready.wait(60)
            iterator = iter(loader)
            epoch = [next(iterator)["id"].tolist() for _ in range(after)]
            ready.wait(60)
            while loader.sampler.epoch < epochs:
                epoch += [b["id"].tolist() for b in iterator]
                while len(found[n]) < loader.sampler.epoch - 1:
                    found[n].append([])
                found[n].append(epoch)
                iterator, epoch = iter(loader), []

    threads = [threading.Thread(target=consume, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def _flat(batches: list[list[int]]) -> list[int]:
    return sorted(i for ids in batches for i in ids)


@pytest.mark.filterwarnings("ignore:others consumed epoch")  # before one that came late began
def test_each_batch_goes_to_one_client(config: dict[str, Any]) -> None:
    with serving(config, hwm=3) as server:
        found = _together(server.address, 3, 3)
    for epoch in range(3):
        assert _flat(
            [ids for client in found if epoch < len(client) for ids in client[epoch]]
        ) == list(range(23))


def test_ranks_have_equal_steps_and_the_samples_of_a_data_loaders_ranks(
    config: dict[str, Any],
) -> None:
    with serving(config, clients=2) as server:
        found = _together(server.address, 2, 2, ranks=True)
    for rank, client in enumerate(found):
        with gpupipe.load(config, shard={"rank": rank, "world_size": 2}) as loader:
            assert client == [[b["id"].tolist() for b in loader] for _ in range(2)]


def test_broadcast_gives_everything_to_everyone_and_makes_it_once(config: dict[str, Any]) -> None:
    with gpupipe.load(config) as loader:
        whole = [[b["id"].tolist() for b in loader] for _ in range(2)]
    # The server keeps the last `hwm` batches for who comes later: those of a whole epoch here, so
    # that a client that other load holds up finds them.
    with serving(config, mode="broadcast", hwm=8) as server:
        made = []
        batches = server.loader.engine.batches

        def counting(plans: Any) -> Any:
            for plan, batch in batches(plans):
                made.append(plan.ids.tolist())
                yield plan, batch

        # to see what is made
        server.loader.engine.batches = counting  # type: ignore[method-assign]
        found = _together(server.address, 3, 2, after=1)
    assert found == [whole] * 3
    assert made[: 2 * len(whole[0])] == whole[0] + whole[1], "each batch was made once, for all"


def test_a_rank_that_is_taken_and_ranks_that_do_not_fit(config: dict[str, Any]) -> None:
    with (
        serving(config, clients=2) as server,
        gpupipe.connect(server.address, device="cpu", shard={"rank": 1, "world_size": 2}),
    ):
        with pytest.raises(gpupipe.ServerError, match="rank 1 is taken"):
            gpupipe.connect(
                server.address, device="cpu", shard={"rank": 1, "world_size": 2}, patience=1.2
            )
        with pytest.raises(gpupipe.ServerError, match="serve with --clients 3"):
            gpupipe.connect(server.address, device="cpu", shard={"rank": 0, "world_size": 3})
    with serving(config) as server, pytest.raises(gpupipe.ServerError, match="need equal steps"):
        gpupipe.connect(server.address, device="cpu", shard={"rank": 0, "world_size": 2})


def test_one_client_cannot_take_others_back(config: dict[str, Any]) -> None:
    with (
        serving(config, hwm=2) as server,
        gpupipe.connect(server.address, device="cpu") as one,
        gpupipe.connect(server.address, device="cpu") as two,
    ):
        first, second = iter(one), iter(two)
        next(first)
        next(second)
        with pytest.raises(gpupipe.ServerError, match="share epoch 0 now"):
            two.sampler.set_epoch(1)
            two.sampler.set_epoch(0)
            next(iter(two))


def test_a_server_that_resumes_goes_on_where_it_was_stopped(
    config: dict[str, Any], tmp_path: Any
) -> None:
    """The client waits meanwhile, and notices nothing; another one, later, gets only what is left,
    and is told so.
    """
    with gpupipe.load(config) as loader:
        whole = [b["id"].tolist() for b in loader]
    state = tmp_path / "state"
    with serving(config, state=state) as server:
        port = int(server.address.rpartition(":")[2])
        loader = gpupipe.connect(server.address, device="cpu", ids=True, hwm=2)
        iterator = iter(loader)
        seen = [next(iterator)["id"].tolist() for _ in range(3)]
    with serving(config, state=state, resume=True, address=f"tcp://127.0.0.1:{port}") as server:
        seen.append(next(iterator)["id"].tolist())
        # The client may have had this batch before. If it closes unheard, the next server waits
        # for it.
        while not server.stats()["clients"]:
            time.sleep(0.01)
        loader.close()
        while server.stats()["clients"]:
            time.sleep(0.01)
    with serving(config, state=state, resume=True) as server:
        with pytest.warns(UserWarning, match="resumes: 4 of the 8 batches of epoch 0"):
            other = gpupipe.connect(server.address, device="cpu", ids=True)
        with other:
            assert len(other) == 4
            assert seen + [b["id"].tolist() for b in other] == whole
            assert len(other) == 8
    with (
        serving(config, state=state, fresh=True) as server,
        gpupipe.connect(server.address, device="cpu", ids=True) as other,
    ):
        assert [b["id"].tolist() for b in other] == whole
