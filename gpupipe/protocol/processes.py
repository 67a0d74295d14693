"""Identifies processes, so that server and client detect that the other process has ended."""

from __future__ import annotations

import os
from pathlib import Path


def host_id() -> str:
    """Return a name for the running kernel, process namespace and user of this process.

    Two processes with the same name can share memory, and each can detect that the other has ended.
    Returns "" if the system has no such files in /proc.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.geteuid()}"
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """Return the start time of a process on this machine, in clock ticks since boot, as text.

    The process id and the start time together identify a process. Returns "" if it has ended.
    """
    fields = read_stat(pid)
    return "" if not fields or fields[0] in "ZX" else fields[19]


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the process name, or [] if the process has ended.

    Index 0 is the process state, which is field 3 in the man page proc_pid_stat(5).
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
