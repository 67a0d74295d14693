"""What runs where Linux's own calls, DALI and the extensions are missing: as on macOS and Windows.

A child takes away what these systems lack. `.ci/windows` runs Windows' own Python.
"""

import json
import os
from pathlib import Path

import pytest

from helpers import forked_python

# Torch, NumPy and Python's own modules ask at import what the system has, and stay as on Linux.
PROGRAM = """
import builtins, json, os, select, signal, socket, sys, time
import fcntl, multiprocessing.connection, subprocess, torch, torchvision.transforms.v2

system, folder, config = sys.argv[1], sys.argv[2], sys.argv[3]
opened, flock = builtins.open, fcntl.flock
missing = {"nvidia"}

def open_(file, *args, **kwargs):
    if isinstance(file, str | os.PathLike) and str(file).startswith(("/proc", "/sys", "/dev/shm")):
        raise FileNotFoundError(str(file))
    return opened(file, *args, **kwargs)

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(name)

class Msvcrt:
    LK_NBLCK, LK_UNLCK = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN

    @staticmethod
    def locking(file, mode, count):
        assert count == 1 and os.lseek(file, 0, os.SEEK_CUR) >= 1 << 30
        try:
            flock(file, mode)
        except BlockingIOError as e:
            raise PermissionError(*e.args)

def without(module, *names):
    for name in names:
        delattr(module, name)

builtins.open = open_
sys.meta_path.insert(0, Without())
without(os, "sched_getaffinity", "sched_setaffinity", "memfd_create", "eventfd", "pidfd_open")
without(os, "pipe2")
without(select, "epoll")
if system == "windows":
    posix = ("fcntl", "grp", "pwd", "readline", "resource", "termios", "tty")
    missing.update(posix)
    for name in posix:
        sys.modules.pop(name, None)
    sys.modules["msvcrt"] = Msvcrt
    without(os, *(name for name in dir(os) if name.startswith(("sched_", "O_NO", "O_DIR"))))
    without(os, "fork", "forkpty", "fchmod", "getuid", "geteuid", "getgid", "killpg", "mkfifo")
    without(os, "pread", "pwrite", "preadv", "readv", "writev", "posix_fadvise", "register_at_fork")
    without(os, "statvfs", "sysconf", "uname", "O_CLOEXEC")
    without(select, "poll")
    without(signal, "SIGKILL", "SIGCHLD", "SIGALRM", "SIGUSR1", "SIGXCPU", "setitimer")
    without(socket, "AF_UNIX")

import gpupipe
from gpupipe.runtime.file_locks import hold_lock, is_locked
from pathlib import Path

totals = []
for engine in ("cpu", "dataloader"):
    with gpupipe.load(json.loads(config), engine=engine, workers=0, threads=2) as loader:
        totals.append(sum(int(batch["image"].sum()) for batch in loader))
lock = Path(folder, "lock")
with hold_lock(lock):
    held = is_locked(lock)
refused = {}
changes = {
    "decoded cache": {"data.cache_decoded": {"where": "disk", "max_bytes": "1GB"}},
    "processes": {"pipeline": ["decode", {"python": {"call": "math:sqrt", "workers": 2}}]},
    "server": {"loader.engine": "remote", "loader.server": "tcp://127.0.0.1:5557"},
}
for name, change in changes.items():
    try:
        if system == "windows":
            gpupipe.load(json.loads(config), **change).close()
    except gpupipe.GpupipeError as e:
        refused[name] = str(e)
print(json.dumps([totals, held, is_locked(lock), refused]))
"""


@pytest.mark.parametrize("system", ["macos", "windows"])
def test_the_engines_that_need_no_dali_run_without_what_linux_alone_has(
    system: str, faces: Path, tmp_path: Path
) -> None:
    config = {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": ["decode", {"random_affine": {"degrees": 20}}],
    }
    done = forked_python.run(
        ["-c", PROGRAM, system, str(tmp_path), json.dumps(config)],
        has_torch_alone=True,
        timeout=120,
        env={**os.environ, "GPUPIPE_KERNELS": "off", "GPUPIPE_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    (total, other), held, after, refused = json.loads(done.stdout.splitlines()[-1])
    assert abs(total / other - 1) < 1e-4
    assert (held, after) == (True, False)
    if system == "windows":
        assert sorted(refused) == ["decoded cache", "processes", "server"]
        assert all("needs Linux or macOS" in reason for reason in refused.values()), refused
