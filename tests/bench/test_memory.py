"""Peak memory: what processes share counts once, what went by counts, and who measures is in
nobody's way.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpupipe.bench import memory, tables
from gpupipe.bench.compare import compare
from gpupipe.bench.comparison import Contestant
from gpupipe.bench.contestant import Contest
from gpupipe.bench.measure import Measurement
from gpupipe.bench.memory import OWN_PEAKS, PSS, PeakMemory
from helpers import forked_python

MIB = 2**20
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(),
    reason="this system does not tell the PSS of a process",
)


def python(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


SHARED = """
import multiprocessing, mmap, os
from gpupipe.bench import memory

def child(blocks, here, leave):
    own = bytearray(os.urandom(1)) * (30 << 20)
    sum(len(block) + block[0] for block in blocks)
    for block in blocks:
        block.count(b"x")
    here.release()
    leave.wait()

blocks = [bytes(os.urandom(1)) * (150 << 20)]
with memory.PeakMemory() as found:
    context = multiprocessing.get_context("fork")
    here, leave = context.Semaphore(0), context.Event()
    children = [context.Process(target=child, args=(blocks, here, leave)) for _ in range(4)]
    for process in children:
        process.start()
    for _ in children:
        here.acquire()
    print(memory._own_peaks() >> 20)
    found.stop()
    leave.set()
    for process in children:
        process.join()
print(found.bytes >> 20, found.kind)
"""


def test_what_forked_workers_share_counts_once_and_what_is_theirs_for_each() -> None:
    added_up, whole, kind = python(SHARED)
    assert kind == PSS
    assert int(added_up) > 5 * 150
    assert 150 + 4 * 30 <= int(whole) < 150 + 4 * 30 + 100


def test_a_process_that_a_worker_started_counts() -> None:
    child = "import sys; block = b'x' * (120 << 20); print(1, flush=True); sys.stdin.read()"
    between = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with (
        PeakMemory() as found,
        subprocess.Popen(
            [sys.executable, "-c", between], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout
        process.stdout.readline()
        before = memory.pss(os.getpid())
        found.stop()
        process.communicate()
    assert found.bytes > before > 120 * MIB


def switches(pid: int) -> int:
    """How often a process has waited."""
    return int(
        next(
            line
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("voluntary")
        ).split()[1]
    )


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_peak_that_went_by_counts(when: str) -> None:
    held = b"x" * (200 * MIB) if when == "before" else b""
    with PeakMemory() as found:
        if when == "between":
            held, seen = b"x" * (200 * MIB), switches(found._process.pid)
            wait_for(lambda: switches(found._process.pid) >= seen + 2)
        del held
        held = b"x" * (200 * MIB) if when == "after" else b""
    assert found.bytes > 200 * MIB
    assert len(held) in (0, 200 * MIB)


KILLED = """
import os, time
from gpupipe.bench.memory import PeakMemory
found = PeakMemory().__enter__()
worker = os.fork()
if not worker:
    time.sleep(600)
print(found._process.pid, worker, flush=True)
input()
"""


def test_it_ends_with_the_process_that_it_looks_at() -> None:
    """Also where a forked worker, which holds the same pipes, lives on."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        sampler, worker = map(int, process.stdout.readline().split())
        assert Path(f"/proc/{sampler}").exists()
        process.kill()
        process.wait()
        wait_for(
            lambda: (
                not Path(f"/proc/{sampler}").exists()
                or ") Z" in Path(f"/proc/{sampler}/stat").read_text()
            )
        )
        os.kill(worker, signal.SIGKILL)


def test_ctrl_c_in_a_terminal_leaves_the_memory_known(faces: Path) -> None:
    """A terminal sends it to all processes of the group."""
    script = (
        "import os, runpy; os.setsid(); "
        "runpy.run_module('gpupipe', run_name='__main__', alter_sys=True)"
    )
    data = f"data={{source: folder, root: {faces}}}"
    words = ["run", "lfw", data, "device=cpu", "batch_size=16", "--epochs", "100000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for seconds in (1, 10, 60):  # anywhere in the measuring, which load beside it delays
        with forked_python.Process(["-c", script, *words], **pipes) as process:
            try:
                assert process.stdout
                assert process.stderr
                process.stdout.readline()
                time.sleep(seconds)
                os.killpg(process.pid, signal.SIGINT)
                out, err = process.stdout.read(), process.stderr.read()
                process.wait(60)
            finally:
                process.kill()
        assert process.returncode == 130
        assert "Traceback" not in err
        if "time to first batch" in out:
            break
    row = next(line for line in out.splitlines() if "peak memory" in line)
    assert int(row.split()[2].replace(",", "")) > 100
    assert "added up" not in row


# --- where there is no PSS


@pytest.fixture
def without_pss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_ROLLUP", "/nowhere/{}")


@pytest.mark.usefixtures("without_pss")
def test_without_pss_peaks_are_added_up_and_said_to_be() -> None:
    with PeakMemory() as found:
        pass
    assert found.kind == OWN_PEAKS
    assert found.bytes > 20 * MIB
    rows = dict(
        tables.measurement_rows(
            Measurement(0.1, peak_memory=found.bytes, peak_memory_kind=found.kind)
        )
    )
    assert "each process's own peak, added up" in rows["peak memory"]
    rows = dict(
        tables.measurement_rows(Measurement(0.1, peak_memory=found.bytes, peak_memory_kind=PSS))
    )
    assert rows["peak memory"].endswith(" MiB")


def test_a_comparison_without_pss_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.made_comparison import outcome

    def run_contest(contestant: Contestant, contest: Contest) -> Any:
        found = outcome(100.0)
        found.peak_memory_kind = OWN_PEAKS
        return found

    monkeypatch.setattr("gpupipe.bench.compare.run_contest", run_contest)
    comparison = compare(
        [Contestant("a", {}), Contestant("b", {})],
        Contest("lfw", (), {}, (0,), 1, 1, False),
        1,
        lambda what, done, total: None,
    )
    assert any(
        "peak memory is each process's own peak, added up" in note for note in comparison.notes
    )
