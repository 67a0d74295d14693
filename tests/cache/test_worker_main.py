"""What a download worker runs: a listing before the task, and the end with its parent."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpupipe.cache import listing
from gpupipe.cache.cache_folder import prepare_folder
from gpupipe.cache.downloader import Task
from gpupipe.cache.settings import CacheOptions, DataSet
from helpers.cached_loading import alive, waited
from helpers.faulty_store import serve

COMMAND = [sys.executable, "-m", "gpupipe.cache.worker_main"]  # no fork, which has another parent
HOLDER = """
import gc, os, sys, weakref
from gpupipe.cache import downloader, early_listing, worker_main

class Lines:
    def __init__(self):
        self.lines = [sys.stdin.buffer.readline() for _ in range(2)]
    def get(self):
        if not self.lines:
            gc.collect()
            print("held" if listing() is not None else "dropped", flush=True)
            os._exit(0)
        return self.lines.pop(0)

def list_early(data, parts):
    global listing
    early = found(data, parts)
    listing = weakref.ref(early.outcome)
    return early

found, early_listing.list_early = early_listing.list_early, list_early
worker_main.SimpleQueue = Lines
worker_main.threading.Thread.start = lambda thread: None
worker_main.main([])
"""
"""Tells whether a worker holds the listing that came early when it waits for its second task."""
PARENT = """
import os, subprocess, sys
pipe = subprocess.PIPE
lister = subprocess.Popen(sys.argv[1:], stdin=pipe, stdout=pipe)
lister.stdin.write(b"\\n" + sys.stdin.buffer.readline())
lister.stdin.flush()
assert lister.stdout.readline() == b"{}\\n"
if fork := os.fork():
    print(lister.pid, fork, flush=True)
sys.stdin.read()
"""
"""Starts a process that lists, and a fork that holds the pipe to it open."""


def write_task(tmp_path: Path, url: str) -> tuple[str, Task]:
    options = CacheOptions(dir=tmp_path / "cache", max_bytes="4MB", shard_size="100kB")
    data = DataSet(url=url)
    prepare_folder(options, data)
    task = Task(do="list", dataset=data, cache=options)
    return task.model_dump_json(exclude_unset=True) + "\n", task


def test_an_idle_lister_ends_with_its_parent_though_a_fork_holds_its_pipe(
    blobs: Path, tmp_path: Path
) -> None:
    line, _ = write_task(tmp_path, f"file://{blobs}")
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PARENT, *COMMAND]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdin and parent.stdout
        parent.stdin.write(line)
        parent.stdin.flush()
        lister, fork = map(int, parent.stdout.readline().split())
        assert alive(lister)
        parent.kill()
        parent.wait()
        waited(lambda: not alive(lister))
        assert alive(fork)
        os.kill(fork, signal.SIGKILL)


def test_the_task_takes_an_early_listing_of_its_own_data_set_alone(
    blobs: Path, tmp_path: Path
) -> None:
    cache = {"dir": str(tmp_path / "cache"), "max_bytes": "4MB", "shard_size": "100kB"}
    with serve(blobs) as (url, faults):
        for expected_url, lists in ((url, 1), (f"{url}/class1", 2)):
            line, task = write_task(tmp_path, url)
            faults.asked.clear()
            expected = json.dumps({"url": expected_url, "cache": cache})
            with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
                assert worker.stdin and worker.stdout
                worker.stdin.write(f"{expected}\n{line}".encode())
                worker.stdin.flush()
                assert worker.stdout.readline() == b"{}\n"
                worker.stdin.close()
            folder = prepare_folder(task.cache, task.dataset)
            assert len(listing.load(folder)) == 40
            assert faults.asked.count("/class1/") == lists
            folder.listing_path.unlink()


@pytest.mark.parametrize("is_listed", [False, True])
def test_an_early_listing_is_held_no_longer_than_the_first_task(
    blobs: Path, tmp_path: Path, is_listed: bool
) -> None:
    line, task = write_task(tmp_path, f"file://{blobs}")
    cache = {"dir": str(task.cache.dir), "max_bytes": "4MB", "shard_size": "100kB"}
    early = json.dumps({"url": f"file://{blobs}", "cache": cache})
    program = HOLDER
    if is_listed:  # by another process, after it was listed early
        saving = "    downloader.list_rows(downloader.CacheFolder(early.cache), early)\n"
        program = program.replace("    return early\n", f"{saving}    return early\n")
    command = [sys.executable, "-c", program]
    result = subprocess.run(
        command, input=f"{early}\n{line}", capture_output=True, text=True, check=True
    )
    assert result.stdout == "{}\ndropped\n"
