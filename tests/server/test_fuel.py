"""Fuel's wire format, read as Fuel reads it; and Fuel's data stream over a server of gpupipe."""

import logging
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

import gpupipe
from gpupipe.remote_loader import ServerDataStream
from gpupipe.server.fuel import FuelServer
from gpupipe.server.metrics import fetch_stats
from gpupipe.server.options import ServerOptions
from helpers.full_product import IS_FULL
from helpers.served import running, serving


def recv_arrays(socket: Any) -> list[Any]:
    """As Fuel 0.2.0 has it in fuel/server.py, but for `buffer_`, which is `memoryview` there."""
    headers = socket.recv_json()
    if "stop" in headers:
        raise StopIteration
    arrays = []
    for header in headers:
        data = socket.recv()
        buf = memoryview(data)
        array = np.frombuffer(buf, dtype=np.dtype(header["descr"]))
        array.shape = header["shape"]
        if header["fortran_order"]:
            array.shape = header["shape"][::-1]
            array = array.transpose()
        arrays.append(array)
    return arrays


@contextmanager
def serving_fuel(config: dict[str, Any], **changes: Any) -> Iterator[FuelServer]:
    """A server of Fuel's wire in a thread of this process, at any free port."""
    options = ServerOptions(address="tcp://127.0.0.1:0", wire="fuel", hwm=3)
    with gpupipe.load(config, **changes) as loader, running(FuelServer(loader, options)) as server:
        yield server


@contextmanager
def fuels_socket(address: str) -> Iterator[Any]:
    """A socket as Fuel's client has it."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.linger = 0
        socket.set_hwm(3)
        socket.connect(address)
        yield socket


_AS_FUEL_DOES = pytest.mark.filterwarnings(
    "ignore:Setting the shape on a NumPy array:DeprecationWarning"
)


@_AS_FUEL_DOES
def test_fuels_client_reads_epochs(config: dict[str, Any]) -> None:
    with gpupipe.load(config) as loader:
        expected = [
            [(b["image"].numpy(), b["label"].numpy(), b["id"].numpy()) for b in loader]
            for _ in range(2)
        ]
    with serving_fuel(config) as server, fuels_socket(server.address) as socket:
        for epoch in expected:
            for batch in epoch:
                for array, wanted in zip(recv_arrays(socket), batch, strict=True):
                    assert array.dtype == wanted.dtype
                    np.testing.assert_array_equal(array, wanted)
            with pytest.raises(StopIteration):
                recv_arrays(socket)


@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_a_dtype_that_numpy_does_not_have_is_refused_at_the_start(
    config: dict[str, Any], form: str
) -> None:
    changes = {
        "pipeline": ["decode", {"to_dtype": {"dtype": "float32"}}],
        "dtype": "bfloat16",
        "format": form,
    }
    with (
        pytest.raises(gpupipe.ServerError, match=r"'image'.*bfloat16.*dtype=float32"),
        serving_fuel(config, **changes),
    ):
        pass


@_AS_FUEL_DOES
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16"])
def test_dtypes_that_numpy_has(config: dict[str, Any], dtype: str) -> None:
    pipeline = ["decode", {"to_dtype": {"dtype": dtype}}]
    with serving_fuel(config, pipeline=pipeline) as server, fuels_socket(server.address) as socket:
        assert recv_arrays(socket)[0].dtype == np.dtype(dtype)


def test_it_stops_if_the_client_that_it_sends_to_leaves(config: dict[str, Any]) -> None:
    """At any moment: clients leave while a batch is being sent, and then the server is stopped."""
    options = ServerOptions(address="tcp://127.0.0.1:0", wire="fuel", hwm=3)
    with gpupipe.load(config) as loader:
        for k in range(100 if IS_FULL else 40):
            with FuelServer(loader, options) as server:
                thread = threading.Thread(target=server.run)
                thread.start()
                for _ in range(5):
                    with fuels_socket(server.address) as socket:
                        for _ in range(1 + k % 4):
                            socket.recv_multipart(copy=False)
                server.stop()
                thread.join(60)
                hangs = thread.is_alive()
                if hangs:
                    with fuels_socket(server.address):
                        thread.join()
                assert not hangs


def test_a_taken_port_is_said(config: dict[str, Any], tmp_path: Path) -> None:
    """Before anything else is, such as that the other keeps its state in the same file."""
    state = tmp_path / "state"
    with serving(config, state=state) as server, gpupipe.load(config) as loader:
        with pytest.raises(gpupipe.ServerError, match="another server may be there"):
            FuelServer(loader, ServerOptions(address=server.address, wire="fuel"))
        with (
            pytest.raises(gpupipe.ServerError, match="another server may be there"),
            serving(config, address=server.address, state=state),
        ):
            pass


def test_a_data_stream_over_a_server(config: dict[str, Any]) -> None:
    with gpupipe.load(config) as loader:
        expected = [[(b["label"].numpy(), b["image"].numpy()) for b in loader] for _ in range(2)]
    with serving(config) as server:
        stream = ServerDataStream(("label", "image"), False, "127.0.0.1", _port(server))
        for epoch in expected:
            for found, wanted in zip(stream.get_epoch_iterator(), epoch, strict=True):
                for array, other in zip(found, wanted, strict=True):
                    np.testing.assert_array_equal(array, other)
        stream.sources = ("lable",)
        with pytest.raises(gpupipe.ServerError, match="did you mean 'label'"):
            next(stream.get_epoch_iterator())
        stream.close()


def test_a_data_stream_that_produces_examples(config: dict[str, Any]) -> None:
    with gpupipe.load(config) as loader:
        expected = [
            (label, image)
            for b in loader
            for label, image in zip(b["label"].tolist(), b["image"].numpy(), strict=True)
        ]
    with serving(config) as server:
        stream = ServerDataStream(
            ("label", "image"),
            True,
            "127.0.0.1",
            _port(server),
            10,
            {"image": ("batch", "channel", "height", "width")},
        )
        assert stream.produces_examples
        assert stream.axis_labels == {"image": ("batch", "channel", "height", "width")}
        for (label, image), (wanted, other) in zip(
            stream.get_epoch_iterator(), expected, strict=True
        ):
            assert label == wanted
            np.testing.assert_array_equal(image, other)
        stream.close()


def test_a_host_in_the_place_of_fuels_second_argument_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"produces_examples is 'localhost'.*\(sources, produces_examples, host"
    ):
        ServerDataStream(("image",), "localhost")  # type: ignore[arg-type]  # a mistake


def _port(server: Any) -> int:
    return int(server.address.rpartition(":")[2])


@_AS_FUEL_DOES
def test_a_server_of_fuels_wire_is_told_from_one_of_gpupipe(config: dict[str, Any]) -> None:
    """In seconds, and no batch is taken from Fuel's clients by looking."""
    with gpupipe.load(config) as loader:
        first = next(iter(loader))["id"].numpy()
    with serving_fuel(config) as server:
        with pytest.raises(
            gpupipe.ServerError, match=r"speaks Fuel's protocol.*without --wire fuel"
        ):
            ServerDataStream(("image",), False, "127.0.0.1", _port(server))
        for _ in range(10):  # a look takes a second at most: under load the answer may be late
            with pytest.raises(gpupipe.ServerError) as refused:
                fetch_stats(server.address, patience=0.5)
            if "speaks Fuel's protocol" in str(refused.value):
                break
        else:
            raise AssertionError(str(refused.value))
        with fuels_socket(server.address) as socket:
            np.testing.assert_array_equal(recv_arrays(socket)[2], first)


def test_a_server_of_gpupipe_says_that_a_client_speaks_fuels_protocol(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(config) as server, logged() as was_logged:
        with gpupipe.connect(server.address, device="cpu") as loader:
            list(loader)
        assert not was_logged.is_set(), "of a client of gpupipe nothing is said"
        with fuels_socket(server.address), fuels_socket(server.address):
            assert was_logged.wait(60)
    assert "needs 'gpupipe serve --wire fuel'" in caplog.text
    assert caplog.text.count("--wire fuel") == 1


def test_it_says_so_too_if_the_client_is_the_first_to_hang_up(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Which of the two sees first that the sockets do not fit is a race between their threads."""
    with serving(config) as server, logged() as was_logged:
        with socket.create_connection(("127.0.0.1", _port(server))) as connection:
            connection.recv(1)
            reset = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        assert was_logged.wait(60)
    assert "needs 'gpupipe serve --wire fuel'" in caplog.text


@contextmanager
def logged() -> Iterator[threading.Event]:
    """An event that is set when something was logged, after caplog has it."""
    event = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: event.set()  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield event
    finally:
        logging.getLogger().removeHandler(handler)
