"""Fetching a data set from a real server on this machine, and what happens where that fails."""

import contextlib
import hashlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpupipe.errors import FetchError
from gpupipe.sources.helpers.download import Dataset, fetch, get_archive_path
from helpers import forked_python
from helpers.served_archives import FILES, WANTED, Server, tar_of, tree


@contextlib.contextmanager
def talker(say: Callable[[socket.socket], None]) -> Iterator[str]:
    """The URL of a server that accepts a connection, reads the request, does `say`, and then keeps
    still.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                held.append(connection)
                connection.recv(65536)
                say(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/flowers.tar.gz"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)
    for connection in held:
        connection.close()


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2", "w"])
def test_an_archive_becomes_the_root(
    server: Server, tmp_path: Path, cache: Path, mode: str
) -> None:
    seen: list[tuple[str, int, int | None]] = []
    data = tar_of(FILES, mode)
    fetch(server.offer(data), tmp_path / "new" / "flowers", lambda *what: seen.append(what))
    assert tree(tmp_path) == {f"new/flowers/{name}": content for name, content in WANTED.items()}
    assert [p for p in cache.rglob("*") if p.is_file() and "locks" not in p.parts] == [], (
        "the archive is not needed any more"
    )
    assert ("downloading flowers", len(data), len(data)) in seen
    assert seen[-1][0] == "unpacking"


def test_without_a_network_it_can_be_done_by_hand(tmp_path: Path) -> None:
    data, root = tar_of(FILES), tmp_path / "flowers"
    sha256 = hashlib.sha256(data).hexdigest()
    dataset = Dataset("flowers", "Flowers", "http://archive.invalid/flowers.tar.gz", sha256)
    with pytest.raises(FetchError) as raised:
        fetch(dataset, root)
    archive = get_archive_path(dataset)
    for words in (
        f"download {dataset.url}",
        f"put it at {archive}",
        sha256,
        f"unpacks it to {root}",
    ):
        assert words in str(raised.value)
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(data)
    fetch(dataset, root)
    assert tree(root) == WANTED


def test_what_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "flowers").mkdir()
    fetch(server.offer(tar_of(FILES)), tmp_path / "flowers")
    assert server.asked == 0


def test_another_checksum_is_refused(server: Server, tmp_path: Path, cache: Path) -> None:
    dataset = server.offer(tar_of(FILES), sha256="0" * 64)
    with pytest.raises(FetchError, match="is not the data set"):
        fetch(dataset, tmp_path / "flowers")
    assert tree(tmp_path) == {}
    assert list((cache / "downloads").iterdir()) == []


def test_a_page_in_place_of_the_archive_is_refused(server: Server, tmp_path: Path) -> None:
    wanted = hashlib.sha256(tar_of(FILES)).hexdigest()
    with pytest.raises(FetchError, match="is not the data set"):
        fetch(server.offer(b"<html>Please log in</html>", wanted), tmp_path / "flowers")


def test_a_missing_file_is_named_with_the_servers_words(server: Server, tmp_path: Path) -> None:
    dataset = Dataset("flowers", "Flowers", server.url("nowhere.tar.gz"), "0" * 64)
    with pytest.raises(
        FetchError,
        match=r"flowers cannot be downloaded from http://127\.0\.0\.1:\d+/nowhere\.tar\.gz \(HTTP "
        r"404 File not found\)",
    ):
        fetch(dataset, tmp_path / "flowers")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_never_answers(impatient: None, tmp_path: Path) -> None:
    with talker(lambda connection: None) as url:
        started = time.monotonic()
        with pytest.raises(FetchError, match="no answer in time"):
            fetch(Dataset("flowers", "Flowers", url, "0" * 64), tmp_path / "flowers")
        assert time.monotonic() - started < 30


def test_a_server_that_stops_in_the_middle(impatient: None, tmp_path: Path) -> None:
    with talker(
        lambda connection: connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 5000
        )
    ) as url:
        started = time.monotonic()
        with pytest.raises(FetchError, match="cannot be downloaded"):
            fetch(Dataset("flowers", "Flowers", url, "0" * 64), tmp_path / "flowers")
        assert time.monotonic() - started < 30
    assert tree(tmp_path) == {}


def test_a_server_that_hangs_up_in_the_middle(impatient: None, tmp_path: Path) -> None:
    def say(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 5000)
        connection.shutdown(socket.SHUT_RDWR)

    with talker(say) as url, pytest.raises(FetchError):
        fetch(Dataset("flowers", "Flowers", url, "0" * 64), tmp_path / "flowers")
    assert tree(tmp_path) == {}


def test_a_port_where_nobody_listens(impatient: None, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(FetchError, match=f"cannot be downloaded from http://127.0.0.1:{port}/x"):
        fetch(
            Dataset("flowers", "Flowers", f"http://127.0.0.1:{port}/x", "0" * 64),
            tmp_path / "flowers",
        )


def test_a_host_that_does_not_exist(impatient: None, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(FetchError, match=r"gpupipe-test\.invalid cannot be found"):
        fetch(
            Dataset("flowers", "Flowers", "http://gpupipe-test.invalid/x", "0" * 64),
            tmp_path / "flowers",
        )
    assert time.monotonic() - started < 30


def test_a_place_that_cannot_be_written_is_noticed_before_the_download(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    dataset = server.offer(tar_of(FILES))
    for root in (tmp_path / "file" / "flowers", tmp_path / "file"):
        with pytest.raises(FetchError, match=f"{root} cannot be written"):
            fetch(dataset, root)
    assert server.asked == 0
    assert tree(tmp_path) == {"file": b""}


def test_a_cache_that_cannot_be_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(FetchError, match=f"flowers cannot be stored in {tmp_path / 'file'}"):
        fetch(server.offer(tar_of(FILES)), tmp_path / "flowers")
    assert tree(tmp_path) == {"file": b""}


FETCH = """
from pathlib import Path
from gpupipe.sources.helpers.download import Dataset, fetch
fetch(Dataset("flowers", "Flowers", sys.argv[1], sys.argv[2]), Path(sys.argv[3]))
"""


def start_fetch(dataset: Dataset, target: Path, **environment: str) -> subprocess.Popen[str]:
    code = [forked_python.executable(), "-c", FETCH]
    return subprocess.Popen(
        [*code, dataset.url, dataset.sha256, str(target)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def test_processes_that_fetch_at_once_all_end_with_the_data(server: Server, tmp_path: Path) -> None:
    many = {f"flowers/rose/{n}.jpg": bytes([n % 256]) * 5000 for n in range(300)}
    dataset = server.offer(tar_of(many))
    processes = [start_fetch(dataset, tmp_path / "flowers") for _ in range(4)]
    assert [(p.communicate(timeout=60)[1], p.returncode) for p in processes] == [("", 0)] * 4
    assert server.asked == 1
    assert tree(tmp_path) == many


def test_processes_that_share_no_lock_all_end_with_the_data(server: Server, tmp_path: Path) -> None:
    """As on several hosts over one file system: each has a cache of its own."""
    dataset = server.offer(tar_of(FILES))
    processes = [
        start_fetch(dataset, tmp_path / "data" / "flowers", GPUPIPE_CACHE=f"{tmp_path}/cache{n}")
        for n in range(3)
    ]
    assert [(p.communicate(timeout=60)[1], p.returncode) for p in processes] == [("", 0)] * 3
    assert tree(tmp_path / "data") == FILES
