"""A loader over a server is a loader as every other: over shared memory and sockets, from one
server and from several.
"""

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.server.service import Server
from gpupipe.testing import check_loader
from helpers.served import serving

FLOATS = [
    "decode",
    "random_horizontal_flip",
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.2]}},
]
VIEWS = {
    "steps": ["decode"],
    "views": {
        "global": {"count": 2, "steps": [{"random_crop": {"size": 8}}, *FLOATS[1:]]},
        "local": {"steps": [{"random_crop": {"size": 4}}, *FLOATS[2:3]]},
        "whole": {"steps": []},
    },
}
"""Views of floats, whose last steps differ, and one of the decoded image."""
Batches = list[dict[str, torch.Tensor]]


def _same(found: Batches, expected: Batches) -> None:
    assert [b["id"].tolist() for b in found] == [b["id"].tolist() for b in expected]
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        assert all(
            torch.equal(a[name], b[name]) and a[name].stride() == b[name].stride() for name in a
        )


def _in_process(config: dict[str, Any], epochs: int, **changes: Any) -> list[Batches]:
    with gpupipe.load(config, **changes) as loader:
        return [list(loader) for _ in range(epochs)]


def test_a_client_follows_format_and_ids_of_the_served_config_unless_it_chooses(
    config: dict[str, Any],
) -> None:
    def read(**chosen: Any) -> Any:
        with gpupipe.connect(server.address, device="cpu", **chosen) as loader:
            return next(iter(loader))

    with serving(config, {"format": "tuple", "ids": False}) as server:
        image, label = read()
        assert len(image) == len(label) == 3
        assert read(format="dict").keys() == {"image", "label"}
        assert read(format="dict", ids=True).keys() == {"image", "label", "id"}
        remote = {"engine": "remote", "server": server.address, "ids": True, "format": "dict"}
        with gpupipe.load(config, loader=remote) as loader:
            assert next(iter(loader)).keys() == {"image", "label", "id"}, "as its own config says"
    with serving(config) as server:
        assert read().keys() == {"image", "label", "id"}
        assert read(ids=False).keys() == {"image", "label"}


def test_the_contract_of_a_loader(config: dict[str, Any]) -> None:
    """Every call gets a server of its own, with as many ranks as the loader is one of."""
    with ExitStack() as servers:

        def make(**changes: Any) -> gpupipe.Loader:
            shard, ids, form = changes.pop("shard"), changes.pop("ids"), changes.pop("format")
            world = shard["world_size"]
            server = servers.enter_context(
                serving(config, changes, clients=world if world > 1 else None, hwm=4)
            )
            return gpupipe.connect(server.address, ids=ids, format=form, device="cpu", shard=shard)

        check_loader(make)


@pytest.mark.parametrize(
    ("options", "connecting"),
    [
        ({}, {"transport": "shm"}),
        ({}, {"transport": "tcp"}),
        ({"compress": "lz4"}, {"transport": "tcp"}),
        ({"compress": "zstd"}, {"transport": "tcp"}),
        ({"hwm": 1}, {"hwm": 1}),
        ({"mode": "broadcast"}, {}),
        ({"clients": 1}, {}),
        ({}, {"changes": {"memory_format": "channels_last"}}),
        ({"ship": "uint8"}, {"changes": {"pipeline": FLOATS, "dtype": "bfloat16"}}),
        ({"ship": "uint8"}, {"changes": {"pipeline": FLOATS}}),
        ({"ship": "uint8"}, {"changes": {"pipeline": VIEWS}}),
        ({"ship": "uint8"}, {"changes": {"pipeline": VIEWS, "dtype": "float16"}}),
    ],
    ids=str,
)
def test_batches_are_what_they_are_in_process(
    config: dict[str, Any], options: dict[str, Any], connecting: dict[str, Any]
) -> None:
    changes = connecting.pop("changes", {})
    expected = _in_process(config, 3, **changes)
    with (
        serving(config, changes, **options) as server,
        gpupipe.connect(server.address, device="cpu", ids=True, **connecting) as loader,
    ):
        assert len(loader) == len(expected[0])
        for epoch in expected:
            _same(list(loader), epoch)
        stats = server.stats()
    sent_shared = stats["batches_through_shared_memory"] > 0
    assert sent_shared == (connecting.get("transport") != "tcp"), (
        "auto shares memory on one machine"
    )


def test_ipc(config: dict[str, Any], tmp_path: Any) -> None:
    with (
        serving(config, address=f"ipc://{tmp_path}/socket") as server,
        gpupipe.connect(server.address, device="cpu", ids=True) as loader,
    ):
        _same(list(loader), _in_process(config, 1)[0])


def test_batches_that_are_kept_stay_what_they_are(config: dict[str, Any]) -> None:
    """More than there are slots: the others come over the socket, and a slot is used again only
    when its tensors are gone.
    """
    expected = [b for epoch in _in_process(config, 4) for b in epoch]
    with (
        serving(config, hwm=2) as server,
        gpupipe.connect(server.address, device="cpu", ids=True, hwm=2) as loader,
    ):
        kept = [b for _ in range(4) for b in loader]
        shared = server.stats()["batches_through_shared_memory"]
        _same(kept, expected)
    assert 0 < shared < len(kept), "some found a slot, others did not"
    _same(kept, expected)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_arrays_of_any_axes_and_values(tmp_path: Path, transport: str) -> None:
    array = np.arange(7 * 2 * 3 * 4 * 5 * 6, dtype=np.int16).reshape(7, 2, 3, 4, 5, 6)
    np.save(tmp_path / "rows.npy", array)
    data = {"source": "numpy", "files": str(tmp_path / "rows.npy"), "rows": True, "layout": "AFCHW"}
    config = {
        "data": data,
        "pipeline": [{"to_dtype": {"dtype": "float32"}}],
        "loader": {"device": "cpu", "batch_size": 3, "ids": True},
    }
    expected = _in_process(config, 2)
    assert expected[0][0]["array"].shape == (3, 2, 3, 4, 5, 6)
    with (
        serving(config) as server,
        gpupipe.connect(server.address, device="cpu", ids=True, transport=transport) as loader,
    ):
        for epoch in expected:
            _same(list(loader), epoch)
        assert loader.config.pipeline.fields == gpupipe.load(config).config.pipeline.fields


def test_a_data_set_that_grows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store" / "a").mkdir(parents=True)
    (tmp_path / "store" / "a" / "1.jpg").write_bytes(b"x")
    data = {
        "source": "remote",
        "url": f"file://{tmp_path}/store",
        "cache": {"dir": str(tmp_path / "cache"), "max_bytes": "1GB"},
    }
    config = {
        "data": data,
        "pipeline": ["decode"],
        "loader": {"device": "cpu", "batch_size": 1, "engine": "dataloader", "workers": 0},
    }
    with (
        gpupipe.load(config) as loader,
        pytest.raises(
            gpupipe.ServerError, match=r"data\.source: remote has other samples in every epoch"
        ),
    ):
        Server(loader)


def test_what_is_served_already_is_not_served_again(config: dict[str, Any]) -> None:
    with (
        serving(config) as server,
        gpupipe.connect(server.address, device="cpu") as loader,
        pytest.raises(gpupipe.ServerError, match="cannot be served again"),
    ):
        Server(loader)


def test_a_config_with_engine_remote(config: dict[str, Any]) -> None:
    with serving(config) as server:
        with gpupipe.load(config, engine="remote", server=server.address) as loader:
            _same(list(loader), _in_process(config, 1)[0])
            assert loader.engine.name == "remote"
        with pytest.raises(gpupipe.ServerError, match=r"is not the one that tcp://.* serves"):
            gpupipe.load(config, engine="remote", server=server.address, pipeline=["decode"])


def test_a_config_with_engine_remote_names_its_server(config: dict[str, Any]) -> None:
    with pytest.raises(gpupipe.ConfigError, match="no server is named"):
        gpupipe.load(config, engine="remote")
    with pytest.raises(gpupipe.ConfigError, match="tcp://HOST:PORT"):
        gpupipe.connect("localhost:5557")


@pytest.mark.parametrize("servers", [2, 3])
def test_several_servers_with_a_shard_each_are_one_loader(
    config: dict[str, Any], servers: int
) -> None:
    """Also from a state in the middle of a step, when some of them have had their turn and others
    have not.
    """
    with ExitStack() as stack:
        running = [
            stack.enter_context(serving(config, {"shard": {"rank": n, "world_size": servers}}))
            for n in range(servers)
        ]
        loader = stack.enter_context(
            gpupipe.connect([s.address for s in reversed(running)], device="cpu", ids=True)
        )
        whole = [b["id"].tolist() for b in loader]
        assert len(whole) == len(loader)
        assert sorted(i for ids in whole for i in ids) == list(range(23))
        for stop in (1, 2, 5, len(whole)):
            loader.sampler.set_epoch(0)
            iterator = iter(loader)
            first = [next(iterator)["id"].tolist() for _ in range(stop)]
            state = loader.state_dict()
            loader.load_state_dict(state)
            assert loader.sampler.left == (len(whole) - stop or len(whole))
            if stop < len(whole):
                assert first + [b["id"].tolist() for b in loader] == whole
        with pytest.raises(gpupipe.StateError, match="between the servers of one step"):
            loader.load_state_dict(state | {"ahead": servers})


def test_several_servers_must_belong_together(config: dict[str, Any]) -> None:
    with serving(config) as one, serving(config) as same, serving(config, {"seed": 6}) as other:
        with pytest.raises(gpupipe.ServerError, match="another shard"):
            gpupipe.connect([one.address, same.address], device="cpu")
        with pytest.raises(
            gpupipe.ServerError, match="different data, pipelines, batches or seeds"
        ):
            gpupipe.connect([one.address, other.address], device="cpu")


def test_an_error_of_the_pipeline_is_the_clients_too(config: dict[str, Any], tmp_path: Any) -> None:
    from PIL import Image

    for name in "abcdef":
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "0.png")
    (tmp_path / "c" / "0.png").write_bytes(b"no image")
    broken = config | {"data": {"source": "folder", "root": str(tmp_path)}}
    with (
        serving(broken, {"shuffle": False, "batch_size": 2}) as server,
        gpupipe.connect(server.address, device="cpu", ids=True) as loader,
    ):
        got = []
        with pytest.raises(gpupipe.SampleError, match=r"c/0\.png") as caught:
            for batch in loader:
                got.append(batch["id"].tolist())
        assert caught.value.path.endswith("c/0.png")
        assert got == [[0, 1]]
        with pytest.raises(gpupipe.SampleError):
            list(loader)
    with (
        serving(
            broken, {"shuffle": False, "batch_size": 2, "on_error": "skip", "max_bad": 0.5}
        ) as server,
        gpupipe.connect(server.address, device="cpu", ids=True) as loader,
    ):
        assert [b["id"].tolist() for b in loader] == [[0, 1], [3], [4, 5]]


def test_no_server_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(gpupipe.ServerError, match="is a server running there"):
        gpupipe.connect("tcp://127.0.0.1:9", device="cpu", patience=0.3)


def test_what_run_measures_with_works_over_it(config: dict[str, Any]) -> None:
    from time import perf_counter

    from gpupipe.bench.measure import Meter
    from gpupipe.bench.memory import PeakMemory

    with (
        PeakMemory() as memory,
        serving(config) as server,
        gpupipe.load(config, engine="remote", server=server.address) as loader,
    ):
        meter = Meter(loader, perf_counter(), lambda *_: None, lambda *_: None)
        meter.run("1/1", 20)
        assert meter.finish(memory).passes[0].batches == 20


def test_a_consumer_that_closes_early_leaves_the_rest_to_others(config: dict[str, Any]) -> None:
    """What it was sent and did not consume is in nobody's hands for long."""
    with serving(config) as server:
        first = gpupipe.connect(server.address, device="cpu", ids=True)
        second = gpupipe.connect(server.address, device="cpu", ids=True)
        iterator = iter(first)
        seen = next(iterator)["id"].tolist()
        rest: list[int] = []
        thread = threading.Thread(
            target=lambda: rest.extend(i for b in second for i in b["id"].tolist())
        )
        thread.start()
        first.close()
        thread.join(20)
        assert sorted(seen + rest) == list(range(23))
        second.close()
