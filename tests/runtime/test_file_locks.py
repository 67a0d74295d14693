"""Locks of files: one holder at a time, who waits, and what a forked child keeps."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpupipe.runtime.file_locks import hold_lock, is_locked, share_lock, try_lock

COUNT = """
import sys; from pathlib import Path; from gpupipe.runtime.file_locks import hold_lock
for _ in range(200):
    with hold_lock(Path(sys.argv[1])):
        file = Path(sys.argv[2]); file.write_text(str(int(file.read_text()) + 1))
"""


def test_a_lock_ends_though_a_forked_child_has_the_file(tmp_path: Path) -> None:
    with hold_lock(tmp_path / "lock"):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        assert not is_locked(tmp_path / "lock")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", COUNT, str(tmp_path / "lock"), str(tmp_path / "count")]
        )
        for _ in range(3)
    ]
    assert [w.wait() for w in workers] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "600"
    with hold_lock(tmp_path / "lock"):
        pass


def test_who_waits_says_so_once(tmp_path: Path) -> None:
    waits: list[str] = []
    with hold_lock(tmp_path / "lock", lambda: waits.append("free")):
        assert is_locked(tmp_path / "lock")
        assert not waits
    with (tmp_path / "lock").open("r+b") as holder:
        assert try_lock(holder.fileno())

        def release() -> None:
            waits.append("held")
            holder.close()

        with hold_lock(tmp_path / "lock", release):
            assert waits == ["held"]
    assert not is_locked(tmp_path / "lock")


def test_a_file_that_does_not_exist_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")
    assert not (tmp_path / "lock").exists()


def test_readers_share_a_lock_that_a_writer_then_cannot_have(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as first, (tmp_path / "lock").open() as second:
        share_lock(first.fileno())
        share_lock(second.fileno())
        assert is_locked(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")
