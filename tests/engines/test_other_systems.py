"""What runs where neither Linux's own calls, nor DALI, nor the extensions are: as on macOS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import builtins, os, select, sys

opened = builtins.open

def open_(file, *args, **kwargs):
    if isinstance(file, str | os.PathLike) and str(file).startswith(("/proc", "/sys", "/dev/shm")):
        raise FileNotFoundError(str(file))
    return opened(file, *args, **kwargs)

class WithoutDali:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "nvidia":
            raise ModuleNotFoundError(name)

builtins.open = open_
sys.meta_path.insert(0, WithoutDali())
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "eventfd", "pidfd_open"):
    delattr(os, name)
del select.epoll

import gpupipe

config = {
    "data": {"source": "folder", "root": sys.argv[1]},
    "pipeline": ["decode", {"random_affine": {"degrees": 20}}],
}
for engine in ("cpu", "dataloader"):
    with gpupipe.load(config, engine=engine, workers=0, threads=2) as loader:
        print(sum(int(batch["image"].sum()) for batch in loader))
"""


def test_the_engines_that_need_no_dali_run_without_what_linux_alone_has(faces: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(faces)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "GPUPIPE_KERNELS": "off"},
    )
    assert done.returncode == 0, done.stderr
    total, other = map(int, done.stdout.split())
    assert abs(total / other - 1) < 1e-4
