"""What the tests of the cache share: small files in folders, an S3 server, an HTTP server that
misbehaves on demand, and fillers over them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import listing, store_listing
from gpupipe.cache.cache_folder import CacheFolder, prepare_folder
from gpupipe.cache.publishing import ShardPublisher
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.store import Store
from gpupipe.cache.stored_fill import create_filler
from helpers import stored_shards
from helpers.cached_loading import STEPS, Config

os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(autouse=True)
def fork_workers(forked_executable: None) -> None:
    """Download workers are forks of a Python that has imported what they need."""


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 files of about 20 kB in 4 folders; each begins with its own name."""
    root = tmp_path_factory.mktemp("blobs") / "blobs"
    for n in range(40):
        file = root / f"class{n % 4}" / f"{n:03}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(
            f"{file.parent.name}/{file.name}:".encode() + bytes([n]) * (19_000 + 53 * n)
        )
    return root


@pytest.fixture(scope="session")
def tars(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 faces in 6 shards, in two folders; a face's label is the number of its sample."""
    return stored_shards.write_tars(tmp_path_factory.mktemp("tars") / "tars", faces)


@dataclass
class Made:
    """A cache, and what fills it in this process."""

    folder: CacheFolder
    dataset: DataSet
    listing: listing.Listing
    filler: ShardPublisher

    def another(self) -> ShardPublisher:
        """A second filler of the same cache."""
        options = self.folder.options
        return create_filler(CacheFolder(options), self.dataset, _store(self.dataset, options))

    def fill(self) -> str:
        """Fill until there is no more to do. Returns why."""
        while (outcome := self.filler.publish_shard()) in ("published", "skipped"):
            pass
        return outcome


def _store(dataset: DataSet, options: CacheOptions) -> Store:
    return Store(dataset, options.retries, options.timeout, pause=lambda seconds: None)


Make = Callable[..., Made]


@pytest.fixture
def make(blobs: Path, tmp_path: Path) -> Make:
    """Makes a cache of the blobs, or of another data set, in a folder of its own; pauses between
    attempts take no time.
    """

    def made(dataset: dict[str, Any] | None = None, **options: Any) -> Made:
        cache = CacheOptions(
            **{
                "dir": tmp_path / "cache",
                "max_bytes": "4MB",
                "shard_size": "100kB",
                "connections": 4,
                "retries": 2,
            }
            | options
        )
        data = DataSet(**{"url": f"file://{blobs}"} | (dataset or {}))
        folder = prepare_folder(cache, data)
        if not listing.is_listed(folder):
            found = store_listing.list_samples(data, _store(data, cache))
            with folder.lock():
                listing.save(found, folder)
        kept = listing.load(folder)
        return Made(folder, data, kept, create_filler(folder, data, _store(data, cache)))

    return made


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, Any]]:
    """An S3 server on loopback: the storage_options that reach it."""
    server = pytest.importorskip("moto.server", reason="needs moto[server]").ThreadedMotoServer(
        port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    yield {
        "key": "key",
        "secret": "secret",
        "client_kwargs": {"endpoint_url": f"http://{host}:{port}"},
    }
    server.stop()


@pytest.fixture(scope="session")
def bucket(s3: dict[str, Any], blobs: Path) -> str:
    """The blobs in S3: their url."""
    import s3fs

    files = s3fs.S3FileSystem(**s3)
    files.mkdir("blobs")
    files.put(f"{blobs}/", "blobs/data/", recursive=True)
    return "s3://blobs/data"


_FILES = (".jpg", ".tar")


@dataclass
class Faults:
    """What an HTTP server does wrong, by the path's end: how often it answers 500, cuts a body off,
    stalls, tells another ETag, sends other content, answers 500 to HEAD and the GET after it, or
    403 or 404, or sends a range of wrong bytes.
    `headers` are sent with every image, in place of its own; "" for none.
    """

    errors: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    stalls: dict[str, int] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    garbled: dict[str, int] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    forbidden: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    has_ranges: bool = True
    asked: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def due(self, faults: dict[str, int], path: str) -> bool:
        for end, left in faults.items():
            if path.endswith(end) and left:
                faults[end] = left - 1
                return True
        return False


def _handler(root: Path, faults: Faults) -> type[SimpleHTTPRequestHandler]:
    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(root))

        def log_message(self, *args: Any) -> None:
            pass

        def copyfile(self, source: Any, outputfile: Any) -> None:
            with suppress(BrokenPipeError):  # obstore wants no more than the range it asked for
                super().copyfile(source, outputfile)

        def send_header(self, name: str, value: str) -> None:
            value = faults.headers.get(name, value) if self.path.endswith(_FILES) else value
            if value:
                super().send_header(name, value)

        def end_headers(self) -> None:
            if self.path.endswith(_FILES):
                is_due = faults.due(faults.changes, self.path)
                self.send_header("ETag", f'"{len(faults.asked) if is_due else "same"}"')
                self.send_header("Content-MD5", "")
            super().end_headers()

        def do_HEAD(self) -> None:
            if faults.due(faults.heads, self.path):
                self.send_error(500)
            else:
                super().do_HEAD()

        def do_GET(self) -> None:
            faults.asked.append(self.path)
            if faults.due(faults.errors, self.path) or faults.due(faults.heads, self.path):
                self.send_error(500)
            elif faults.due(faults.forbidden, self.path):
                self.send_error(403)
            elif faults.due(faults.gone, self.path):
                self.send_error(404)
            elif faults.due(faults.stalls, self.path):
                faults.over.wait(20)
                self.close_connection = True
            elif faults.due(faults.garbled, self.path):
                size = (root / self.path.lstrip("/")).stat().st_size
                self.send_response(200)
                self.send_header("Content-Length", str(size))
                self.end_headers()
                self.wfile.write(b"x" * size)
            elif faults.due(faults.cuts, self.path):
                self.send_response(206 if self.headers.get("Range") else 200)
                self.send_header("Content-Range", "bytes 0-19999/20000")
                self.send_header("Content-Length", "20000")
                self.end_headers()
                self.wfile.write(b"x" * 1000)
                self.close_connection = True
            elif (asked := self.headers.get("Range")) and faults.has_ranges:
                self._send_range(asked)
            else:
                super().do_GET()

        def _send_range(self, asked: str) -> None:
            data = (root / self.path.lstrip("/")).read_bytes()
            begin, end = map(int, asked.removeprefix("bytes=").split("-"))
            if faults.due(faults.wrong, self.path):
                data = bytes(len(data))
            self.send_response(206)
            last = min(end, len(data) - 1)
            self.send_header("Content-Range", f"bytes {begin}-{last}/{len(data)}")
            self.send_header("Content-Length", str(len(data[begin : end + 1])))
            self.end_headers()
            self.wfile.write(data[begin : end + 1])

    return Handler


@contextmanager
def serve(root: Path) -> Iterator[tuple[str, Faults]]:
    """Serve a folder over HTTP: its URL, and what the server is to do wrong."""
    faults = Faults()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(root, faults))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", faults
    faults.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def web(blobs: Path) -> Iterator[tuple[str, Faults]]:
    """An HTTP server of the blobs: its URL, and what it is to do wrong."""
    with serve(blobs) as served:
        yield served


@pytest.fixture
def web_tars(tars: Path) -> Iterator[tuple[str, Faults]]:
    """An HTTP server of the shards: its URL, and what it is to do wrong."""
    with serve(tars) as served:
        yield served


@pytest.fixture
def web_faces(faces: Path) -> Iterator[tuple[str, Faults]]:
    """An HTTP server of 60 faces: its URL, and what it is to do wrong."""
    with serve(faces) as served:
        yield served


@pytest.fixture(scope="module")
def pictures(faces: Path, s3: dict[str, Any]) -> str:
    """60 faces in S3, about 850 kB."""
    import s3fs

    files = s3fs.S3FileSystem(**s3)
    if not files.exists("faces"):
        files.mkdir("faces")
        files.put(f"{faces}/", "faces/", recursive=True)
    return "s3://faces"


@pytest.fixture
def config(faces: Path, tmp_path: Path) -> Config:
    """Makes the config of a cache of the faces in a folder of its own; by default straight from the
    disk.
    """

    def made(**cache: Any) -> dict[str, Any]:
        data: dict[str, Any] = {
            "source": "remote",
            "url": cache.pop("url", f"file://{faces}"),
            "storage_options": cache.pop("storage_options", {}),
        }
        has_shards = "shards" in cache
        for name in ("shards", "label", "classes", "fields", "values"):
            if name in cache:
                data[name] = cache.pop(name)
        packed = {} if has_shards else {"shard_size": "60kB"}
        folder = str(tmp_path / "cache")
        options = {"dir": folder, "max_bytes": "2MB", "workers": 1} | packed | cache
        return {"data": data | {"cache": options}, "pipeline": STEPS}

    return made
