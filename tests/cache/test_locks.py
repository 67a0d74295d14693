"""Claims and locks between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpupipe.cache.locks import Claim, abandoned, content, exclusive

HOLD = """
import sys; from pathlib import Path; from gpupipe.cache.locks import Claim
claim = Claim(Path(sys.argv[1]), {'a': 1}); print('held', flush=True); sys.stdin.read()
"""
COUNT = """
import sys; from pathlib import Path; from gpupipe.cache.locks import exclusive
for _ in range(200):
    with exclusive(Path(sys.argv[1])):
        file = Path(sys.argv[2]); file.write_text(str(int(file.read_text()) + 1))
"""


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin and holder.stdout
    holder.stdout.readline()
    assert not abandoned(path)
    assert content(path) == {"a": 1}
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    assert path.exists()
    assert abandoned(path)


def test_a_claim_that_is_released_or_collected_is_gone(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {})
    assert not abandoned(tmp_path / "a")
    claim.release()
    claim.release()
    claim.write({"late": 1})
    assert not (tmp_path / "a").exists()
    assert content(tmp_path / "a") == {}
    Claim(tmp_path / "b", {})
    assert not (tmp_path / "b").exists()


def test_a_forked_child_does_not_take_the_claim_with_it(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {"n": 1})
    child = os.fork()
    if child == 0:
        claim.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert content(tmp_path / "a") == {"n": 1}
    assert not abandoned(tmp_path / "a")
    claim.release()


def test_a_lock_ends_though_a_forked_child_has_the_file(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock"):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        assert abandoned(tmp_path / "lock")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_writing_in_place_never_shortens_the_file(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {"long": "x" * 5000})
    size = (tmp_path / "a").stat().st_size
    claim.write({"short": 1})
    assert (tmp_path / "a").stat().st_size == size == 8192
    assert content(tmp_path / "a") == {"short": 1}
    claim.release()


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
    with exclusive(tmp_path / "lock"):
        pass
