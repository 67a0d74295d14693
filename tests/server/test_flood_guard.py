from __future__ import annotations

import os
from pathlib import Path
from socket import create_connection, create_server

from gpupipe.server import flood_guard


def test_a_connection_whose_number_is_another_files_by_now_is_let_alone(tmp_path: Path) -> None:
    """Also without leaving a copy of that file open."""
    file = (tmp_path / "file").open("wb")
    before = len(os.listdir("/proc/self/fd"))
    assert flood_guard._peer_and_bytes(file.fileno()) is None
    flood_guard._shut_down(file.fileno())
    assert len(os.listdir("/proc/self/fd")) == before
    file.close()
    assert flood_guard._peer_and_bytes(10_000) is None
    with (
        create_server(("127.0.0.1", 0)) as listening,
        create_connection(listening.getsockname()) as one,
    ):
        other, _ = listening.accept()
        other.sendall(b"x" * 1000)
        assert one.recv(2000)
        assert flood_guard._peer_and_bytes(one.fileno()) == (listening.getsockname(), 1000)
        flood_guard._shut_down(one.fileno())
        assert other.recv(1) == b"", "the other side is told"
        other.close()
