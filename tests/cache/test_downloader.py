"""The process that lists a data set, and then waits."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpupipe import config as configs
from gpupipe.cache.cache_folder import prepare_folder
from gpupipe.cache.downloader import Task
from gpupipe.cache.settings import CacheOptions, DataSet
from helpers.cached_loading import alive, waited

PYTHON = sys.executable  # of which no fork is made: a fork has another parent
PARENT = """
import os, subprocess, sys
pipe = subprocess.PIPE
command = [sys.executable, "-m", "gpupipe.cache.worker_process"]
lister = subprocess.Popen(command, stdin=pipe, stdout=pipe)
lister.stdin.write(sys.stdin.buffer.readline())
lister.stdin.flush()
assert lister.stdout.readline() == b"{}\\n"
if fork := os.fork():
    print(lister.pid, fork, flush=True)
sys.stdin.read()
"""
"""Starts a process that lists, and a fork that holds the pipe to it open."""


@pytest.mark.parametrize("has_versions", [True, False])
def test_a_listing_without_versions_says_so_once(
    web: tuple[str, Any], config: Any, capfd: pytest.CaptureFixture[str], has_versions: bool
) -> None:
    url, faults = web
    if not has_versions:
        faults.headers |= {"ETag": "", "Last-Modified": ""}
    source = configs.read(config(url=url)).source
    for _ in range(2):
        assert len(source.index()) == 40
    said = f"gpupipe cache: {url}: 40 of 40 files were listed without a version (ETag, MD5, time"
    assert capfd.readouterr().err.count(said) == (0 if has_versions else 1)


def test_an_idle_lister_ends_with_its_parent_though_a_fork_holds_its_pipe(
    blobs: Path, tmp_path: Path
) -> None:
    options = CacheOptions(dir=tmp_path / "cache", max_bytes="4MB", shard_size="100kB")
    data = DataSet(url=f"file://{blobs}")
    prepare_folder(options, data)
    task = Task(do="list", dataset=data, cache=options)
    pipe = subprocess.PIPE
    with subprocess.Popen([PYTHON, "-c", PARENT], stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdin and parent.stdout
        parent.stdin.write(task.model_dump_json(exclude_unset=True) + "\n")
        parent.stdin.flush()
        lister, fork = map(int, parent.stdout.readline().split())
        assert alive(lister)
        parent.kill()
        parent.wait()
        waited(lambda: not alive(lister))
        assert alive(fork)
        os.kill(fork, signal.SIGKILL)
