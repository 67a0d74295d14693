"""The life of a server: it runs until it is stopped, frees what it took, and passes errors on."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.errors import SampleError, ServerError
from gpupipe.server.options import ServerOptions
from gpupipe.server.service import Server
from helpers.served import ids_of, serving


def new_server(config: dict[str, Any], **options: Any) -> Server:
    return Server(gpupipe.load(config), ServerOptions(**{"address": "tcp://127.0.0.1:0"} | options))


def test_the_address_has_the_port_and_is_free_after_close(config: dict[str, Any]) -> None:
    with new_server(config) as server:
        assert int(server.address.rpartition(":")[2]) > 0
        with pytest.raises(ServerError, match=server.address.removeprefix("tcp://")):
            new_server(config, address=server.address)
    server.close()
    with new_server(config, address=server.address) as other:
        assert other.address == server.address


def test_it_can_be_stopped_from_what_it_calls_while_it_runs(config: dict[str, Any]) -> None:
    calls = []

    def stop(running: Server) -> None:
        calls.append(running)
        running.stop()

    with new_server(config) as server:
        server.run(stop)
    assert calls == [server]


def test_close_waits_until_the_server_has_ended(config: dict[str, Any]) -> None:
    server, called = new_server(config), threading.Event()
    thread = threading.Thread(target=server.run, args=(lambda _: called.set(),))
    thread.start()
    assert called.wait(60)
    server.close()
    thread.join(60)
    assert not thread.is_alive()


def test_stats_count_what_was_sent_and_consumed(config: dict[str, Any]) -> None:
    with (
        serving(config) as server,
        gpupipe.connect(server.address, device="cpu", ids=True) as loader,
    ):
        epoch = list(loader)
        deadline = time.monotonic() + 60
        while server.stats()["clients"][0]["consumed"] < len(epoch) - 1:
            assert time.monotonic() < deadline, "the last acknowledgements did not come"
            time.sleep(0.01)
        assert server.stats()["batches"] >= len(epoch)
        assert sorted(n for ids in ids_of(epoch) for n in ids) == list(range(23))


def test_a_broken_sample_ends_the_iterations_and_not_the_server(
    config: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "images" / "only"
    folder.mkdir(parents=True)
    for n in range(3):
        (folder / f"{n}.png").write_bytes(b"no image")
    broken = {**config, "data": {"source": "folder", "root": str(folder.parent)}}
    with serving(broken) as server:
        for _ in range(2):
            with (
                gpupipe.connect(server.address, device="cpu") as loader,
                pytest.raises(SampleError, match=r"[012]\.png"),
            ):
                list(loader)
