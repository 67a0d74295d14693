"""What the tests of the cache share: small files in folders, an S3 server, an HTTP server that
misbehaves on demand, and fillers over them.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import listing
from gpupipe.cache.cache_folder import CacheFolder, prepare_folder
from gpupipe.cache.downloader import save_listing
from gpupipe.cache.publishing import ShardPublisher
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.store import Store
from gpupipe.cache.stored_fill import create_filler
from helpers import stored_shards
from helpers.cached_loading import STEPS, Config
from helpers.faulty_store import Faults, serve

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
            save_listing(folder, data, _store(data, cache))
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
