"""Claims between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from gpupipe.cache.claims import Claim, is_abandoned
from gpupipe.runtime.files import read_json_object
from helpers.forked_python import Process

HOLD = """
import sys; from pathlib import Path; from gpupipe.cache.claims import Claim
claim = Claim(Path(sys.argv[1]), {'a': 1}); print('held', flush=True); sys.stdin.read()
"""


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    pipe = subprocess.PIPE
    with Process(["-c", HOLD, path], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout
        holder.stdout.readline()
        assert not is_abandoned(path)
        assert read_json_object(path) == {"a": 1}
        holder.send_signal(signal.SIGKILL)
    assert path.exists()
    assert is_abandoned(path)


def test_a_claim_that_is_released_or_collected_is_gone(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {})
    assert not is_abandoned(tmp_path / "a")
    claim.release()
    claim.release()
    claim.write({"late": 1})
    assert not (tmp_path / "a").exists()
    assert read_json_object(tmp_path / "a") == {}
    Claim(tmp_path / "b", {})
    assert not (tmp_path / "b").exists()


def test_a_forked_child_does_not_take_the_claim_with_it(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {"n": 1})
    child = os.fork()
    if child == 0:
        claim.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert read_json_object(tmp_path / "a") == {"n": 1}
    assert not is_abandoned(tmp_path / "a")
    claim.release()


def test_writing_in_place_never_shortens_the_file(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {"long": "x" * 5000})
    size = (tmp_path / "a").stat().st_size
    claim.write({"short": 1})
    assert (tmp_path / "a").stat().st_size == size == 8192
    assert read_json_object(tmp_path / "a") == {"short": 1}
    claim.release()
