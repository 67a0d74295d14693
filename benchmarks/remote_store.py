"""An S3 server on loopback with photographs in it, in a process of its own: the store of the
benchmarks of the cache.

The server is moto's, in Python: it answers a few hundred requests a second, and takes a core for
it. What is measured against it is a floor.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import photos

BUCKET = "photographs"
_READY_SECONDS = 60.0


@contextmanager
def s3(root: Path, copies: int) -> Iterator[dict[str, Any]]:
    """The `data:` of a config of every image below `root`, `copies` times, without its cache."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        options = {
            "key": "key",
            "secret": "secret",
            "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"},
        }
        _wait(port)
        _upload(options, root, copies)
        yield {"source": "remote", "url": f"s3://{BUCKET}", "storage_options": options}
    finally:
        server.terminate()
        server.wait()


def _wait(port: int) -> None:
    end = time.monotonic() + _READY_SECONDS
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1.0):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _upload(options: dict[str, Any], root: Path, copies: int) -> None:
    import s3fs

    files = s3fs.S3FileSystem(**options)
    files.mkdir(BUCKET)
    images = sorted(root.glob("*/*.jpg"))
    for n in range(copies):
        files.put(
            [str(p) for p in images], [f"{BUCKET}/{p.parent.name}/{n}-{p.name}" for p in images]
        )


def images(data: Path, count: int) -> Path:
    """JPEGs of 500x375 of about 100 kB, a folder for every ten."""
    return photos.imagenet_like(data, count)
