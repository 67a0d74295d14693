"""Fetching a data set from a real server on this machine, and what happens where that fails."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import http.server
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpupipe.errors import DataError, FetchError
from gpupipe.fetch import dataset_catalog
from gpupipe.fetch.dataset_catalog import Dataset, DatasetLocation, absent, fetch, present, unpack

FILES = {
    "flowers/rose/1.jpg": b"red",
    "flowers/rose/2.jpg": b"",
    "flowers/tulip/deep/3.jpg": bytes(range(256)) * 4000,
}


def tar_of(files: dict[str, bytes], mode: str = "w:gz", *more: tarfile.TarInfo) -> bytes:
    """Return a tar archive; the same arguments always give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w" if mode == "w:gz" else mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for member in more:
            tar.addfile(member)
    # tarfile would write the time into the header of gzip
    return gzip.compress(buffer.getvalue(), mtime=0) if mode == "w:gz" else buffer.getvalue()


def damaged(data: bytes) -> bytes:
    middle = len(data) // 2
    return (
        data[:middle] + bytes(b ^ 0x55 for b in data[middle : middle + 200]) + data[middle + 200 :]
    )


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


WANTED = {name.removeprefix("flowers/"): data for name, data in FILES.items()}


class Server:
    """Serves a folder over HTTP, and counts what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, 0
        server = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked += 1
                super().do_GET()

            def log_message(self, *message: object) -> None:
                """Nothing on the terminal."""

        self._http = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
        )
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def offer(
        self, data: bytes, sha256: str | None = None, file: str = "flowers.tar.gz"
    ) -> Dataset:
        (self.folder / file).write_bytes(data)
        return Dataset(
            "flowers", "Flowers", self.url(file), sha256 or hashlib.sha256(data).hexdigest()
        )

    def url(self, file: str) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/{file}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


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
    monkeypatch.setattr(dataset_catalog, "_CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(dataset_catalog, "_READ_SECONDS", 0.5)


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


# --- fetching


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
import sys
from pathlib import Path
from gpupipe.fetch.dataset_catalog import Dataset, fetch
fetch(Dataset("flowers", "Flowers", sys.argv[1], sys.argv[2]), Path(sys.argv[3]))
"""


def test_processes_that_fetch_at_once_all_end_with_the_data(server: Server, tmp_path: Path) -> None:
    many = {f"flowers/rose/{n}.jpg": bytes([n % 256]) * 5000 for n in range(300)}
    dataset = server.offer(tar_of(many))
    arguments = [
        sys.executable,
        "-c",
        FETCH,
        dataset.url,
        dataset.sha256,
        str(tmp_path / "flowers"),
    ]
    processes = [subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(p.communicate(timeout=60)[1], p.returncode) for p in processes] == [("", 0)] * 4
    assert server.asked == 1
    assert tree(tmp_path) == many


def test_processes_that_share_no_lock_all_end_with_the_data(server: Server, tmp_path: Path) -> None:
    """As on several hosts over one file system: each has a cache of its own."""
    dataset = server.offer(tar_of(FILES))
    arguments = [
        sys.executable,
        "-c",
        FETCH,
        dataset.url,
        dataset.sha256,
        str(tmp_path / "data" / "flowers"),
    ]
    environments = [os.environ | {"GPUPIPE_CACHE": str(tmp_path / f"cache{n}")} for n in range(3)]
    processes = [
        subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=e) for e in environments
    ]
    assert [(p.communicate(timeout=60)[1], p.returncode) for p in processes] == [("", 0)] * 3
    assert tree(tmp_path / "data") == FILES


# --- unpacking


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


BAD_MEMBERS = {
    "../evil": member("../evil", tarfile.REGTYPE),
    "flowers/../../evil": member("flowers/../../evil", tarfile.REGTYPE),
    "/tmp/gpupipe-evil": member("/tmp/gpupipe-evil", tarfile.REGTYPE),
    "flowers/link": member("flowers/link", tarfile.SYMTYPE, "/etc/passwd"),
    "flowers/hard": member("flowers/hard", tarfile.LNKTYPE, "flowers/rose/1.jpg"),
    "flowers/device": member("flowers/device", tarfile.CHRTYPE),
    "flowers/block": member("flowers/block", tarfile.BLKTYPE),
    "flowers/pipe": member("flowers/pipe", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("name", BAD_MEMBERS)
def test_a_member_that_is_no_file_inside_is_refused_by_name(
    server: Server, tmp_path: Path, name: str
) -> None:
    dataset = server.offer(tar_of(FILES, "w:gz", BAD_MEMBERS[name]))
    with pytest.raises(FetchError, match=f"refused: its member '{name}'"):
        fetch(dataset, tmp_path / "inner" / "flowers")
    assert tree(tmp_path) == {}
    assert list((tmp_path / "inner").iterdir()) == []
    assert not Path("/tmp/gpupipe-evil").exists()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(tar_of(FILES)[:-2000], id="cut off"),
        pytest.param(tar_of(FILES, "w:xz")[:-200], id="xz cut off"),
        pytest.param(tar_of(FILES, "w")[:-20000], id="plain cut off"),
        pytest.param(tar_of(FILES)[:60], id="cut off at once"),
        pytest.param(damaged(tar_of(FILES)), id="damaged"),
        pytest.param(damaged(tar_of(FILES, "w:xz")), id="xz damaged"),
        pytest.param(b"", id="empty file"),
        pytest.param(b"<html></html>", id="a page"),
        pytest.param(tar_of({}), id="no member"),
        pytest.param(tar_of({"a/1.jpg": b"", "b/1.jpg": b""}), id="two folders"),
        pytest.param(tar_of({"1.jpg": b"x"}), id="one file"),
    ],
)
def test_no_archive_with_one_folder_in_it(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "some.tar").write_bytes(data)
    with pytest.raises(FetchError, match=r"some\.tar: not an archive with one folder in it"):
        unpack(tmp_path / "some.tar", tmp_path / "root")
    assert [p.name for p in tmp_path.iterdir()] == ["some.tar"]


def test_an_archive_that_is_refused_does_not_stay_the_one_that_is_used(
    server: Server, tmp_path: Path
) -> None:
    with pytest.raises(FetchError):
        fetch(server.offer(tar_of({"1.jpg": b"x"})), tmp_path / "flowers")
    fetch(server.offer(tar_of(FILES)), tmp_path / "flowers")
    assert tree(tmp_path / "flowers") == WANTED


# --- present


@pytest.fixture
def offered(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, with "lfw" on it."""
    monkeypatch.setitem(dataset_catalog.DATASETS, "lfw", server.offer(tar_of(FILES)))
    return server


def test_a_root_that_is_there_is_used_as_it_is(offered: Server, tmp_path: Path) -> None:
    assert present(tmp_path, "lfw", 10) == DatasetLocation(tmp_path, "")
    assert offered.asked == 0
    assert absent(tmp_path, "lfw", 10) == ""


def test_present_fetches(offered: Server, tmp_path: Path) -> None:
    assert "fetches it, or makes 10 stand-in images" in absent(tmp_path / "lfw", "lfw", 10)
    assert present(tmp_path / "lfw", "lfw", 10) == DatasetLocation(tmp_path / "lfw", "")
    assert tree(tmp_path) == {f"lfw/{name}": data for name, data in WANTED.items()}
    assert absent(tmp_path / "lfw", "lfw", 10) == ""


def test_present_makes_a_stand_in_where_nothing_can_be_fetched(
    offered: Server, tmp_path: Path
) -> None:
    (offered.folder / "flowers.tar.gz").unlink()
    said: list[str] = []
    place = present(tmp_path / "lfw", "lfw", 3, lambda what, done, total: said.append(what))
    assert place == DatasetLocation(tmp_path / "lfw-stand-in-3", "stand-in data, not LFW")
    assert len(list(place.root.glob("*/*.jpg"))) == 3
    assert not (tmp_path / "lfw").exists(), "a stand-in is never taken for the data"
    assert any("HTTP 404" in s and "making a stand-in" in s for s in said), said
    assert offered.asked == 1
    assert present(tmp_path / "lfw", "lfw", 3) == place
    assert absent(tmp_path / "lfw", "lfw", 3) == ""
    assert offered.asked == 1, "no download is tried again"


def test_another_number_of_stand_ins_tries_the_network_again(
    offered: Server, tmp_path: Path
) -> None:
    (offered.folder / "flowers.tar.gz").unlink()
    present(tmp_path / "lfw", "lfw", 2)
    offered.offer(tar_of(FILES))
    assert present(tmp_path / "lfw", "lfw", 3) == DatasetLocation(tmp_path / "lfw", "")


def test_the_data_wins_over_a_stand_in(offered: Server, tmp_path: Path) -> None:
    (offered.folder / "flowers.tar.gz").unlink()
    present(tmp_path / "lfw", "lfw", 2)
    (tmp_path / "lfw").mkdir()
    assert present(tmp_path / "lfw", "lfw", 2) == DatasetLocation(tmp_path / "lfw", "")


def test_a_stand_in_used_as_root_says_so(offered: Server, tmp_path: Path) -> None:
    (offered.folder / "flowers.tar.gz").unlink()
    made = present(tmp_path / "lfw", "lfw", 2).root
    assert present(made, None, None) == DatasetLocation(made, "stand-in data, not LFW")


def test_without_a_stand_in_the_failure_is_the_answer(offered: Server, tmp_path: Path) -> None:
    (offered.folder / "flowers.tar.gz").unlink()
    with pytest.raises(FetchError, match="HTTP 404"):
        present(tmp_path / "lfw", "lfw", None)
    assert list(tmp_path.iterdir()) == []


def test_nothing_there_and_nothing_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path / 'mine'}: no such folder.*data.root"):
        present(tmp_path / "mine", None, 10)
    assert list(tmp_path.iterdir()) == []


def test_a_stand_in_that_cannot_be_written(offered: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="lfw-stand-in-2 cannot be written: Not a directory"):
        present(tmp_path / "file" / "lfw", "lfw", 2)


PRESENT = """
import sys
from pathlib import Path
from gpupipe.fetch import dataset_catalog as datasets
datasets.DATASETS["lfw"] = datasets.Dataset("lfw", "", sys.argv[1], "0" * 64)
print(datasets.present(Path(sys.argv[2]), "lfw", 60))
"""


def test_processes_that_need_a_stand_in_at_once_make_one(server: Server, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", PRESENT, server.url("nowhere.tar"), str(tmp_path / "lfw")]
    processes = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = {p.communicate(timeout=60) for p in processes}
    assert outputs == {
        (f"{DatasetLocation(tmp_path / 'lfw-stand-in-60', 'stand-in data, not LFW')}\n", "")
    }
    assert server.asked == 1
    assert [p.name for p in tmp_path.iterdir()] == ["lfw-stand-in-60"]
    assert len(list(tmp_path.glob("*/*/*.jpg"))) == 60


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert dataset_catalog.known("lfw") == "lfw"
    with pytest.raises(ValueError, match="unknown data set 'lwf'; did you mean 'lfw'"):
        dataset_catalog.known("lwf")
