"""Several clients that share the batches of a server which is stopped and started again, and
servers that serve something else than the last one at their address.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from helpers.ports import free_port
from helpers.serve_commands import Commands, stop
from helpers.served import Batches, ids_of, same_batches, serving

CLIENTS = 3


@pytest.fixture
def commands(config: dict[str, Any], tmp_path: Path) -> Commands:
    return Commands(config, tmp_path)


@contextmanager
def sharing(address: str) -> Iterator[tuple[list[Any], list[list[int]]]]:
    """Clients that each hold the first batch of epoch 0 that they got: their loaders, and the ids
    of these batches.
    """
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(gpupipe.connect(address, device="cpu", ids=True, hwm=1))
            for _ in range(CLIENTS)
        ]
        iterators = [iter(loader) for loader in loaders]
        ids = [next(iterator)["id"].tolist() for iterator in iterators]
        yield list(zip(loaders, iterators, strict=True)), ids


def in_threads(do: Callable[[Any], Any], clients: list[Any]) -> list[Any]:
    """What `do` returned or raised for each client, all at once."""
    found: list[Any] = [None] * len(clients)

    def collect(n: int) -> None:
        try:
            found[n] = do(clients[n])
        except gpupipe.ServerError as e:
            found[n] = e

    threads = [threading.Thread(target=collect, args=(n,)) for n in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(i for ids in batches for i in ids)


@pytest.mark.parametrize("words", [(), ("--resume",)], ids=["stopped", "resumed"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_clients_share_the_rest_of_the_epoch_with_the_next_server(
    commands: Commands, number: int, words: tuple[str, ...]
) -> None:
    with commands.serve(*words) as process, sharing(commands.address) as (clients, ids):
        stop(process, number)
        with commands.serve(*words):
            found = in_threads(lambda client: ids_of(list(client[1])), clients)
            assert flat([*ids, *(one for rest in found for one in rest)]) == list(range(23))
            found = in_threads(lambda client: ids_of(list(client[0])), clients)
            assert flat([one for rest in found for one in rest]) == list(range(23))


def test_a_new_client_begins_anew_if_those_of_a_stopped_server_do_not_come(
    config: dict[str, Any],
    whole: list[Batches],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are closed when no server hears it: their process may be alive, as it is here."""
    monkeypatch.setattr("gpupipe.server.sessions.RETURN_SECONDS", 0.5)
    options = {"address": f"tcp://127.0.0.1:{free_port()}", "state": tmp_path / "state"}
    with ExitStack() as stack, serving(config, **options):
        stack.enter_context(sharing(options["address"]))
    with (
        serving(config, **options),
        gpupipe.connect(options["address"], device="cpu", ids=True) as loader,
    ):
        assert len(loader) == 8
        assert same_batches(list(loader), whole[0])


def test_a_new_client_waits_for_those_of_a_stopped_server(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupipe.server.sessions.RETURN_SECONDS", 60.0)
    options = {"address": f"tcp://127.0.0.1:{free_port()}", "state": tmp_path / "state"}
    with ExitStack() as stack:
        with serving(config, **options):
            clients, ids = stack.enter_context(sharing(options["address"]))
        stack.enter_context(serving(config, **options))
        new = stack.enter_context(
            gpupipe.connect(options["address"], device="cpu", ids=True, hwm=1)
        )
        iterator = iter(new)
        ids.append(next(iterator)["id"].tolist())
        found = in_threads(lambda client: ids_of(list(client[1])), [*clients, (new, iterator)])
        assert flat([*ids, *(one for rest in found for one in rest)]) == list(range(23))


def test_without_a_record_each_client_is_refused_once(config: dict[str, Any]) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with serving(config, address=address, hwm=1), sharing(address) as (clients, _):
        pass
    with ExitStack() as stack:
        with serving(config, address=address, hwm=1):
            clients, _ = stack.enter_context(sharing(address))
        stack.enter_context(serving(config, address=address, hwm=1))
        for error in in_threads(lambda client: list(client[1]), clients):
            assert isinstance(error, gpupipe.ServerError), error
            assert "without a record" in str(error)
            assert "go on with epoch 1, which the next iteration begins" in str(error)
        found = in_threads(lambda client: ids_of(list(client[0])), clients)
        assert flat([one for rest in found for one in rest]) == list(range(23))


def test_a_client_that_is_alone_goes_on_from_its_own_position(
    config: dict[str, Any], whole: list[Batches]
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        with serving(config, address=address):
            loader = stack.enter_context(gpupipe.connect(address, device="cpu", ids=True))
            iterator = iter(loader)
            found = [next(iterator) for _ in range(3)]
        stack.enter_context(serving(config, address=address))
        assert same_batches(found + list(iterator), whole[0])


@pytest.mark.parametrize(
    ("changes", "options", "differences"),
    [
        ({"seed": 6}, {}, "seed: 5 before, 6 now"),
        ({"batch_size": 4}, {}, "batch_size: 3 before, 4 now"),
        ({"pipeline": ["decode"]}, {}, "pipeline: "),
        ({"shard": {"rank": 1, "world_size": 2}}, {}, "rank: 0 before, 1 now; world_size: 1 "),
        ({"dtype": "float16"}, {}, "dtype: None before, float16 now"),
        ({"subset": 0.5}, {}, "subset: None before, 0.5 now"),
        ({}, {"mode": "broadcast"}, "mode: share before, broadcast now"),
    ],
    ids=["seed", "batch_size", "pipeline", "shard", "dtype", "subset", "mode"],
)
def test_a_server_that_serves_something_else_is_refused(
    config: dict[str, Any], changes: dict[str, Any], options: dict[str, Any], differences: str
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        with serving(config, address=address):
            loader = stack.enter_context(gpupipe.connect(address, device="cpu", ids=True))
            iterator = iter(loader)
            next(iterator)
        server = stack.enter_context(serving(config, changes, address=address, **options))
        for again in range(2):
            with pytest.raises(gpupipe.ServerError) as caught:
                list(iterator if not again else loader)
            assert differences in str(caught.value)
            assert "connect() again" in str(caught.value)
        loader.close()
        assert server.stats()["clients"] == []


def test_other_data_is_refused(config: dict[str, Any], noise: Path, tmp_path: Path) -> None:
    (tmp_path / "0").symlink_to(noise / "0")
    (tmp_path / "1").symlink_to(noise / "1")
    address = f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        with serving(config, address=address):
            loader = stack.enter_context(gpupipe.connect(address, device="cpu", ids=True))
            iterator = iter(loader)
            next(iterator)
        data = {"source": "folder", "root": str(tmp_path)}
        stack.enter_context(serving(config | {"data": data}, address=address))
        with pytest.raises(gpupipe.ServerError, match=r"something else .*data: "):
            list(iterator)


def test_one_of_several_servers_that_serves_something_else_is_refused(
    config: dict[str, Any],
) -> None:
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    shards = [{"rank": rank, "world_size": 2} for rank in range(2)]
    with ExitStack() as stack:
        stack.enter_context(serving(config, {"shard": shards[0]}, address=addresses[0]))
        with serving(config, {"shard": shards[1]}, address=addresses[1]):
            loader = stack.enter_context(gpupipe.connect(addresses, device="cpu", ids=True))
            iterator = iter(loader)
            next(iterator)
        changes = {"shard": shards[1], "seed": 6}
        stack.enter_context(serving(config, changes, address=addresses[1]))
        with pytest.raises(gpupipe.ServerError, match=f"{addresses[1]} .*seed: 5 before, 6 now"):
            list(iterator)
