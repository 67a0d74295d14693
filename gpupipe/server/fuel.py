"""Fuel's own wire format, for its original ServerDataStream: a PUSH socket, a JSON list of .npy
headers before each batch, one raw frame per array.

The format has no acknowledgements. ZeroMQ distributes the batches among several clients, and the
batches of a client that dies are lost.
"""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import zmq

from gpupipe.errors import ServerError
from gpupipe.loader import Loader
from gpupipe.protocol import sockets
from gpupipe.server.options import ServerOptions

_PATIENCE_MS = 200


class FuelServer:
    """Serves the epochs of a loader, one after another, to all clients that pull.

    Args:
        loader: The loader to serve.
        options: How to serve. FuelServer uses only `address` and `hwm`.

    Attributes:
        address: The address that the server listens on, with the actual port.

    Raises:
        ServerError: The options are wrong, a dtype cannot be sent, or the port is taken.
    """

    def __init__(self, loader: Loader, options: ServerOptions) -> None:
        _check_dtypes(loader)
        self._loader, self._stopping, self._running = loader, False, threading.Lock()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(options.hwm)
        self._socket.linger = 0
        self._socket.sndtimeo = _PATIENCE_MS
        try:
            self.address = sockets.bind(self._socket, options.address)
        except ServerError:
            self.close()
            raise

    def run(self, each: "Callable[[FuelServer], None]" = lambda server: None) -> None:
        """Serve until stop() is called. `each` is called after every batch and every end marker."""
        with self._running:
            while not self._stopping:
                for frames in _epoch(self._loader):
                    if not self._send(frames):
                        return
                    each(self)

    def stop(self, ends_run: bool = True) -> None:
        """Make run() return. `ends_run` has no effect: this server keeps no state."""
        self._stopping = True

    def close(self) -> None:
        """Stop run() and wait for its end, then release the port. Idempotent."""
        self.stop()
        with self._running:
            self._socket.close(0)
            self._context.term()

    def _send(self, frames: list[Any]) -> bool:
        """Send a message as soon as a client takes it. Return False if the server stops before.

        Only the first frame waits: ZeroMQ then takes the remaining frames too, and drops them if
        the client leaves meanwhile. The send needs its timeout, even after a poll(): the client
        may leave after the poll(), and the send would block for ever.
        """
        first, *others = frames
        while not self._stopping:
            try:
                self._socket.send(first, zmq.SNDMORE if others else 0)
            except zmq.Again:
                continue
            if others:
                self._socket.send_multipart(others, copy=False)
            return True
        return False

    def __enter__(self) -> "FuelServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _check_dtypes(loader: Loader) -> None:
    """Raise ServerError if a field has a dtype that NumPy does not have, such as bfloat16."""
    pipeline, chosen = loader.config.pipeline, loader.config.loader.dtype
    for name in pipeline.main_outputs if loader.as_tuple else pipeline.outputs:
        dtype = (
            chosen
            if chosen is not None and name in pipeline.main_outputs
            else pipeline.output_spec_of(name).dtype
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
    """Yield the messages of an epoch, as lists of frames: its batches, then the end marker."""
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
