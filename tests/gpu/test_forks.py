"""A GPU behind a fork."""

import subprocess
import sys
from pathlib import Path

import gpupipe
from helpers.forks import in_fork, said_by


def test_a_gpu_is_refused_behind_a_fork(faces: Path) -> None:
    config = {
        "data": {"source": "folder", "root": faces},
        "pipeline": ["decode"],
        "loader": {"device": "gpu", "batch_size": 4},
    }
    with gpupipe.load(config) as loader:
        next(iter(loader))
        assert "CUDA was in use before this process was forked" in in_fork(
            lambda: said_by(lambda: gpupipe.load(config))
        )


FORKS = """
import os
from gpupipe.runtime.devices import gpu_count, resolve
assert gpu_count() and resolve("auto") == 0
child = os.fork()
if not child:
    try:
        import torch
        assert torch.ones(3, device="cuda").sum().item() == 3
        os._exit(0)
    finally:
        os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_after_the_question_for_gpus_can_use_one() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0", done.stderr
