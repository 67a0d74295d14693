"""Fuel's own wire format, for its original ServerDataStream: a PUSH socket, a JSON list of .npy
headers before each batch, one raw frame an array.

There are no acknowledgements in it: several clients share the batches as ZeroMQ deals them out, and
one that dies takes with it what it had.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import zmq

from gpupipe.errors import ServerError
from gpupipe.loader import Loader
from gpupipe.server.options import ServerOptions

_LOOK_MS = 200


class FuelServer:
    """Serves the epochs of a loader, one after another, to whoever pulls."""

    def __init__(self, loader: Loader, options: ServerOptions) -> None:
        """Raises ServerError."""
        options.check()
        _check_dtypes(loader)
        self._loader, self._stopping, self._running = loader, False, threading.Lock()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(options.hwm)
        self._socket.linger = 0
        try:
            self._socket.bind(options.address)
        except zmq.ZMQError as e:
            self.close()
            raise ServerError(
                f"{options.address} cannot be listened on: {e}; another server may be "
                "there: take another --port"
            ) from None
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def run(self, each: Callable[[FuelServer], None] = lambda server: None) -> None:
        """Serve until stop(). each: called behind every batch."""
        with self._running:
            while not self._stopping:
                for frames in _epoch(self._loader):
                    if not self._send(frames):
                        return
                    each(self)

    def stop(self, ends_run: bool = True) -> None:
        """Make run() return. There is no state, so ends_run means nothing."""
        self._stopping = True

    def close(self) -> None:
        """Give back the port, when run() has returned. May be called twice."""
        self.stop()
        with self._running:
            self._socket.close(0)
            self._context.term()

    def _send(self, frames: list[Any]) -> bool:
        """Wait until there is room. False where it was stopped meanwhile."""
        while not self._stopping:
            if self._socket.poll(_LOOK_MS, zmq.POLLOUT):
                self._socket.send_multipart(frames, copy=False)
                return True
        return False

    def __enter__(self) -> FuelServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _check_dtypes(loader: Loader) -> None:
    """Raises ServerError for a field whose dtype NumPy does not have, since Fuel's headers are
    those of .npy files.
    """
    pipeline, chosen = loader.config.pipeline, loader.config.loader.dtype
    for name in (pipeline.main,) if loader.as_tuple else pipeline.fields:
        dtype = (
            chosen if chosen is not None and name == pipeline.main else pipeline.made_of(name).dtype
        )
        try:
            torch.empty(0, dtype=getattr(torch, dtype)).numpy()
        except TypeError:
            raise ServerError(
                f"Fuel's wire cannot carry the field '{name}': it is {dtype}, a dtype that "
                "NumPy does not have; serve another, such as dtype=float32, "
                "or serve with --wire gpupipe"
            ) from None


def _epoch(loader: Loader) -> Iterator[list[Any]]:
    """The messages of an epoch: batches, then the end."""
    for batch in loader:
        tensors = (
            batch
            if isinstance(batch, tuple)
            else [t for name, t in batch.items() if name != "id" or loader.config.loader.ids]
        )
        arrays = [np.ascontiguousarray(tensor.cpu().numpy()) for tensor in tensors]
        headers = [{"descr": a.dtype.str, "fortran_order": False, "shape": a.shape} for a in arrays]
        yield [_json(headers), *arrays]
    yield [_json({"stop": True})]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
