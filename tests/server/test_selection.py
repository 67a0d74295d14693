"""Servers whose epochs are not every sample once: repeats, weights, epoch_size and subset."""

from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.server.service import Server
from helpers.served import ids_of, same_batches, serving

SELECTIONS: list[dict[str, Any]] = [
    {"repeats": 3},
    {"repeats": 2, "epoch_size": "all"},
    {"weights": "class_balanced"},
    {"epoch_size": 50},
    {"subset": 0.5, "epoch_size": 7},
]


def connected(server: Server, **options: Any) -> gpupipe.Loader:
    return gpupipe.connect(server.address, device="cpu", ids=True, **options)


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_a_client_gets_what_a_loader_in_process_gets(
    config: dict[str, Any], selection: dict[str, Any]
) -> None:
    with gpupipe.load(config, **selection) as local:
        whole = [list(local) for _ in range(3)]
        with serving(config, selection) as server, connected(server) as loader:
            assert len(loader) == len(local)
            assert loader.sampler.epoch_size == local.sampler.epoch_size
            assert same_batches(list(loader), whole[0])
            iterator = iter(loader)
            first = [next(iterator)]
            state = loader.state_dict()
            assert same_batches(first + list(iterator), whole[1])
        assert {key: state[key] for key in selection} == selection
        local.load_state_dict(state)
        assert same_batches(first + list(local), whole[1])
        state = local.state_dict()
    with serving(config, selection) as server, connected(server) as loader:
        loader.load_state_dict(state)
        assert same_batches(list(loader), whole[2])


def test_ranks_share_repeats_out(config: dict[str, Any]) -> None:
    selection = {"repeats": 2, "epoch_size": "all"}
    with serving(config, selection, clients=2) as server:
        for rank in range(2):
            shard = {"rank": rank, "world_size": 2}
            with connected(server, shard=shard) as loader:
                got = ids_of(list(loader))
            with gpupipe.load(config, **selection, shard=shard) as local:
                assert got == ids_of(list(local))
            assert sorted(i for batch in got for i in batch) == list(range(23))


def test_several_servers_resume_within_a_step(config: dict[str, Any]) -> None:
    """The client does not know the weights, and does not need them."""
    selection = {"weights": "class_balanced", "epoch_size": 31}

    def changes(rank: int) -> dict[str, Any]:
        return {**selection, "shard": {"rank": rank, "world_size": 2}}

    with serving(config, changes(0)) as one, serving(config, changes(1)) as other:
        addresses = [one.address, other.address]
        with gpupipe.connect(addresses, device="cpu", ids=True) as loader:
            whole = list(loader)
            assert sum(len(batch["id"]) for batch in whole) == 31
            loader.sampler.set_epoch(0)
            iterator = iter(loader)
            first = [next(iterator) for _ in range(3)]
            state = loader.state_dict()
            assert state["ahead"] == 1
        with gpupipe.connect(addresses, device="cpu", ids=True) as loader:
            loader.load_state_dict(state)
            assert same_batches(first + list(loader), whole)


def test_a_client_cannot_tell_an_order_that_only_the_server_knows(config: dict[str, Any]) -> None:
    unknown = pytest.raises(gpupipe.ServerError, match=r"because of loader\.weights there")
    changes = {"weights": "class_balanced"}
    with serving(config, changes) as server, connected(server) as loader, unknown:
        loader.sampler.order(0)
    with gpupipe.load(config, repeats=2) as local:
        expected = local.sampler.order(1)
    with serving(config, {"repeats": 2}) as server, connected(server) as loader:
        assert (loader.sampler.order(1) == expected).all()


def test_servers_with_different_files_of_ids_do_not_go_together(
    config: dict[str, Any], tmp_path: Path
) -> None:
    for name, count in (("a", 4), ("b", 5)):
        (tmp_path / name).write_text("".join(f"{n}\n" for n in range(count)))

    def changes(rank: int, name: str) -> dict[str, Any]:
        return {"subset": str(tmp_path / name), "shard": {"rank": rank, "world_size": 2}}

    refused = pytest.raises(gpupipe.ServerError, match="serve different data")
    with serving(config, changes(0, "a")) as one, serving(config, changes(1, "b")) as two, refused:
        gpupipe.connect([one.address, two.address], device="cpu")


def test_a_state_file_of_other_settings_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    options = {"state": tmp_path / "state", "resume": True}
    with serving(config, {"repeats": 2}, **options) as server, connected(server) as loader:
        next(iter(loader))
    for repeats in (3, 1):
        refused = pytest.raises(gpupipe.StateError, match=r"\(repeats: 2 there, .*--fresh")
        with refused, serving(config, {"repeats": repeats}, **options):
            pass
