"""The client of a server mixes the batches: the server sends them as its engine makes them."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from gpupipe.config import read as read_config
from gpupipe.server.fuel import FuelServer, _epoch
from gpupipe.server.options import ServerOptions
from helpers.served import serving

FLOATS = ["decode", "random_horizontal_flip", {"to_dtype": {"dtype": "float32", "scale": True}}]
MIXING = [
    {"one_hot": {"label_smoothing": 0.1}},
    {"random_choice": {"transforms": [{"mixup": {"alpha": 0.4}}, "cutmix"]}},
]
Batches = list[dict[str, torch.Tensor]]


@pytest.fixture
def mixing(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"pipeline": FLOATS, "batch": MIXING}


def in_process(config: dict[str, Any], count: int = 2, **changes: Any) -> list[Batches]:
    with gpupipe.load(config, **changes) as loader:
        return [list(loader) for _ in range(count)]


def same(found: Batches, expected: Batches) -> None:
    assert [b["id"].tolist() for b in found] == [b["id"].tolist() for b in expected]
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("ship", ["batch", "uint8"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_batches_are_what_they_are_in_process(
    mixing: dict[str, Any], ship: str, transport: str
) -> None:
    expected = in_process(mixing)
    with (
        serving(mixing, ship=ship) as server,
        gpupipe.connect(server.address, device="cpu", ids=True, transport=transport) as loader,
    ):
        assert loader.config.batch.fingerprint == read_config(mixing).batch.fingerprint
        assert loader.mixer.num_classes == 3
        for epoch in expected:
            same(list(loader), epoch)


def test_two_servers(mixing: dict[str, Any]) -> None:
    """Each has a shard; the client mixes the batches of both."""
    with ExitStack() as stack:
        shards = [{"rank": rank, "world_size": 2} for rank in range(2)]
        alone = [in_process(mixing, 1, shard=shard)[0] for shard in shards]
        servers = [stack.enter_context(serving(mixing, {"shard": s})) for s in shards]
        addresses = [server.address for server in servers]
        loader = stack.enter_context(gpupipe.connect(addresses, device="cpu", ids=True))
        found = list(loader)
    for rank in range(2):
        same(found[rank::2], alone[rank])


def test_servers_of_different_batch_stages_do_not_fit_together(mixing: dict[str, Any]) -> None:
    with (
        serving(mixing, {"shard": {"rank": 0, "world_size": 2}}) as one,
        serving(mixing | {"batch": []}, {"shard": {"rank": 1, "world_size": 2}}) as other,
        pytest.raises(gpupipe.ServerError, match="different data, pipelines, batches or seeds"),
    ):
        gpupipe.connect([one.address, other.address], device="cpu")


def test_an_own_config_must_have_the_same_batch_stage(mixing: dict[str, Any]) -> None:
    expected = in_process(mixing, 1)[0]
    with serving(mixing) as server:
        remote = {"engine": "remote", "server": server.address}
        with gpupipe.load(mixing, **remote) as loader:
            same(list(loader), expected)
        for own, words in ((["mixup"], "'mixup': .*are not those"), ([], r"\(none\) are not")):
            with pytest.raises(gpupipe.ServerError, match=rf"'batch:'.*{words}.*same config"):
                gpupipe.load(mixing, batch=own, **remote)


def test_a_client_resumes_in_mid_epoch(mixing: dict[str, Any]) -> None:
    first, second = in_process(mixing)
    with serving(mixing) as server:
        with gpupipe.connect(server.address, device="cpu", ids=True) as loader:
            iterator = iter(loader)
            for _ in range(3):
                next(iterator)
            state = json.loads(json.dumps(loader.state_dict()))
        with gpupipe.connect(server.address, device="cpu", ids=True) as loader:
            loader.load_state_dict(state)
            same(list(loader), first[3:])
            same(list(loader), second)
    with (
        gpupipe.load(mixing, batch=[]) as loader,
        pytest.raises(gpupipe.StateError, match="another batch stage"),
    ):
        loader.load_state_dict(state)


def test_a_state_file_belongs_to_one_batch_stage(mixing: dict[str, Any], tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(mixing, state=state):
        pass
    with (
        pytest.raises(gpupipe.GpupipeError, match="batch"),
        serving(mixing | {"batch": ["mixup"]}, state=state, resume=True),
    ):
        pass


def test_fuels_clients_cannot_mix_so_the_server_does(mixing: dict[str, Any]) -> None:
    expected = in_process(mixing, 1)[0]
    options = ServerOptions(address="tcp://127.0.0.1:0", wire="fuel")
    with gpupipe.load(mixing) as loader, FuelServer(loader, options):
        messages = list(_epoch(loader))
    assert len(messages) == len(expected) + 1
    for (_, image, label, *_), batch in zip(messages, expected, strict=False):
        assert (torch.from_numpy(image) == batch["image"]).all()
        assert (torch.from_numpy(label) == batch["label"]).all()
