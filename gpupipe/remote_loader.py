"""Clients of a data processing server: connect(), and ServerDataStream, with Fuel's interface."""

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from gpupipe.config import LoaderConfig
from gpupipe.engines import registry
from gpupipe.errors import ConfigError, ServerError, did_you_mean
from gpupipe.loader import Loader, warn_about_data
from gpupipe.loading import assembly
from gpupipe.schema.document import Document
from gpupipe.schema.validation_errors import to_problems


def connect(
    server: str | Sequence[str],
    *,
    hwm: int = 10,
    device: str = "auto",
    transport: str = "auto",
    key: str | PathLike[str] | None = None,
    server_key: str | PathLike[str] | None = None,
    format: str | None = None,
    ids: bool | None = None,
    patience: float = 60.0,
    **more: Any,
) -> Loader:
    """Create a Loader over the batches of a data processing server.

    The server decides data, steps, batch size and seed; also `format`, `ids`, `targets` and
    `pad_to`, unless they are arguments here.

    Args:
        server: Address, tcp://HOST:PORT or ipc://FILE, or a list of servers with one shard each.
        hwm: High-water mark: the number of batches that the server sends ahead, 1 to 1000.
        device: Where batches are delivered: auto, cpu, gpu or gpu:N.
        transport: shm (shared memory), tcp (socket), or auto, which is shm if possible.
        key: File with the secret key of this client, for a server that has keys.
        server_key: File with the public key of the server.
        format: Format of a batch: "dict", or "tuple" for (first field, label). None, the default:
            as the served config says.
        ids: If true, batches also have "id", int64 (B,). None, the default: as the served config
            says.
        patience: Seconds without a message from the server after which the loader raises
            ServerError.
        **more: Other settings of `loader`, such as shard={"rank": 0, "world_size": 2}.

    Returns:
        The loader. Close it, or use it as a context manager.

    Raises:
        ConfigError: If an argument is wrong.
        DeviceError: If the device is not available.
        ServerError: If the server cannot be reached, or refuses this client.

    Examples:
        >>> with gpupipe.connect("tcp://localhost:5557") as loader:
        ...     for batch in loader:
        ...         batch["image"], batch["label"]
    """
    settings = {
        "engine": "remote",
        "server": server,
        "hwm": hwm,
        "device": device,
        "transport": transport,
        "key": key,
        "server_key": server_key,
        **({} if format is None else {"format": format}),
        **({} if ids is None else {"ids": ids}),
        **more,
    }
    try:
        options = LoaderConfig.model_validate(settings)
    except pydantic.ValidationError as e:
        raise ConfigError(to_problems(e, LoaderConfig, Document("connect()", settings))) from None
    engine = registry.find(options.engine)
    return warn_about_data(Loader(assembly.connect(engine, options, patience=patience)))


class ServerDataStream:
    """Delivers the batches of a gpupipe server, with the interface of Fuel's data streams.

    Each epoch is an iterator over tuples of NumPy arrays. The arguments are those of
    `fuel.streams.ServerDataStream`, in the same order.

    Args:
        sources: Fields to deliver, in this order, such as ("image", "label").
        produces_examples: If false, deliver batches; if true, deliver single samples.
        host: Host of the server.
        port: Port of the server.
        hwm: High-water mark: the number of batches that the server sends ahead, 1 to 1000.
        axis_labels: Names of the axes of each source. Only stored as an attribute.

    Raises:
        ServerError: If the server cannot be reached, or is a server of Fuel.
        TypeError: If `produces_examples` is not a bool.

    Examples:
        >>> stream = ServerDataStream(("image", "label"), False, port=5557)
        >>> for images, labels in stream.get_epoch_iterator(): ...
    """

    def __init__(
        self,
        sources: Sequence[str],
        produces_examples: bool = False,
        host: str = "localhost",
        port: int = 5557,
        hwm: int = 10,
        axis_labels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        if not isinstance(produces_examples, bool):
            raise TypeError(
                f"produces_examples is {produces_examples!r}, but should be True or False: "
                "the arguments of ServerDataStream are Fuel's, "
                "(sources, produces_examples, host, port, hwm, axis_labels)"
            )
        self.sources = tuple(sources)
        self.produces_examples, self.axis_labels = produces_examples, axis_labels
        self._loader = connect(f"tcp://{host}:{port}", hwm=hwm, device="cpu", format="dict")

    def get_epoch_iterator(self) -> Iterator[tuple[NDArray[Any], ...]]:
        """Iterate over the next epoch.

        Yields:
            A tuple with one array for each source. The arrays hold a batch, (B, ...). If
            `produces_examples` is true, they hold one sample, (...).

        Raises:
            ServerError: If a batch lacks one of the sources.
        """
        for batch in self._loader:
            for name in self.sources:
                if name not in batch:
                    raise ServerError(
                        f"the server's batches have no field '{name}'{did_you_mean(name, batch)}"
                    )
            arrays = tuple(np.asarray(batch[name]) for name in self.sources)
            if self.produces_examples:
                yield from zip(*arrays, strict=True)
            else:
                yield arrays

    def close(self) -> None:
        """Close the connection."""
        self._loader.close()
