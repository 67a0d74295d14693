"""What the tests of downloads share."""

import os
from collections.abc import Iterator

import pytest

from gpupipe.sources.helpers import dataset_catalog, download
from helpers.served_archives import FILES, Server, tar_of


@pytest.fixture(autouse=True)
def _without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    served = Server(tmp_path_factory.mktemp("served"))
    yield served
    served.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(download, "_READ_SECONDS", 0.5)


@pytest.fixture
def offered(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, with "lfw" on it."""
    monkeypatch.setitem(dataset_catalog.DATASETS, "lfw", server.offer(tar_of(FILES)))
    return server
