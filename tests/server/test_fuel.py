"""Fuel's wire format, read as Fuel reads it; and Fuel's data stream over a server of gpupipe."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from served import serving

import gpupipe
from gpupipe.client import ServerDataStream
from gpupipe.server.fuel import FuelServer
from gpupipe.server.options import Options


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


@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array:DeprecationWarning")  # Fuel's client does so
def test_fuels_client_reads_epochs(config: dict[str, Any]) -> None:
    with gpupipe.load(config) as loader:
        expected = [[(b["image"].numpy(), b["label"].numpy(), b["id"].numpy()) for b in loader] for _ in range(2)]
    with gpupipe.load(config) as loader, FuelServer(loader, Options(address="tcp://127.0.0.1:0", wire="fuel", hwm=3)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        with zmq.Context() as context, context.socket(zmq.PULL) as socket:
            socket.linger = 0
            socket.set_hwm(3)
            socket.connect(server.address)
            for epoch in expected:
                for batch in epoch:
                    for array, wanted in zip(recv_arrays(socket), batch, strict=True):
                        assert array.dtype == wanted.dtype
                        np.testing.assert_array_equal(array, wanted)
                with pytest.raises(StopIteration):
                    recv_arrays(socket)
        server.stop()
        thread.join()


def test_a_taken_port_is_said(config: dict[str, Any], tmp_path: Path) -> None:
    """Before anything else is, such as that the other keeps its state in the same file."""
    state = tmp_path / "state"
    with serving(config, state=state) as server, gpupipe.load(config) as loader:
        with pytest.raises(gpupipe.ServerError, match="another server may be there"):
            FuelServer(loader, Options(address=server.address, wire="fuel"))
        with pytest.raises(gpupipe.ServerError, match="another server may be there"), serving(config, address=server.address, state=state):
            pass


def test_a_data_stream_over_a_server(config: dict[str, Any]) -> None:
    with gpupipe.load(config) as loader:
        expected = [[(b["label"].numpy(), b["image"].numpy()) for b in loader] for _ in range(2)]
    with serving(config) as server:
        stream = ServerDataStream(("label", "image"), host="127.0.0.1", port=int(server.address.rpartition(":")[2]))
        for epoch in expected:
            for found, wanted in zip(stream.get_epoch_iterator(), epoch, strict=True):
                for array, other in zip(found, wanted, strict=True):
                    np.testing.assert_array_equal(array, other)
        stream.sources = ("lable",)
        with pytest.raises(gpupipe.ServerError, match="did you mean 'label'"):
            next(stream.get_epoch_iterator())
        stream.close()
