from __future__ import annotations

import fcntl
import multiprocessing
import os
import select
import signal
import time
from pathlib import Path
from socket import AF_UNIX, create_connection, create_server, socket

import pytest

from gpupipe.runtime import forked_children
from helpers.forks import in_fork


def test_a_forked_child_closes_what_its_parent_alone_may_hold(tmp_path: Path) -> None:
    """And nothing else; the parent keeps it."""
    lock, other = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("lock", "other"))
    fcntl.flock(lock, fcntl.LOCK_EX)
    file = str(tmp_path / "socket")
    with (
        create_server(("127.0.0.1", 0)) as listening,
        create_server(("127.0.0.1", 0)) as unrelated,
        create_connection(listening.getsockname()) as client,
        socket(AF_UNIX) as local,
    ):
        local.bind(file)
        accepted, _ = listening.accept()
        port = listening.getsockname()[1]
        forked_children.close_in_forks(lock)
        forked_children.close_sockets_in_forks(port)
        forked_children.close_sockets_in_forks(file)
        everything = [s.fileno() for s in (listening, accepted, local, unrelated, client)]
        before = {n: _link(n) for n in [*everything, lock, other]}
        try:
            kept = in_fork(lambda: [n for n, link in before.items() if _link(n) == link])
        finally:
            forked_children.keep_in_forks(lock)
            forked_children.keep_sockets_in_forks(port)
            forked_children.keep_sockets_in_forks(file)
        assert kept == str([unrelated.fileno(), client.fileno(), other])
        accepted.sendall(b"x")
        assert client.recv(1) == b"x"
        accepted.close()
        assert in_fork(lambda: _link(lock)) == before[lock], "no longer"
    os.close(lock)
    os.close(other)


def _link(descriptor: int) -> str:
    """What a descriptor refers to in this process, "" for nothing."""
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""


def _run_worker(file: Path) -> None:
    forked_children.end_with_parent(lambda: file.write_text("told"))
    file.with_suffix(".pid").write_text(f"{os.getpid()}\n")
    signal.pause()


def _run_parent(start: str, file: Path) -> None:
    """Start workers and wait: the later one has copies of what the earlier ones have."""
    context = multiprocessing.get_context(start)
    for name in ("one", "two"):
        context.Process(target=_run_worker, args=(file / name,)).start()
    signal.pause()


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_a_worker_ends_with_its_parent(tmp_path: Path, start: str) -> None:
    # A fork has a copy of the fork server that an earlier test started, and may not wait for it.
    of_parent = "spawn" if start == "forkserver" else "fork"
    parent = multiprocessing.get_context(of_parent).Process(
        target=_run_parent, args=(start, tmp_path)
    )
    parent.start()
    workers = [os.pidfd_open(_read_pid(tmp_path / f"{name}.pid")) for name in ("one", "two")]
    assert not select.select(workers, [], [], 0.1)[0], "they live as long as their parent"
    parent.kill()
    parent.join()
    for worker in workers:
        assert select.select([worker], [], [], 60)[0], "it lives on"
        os.close(worker)
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["told", "told"]


def _read_pid(file: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if file.exists() and (text := file.read_text()).endswith("\n"):
            return int(text)
        time.sleep(0.01)
    raise AssertionError("the worker does not start")
